"""Translate sentences by models of any architecture, with fairseq's own functions.

The task and its options (start symbol, truncation of sources, languages) come from the first
checkpoint. fairseq loads the models, makes batches and searches.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import options, utils
from fairseq.data import LanguagePairDataset, ListDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.sequence_scorer import SequenceScorer
from fairseq.token_generation_constraints import pack_constraints
from torch import Tensor

from fairseq_ext.checkpoints.layout import architecture
from fairseq_ext.decoding.search import Candidate, Counts, Search, require_short, require_writable
from fairseq_ext.generation import generators
from fairseq_ext.generation.on_engine import share_weights
from fairseq_ext.generation.option_checks import no_alignment
from fairseq_ext.generation.translation_ext import TranslationExtTask
from fairseq_ext.model import trained
from fairseq_ext.utils.locks import ForkSafeLock
from fairseq_ext.utils.option_fields import flag

EACH_SEARCH = ("beam", "nbest", "lenpen", "max_len_a", "max_len_b", "sampling")
"""Options of a search, by their names in fairseq's configuration, that each call may change."""
MOST_GENERATORS = 8  # most generators to keep; each set of search options needs its own


class Translator:
    """A translator of tokenized lines by a model or an ensemble. Threads that share it take turns.

    Args:
        data: folder with the dictionaries, from fairseq-preprocess.
        paths: checkpoints.
        src, tgt: languages; None for the languages of the training.
        search: the default search of all calls.

    Attributes:
        src, tgt: languages.
        name: name of the (last) model's architecture.
        limit: the most source tokens in a sentence, ``</s>`` included.
        limit_name: the start of a message about the limit, such as ``the model takes``.
        search: the default search of all calls.
        counts: counts of all tokens so far.

    Raises:
        ConfigError: options cannot work, or models do not translate text.
        CheckpointError: a checkpoint cannot be read, or does not fit the dictionaries.
        DataError: there are no dictionaries.
    """

    def __init__(
        self,
        data: str | Path,
        paths: Sequence[str | Path],
        src: str | None = None,
        tgt: str | None = None,
        search: Search | None = None,
    ) -> None:
        self.search = search = search or Search()
        with forked_random_numbers(search):
            self._cfg = _configuration(data, search)
            self._models, cfg, self._task = trained.load(data, paths, src, tgt)
            self._aligns = not any(map(no_alignment, self._models))
            self._cuda = torch.cuda.is_available() and not self._cfg.common.cpu
            self._prepare_models()
            self._generators = {search: self._build_generator(search)}
            self._random = torch.get_rng_state()
        self.name = architecture({"cfg": cfg})
        self.src, self.tgt = self._task.cfg.source_lang, self._task.cfg.target_lang
        self._one_at_a_time = ForkSafeLock()  # models and generators have state
        self._limits = utils.resolve_max_positions(
            self._task.max_positions(), *(model.max_positions() for model in self._models)
        )
        self.limit, self.limit_name = self._limits[0], "the model takes"
        if self._cfg.dataset.max_tokens < self.limit:
            self.limit, self.limit_name = self._cfg.dataset.max_tokens, "`--max-tokens` allows"
        self.counts = Counts()

    def _prepare_models(self) -> None:
        if self._aligns:  # a later search may need attention
            self._cfg.generation.print_alignment = "soft"  # the models read this option
        for model in self._models:
            if self._cfg.common.fp16:
                model.half()
            if self._cuda:
                model.cuda()
            model.prepare_for_inference_(self._cfg)
        self._cfg.generation.print_alignment = None

    def _generator(self, search: Search) -> Any:
        """Return a generator for a search: one from an earlier call, or a new one."""
        generator = self._generators.get(search)
        if generator is None:
            generator = self._build_generator(search)
            share_weights([*self._generators.values(), generator])
            if len(self._generators) == MOST_GENERATORS:
                self._generators.pop(next(iter(self._generators)))
            self._generators[search] = generator
        return generator

    def _build_generator(self, search: Search) -> Any:
        generation = copy.deepcopy(self._cfg.generation)  # Hydra would take 0.3 s to make it anew
        generation.update({name: getattr(search, name) for name in EACH_SEARCH})
        generation.sampling_topk = search.sampling_topk or -1
        if self._aligns and search.attention:
            generation.print_alignment = "soft"
        generator = self._task.build_generator(self._models, generation)
        if search.epsilon_sampling:
            dictionary = self._task.target_dictionary
            generator.search = generators.EpsilonSampling(dictionary, search.epsilon_sampling)
        return generator

    def lengths(self, sentences: Sequence[str]) -> list[int]:
        """Count the source tokens of each sentence, including the model's special symbols."""
        dataset = self._dataset(sentences)
        return [int(dataset.size(i)[0]) for i in range(len(sentences))]

    def translate(
        self,
        sentences: Sequence[str],
        numbers: Sequence[int] | None = None,
        search: Search | None = None,
    ) -> list[list[Candidate]]:
        """Translate sentences; return the ``nbest`` best translations of each, best first.

        Args:
            sentences: lines of at most ``limit`` source tokens. If the translator's default search
                has ``constraints``, they follow after tabs.
            numbers: the sentences' numbers, on which samples depend; None for 0, 1, 2 ….
            search: how to search; None for the default search. Precision, device, engine, batch
                size, shortlist and constraints are always those of the default search.

        Raises:
            ConfigError: the search is not possible.
            DataError: a constraint has tokens that the model does not write.
        """
        search = search or self.search
        results: list[list[Candidate]] = [[] for _ in sentences]
        numbers = range(len(sentences)) if numbers is None else numbers
        words = self._task.source_dictionary
        with self._one_at_a_time.held(), forked_random_numbers(self.search):
            generator = self._generator(search)
            skipped = getattr(generator, "symbols_to_strip_from_output", {generator.eos})
            if search.sampling and sentences:
                # Samples depend on the number of the first sentence, not on earlier calls. If it is
                # 0, ``fairseq-interactive`` draws the same samples.
                utils.set_torch_seed(search.seed + numbers[0])
                if not numbers[0] and search == self.search:
                    torch.set_rng_state(self._random)
            dataset = self._dataset(sentences)
            for place, source, hypotheses in self._run(generator, dataset, numbers):
                special = torch.tensor([words.pad(), words.eos(), words.bos()])
                self.counts.source += int((~torch.isin(source, special)).sum())
                self.counts.unknown += int(source.eq(words.unk()).sum())
                if search.gnmt_lenpen:
                    (hypotheses,) = generators.with_gnmt_scores([hypotheses], search.gnmt_lenpen)
                results[place] = [
                    self._candidate(hypothesis, search.attention and self._aligns, skipped)
                    for hypothesis in hypotheses[: search.nbest]
                ]
        return results

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Tensor]:
        """Return, for each target, the log-probabilities (base e) of its tokens and ``</s>``.

        Sources and targets are lines of tokens. fairseq computes the log-probabilities with
        unrounded weights, even if the search's engine rounds weights.
        Raise DataError if a target has more tokens than the model can write.
        """
        words = self._task.target_dictionary
        tokens = [words.encode_line(line, add_if_not_exist=False).long() for line in targets]
        require_short(map(len, tokens), self._limits[1])
        source = self._dataset(sources)
        target: Any = ListDataset(tokens, np.array([len(line) for line in tokens]))
        end = None
        if isinstance(self._task, TranslationExtTask):
            target, end = self._task.prepare_target(target), self._task.affixes.target_suffix
        pairs = LanguagePairDataset(
            *(source.src, source.src_sizes, self._task.source_dictionary),
            *(target, target.sizes, words),
            eos=end,
        )
        scored: list[Tensor] = [torch.empty(0)] * len(targets)
        with self._one_at_a_time.held(), forked_random_numbers(self.search):
            scorer, numbers = SequenceScorer(words), range(len(targets))
            for place, _, (hypothesis,) in self._run(scorer, pairs, numbers):
                scored[place] = hypothesis["positional_scores"].cpu()
        return scored

    def _run(
        self, generator: Any, dataset: LanguagePairDataset, numbers: Sequence[int]
    ) -> Iterator[tuple[int, Tensor, list[dict[str, Any]]]]:
        """Run a generator batch by batch; yield each sentence's index, tokens and hypotheses.

        ``numbers`` are the sentences' numbers, on which samples depend.
        """
        if not len(dataset):
            return
        longest = max(map(dataset.num_tokens, range(len(dataset))))  # sources and references
        batches = self._task.get_batch_iterator(
            dataset=dataset,
            max_tokens=max(self._cfg.dataset.max_tokens, longest),
            max_positions=self._limits,
            disable_iterator_cache=True,  # otherwise fairseq keeps every dataset
        ).next_epoch_itr(shuffle=False)
        for batch in batches:
            sources, places = batch["net_input"]["src_tokens"], batch["id"].tolist()
            batch = utils.move_to_cuda(batch) if self._cuda else batch
            batch["id"] = torch.tensor([numbers[place] for place in places])
            results = self._task.inference_step(
                generator, self._models, batch, constraints=batch.get("constraints")
            )
            yield from zip(places, sources, results, strict=True)

    def _dataset(self, sentences: Sequence[str]) -> Any:
        constraints = None
        if self._cfg.generation.constraints:
            rows = [sentence.split("\t") for sentence in sentences]
            sentences = [source for source, *_ in rows]
            constraints = pack_constraints([[*map(self._constraint, texts)] for _, *texts in rows])
        tokens, lengths = self._task.get_interactive_tokens_and_lengths(list(sentences), str)
        return self._task.build_dataset_for_inference(tokens, lengths, constraints=constraints)

    def _constraint(self, text: str) -> Tensor:
        """Return the token ids of a constraint; refuse what the model cannot write (DataError)."""
        words = self._task.target_dictionary
        tokens = words.encode_line(text, append_eos=False, add_if_not_exist=False)
        require_writable(text, tokens.tolist(), words.eos())
        return tokens

    def _candidate(self, hypothesis: dict[str, Any], aligned: bool, skipped: set[int]) -> Candidate:
        tokens = hypothesis["tokens"].int().cpu()
        self.counts.target += len(tokens)
        text = self._task.target_dictionary.string(tokens, extra_symbols_to_ignore=skipped)
        rows = hypothesis["alignment"] if aligned else ()
        attention = tuple(tuple(float(weight) for weight in row) for row in rows)
        return Candidate(text, float(hypothesis["score"]) / math.log(2), attention)


def _configuration(data: str | Path, search: Search) -> Any:
    flags = [f"--{name}" for name in ("fp16", "cpu") if getattr(search, name)]
    for name in ("max_tokens", "seed", "engine", "constraints", "shortlist"):
        if (value := getattr(search, name)) is not None:
            flags.append(f"{flag(name)}={value}")
    parser = options.get_interactive_generation_parser()
    args = options.parse_args_and_arch(parser, [str(data), *flags])
    cfg = convert_namespace_to_omegaconf(args)
    # Otherwise `fconv` would accept only one beam size, but each search may have another.
    cfg.generation.no_beamable_mm = True
    utils.set_torch_seed(search.seed)
    return cfg


def forked_random_numbers(search: Search) -> AbstractContextManager[None]:
    """Return a context that restores the state of torch's random number generators at its end.

    The generators of GPUs are included if CUDA is in use, or if ``search`` may use it.
    """
    cuda = torch.cuda.is_initialized() or (torch.cuda.is_available() and not search.cpu)
    return torch.random.fork_rng(range(torch.cuda.device_count()) if cuda else [])
