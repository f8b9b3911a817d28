"""Trained models of any architecture, as a function from sentences to translations.

The task and its options (start symbol, cut sources, languages) come from the first checkpoint, so
nobody has to repeat them. Loading, batches and search are fairseq's own, called in this process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import options, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_ext.decoding import length_penalty, models, sampling
from fairseq_ext.decoding.search import Candidate, Counts, Search, check_gnmt_lenpen
from fairseq_ext.plugin.patches.commands import refuse_broken


class Translator:
    """One model, or several that vote.

    Args:
        data: folder with the dictionaries, as fairseq-preprocess wrote it.
        paths: checkpoints.
        src, tgt: languages; None for those of the training.
        search: how to search.

    Attributes:
        src, tgt: languages.
        limit: the most source tokens in a sentence, its end included.
        limit_name: whose limit this is, as the subject of a sentence.
        counts: tokens so far.

    Raises:
        ConfigError: options that cannot work, or models that do not translate text.
        CheckpointError: a checkpoint that cannot be read, or does not fit the dictionaries.
        DataError: no dictionaries.
    """

    def __init__(
        self,
        data: str | Path,
        paths: Sequence[str | Path],
        src: str | None = None,
        tgt: str | None = None,
        search: Search | None = None,
    ) -> None:
        search = search or Search()
        self._cfg = _configuration(data, search)
        self._models, _, self._task = models.load(data, paths, src, tgt)
        self.src, self.tgt = self._task.cfg.source_lang, self._task.cfg.target_lang
        if search.attention and not any(getattr(one, "no_alignment", "") for one in self._models):
            self._cfg.generation.print_alignment = "soft"  # read by the models and the generator
        self._cuda = torch.cuda.is_available() and not self._cfg.common.cpu
        for model in self._models:
            if self._cfg.common.fp16:
                model.half()
            if self._cuda:
                model.cuda()
            model.prepare_for_inference_(self._cfg)
        self._generator = self._build_generator(search)
        self._limits = utils.resolve_max_positions(
            self._task.max_positions(), *(model.max_positions() for model in self._models)
        )
        self.limit, self.limit_name = self._limits[0], "the model takes"
        if self._cfg.dataset.max_tokens < self.limit:
            self.limit, self.limit_name = self._cfg.dataset.max_tokens, "`--max-tokens` allows"
        self.counts = Counts()
        self._sampling, self._random = search.sampling, torch.get_rng_state()

    def _build_generator(self, search: Search) -> Any:
        generation = self._cfg.generation
        check_gnmt_lenpen(search.gnmt_lenpen, generation)
        chosen = {}
        if search.gnmt_lenpen:
            chosen = length_penalty.generator_options(search.gnmt_lenpen, generation, None)
        generator = self._task.build_generator(self._models, generation, **chosen)
        if search.epsilon:
            dictionary = self._task.target_dictionary
            generator.search = sampling.EpsilonSampling(dictionary, search.epsilon)
        return generator

    def lengths(self, sentences: Sequence[str]) -> list[int]:
        """How many source tokens the model would see, its special symbols included."""
        dataset = self._dataset(sentences)
        return [int(dataset.size(i)[0]) for i in range(len(sentences))]

    def translate(
        self, sentences: Sequence[str], numbers: Sequence[int] | None = None
    ) -> list[list[Candidate]]:
        """The ``nbest`` translations of each sentence, best first, in the order given.

        Args:
            sentences: lines of source tokens, none longer than ``limit``.
            numbers: of the sentences, which samples depend on; from 0 if None.
        """
        found: list[list[Candidate]] = [[] for _ in sentences]
        if not sentences:
            return found
        numbers = torch.tensor(range(len(sentences)) if numbers is None else numbers)
        if self._sampling:
            self._begin_to_draw(int(numbers[0]))
        batches = self._task.get_batch_iterator(
            dataset=self._dataset(sentences),
            max_tokens=self._cfg.dataset.max_tokens,
            max_positions=self._limits,
            disable_iterator_cache=True,  # or fairseq keeps every dataset it has seen
        ).next_epoch_itr(shuffle=False)
        for batch in batches:
            self._count(batch["net_input"]["src_tokens"])
            batch = utils.move_to_cuda(batch) if self._cuda else batch
            numbered = {**batch, "id": numbers[batch["id"].cpu()]}
            results = self._task.inference_step(self._generator, self._models, numbered)
            for index, hypotheses in zip(batch["id"].tolist(), results, strict=True):
                best = hypotheses[: self._cfg.generation.nbest]
                found[index] = [self._candidate(one) for one in best]
        return found

    def _begin_to_draw(self, first: int) -> None:
        """Make fairseq's samples depend on the first sentence's number, not on former calls.

        From sentence 0 on they are those of ``fairseq-interactive``.
        """
        utils.set_torch_seed(self._cfg.common.seed + first)
        if not first:
            torch.set_rng_state(self._random)

    def _dataset(self, sentences: Sequence[str]) -> Any:
        tokens, lengths = self._task.get_interactive_tokens_and_lengths(
            list(sentences), lambda line: line
        )
        return self._task.build_dataset_for_inference(tokens, lengths)

    def _candidate(self, hypothesis: dict[str, Any]) -> Candidate:
        tokens = hypothesis["tokens"].int().cpu()
        self.counts.target += len(tokens)
        skipped = getattr(self._generator, "symbols_to_strip_from_output", {self._generator.eos})
        text = self._task.target_dictionary.string(tokens, extra_symbols_to_ignore=skipped)
        rows = hypothesis["alignment"] if self._cfg.generation.print_alignment else ()
        attention = tuple(tuple(float(weight) for weight in row) for row in rows)  # of text
        return Candidate(text, float(hypothesis["score"]) / math.log(2), attention)

    def _count(self, tokens: torch.Tensor) -> None:
        dictionary = self._task.source_dictionary
        special = torch.tensor([dictionary.pad(), dictionary.eos(), dictionary.bos()])
        self.counts.source += int((~torch.isin(tokens, special)).sum())
        self.counts.unknown += int(tokens.eq(dictionary.unk()).sum())


def _flags(search: Search) -> list[str]:
    """The same for fairseq.

    Raises:
        ConfigError: a number that cannot be.
    """
    search.check()
    names = ("beam", "nbest", "lenpen", "max_len_a", "max_len_b", "max_tokens", "seed", "engine")
    flags = [f"--{name.replace('_', '-')}={getattr(search, name)}" for name in names]
    switches = [f"--{name}" for name in ("fp16", "cpu", "sampling") if getattr(search, name)]
    if search.top_k:
        switches.append(f"--sampling-topk={search.top_k}")
    return [*flags, *switches, *search.flags]


def _configuration(data: str | Path, search: Search) -> Any:
    parser = options.get_interactive_generation_parser()
    args = options.parse_args_and_arch(parser, [str(data), *_flags(search)])
    cfg = convert_namespace_to_omegaconf(args)
    refuse_broken(cfg, "fairseq-ext translate")
    if cfg.common.seed is not None:
        np.random.seed(cfg.common.seed)
        utils.set_torch_seed(cfg.common.seed)
    return cfg
