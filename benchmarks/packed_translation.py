"""Tokens per second of packed models and of what else translates on a CPU."""

from __future__ import annotations

import gc
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import bench
import packed_open
import packed_systems
import torch
from cells import Cells
from packed_open import (
    BMT_1,
    BMT_6,
    CTRANSLATE2,
    ENGINE,
    FILES,
    FP32,
    INT8_OUTPUT,
    PACKED,
    PLAIN,
    PLAIN_ENGINE,
    TORCH_INT8,
    Sentences,
    Translate,
)
from peers import FIRST_WORD, Size
from pictures import save

from fairseq_ext.binary.kernels import active_path
from fairseq_ext.evaluation.plots import PALETTE, STYLE

TARGETS = {PACKED: 2.5, INT8_OUTPUT: 4.0}  # times the same model in fp32
AHEAD = 1.5  # times CTranslate2's int8 Transformer, by the engine
NEAR = 0.1  # nats by which CTranslate2's int8 may differ from fairseq's fp32, on average
PEERS = (f"{PLAIN}, {FP32}", TORCH_INT8, CTRANSLATE2)
COLOURS = {FP32: PALETTE[6], PACKED: PALETTE[0], INT8_OUTPUT: PALETTE[5], ENGINE: PALETTE[1]}


def translation(options: Namespace, folder: Path) -> Cells:
    """All systems in every round, for each number of threads and of sentences."""
    cells = Cells("Packed models: translation", axis="batch", unit="tokens_per_second")
    _describe(cells, options, folder)
    for threads in options.threads:
        torch.set_num_threads(threads)
        search = {"beam": options.beam, "words": options.words, "threads": threads}
        systems = {name: packed_open.open_system(name, folder, **search) for name in FILES}
        if threads == options.threads[0]:
            check(cells, systems, options)
        for batch in options.batches:
            _measure(cells, systems, options, threads, batch)
        del systems
        gc.collect()
    for threads in options.threads:
        for batch in options.batches:
            _find(cells, _what(threads), batch)
    return cells


def _describe(cells: Cells, options: Namespace, folder: Path) -> None:
    size = Size.of(options)
    cells.note(
        f"random weights, {size}; beam {options.beam}; sources of {options.words} words and </s>, "
        f"every hypothesis {options.words + 1} tokens; 1-bit kernels: {active_path()}; torch in "
        "fp32 where nothing else is said"
    )
    found = packed_systems.distance(folder, size, options.words)
    cells.note(
        f"CTranslate2's log-probabilities are {found:.3f} nats from those of fairseq's transformer "
        f"with the same weights, mean per word (at most {NEAR} wanted)"
    )
    assert found < NEAR, found


def check(cells: Cells, systems: dict[str, Translate], options: Namespace) -> None:
    """Packed models score their translations as the checkpoints do."""
    source = _sentences(options, 2)
    for model in (BMT_1, BMT_6):
        scores = {}
        for kind in (FP32, PACKED, INT8_OUTPUT, ENGINE):
            best = [found[0] for found in systems[f"{model} {kind}"](source)]
            scores[kind] = torch.stack([hypothesis["score"] for hypothesis in best])
            assert all(len(found["tokens"]) == options.words + 1 for found in best)
        kinds = (*TARGETS, ENGINE)
        off = {kind: float((scores[kind] / scores[FP32] - 1).abs().max()) for kind in kinds}
        cells.note(
            f"{model}: scores of packed translations are off by {off[PACKED]:.1e} of those of the "
            f"checkpoint, with int8 tables by {off[INT8_OUTPUT]:.1e}, by the engine in int8 by "
            f"{off[ENGINE]:.1e}"
        )
        assert off[PACKED] < 0.01, off
        # A rounded input may turn a sign, and random weights do not forgive what trained ones do.
        assert model == BMT_6 or max(off[INT8_OUTPUT], off[ENGINE]) < 0.05, off


def _measure(
    cells: Cells, systems: dict[str, Translate], options: Namespace, threads: int, batch: int
) -> None:
    source = _sentences(options, batch)

    def run(translate: Translate) -> Callable[[], object]:
        return lambda: translate(source)

    candidates = {name: run(translate) for name, translate in systems.items()}
    seconds = bench.paired(candidates, repeats=options.repeats, warmup=1, budget=options.budget)
    pairs = [
        (f"{model} {kind}", peer)
        for model in (BMT_1, BMT_6)
        for kind in (*TARGETS, ENGINE)
        for peer in (f"{model} {FP32}", *PEERS, PLAIN_ENGINE)
    ]
    pairs.append((PLAIN_ENGINE, CTRANSLATE2))
    tokens = batch * (options.words + 1)
    cells.add(_what(threads), batch, seconds, pairs, tokens=tokens, threads=threads)


def _sentences(options: Namespace, count: int) -> Sentences:
    return packed_open.random_sentences(count, options.words, options.vocabulary - FIRST_WORD)


def _what(threads: int) -> str:
    return f"{threads} thread{'s' * (threads > 1)}"


def _find(cells: Cells, what: str, batch: int) -> None:
    for model in (BMT_1, BMT_6):
        for kind, target in TARGETS.items():
            ours = f"{model} {kind}"
            cells.find_ratio(what, ours, f"{model} {FP32}", batch, target)
            for peer in PEERS:
                cells.find_ratio(what, ours, peer, batch)
        cells.find_ratio(what, f"{model} {ENGINE}", CTRANSLATE2, batch, AHEAD)
        cells.find_ratio(what, f"{model} {ENGINE}", PLAIN_ENGINE, batch)
    cells.find_ratio(what, PLAIN_ENGINE, CTRANSLATE2, batch)


def draw(cells: Cells, output: Path) -> None:
    """Tokens per second as bars, a panel for each number of threads and of sentences."""
    import matplotlib
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((row["what"], row["n"]) for row in cells.figures))
    with matplotlib.rc_context(STYLE):
        lines = -(-len(panels) // 2)
        figure = Figure(figsize=(10.4, 3.2 * lines), layout="constrained")
        places = figure.subplots(lines, 2, squeeze=False, sharey=True).flat
        for axes, (what, batch) in zip(places, panels, strict=False):
            rows = [row for row in cells.figures if (row["what"], row["n"]) == (what, batch)]
            names = [row["candidate"] for row in rows]
            speeds = [row["tokens_per_second"] for row in rows]
            axes.barh(names, speeds, color=[_colour(name) for name in names], height=0.7)
            for place, row in enumerate(rows):
                between = [1e3 * row["tokens"] / row[key] for key in ("ms_high", "ms_low")]
                axes.plot(between, [place, place], color="#444444", lw=1.2)
                label = f" {row['tokens_per_second']:,.0f}"
                axes.text(max(between), place, label, va="center", fontsize=8.5)
            sentences = f"{batch} sentence{'s' * (batch > 1)}"
            axes.set(title=f"{what}, {sentences}", xlabel="tokens per second")
            axes.margins(x=0.12)
            axes.grid(True, axis="x")
        axes.invert_yaxis()
        save(figure, output)


def _colour(name: str) -> str:
    if name.startswith(PLAIN):
        return PALETTE[6] if name.endswith(FP32) else PALETTE[4]
    return next(colour for kind, colour in COLOURS.items() if name.endswith(f" {kind}"))
