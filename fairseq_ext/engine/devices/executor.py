"""Translate batches on any torch device, with the interface of the C engine's workers."""

import functools
import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_ext.engine.devices.operations import Model, decode, encode
from fairseq_ext.engine.library import Found, check_prefixes, check_sentences, joined
from fairseq_ext.engine.program import Code, Phase, Program, Symbols
from fairseq_ext.engine.search_options import Rows, Rules

logger = logging.getLogger(__name__)

Step = Callable[[], None]
NEVER = -torch.inf


def captured(step: Step, device: torch.device) -> Step:
    """Capture a step as a CUDA graph; return it unchanged on other devices, or on failure.

    The step must work in place on tensors with fixed addresses, without synchronization.
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
    """Capture a graph whose memory pool all graphs of the device share.

    Only one graph runs at a time, and no graph reads another's data in the pool. When the last
    graph of a pool is freed, torch frees the pool and refuses its handle, so this graph is kept.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(1, device=device)
    return graph


class Sizes(NamedTuple):
    """Sizes of the memory: B sentences, S tokens of the longest source, T steps, beam W."""

    sentences: int
    source: int
    steps: int
    beam: int


def rounded(count: int) -> int:
    """Round up to 1, 2, 3, 4, 6, 8, 12, 16, …, so that few sizes need a CUDA graph."""
    power = 1 << max(0, count - 1).bit_length()
    return 3 * power // 4 if power > 2 and count <= 3 * power // 4 else power


def allocate(model: Model, attention: bool, sizes: Sizes) -> dict[str, Tensor]:
    """Allocate the tensors of a search's state by name, filled with 0.

    ``line [b, w, t]`` is the row from which hypothesis w of sentence b descends at step t, so that
    the data of past steps, ``[B, T, W, …]``, never has to move. Finished hypotheses have the
    indices 0 to W - 1 of an axis of size W + 1; index W, where all other hypotheses are written, is
    never read. If there are fewer than B sentences, the entries of the others are 0. With
    ``attention``, there is a tensor of attention weights.
    """
    b, s, t, w = sizes
    program, dtype = model.program, model.dtype
    integer, number = torch.int64, torch.float32
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "step": ((1,), integer),
        "open": ((b,), torch.bool),  # whether the sentence's search goes on
        "real": ((b, s), torch.bool),  # whether a source token is not a pad
        "limit": ((b,), integer),  # largest length of a translation, without </s>
        "forced": ((b, t), integer),  # the prefix's token + 1; 0 after the prefix
        "line": ((b, w, t), integer),
        "tokens": ((b, t, w), integer),  # the input of step t
        "totals": ((b, t, w), number),  # the sum of the log-probabilities before step t
        "count": ((b,), integer),  # number of finished hypotheses
        "ended lines": ((b, w + 1, t), integer),
        "ended steps": ((b, w + 1), integer),
        "ended totals": ((b, w + 1), number),
    }
    if attention:
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
    """Reset the state to the first step of a search without sentences."""
    for tensor in state.values():
        tensor.zero_()


def fill(state: dict[str, Tensor], parts: dict[str, Tensor]) -> None:
    """Copy smaller tensors into the beginning of the state's tensors of the same names."""
    for name, part in parts.items():
        state[name][tuple(map(slice, part.shape))].copy_(part)


def move(target: dict[str, Tensor], source: dict[str, Tensor], sentences: Tensor) -> None:
    """Reset the state ``target``, and copy sentences with the indices ``[n]`` to its beginning."""
    empty(target)
    step = {"step": source["step"]}
    rest = source.keys() - step
    fill(target, step | {name: source[name].index_select(0, sentences) for name in rest})


# ---- a step of the search, without synchronization with the device -------------------------------


def advance(
    rules: Rules, symbols: Symbols, state: dict[str, Tensor], logits: Sequence[Tensor]
) -> None:
    """Take one step of beam search as ``native/search.c`` does, and update the state in place.

    ``logits`` are each model's logits for the next tokens, ``[B, W, V]``. There is no sampling.
    """
    step, beam, line = state["step"], rules.beam, state["line"]
    totals = state["totals"].index_select(1, step).squeeze(1)
    totals = totals.masked_fill(state["open"].logical_not().unsqueeze(1), NEVER)
    values, tokens = ranked(rules, symbols, state, voted(rules, logits))
    sums = (values + totals.unsqueeze(2)).flatten(1)
    best, places = sums.masked_fill(sums.isnan(), NEVER).topk(2 * beam)
    parents, tokens = places // (2 * beam), tokens.flatten(1).gather(1, places)

    ends = tokens.eq(symbols.end)
    ended = (candidates.narrow(1, 0, beam) for candidates in (ends & best.gt(NEVER), best, parents))
    finish(state, *ended)
    best, places = best.masked_fill(ends, NEVER).topk(beam)
    parents, tokens = parents.gather(1, places), tokens.gather(1, places)
    state["open"] &= state["count"].lt(beam) & step.lt(state["limit"]) & best.select(1, 0).gt(NEVER)

    line.copy_(lines_of(line, parents))
    step += 1
    begin(state, tokens, best)


