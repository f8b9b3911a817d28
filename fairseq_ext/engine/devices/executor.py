"""Translate batches by beam search in torch, on any device, as the C engine does on the CPU.

The state of a search is a dictionary of tensors of fixed sizes, which each step changes in place.
So CUDA can record a step as a graph, and replay it.

Shapes: ``B`` sentences, ``S`` source tokens, ``T`` steps, ``W`` hypotheses of each sentence (the
beam), ``V`` target tokens in the vocabulary.
"""

import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_ext.engine.devices.operations import Model, decode, encode
from fairseq_ext.engine.library import Hypothesis, check_prefixes, check_sentences, joined
from fairseq_ext.engine.program import Code, Phase, Program, Symbols
from fairseq_ext.engine.search_options import Rows, Rules
from fairseq_ext.utils.locks import ForkSafeLock

logger = logging.getLogger(__name__)

Step = Callable[[], None]
NEVER = -torch.inf


def captured(step: Step, device: torch.device) -> Step:
    """Capture ``step`` as a CUDA graph; return the function that replays the graph.

    If the device is not a GPU, or if CUDA cannot capture it, return ``step``. A ``step`` must work
    in place on tensors with fixed addresses, and must not synchronize with the device.
    """
    if device.type != "cuda":
        return step
    try:
        with torch.cuda.device(device):
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(2):  # libraries allocate their workspaces on the first calls
                    step()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=_anchor(torch.cuda.current_device()).pool()):
                step()
            return graph.replay
    except RuntimeError as error:
        logger.warning("the engine runs without CUDA graphs: %s", error)
        return step


@functools.cache
def _anchor(device: int) -> torch.cuda.CUDAGraph:
    """Return a graph whose memory pool all CUDA graphs of the device share.

    Graphs can share a pool because only one runs at a time, and none reads data that another has
    left in the pool. This graph is never freed: torch cannot capture graphs with a pool after it
    has freed the pool's last graph.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(1, device=device)
    return graph


class Sizes(NamedTuple):
    """Sizes of a search's tensors: B sentences of at most S source tokens, and T steps."""

    sentences: int
    source: int
    steps: int


def rounded(count: int) -> int:
    """Round a size up to 1, 2, 3, 4, 6, 8, 12, 16, …, so that few sizes need a CUDA graph."""
    power = 1 << max(0, count - 1).bit_length()
    return 3 * power // 4 if power > 2 and count <= 3 * power // 4 else power


def allocate(model: Model, rules: Rules, sizes: Sizes) -> dict[str, Tensor]:
    """Allocate the tensors of a search's state; return them by name, filled with 0.

    - Tensors of past steps, ``[B, T, W, …]``, have W rows for each sentence and step. The search
      never reorders these rows. Instead, ``ancestors[b, w, t]`` is the row (0 to W - 1) of step t
      from which hypothesis w of sentence b descends.
    - Tensors whose names begin with ``ended``, ``[B, W + 1, …]``, keep the finished hypotheses of a
      sentence at indices 0 to W - 1. :func:`finish` writes all other hypotheses to index W, which
      is never read.
    - ``open [B]`` is true for sentences whose search goes on, and false for unused rows.
    """
    (b, s, t), w = sizes, rules.beam
    program, dtype = model.program, model.dtype
    integer, number = torch.int64, torch.float32
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "step": ((1,), integer),  # the number of the next step, from 0
        "open": ((b,), torch.bool),  # whether the sentence's search goes on
        "real": ((b, s), torch.bool),  # whether a source token is not a pad
        "limit": ((b,), integer),  # largest length of a translation, without </s>
        "forced": ((b, t), integer),  # the prefix's token + 1; 0 after the prefix
        "ancestors": ((b, w, t), integer),
        "tokens": ((b, t, w), integer),  # the input of step t
        "totals": ((b, t, w), number),  # the sum of the log-probabilities before step t
        "count": ((b,), integer),  # number of finished hypotheses
        "ended ancestors": ((b, w + 1, t), integer),
        "ended steps": ((b, w + 1), integer),
        "ended totals": ((b, w + 1), number),
    }
    if rules.attention and program.has_alignment:
        shapes["attention"] = (b, t, w, s), number
    for operation in program.decoder:
        if operation.code is Code.RECALL:
            register = operation.inputs[0].register
            shapes[f"recalled {register}"] = (b, w, program.shapes[register].width), dtype
        elif operation.code is Code.ATTEND_PAST:
            for part, place in zip(("keys", "values"), operation.inputs[1:], strict=True):
                shapes[f"{part} {operation.ints[1]}"] = (b, t, w, place.width), dtype
        elif operation.code in (Code.CONVOLVE, Code.TAPS, Code.FILTER):
            place = operation.inputs[operation.code is Code.CONVOLVE]
            shapes[f"rows {operation.ints[1]}"] = (b, t, w, place.width), dtype
        for place in operation.inputs:
            width, phase, rows = program.shapes[place.register]
            if place.register >= 0 and phase is not Phase.HYPOTHESES:
                between = {Phase.TOKENS: (s,), Phase.SENTENCES: (), Phase.SLOTS: (rows,)}[phase]
                shapes[f"source {place.register}"] = (b, *between, width), dtype
    return {
        name: torch.zeros(shape, dtype=kind, device=model.device)
        for name, (shape, kind) in shapes.items()
    }


