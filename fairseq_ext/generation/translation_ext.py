"""The task ``translation_ext``: ``translation`` with further options for its data and search.

It has nine more options than ``translation``:

- The Linformer paper cuts long targets as ``--truncate-source`` cuts sources, puts a start symbol
  on every source, and draws training batches at random instead of by length.
- The BMT paper needs epsilon sampling for minimum Bayes risk decoding, and GNMT's length penalty
  for beam search.
- Models of many languages need symbols that name the languages, around sources and targets.

fairseq-interactive and hub models also cut sources and add the start symbol. With ``translation``,
they ignore ``--truncate-source``.
"""

from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq import data
from fairseq.models import FairseqModel
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor

from fairseq_ext.base.configuration import option
from fairseq_ext.generation import generators
from fairseq_ext.generation.option_checks import check_gnmt_lenpen, check_sampling
from fairseq_ext.utils.errors import ConfigError, wrong_value
from fairseq_ext.utils.option_fields import flag


@dataclass
class TranslationExtConfig(TranslationConfig):
    """The options of ``translation``, and nine more for data, language symbols and search."""

    truncate_target: bool = option(
        False,
        "cut targets to --max-target-positions tokens, </s> included, in every split, "
        "like --truncate-source; by default, training leaves longer sentences out. References "
        "that fairseq-generate prints are cut too",
    )
    source_bos: bool = option(
        False,
        "begin every source with <s>, which counts within --max-source-positions and "
        "is position 0 in --print-alignment. A model trained with it always needs it",
    )
    random_batches: bool = option(
        False,
        "draw the training batches at random in every epoch, instead of from sentences "
        "of about equal length; each batch is padded to its longest sentence. Without "
        "--max-tokens, all batches of an epoch but one have exactly --batch-size sentences",
    )
    source_prefix: str = option(
        "",
        "symbol of the dictionary that precedes every source, such as the language token __en__ of "
        "multilingual models",
    )
    source_suffix: str = option("", "symbol of the dictionary that follows the </s> of a source")
    target_prefix: str = option(
        "",
        "symbol of the dictionary that begins every target, after the start symbol; "
        "generation forces it, and removes it from translations",
    )
    target_suffix: str = option(
        "",
        "symbol of the dictionary that follows the </s> of a target; it ends "
        "translations and is also their start symbol, as in mBART",
    )
    epsilon_sampling: float = option(
        0.0,
        "when generating with --sampling, draw only among tokens whose probability (after "
        "--temperature) is at least this number; if there is no such token, take the most probable "
        "token; 0: off",
    )
    gnmt_lenpen: float = option(
        0.0,
        "when generating, divide scores by GNMT's ((5 + length) / 6) ** X, length in "
        "tokens with </s>, instead of --lenpen's length ** X; 0: off",
    )


class CutDataset(data.TruncateDataset):
    """A dataset of sentences cut to ``truncation_length`` symbols; the last symbol is always kept.

    Its ``sizes`` are exact. fairseq's datasets for ``--truncate-source`` count one symbol too many
    in each sentence that is not cut.
    """

    def __getitem__(self, index: int) -> Tensor:
        item = self.dataset[index]  # [T], ends in </s>
        if len(item) <= self.truncation_length:
            return item
        return torch.cat([item[: self.truncation_length - 1], item[-1:]])


class RandomPairDataset(data.LanguagePairDataset):
    """A dataset of sentence pairs in random order, with a new order in every epoch.

    fairseq seeds numpy with ``--seed`` plus the epoch's number before it asks for the order. So a
    training that resumes within an epoch gets the batches of this epoch again.
    """

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        return False

    def ordered_indices(self) -> np.ndarray:
        return np.random.permutation(len(self))

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        """Divide ``indices`` into batches, in their order; return each batch's indices.

        If ``max_tokens`` is None, ignore ``required_batch_size_multiple``: each batch but the last
        has exactly ``max_sentences`` pairs.
        """
        multiple = 1 if max_tokens is None else required_batch_size_multiple
        return super().batch_by_size(indices, max_tokens, max_sentences, multiple)