def begin(state: dict[str, Tensor], tokens: Tensor, totals: Tensor) -> None:
    """Store the newest tokens ``[B, W]`` and total scores ``[B, W]`` with which a step begins."""
    step, line = state["step"], state["line"]
    rows = torch.arange(line.size(1), device=line.device).view(1, -1, 1)
    line.index_copy_(2, step, rows.expand(len(line), -1, 1))
    state["tokens"].index_copy_(1, step, tokens.unsqueeze(1))
    state["totals"].index_copy_(1, step, totals.unsqueeze(1))


def lines_of(line: Tensor, rows: Tensor) -> Tensor:
    """Return the ancestors ``[B, n, T]`` of rows ``[B, n]`` of each sentence, at all steps."""
    return line.gather(1, rows.unsqueeze(2).expand(-1, -1, line.size(2)))


def voted(rules: Rules, logits: Sequence[Tensor]) -> Tensor:
    """Return one model's logits, or the log of several models' mean probabilities, ``[B, W, V]``.

    Logits are divided by the temperature of ``rules``.
    """
    if rules.temperature != 1:
        logits = [model_logits / rules.temperature for model_logits in logits]
    if len(logits) == 1:
        return logits[0]
    log_probabilities = torch.stack([model_logits.log_softmax(2) for model_logits in logits])
    return log_probabilities.logsumexp(0) - math.log(len(logits))