def empty(state: dict[str, Tensor]) -> None:
    """Set all tensors of a state to 0; then it has no sentences, and the next step is step 0."""
    for tensor in state.values():
        tensor.zero_()


def fill(state: dict[str, Tensor], parts: dict[str, Tensor]) -> None:
    """Copy each tensor in ``parts`` to the beginning of the tensor of equal name in ``state``."""
    for name, part in parts.items():
        state[name][tuple(map(slice, part.shape))].copy_(part)


# ---- a step of the search, without synchronization with the device -------------------------------


def advance(
    rules: Rules, symbols: Symbols, state: dict[str, Tensor], logits: Sequence[Tensor]
) -> None:
    """Choose the next tokens by beam search, like ``native/search.c``; update the state in place.

    ``logits`` has a tensor ``[B, W, V]`` for each model of an ensemble.
    """
    step, beam, ancestors = state["step"], rules.beam, state["ancestors"]
    totals = state["totals"].index_select(1, step).squeeze(1)
    totals = totals.masked_fill(state["open"].logical_not().unsqueeze(1), NEVER)
    if rules.temperature != 1:
        logits = [model_logits / rules.temperature for model_logits in logits]
    if len(logits) > 1:  # the log of the models' mean probabilities
        log_probabilities = torch.stack([model_logits.log_softmax(2) for model_logits in logits])
        logits = [log_probabilities.logsumexp(0) - math.log(len(logits))]
    values, tokens = ranked(rules, symbols, state, logits[0])
    sums = (values + totals.unsqueeze(2)).flatten(1)
    best, places = sums.masked_fill(sums.isnan(), NEVER).topk(2 * beam)
    parents, tokens = places // (2 * beam), tokens.flatten(1).gather(1, places)

    ends = tokens.eq(symbols.end)
    ended = (candidates.narrow(1, 0, beam) for candidates in (ends & best.gt(NEVER), best, parents))
    finish(state, *ended)
    best, places = best.masked_fill(ends, NEVER).topk(beam)
    parents, tokens = parents.gather(1, places), tokens.gather(1, places)
    state["open"] &= state["count"].lt(beam) & step.lt(state["limit"]) & best.select(1, 0).gt(NEVER)

    ancestors.copy_(ancestors_of(ancestors, parents))
    step += 1
    begin(state, tokens, best)