@register_task("translation_ext", dataclass=TranslationExtConfig)
class TranslationExtTask(TranslationTask):
    """fairseq's ``translation`` with more options for its data, language symbols and search."""

    cfg: TranslationExtConfig

    def __init__(
        self, cfg: TranslationExtConfig, src_dict: data.Dictionary, tgt_dict: data.Dictionary
    ) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        check_options(cfg)
        numbers: dict[str, int] = {}
        for name in Affixes._fields:
            words, symbol = src_dict if name.startswith("source") else tgt_dict, getattr(cfg, name)
            if symbol and symbol not in words.indices:
                raise ConfigError(f"`{flag(name)}` is `{symbol}`, which is not in the dictionary.")
            if symbol:
                numbers[name] = words.indices[symbol]
        self.affixes = Affixes(**numbers)

    def load_dataset(self, split: str, *rest: Any, **options: Any) -> None:
        """Load a split as ``translation`` does, then cut its sentences and add symbols to them.

        With ``--random-batches``, the training split becomes a :class:`RandomPairDataset`.
        """
        stock = copy(self.cfg)
        stock.truncate_source, stock.num_batch_buckets = False, 0
        loader = TranslationTask(stock, self.src_dict, self.tgt_dict)
        loader.load_dataset(split, *rest, **options)
        pairs = loader.dataset(split)

        source, target = self.prepare_source(pairs.src), pairs.tgt
        if target is not None and self.cfg.truncate_target:
            target = CutDataset(target, self.cfg.max_target_positions - len(self.affixes.target))
        target = None if target is None else self.prepare_target(target)
        random = self.cfg.random_batches and split == self.cfg.train_subset
        self.datasets[split] = (RandomPairDataset if random else data.LanguagePairDataset)(
            source,
            source.sizes,
            self.src_dict,
            target,
            None if target is None else target.sizes,
            self.tgt_dict,
            left_pad_source=pairs.left_pad_source,
            left_pad_target=pairs.left_pad_target,
            shuffle=pairs.shuffle,
            align_dataset=pairs.align_dataset,
            eos=self.affixes.target_suffix,
            num_buckets=self.cfg.num_batch_buckets,
            pad_to_multiple=pairs.pad_to_multiple,
        )

    def build_dataset_for_inference(
        self, src_tokens: list[Tensor], src_lengths: Any, constraints: Tensor | None = None
    ) -> data.LanguagePairDataset:
        """Truncate sentences and add language symbols as in training.

        fairseq-interactive and hub models call this.
        """
        source = self.prepare_source(data.ListDataset(src_tokens, np.asarray(src_lengths)))
        return super().build_dataset_for_inference(source, source.sizes, constraints=constraints)

    def build_generator(self, models: list[FairseqModel], args: Any, **options: Any) -> Any:
        """Build fairseq's generator, and adapt it to this task's options.

        With ``--epsilon-sampling``, the generator's search is ``EpsilonSampling``. Translations end
        with the symbol of ``--target-suffix``. The symbols of ``--target-prefix`` and
        ``--target-suffix`` are left out of the printed text. Raise ConfigError if an option
        excludes ``--epsilon-sampling`` or ``--gnmt-lenpen``.
        """
        check_gnmt_lenpen(self.cfg.gnmt_lenpen, args)
        epsilon = self.cfg.epsilon_sampling
        check_sampling(epsilon, args)
        extra = options["extra_gen_cls_kwargs"] = dict(options.get("extra_gen_cls_kwargs") or {})
        if self.affixes.target and not getattr(args, "score_reference", False):
            left_out = {*self.affixes.target, self.target_dictionary.eos()}
            extra["symbols_to_strip_from_output"] = left_out
            if self.affixes.target_suffix is not None:
                extra["eos"] = self.affixes.target_suffix
        generator = super().build_generator(models, args, **options)
        if epsilon and hasattr(generator, "search"):  # scoring references has no search
            generator.search = generators.EpsilonSampling(self.target_dictionary, epsilon)
        return generator

    def inference_step(
        self,
        generator: Any,
        models: list[FairseqModel],
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
    ) -> Any:
        """Translate a batch; return the hypotheses of each sentence, best first.

        If ``--target-prefix`` is set, the tokens of each hypothesis begin with its symbol. With
        ``--gnmt-lenpen``, GNMT's scores replace fairseq's scores and rank the hypotheses.
        """
        if isinstance(generator, SequenceScorer):
            return super().inference_step(generator, models, sample, prefix_tokens, constraints)
        first, alpha = self.affixes.target_prefix, self.cfg.gnmt_lenpen
        if first is not None:
            tokens = sample["net_input"]["src_tokens"]
            forced = tokens.new_full((len(tokens), 1), first)
            if prefix_tokens is None:
                prefix_tokens = forced
            elif not prefix_tokens[:, :1].equal(forced):  # the prefix lacks `--target-prefix`
                prefix_tokens = torch.cat([forced, prefix_tokens], dim=1)
        hypotheses = super().inference_step(generator, models, sample, prefix_tokens, constraints)
        return generators.with_gnmt_scores(hypotheses, alpha) if alpha else hypotheses

    def prepare_target(self, target: data.FairseqDataset) -> data.FairseqDataset:
        """Put the symbols of ``--target-prefix`` and ``--target-suffix`` around the targets."""
        target = data.PrependTokenDataset(target, self.affixes.target_prefix)
        return data.AppendTokenDataset(target, self.affixes.target_suffix)

    def prepare_source(self, source: data.FairseqDataset) -> data.FairseqDataset:
        """Cut the sources as the options say, and put language symbols and ``<s>`` around them."""
        if self.cfg.truncate_source:
            limit = self.cfg.max_source_positions - self.cfg.source_bos - len(self.affixes.source)
            source = CutDataset(source, limit)
        source = data.PrependTokenDataset(source, self.affixes.source_prefix)
        start = self.src_dict.bos() if self.cfg.source_bos else None
        source = data.PrependTokenDataset(source, start)
        return data.AppendTokenDataset(source, self.affixes.source_suffix)