def ranked(
    rules: Rules, symbols: Symbols, state: dict[str, Tensor], logits: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the best next tokens: their log-probabilities and ids, both ``[B, W, 2 W]``.

    ``logits`` ``[B, W, V]`` are changed in place.
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
    """Set logits ``[B, W, V]`` of tokens that would repeat an n-gram of ``size`` tokens to -∞.

    N-grams with the start symbol do not count. The logit of ``pad`` may become -∞ as well, because
    positions without a repetition bar ``pad``.
    """
    step, line = state["step"], state["line"]
    words = state["tokens"].transpose(1, 2).gather(1, line)  # each hypothesis's words [B, W, T]
    ends = torch.arange(words.size(2), device=words.device)
    repeats = (ends.ge(size) & ends.le(step)).expand_as(words)
    for back in range(1, size):
        newest = words.index_select(2, (step + 1 - back).clamp(min=0))
        repeats = repeats & words.roll(back, 2).eq(newest)
    logits.scatter_(2, torch.where(repeats, words, pad), NEVER)


def finish(state: dict[str, Tensor], ends: Tensor, totals: Tensor, parents: Tensor) -> None:
    """Store the hypotheses that end, best first, until a sentence has W of them.

    ``ends`` (whether a hypothesis ends), ``totals`` (its score) and ``parents`` (the row that it
    continues) are ``[B, W]``.
    """
    beam = ends.size(1)
    places = state["count"].unsqueeze(1) + ends.cumsum(1) - 1
    ends = ends & places.lt(beam)
    places = places.masked_fill(ends.logical_not(), beam)
    lines = lines_of(state["line"], parents)
    state["ended lines"].scatter_(1, places.unsqueeze(2).expand_as(lines), lines)
    state["ended totals"].scatter_(1, places, totals)
    state["ended steps"].scatter_(1, places, state["step"].expand_as(places))
    state["count"] += ends.sum(1)


# ---- batches -------------------------------------------------------------------------------------

LEAST_STEPS, LEAST_SOURCE = 16, 16
KEPT = 1 << 32  # most bytes of stages to keep for later batches


class Stage:
    """Memory on the device for the state of a search, and the step that updates it."""

    def __init__(self, model: Model, rules: Rules, sizes: Sizes) -> None:
        self.rules, self.sizes, self.symbols = rules, sizes, model.program.symbols
        self.state = allocate(model, rules.attention and model.program.has_alignment, sizes)
        self.bytes = sum(tensor.nbytes for tensor in self.state.values())
        symbols, state = self.symbols, self.state

        def step() -> None:
            advance(rules, symbols, state, decode(model, state))

        self.run: Step = step
        self.captured = False


class Executor:
    """A translator of batches, which runs a program on any torch device.

    ``capture`` turns a step into a single launch. It is slow, so it is called only when memory of
    the same sizes is needed for the second time. After ``every`` steps the device is asked whether
    sentences are finished.
    """

    def __init__(
        self,
        program: Program,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        capture: Callable[[Step, torch.device], Step] = captured,
        every: int | None = None,
    ) -> None:
        self._model, self._capture = Model(program, device, dtype), capture
        tables, output = program.source_tables, program.outputs[0].weight
        self._source_vocabulary = min(len(program.matrices[table].values) for table in tables)
        self._target_vocabulary = len(program.matrices[output].values)
        self._every = every or (1 if device.type == "cpu" else 4)
        self._stages: dict[tuple[Rules, Sizes], Stage] = {}
        self._free = threading.Lock()

    def translate(
        self,
        sentences: Rows,
        rules: Rules,
        prefixes: Rows | None = None,
        numbers: Sequence[int] | None = None,
        constraints: Rows | None = None,
    ) -> list[list[Found]]:
        """Translate like :meth:`fairseq_ext.engine.library.Worker.translate`, by beam search only.

        ``numbers``, ``constraints`` and the options of sampling have no effect; the generator
        refuses them before it calls this.
        """
        if not sentences:
            return []
        check_sentences(*joined(sentences), self._model.program, self._source_vocabulary)
        check_prefixes(prefixes, self._target_vocabulary)
        with self._free, torch.no_grad():
            return self._search(sentences, rules, prefixes or [()] * len(sentences))

    def _search(self, sentences: Rows, rules: Rules, prefixes: Rows) -> list[list[Found]]:
        stage = self._begin(sentences, rules, prefixes)
        lengths = [len(sentence) for sentence in sentences]
        translations: list[list[Found]] = [[] for _ in sentences]
        places, steps = list(range(len(sentences))), 0
        while places:
            for _ in range(self._every):
                if steps + 2 > stage.sizes.steps:
                    larger = stage.sizes._replace(steps=2 * stage.sizes.steps)
                    stage = self._moved(stage, larger, range(len(places)))
                stage.run()
                steps += 1
            still = stage.state["open"][: len(places)].tolist()
            going = [row for row, is_open in enumerate(still) if is_open]
            if 2 * len(going) > stage.sizes.sentences:
                continue
            finished = [row for row, is_open in enumerate(still) if not is_open]
            finished_lengths = [lengths[places[row]] for row in finished]
            results = collect(stage, finished, finished_lengths)
            for row, hypotheses in zip(finished, results, strict=True):
                translations[places[row]] = hypotheses
            places = [places[row] for row in going]
            if places:
                smaller = stage.sizes._replace(sentences=rounded(len(places)))
                stage = self._moved(stage, smaller, going)
        return translations

    def _stage(self, rules: Rules, sizes: Sizes) -> Stage:
        key = rules, sizes
        stage = self._stages.pop(key, None)
        if stage is None:
            stage = Stage(self._model, rules, sizes)
        elif not stage.captured:
            empty(stage.state)  # because capturing runs a few steps
            stage.run, stage.captured = self._capture(stage.run, self._model.device), True
        self._stages[key] = stage  # the most recently used stage is last
        while len(self._stages) > 1 and sum(stage.bytes for stage in self._stages.values()) > KEPT:
            del self._stages[next(iter(self._stages))]
        return stage

    def _moved(self, stage: Stage, sizes: Sizes, rows: Sequence[int]) -> Stage:
        destination = self._stage(stage.rules, sizes)
        move(destination.state, stage.state, torch.tensor(rows, device=self._model.device))
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
            rules.beam,
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
        empty(state)
        fill(state, {name: part for name, part in initial.items() if name in state})
        tokens = torch.full((sizes.sentences, rules.beam), program.symbols.begin, device=device)
        totals = torch.full(tokens.shape, NEVER, device=device)
        totals[:, 0] = 0  # the first step continues only the first row
        begin(state, tokens, totals)
        return stage


def padded(rows: Rows, pad: int) -> Tensor:
    """Pad rows on the right to ``[B, longest]``."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=pad)


def collect(stage: Stage, rows: Sequence[int], lengths: Sequence[int]) -> list[list[Found]]:
    """Return the finished hypotheses of the sentences at ``rows`` of the state, best first.

    ``lengths`` are the numbers of source tokens of these sentences.
    """
    state = stage.state
    where = torch.tensor(rows, dtype=torch.long, device=state["open"].device)
    names = ("count", "ended lines", "ended steps", "ended totals", "tokens", "totals")
    names += ("attention",) if "attention" in state else ()
    arrays = {name: state[name].index_select(0, where).cpu().numpy() for name in names}
    translations: list[list[Found]] = []
    for row, length in enumerate(lengths):
        hypotheses = []
        for place in range(arrays["count"][row]):
            end, total = arrays["ended steps"][row, place], arrays["ended totals"][row, place]
            times, line = np.arange(end + 1), arrays["ended lines"][row, place, : end + 1]
            tokens = np.append(arrays["tokens"][row, times, line][1:], stage.symbols.end)
            scores = np.diff(np.append(arrays["totals"][row, times, line], total))
            attention = None
            if "attention" in arrays:
                attention = arrays["attention"][row, times, line, :length]
            score = stage.rules.score(float(total), len(tokens))
            hypotheses.append(Found(tokens, score, scores, attention))
        translations.append(sorted(hypotheses, key=lambda hypothesis: -hypothesis.score))
    return translations