def begin(state: dict[str, Tensor], tokens: Tensor, totals: Tensor) -> None:
    """Begin a step: store its tokens and total log-probabilities, ``[B, W]``, in ``state``."""
    step, ancestors = state["step"], state["ancestors"]
    rows = torch.arange(ancestors.size(1), device=ancestors.device).view(1, -1, 1)
    ancestors.index_copy_(2, step, rows.expand(len(ancestors), -1, 1))
    state["tokens"].index_copy_(1, step, tokens.unsqueeze(1))
    state["totals"].index_copy_(1, step, totals.unsqueeze(1))


def ancestors_of(ancestors: Tensor, rows: Tensor) -> Tensor:
    """Select the ancestors of n of the W hypotheses of each sentence.

    ``ancestors[b, w, t]`` is the row of step t from which hypothesis w of sentence b descends.
    ``rows [B, n]`` has the numbers w of the n hypotheses. The result is ``[B, n, T]``.
    """
    return ancestors.gather(1, rows.unsqueeze(2).expand(-1, -1, ancestors.size(2)))


def ranked(
    rules: Rules, symbols: Symbols, state: dict[str, Tensor], logits: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and ids, ``[B, W, 2 W]`` each, of the 2 W best next tokens.

    Tokens that ``rules`` or the prefixes in ``state`` forbid have the log-probability -∞.
    ``logits [B, W, V]`` are changed in place.
    """
    step = state["step"]
    normalizers = logits.logsumexp(2, keepdim=True)
    logits.select(2, symbols.unknown).sub_(rules.unkpen)
    last = step.ge(state["limit"]).unsqueeze(1)
    forced = state["forced"].index_select(1, step) - 1
    forced = forced.masked_fill(last, symbols.end).unsqueeze(2).expand(-1, rules.beam, -1)
    only = logits.gather(2, forced.clamp(min=0)) - normalizers
    if rules.match_source_len:
        only = only.masked_fill(last.unsqueeze(2), 0)
        logits.select(2, symbols.end).fill_(NEVER)
    elif rules.min_len:
        logits.select(2, symbols.end).masked_fill_(step.lt(rules.min_len), NEVER)
    logits.select(2, symbols.pad).fill_(NEVER)
    if rules.no_repeat_ngram_size:
        bar_repetitions(rules.no_repeat_ngram_size, symbols.pad, state, logits)
    values, tokens = logits.topk(2 * rules.beam)
    values, free = values - normalizers, forced.lt(0)
    never = only.new_full((), NEVER).expand(*values.shape[:2], values.size(2) - 1)
    values = torch.where(free, values, torch.cat([only, never], 2))
    return values, torch.where(free, tokens, forced)


def bar_repetitions(size: int, pad: int, state: dict[str, Tensor], logits: Tensor) -> None:
    """Set the logits ``[B, W, V]`` of tokens that would repeat an n-gram to -∞.

    ``size`` is n. The start symbol is in no n-gram. ``state`` has the earlier tokens. Where no
    token is to be barred, the logit of ``pad`` becomes -∞ instead; pads are never chosen.
    """
    step, ancestors = state["step"], state["ancestors"]
    words = state["tokens"].transpose(1, 2).gather(1, ancestors)  # of each hypothesis, [B, W, T]
    ends = torch.arange(words.size(2), device=words.device)
    repeats = (ends.ge(size) & ends.le(step)).expand_as(words)
    for back in range(1, size):
        newest = words.index_select(2, (step + 1 - back).clamp(min=0))
        repeats = repeats & words.roll(back, 2).eq(newest)
    logits.scatter_(2, torch.where(repeats, words, pad), NEVER)


def finish(state: dict[str, Tensor], ends: Tensor, totals: Tensor, parents: Tensor) -> None:
    """Store the new hypotheses that end, best first, until a sentence has W finished ones.

    Three arguments ``[B, W]`` describe the W best new hypotheses of each sentence:

    - ``ends``: whether the hypothesis ends;
    - ``totals``: its total log-probability;
    - ``parents``: the row (0 to W - 1) of the hypothesis that it continues.
    """
    beam = ends.size(1)
    places = state["count"].unsqueeze(1) + ends.cumsum(1) - 1
    ends = ends & places.lt(beam)
    places = places.masked_fill(ends.logical_not(), beam)
    ancestors = ancestors_of(state["ancestors"], parents)
    state["ended ancestors"].scatter_(1, places.unsqueeze(2).expand_as(ancestors), ancestors)
    state["ended totals"].scatter_(1, places, totals)
    state["ended steps"].scatter_(1, places, state["step"].expand_as(places))
    state["count"] += ends.sum(1)


# ---- batches -------------------------------------------------------------------------------------

LEAST_STEPS, LEAST_SOURCE = 16, 16
KEPT = 1 << 32  # most bytes of stages to keep for later batches
CHECK_INTERVAL = 4  # steps after which the search asks the device which sentences are finished


class Stage:
    """The state of a search in tensors of certain sizes, and the function that runs a step."""

    def __init__(self, model: Model, rules: Rules, sizes: Sizes) -> None:
        symbols, state = model.program.symbols, allocate(model, rules, sizes)
        self.rules, self.sizes, self.symbols, self.state = rules, sizes, symbols, state
        self.bytes = sum(tensor.nbytes for tensor in state.values())
        self.run: Step = lambda: advance(rules, symbols, state, decode(model, state))
        self.captured = False


class Executor:
    """A translator of batches, which runs a program in torch on any device.

    Capturing a step (:func:`captured`) takes long. So a step is captured only when its sizes are
    needed for the second time.
    """

    def __init__(
        self, program: Program, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self._model = Model(program, device, dtype)
        tables, output = program.source_tables, program.outputs[0].weight
        self._source_vocabulary = min(len(program.matrices[table].values) for table in tables)
        self._target_vocabulary = len(program.matrices[output].values)
        self._stages: dict[tuple[Rules, Sizes], Stage] = {}
        self._free = ForkSafeLock()

    def translate(
        self,
        sentences: Rows,
        rules: Rules,
        prefixes: Rows | None = None,
        numbers: Sequence[int] | None = None,
        constraints: Rows | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate by beam search, as :meth:`fairseq_ext.engine.library.Worker.translate` does.

        Callers must refuse sampling and ``constraints``; both are ignored, and so is ``numbers``.
        """
        if not sentences:
            return []
        check_sentences(*joined(sentences), self._model.program, self._source_vocabulary)
        check_prefixes(prefixes, self._target_vocabulary)
        with self._free.held(), torch.no_grad():
            return self._search(sentences, rules, prefixes or [()] * len(sentences))

    def _search(self, sentences: Rows, rules: Rules, prefixes: Rows) -> list[list[Hypothesis]]:
        stage = self._begin(sentences, rules, prefixes)
        lengths = [len(sentence) for sentence in sentences]
        translations: list[list[Hypothesis]] = [[] for _ in sentences]
        places, steps = list(range(len(sentences))), 0
        while places:
            for _ in range(CHECK_INTERVAL):
                if steps + 2 > stage.sizes.steps:
                    larger = stage.sizes._replace(steps=2 * stage.sizes.steps)
                    stage = self._moved(stage, larger, range(len(places)))
                stage.run()
                steps += 1
            open_flags = stage.state["open"][: len(places)].tolist()
            open_rows = [row for row, is_open in enumerate(open_flags) if is_open]
            if 2 * len(open_rows) > stage.sizes.sentences:
                continue
            finished_rows = [row for row, is_open in enumerate(open_flags) if not is_open]
            finished_lengths = [lengths[places[row]] for row in finished_rows]
            results = collect(stage, finished_rows, finished_lengths)
            for row, hypotheses in zip(finished_rows, results, strict=True):
                translations[places[row]] = hypotheses
            places = [places[row] for row in open_rows]
            if places:
                smaller = stage.sizes._replace(sentences=rounded(len(places)))
                stage = self._moved(stage, smaller, open_rows)
        return translations

    def _stage(self, rules: Rules, sizes: Sizes) -> Stage:
        stage = self._stages.pop((rules, sizes), None)
        if stage is None:
            stage = Stage(self._model, rules, sizes)
        elif not stage.captured:
            empty(stage.state)  # because capturing runs a few steps
            stage.run, stage.captured = captured(stage.run, self._model.device), True
        self._stages[rules, sizes] = stage  # the most recently used stage is last
        while len(self._stages) > 1 and sum(stage.bytes for stage in self._stages.values()) > KEPT:
            del self._stages[next(iter(self._stages))]
        empty(stage.state)
        return stage

    def _moved(self, stage: Stage, sizes: Sizes, rows: Sequence[int]) -> Stage:
        destination = self._stage(stage.rules, sizes)
        sentences = torch.tensor(rows, device=self._model.device)
        for name, tensor in stage.state.items():
            kept = tensor if name == "step" else tensor.index_select(0, sentences)
            fill(destination.state, {name: kept})
        return destination

    def _begin(self, sentences: Rows, rules: Rules, prefixes: Rows) -> Stage:
        program, device = self._model.program, self._model.device
        lengths = [len(sentence) for sentence in sentences]
        words = padded(sentences, program.symbols.pad).to(device)
        real = padded([[1] * n for n in lengths], 0).bool().to(device)
        longest_prefix = max(map(len, prefixes))
        sizes = Sizes(
            rounded(len(sentences)),
            max(LEAST_SOURCE, rounded(words.size(1))),
            max(LEAST_STEPS, rounded(longest_prefix + 2)),
        )
        stage = self._stage(rules, sizes)
        state, count = stage.state, len(sentences)
        initial = {
            "open": torch.ones(count, dtype=torch.bool),
            "real": real,
            "limit": torch.tensor([rules.longest(n, program) for n in lengths]),
            "forced": padded([[token + 1 for token in prefix] for prefix in prefixes], 0),
        }
        for number, register in encode(self._model, words, real).items():
            initial[f"source {number}"] = register
        fill(state, {name: part for name, part in initial.items() if name in state})
        tokens = torch.full((sizes.sentences, rules.beam), program.symbols.begin, device=device)
        totals = torch.full(tokens.shape, NEVER, device=device)
        totals[:, 0] = 0  # the first step continues only the first row
        begin(state, tokens, totals)
        return stage


def padded(rows: Rows, pad: int) -> Tensor:
    """Pad rows of ids with ``pad`` on the right to the longest row; return ``[B, longest]``."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=pad)


def collect(stage: Stage, rows: Sequence[int], lengths: Sequence[int]) -> list[list[Hypothesis]]:
    """Return the finished hypotheses of the sentences with the indices ``rows``, best first.

    ``lengths`` are the sentences' numbers of source tokens, the columns of attention weights.
    """
    state = stage.state
    where = torch.tensor(rows, dtype=torch.long, device=state["open"].device)
    names = ["count", "ended ancestors", "ended steps", "ended totals", "tokens", "totals"]
    names += ["attention"] if "attention" in state else []
    arrays = {name: state[name].index_select(0, where).cpu().numpy() for name in names}
    translations: list[list[Hypothesis]] = []
    for row, length in enumerate(lengths):
        hypotheses = []
        for place in range(arrays["count"][row]):
            end, total = arrays["ended steps"][row, place], arrays["ended totals"][row, place]
            times, rows_then = np.arange(end + 1), arrays["ended ancestors"][row, place, : end + 1]
            tokens = np.append(arrays["tokens"][row, times, rows_then][1:], stage.symbols.end)
            scores = np.diff(np.append(arrays["totals"][row, times, rows_then], total))
            attention = None
            if "attention" in arrays:
                attention = arrays["attention"][row, times, rows_then, :length]
            score = stage.rules.score(float(total), len(tokens))
            hypotheses.append(Hypothesis(tokens, score, scores, attention))
        translations.append(sorted(hypotheses, key=lambda hypothesis: -hypothesis.score))
    return translations