class Affixes(NamedTuple):
    """Dictionary indices of the symbols to put around sources and targets; None for no symbol."""

    source_prefix: int | None = None
    source_suffix: int | None = None
    target_prefix: int | None = None
    target_suffix: int | None = None

    @property
    def source(self) -> list[int]:
        """The dictionary indices of the symbols to put around a source: none, one or two."""
        return [symbol for symbol in self[:2] if symbol is not None]

    @property
    def target(self) -> list[int]:
        """The dictionary indices of the symbols to put around a target: none, one or two."""
        return [symbol for symbol in self[2:] if symbol is not None]


def check_options(cfg: TranslationExtConfig) -> None:
    """Raise :class:`ConfigError` if options of ``translation_ext`` cannot work together."""
    for name in ("truncate_source", "truncate_target", "source_bos"):
        if cfg.load_alignments and getattr(cfg, name):
            raise ConfigError(
                f"`--load-alignments` does not go with `{flag(name)}`, which moves or removes the "
                "words that the alignments name."
            )
    if cfg.random_batches and cfg.num_batch_buckets:
        raise ConfigError(
            "`--random-batches` does not go with `--num-batch-buckets`, which makes batches of "
            "about equal length; leave out one of them."
        )
    for side, cut, smallest in (
        ("source", cfg.truncate_source, 2 + cfg.source_bos),
        ("target", cfg.truncate_target, 2),
    ):
        limit = getattr(cfg, f"max_{side}_positions")
        if cut and limit < smallest:
            wish = (
                f"at least {smallest} (a word and the symbols around it) with `--truncate-{side}`"
            )
            raise wrong_value(f"--max-{side}-positions", wish, limit)
