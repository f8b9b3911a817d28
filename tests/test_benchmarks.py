"""Benchmarks run to their end at a tiny size, and state what their figures say."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from harness import REPO, run

sys.path.append(str(REPO / "benchmarks"))

import bench
import torch
from cells import Cells, Stopwatch
from linformer_translation import LONGEST, random_lengths
from peers import EOS, PAD, Size, attentions, core, sample_of

TINY = [
    *("--threads", "1", "--repeats", "3", "--warmup", "1", "--lengths", "8", "32", "--k", "4"),
    *("--embed-dim", "16", "--ffn-embed-dim", "24", "--heads", "2", "--layers", "1"),
    *("--tokens", "16", "--vocabulary", "50", "--sentences", "4", "--words", "3"),
    *("--batches", "2"),
]
EXPECTED = {
    "encoder": {"k=4", "fairseq", "sdpa", "k=4 padded", "sdpa with mask"},
    "flat": {"k=4"},
    "attention": {"k=4", "sdpa"},
    "seq2seq": {"k=4", "fairseq", "sdpa"},
    "memory": {"k=4", "fairseq", "sdpa"},
    "generation": {"k=4", "fairseq", "k=4 decoding", "fairseq decoding"},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where every question of the Linformer's benchmark has written its answer."""
    folder = tmp_path_factory.mktemp("benchmarks")
    script = REPO / "benchmarks" / "linformer.py"
    run(sys.executable, script, "all", *TINY, "--json", folder / "x.json", cwd=folder)
    return folder


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("question", EXPECTED)
def test_every_question_has_finite_figures(results: Path, question: str) -> None:
    answer = json.loads((results / f"x_{question}.json").read_text())
    figures, ratios = answer["figures"], answer["ratios"]
    assert {row["candidate"] for row in figures} == EXPECTED[question]
    assert {row["n"] for row in figures} - {None} == {8, 32}
    for row in figures + ratios:
        numbers = [value for value in row.values() if isinstance(value, float)]
        assert numbers
        assert all(math.isfinite(number) and number >= 0 for number in numbers), row
    if question != "memory":
        assert {row["peer"] for row in ratios} == {
            name for name in EXPECTED[question] if name[0] != "k"
        }
        assert all(row["repeats"] == 3 for row in figures)
    assert answer["machine"]["threads"] == 1
    assert answer["settings"]["embed_dim"] == 16
    # Too little memory to compare; too short sentences to be called flat.
    assert answer["findings"] or question in ("memory", "flat")


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("question", ["encoder", "flat", "attention", "seq2seq"])
def test_pictures_lie_beside(results: Path, question: str) -> None:
    assert (results / f"x_{question}.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (results / f"x_{question}.svg").read_text()


@pytest.mark.system
@pytest.mark.slow
def test_cache_of_linformer_has_one_size(results: Path) -> None:
    figures = json.loads((results / "x_generation.json").read_text())["figures"]
    sizes = {row["n"]: row["cache_bytes"] for row in figures}
    # Keys and values in float32: k slots for each of 2 sentences, n tokens for each of 10 rows.
    assert sizes[8]["k=4"] == sizes[32]["k=4"] == 2 * 4 * (2 * 4 * 16)
    # fairseq keeps the padding mask as well, in float32.
    assert [sizes[n]["fairseq"] for n in (8, 32)] == [10 * n * 4 * (2 * 16 + 1) for n in (8, 32)]


@pytest.mark.system
def test_peak_memory_is_what_a_pass_takes_at_most() -> None:
    program = """
import bench, torch
def run():
    large = torch.ones(2**27)  # 512 MiB, given back before the other
    del large
    torch.ones(2**25)
print(bench.peak_memory(run, "cpu"))
"""
    done = run(sys.executable, "-c", program, cwd=REPO / "benchmarks")
    assert 508 < int(done.stdout) / 2**20 < 600  # libraries that the first pass loads count too


def cells_of(ours: dict[int, float], peer: dict[int, float]) -> Cells:
    cells = Cells("made up")
    for n in ours:
        seconds = {"k=32": [ours[n]] * 3} | ({"sdpa": [peer[n]] * 3} if n in peer else {})
        cells.add("core", n, seconds, [("k=32", "sdpa")], tokens=100, peers=["sdpa"])
    return cells


def test_findings_state_what_the_figures_say(capsys: pytest.CaptureFixture[str]) -> None:
    cells = cells_of({32: 3, 64: 2, 128: 2.2, 256: 2.5}, {32: 1.5, 64: 3, 128: 6.6})
    cells.find_crossover("core", "k=32", "sdpa", target=64)
    cells.find_crossover("core", "k=32", "sdpa", target=32)
    cells.find_ratio("core", "k=32", "sdpa", 128, 3.5)
    cells.find_flat("core", "k=32", first=64, within=0.15)
    cells.find_flat("core", "k=32", first=64, within=0.3)
    crossover, missed, ratio, steep, flat = cells.findings
    assert "faster from n = 64 on (target: 64 or below: met), slower at 32 (0.50x)" in crossover
    assert "(target: 32 or below: missed)" in missed
    assert "3.00x (target 3.5x: missed)" in ratio
    assert "spreads over 25%" in steep
    assert "missed" in steep
    assert "met" in flat
    assert cells.figures[-1]["candidate"] == "sdpa"
    assert cells.figures[-1]["ms"] is None
    assert "not run" in capsys.readouterr().out


def test_slower_after_faster_is_no_crossover() -> None:
    cells = cells_of({32: 1, 64: 1, 128: 1}, {32: 2, 64: 2, 128: 0.5})
    cells.find_crossover("core", "k=32", "sdpa")
    assert "not faster at the largest n, slower at 128 (0.50x)" in cells.findings[0]


def test_stopwatch_leaves_out_peers_that_are_too_slow() -> None:
    watch = Stopwatch(Namespace(repeats=5, warmup=0, budget=1e-9, limit=0.0))
    candidates = {"k=32": lambda: None, "sdpa": lambda: None}
    first = watch.time("forward", candidates)
    assert [len(first[name]) for name in candidates] == [3, 3]  # three rounds in any case
    assert watch.time("forward", candidates).keys() == {"k=32"}
    assert watch.time("training step", candidates).keys() == candidates.keys()


def test_stopwatch_leaves_out_peers_that_are_too_large() -> None:
    def large() -> None:
        raise torch.OutOfMemoryError

    watch = Stopwatch(Namespace(repeats=3, warmup=1, budget=1.0, limit=9.0))
    assert watch.time("forward", {"k=32": lambda: None, "sdpa": large}).keys() == {"k=32"}
    assert not watch.allows("forward", "sdpa")


def test_rounds_without_a_budget_are_all_run() -> None:
    assert len(bench.paired({"a": lambda: None}, repeats=5, warmup=1)["a"]) == 5


def test_core_is_the_attention_between_its_linear_layers() -> None:
    torch.manual_seed(0)
    size = Size(embed_dim=12, heads=3)
    modules = attentions(size, [5], 7, "cpu", torch.float32)
    q, k, v = torch.randn(3, 7, 2, 12)

    def heads(x: torch.Tensor) -> torch.Tensor:  # [T, B, C] -> [B, H, T, D]
        return x.view(x.size(0), 2, 3, 4).permute(1, 2, 0, 3)

    matrices = modules["k=5"].projection.weight
    mixed = [torch.einsum("ks,sbc->kbc", m, x) for m, x in zip(matrices, (k, v), strict=True)]
    for keys, values, actual in (
        (*mixed, core(modules["k=5"], q, k, v)(q, q)),
        (k, v, core(modules["sdpa"], q, k, v)(q, q, q)[0]),
    ):
        weights = (heads(q) @ heads(keys).transpose(2, 3) / 2).softmax(-1)
        expected = (weights @ heads(values)).permute(2, 0, 1, 3).flatten(2)
        torch.testing.assert_close(actual, expected)


def test_random_lengths_have_the_papers_means() -> None:
    source, target = random_lengths(100_000, seed=1)
    assert float(source.double().mean()) == pytest.approx(31, rel=0.02)
    assert float(target.double().mean()) == pytest.approx(59, rel=0.02)
    assert int(target.max()) == LONGEST


def test_samples_are_padded_as_fairseq_pads() -> None:
    sample = sample_of(torch.tensor([3, 5]), torch.tensor([4, 2]), Size(vocabulary=50), "cpu")
    source, target = sample["net_input"]["src_tokens"], sample["target"]
    assert source.eq(PAD).tolist() == [[True, True, False, False, False], [False] * 5]
    assert target.eq(PAD).tolist() == [[False] * 4, [False, False, True, True]]
    assert source[:, -1].tolist() == [EOS, EOS]
    assert [target[0, 3], target[1, 1]] == [EOS, EOS]
    previous = sample["net_input"]["prev_output_tokens"]
    assert previous[:, 0].tolist() == [EOS, EOS]
    assert torch.equal(previous[0, 1:], target[0, :-1])
    assert sample["ntokens"] == 6
