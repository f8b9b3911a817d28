"""Benchmarks run to their end at a tiny size, and state what their figures say."""

import json
import math
import os
import re
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import bench
import engine
import engine_long
import engine_peers
import linformer
import mass_translation
import muse
import numpy as np
import pytest
import torch
from bench import Cells, Stopwatch
from linformer import LONGEST, random_lengths
from peers import EOS, Side, Size, attentions, core, pair_lengths, sample_of

from tests.support.harness import REPO, run, write_lines

TRANSFORMER, SIZE = ["--arch", "transformer"], Size(16, 24, 2, 1, 1, 50)
LEARNED = ["--encoder-learned-pos", "--decoder-learned-pos"]
SMALL = ("--embed-dim", 16, "--ffn-embed-dim", 24, "--heads", 2, "--layers", 1)
TIMED = (*SMALL, "--vocabulary", 50, "--threads", 1, "--repeats", 3, "--warmup", 1)
TINY = [*TIMED, "--k", 4, "--tokens", 16, "--sentences", 4, "--words", 3, "--batches", 2]
EXPECTED = {
    "encoder": {"k=4", "fairseq", "sdpa", "k=4 padded", "sdpa with mask"},
    "flat": {"k=4"},
    "attention": {"k=4", "sdpa"},
    "seq2seq": {"k=4", "fairseq", "sdpa"},
    "memory": {"k=4", "fairseq", "sdpa"},
    "generation": {"k=4", "fairseq", "k=4 decoding", "fairseq decoding"},
}
MUSE_TINY = [
    *(*TIMED, "--lengths", 4, 70, "--tokens", 64, "--sentences", 60, "--source-words", 5),
    *("--words", 3, "--batches", 1, 2),
]
STOCK_PATHS = {"fairseq expanded", "fairseq unfolded"}
TRANSLATORS = {
    *("transformer", "transformer packed", "MUSE-simple", "MUSE-simple fused"),
    *("MUSE", "MUSE fused"),
}
MUSE_EXPECTED = {  # candidates, n, and those that ours are compared with
    "generation": (TRANSLATORS, {1, 2}, {"transformer", "transformer packed"}),
    "training": (
        {
            *("transformer_iwslt_de_en", "muse_iwslt_de_en", "muse_simple_base"),
            "MUSE-simple, transformer's shape",
        },
        {None},
        {"transformer_iwslt_de_en"},
    ),
    "convolution": ({"ours", *STOCK_PATHS}, {4, 70}, STOCK_PATHS),
}


LENGTHS = {question: [8, 32] for question in EXPECTED} | {"memory": [8]}
"""Tokens of a sentence; each figure of the memory takes a process."""


def answers(
    module: ModuleType, words: list[object], defaults: dict[str, dict], folder: Path
) -> Path:
    """Ask a benchmark all its questions in this process; return the folder of the answers."""
    command = ["all", *map(str, words), "--json", str(folder / "x.json")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # to which a question adds
        parsed = module.arguments().parse_args(command)
        bench.ask(module.QUESTIONS, parsed, defaults, module.draw)
    return folder


def measured(module: ModuleType, *words: object, where: Path) -> dict[str, Any]:
    """Run a benchmark in this process; return what it writes."""
    with pytest.MonkeyPatch.context() as patch:
        command = [f"{module.__name__}.py", *map(str, words), "--json", str(where)]
        patch.setattr(sys, "argv", command)
        module.main()
    return json.loads(where.read_text())


def by_script(name: str, *words: object, where: Path) -> tuple[dict[str, Any], str]:
    """Run a benchmark as a process; return what it writes and prints."""
    script = REPO / "benchmarks" / f"{name}.py"
    done = run(sys.executable, script, *words, "--json", where, cwd=where.parent)
    return json.loads(where.read_text()), done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    defaults = {name: linformer.DEFAULTS[name] | {"lengths": LENGTHS[name]} for name in EXPECTED}
    return answers(linformer, TINY, defaults, tmp_path_factory.mktemp("benchmarks"))


@pytest.mark.parametrize("question", EXPECTED)
def test_every_question_has_finite_figures(results: Path, question: str) -> None:
    answer = json.loads((results / f"x_{question}.json").read_text())
    figures, ratios = answer["figures"], answer["ratios"]
    assert {row["candidate"] for row in figures} == EXPECTED[question]
    assert {row["n"] for row in figures} - {None} == {*LENGTHS[question]}
    for row in figures + ratios:
        numbers = [value for value in row.values() if isinstance(value, float)]
        assert numbers
        assert all(map(math.isfinite, numbers)), row
        # Decoding's time is a difference, which noise may turn at a toy's size.
        assert question == "generation" or min(numbers) >= 0, row
    if question != "memory":
        assert {row["peer"] for row in ratios} == {
            name for name in EXPECTED[question] if name[0] != "k"
        }
        assert all(row["repeats"] == 3 for row in figures)
    assert answer["machine"]["threads"] == 1
    assert answer["settings"]["embed_dim"] == 16
    if question not in ("memory", "generation"):
        assert (results / f"x_{question}.png").read_bytes().startswith(b"\x89PNG")


def test_cache_of_linformer_has_one_size(results: Path) -> None:
    figures = json.loads((results / "x_generation.json").read_text())["figures"]
    sizes = {row["n"]: row["cache_bytes"] for row in figures}
    # Keys and values in float32: k slots for each of 2 sentences, n tokens for each of 10 rows.
    assert sizes[8]["k=4"] == sizes[32]["k=4"] == 2 * 4 * (2 * 4 * 16)
    # fairseq keeps the padding mask as well, in float32.
    assert [sizes[n]["fairseq"] for n in (8, 32)] == [10 * n * 4 * (2 * 16 + 1) for n in (8, 32)]


def test_peak_memory_is_what_a_pass_takes_at_most() -> None:
    """Also where the process that starts it is a large one."""
    larger = torch.ones(3 * 2**26)  # 768 MiB
    program = """
import bench, torch
def run():
    large = torch.ones(2**27)  # 512 MiB, given back before the other
    del large
    torch.ones(2**25)
print(bench.peak_memory(run, "cpu"))
"""
    done = run(sys.executable, "-c", program, cwd=REPO / "benchmarks")
    del larger
    assert 508 < int(done.stdout) / 2**20 < 600  # libraries that the first pass loads count too


@pytest.fixture(scope="module")
def muse_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return answers(muse, MUSE_TINY, muse.DEFAULTS, tmp_path_factory.mktemp("benchmarks_muse"))


@pytest.mark.parametrize("question", MUSE_EXPECTED)
def test_every_question_about_muse_has_finite_figures(muse_results: Path, question: str) -> None:
    answer = json.loads((muse_results / f"x_{question}.json").read_text())
    figures, ratios = answer["figures"], answer["ratios"]
    names, lengths, peers = MUSE_EXPECTED[question]
    assert {row["candidate"] for row in figures} == names
    assert {row["n"] for row in figures} == lengths
    assert {row["peer"] for row in ratios} == peers
    for row in figures:
        assert row["repeats"] == 3
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["ms"] * 1000, rel=1e-5)
    assert all(math.isfinite(row["ratio"]) and row["ratio"] > 0 for row in ratios)
    assert answer["machine"]["threads"] == 1


def test_cells_have_ratios_of_rounds_and_peers_that_did_not_run(capsys) -> None:
    cells = Cells("made up")
    cells.add("core", 32, {"k=32": [1, 2, 4], "sdpa": [3, 4, 4]}, [("k=32", "sdpa")], tokens=100)
    cells.add("core", 64, {"k=32": [2] * 3}, [("k=32", "sdpa")], tokens=100, peers=["sdpa"])
    (ratio,) = cells.ratios
    assert (ratio["n"], ratio["ratio_low"], ratio["ratio"], ratio["ratio_high"]) == (32, 1, 2, 3)
    assert cells.curve("core", "k=32", "ms") == {32: 2000, 64: 2000}
    assert cells.figures[-1]["candidate"] == "sdpa"
    assert cells.figures[-1]["ms"] is None
    assert "not run" in capsys.readouterr().out
    assert bench.quartiles([0.5]) == (0.5, 0.5, 0.5)


def test_stopwatch_leaves_out_peers_that_are_too_slow_or_too_large() -> None:
    def large() -> None:
        raise torch.OutOfMemoryError

    watch = Stopwatch(Namespace(repeats=5, warmup=0, budget=1e-9, limit=0.0))
    candidates = {"k=32": lambda: None, "sdpa": lambda: None}
    first = watch.time("forward", candidates)
    assert [len(first[name]) for name in candidates] == [3, 3]  # three rounds in any case
    assert watch.time("forward", candidates).keys() == {"k=32"}
    assert watch.time("training step", candidates).keys() == candidates.keys()
    watch = Stopwatch(Namespace(repeats=3, warmup=1, budget=1.0, limit=9.0))
    assert watch.time("forward", {**candidates, "sdpa": large}).keys() == {"k=32"}
    assert not watch.allows("forward", "sdpa")


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


def test_random_lengths_follow_their_distributions() -> None:
    """The Linformer paper's means, and those of other corpora."""
    source, target = random_lengths(100_000, seed=1)
    assert float(source.double().mean()) == pytest.approx(31, rel=0.02)
    assert float(target.double().mean()) == pytest.approx(59, rel=0.02)
    assert int(target.max()) == LONGEST
    source, target = pair_lengths(200_000, (14.0, 30.0), (0.27, 0.4), 0.85, longest=500, seed=1)
    for lengths, mean, sigma in ((source, 14.0, 0.27), (target, 30.0, 0.4)):
        assert float(lengths.double().mean()) == pytest.approx(mean, rel=0.01)
        assert float(lengths.double().log().std()) == pytest.approx(sigma, rel=0.05)
    together = torch.corrcoef(torch.stack([source, target]).double().log())[0, 1]
    assert float(together) == pytest.approx(0.85, abs=0.02)


def test_transformer_on_packed_weights_computes_the_same() -> None:
    stock = Side(TRANSFORMER, SIZE, positions=9)
    packed = stock.on_packed_weights()
    sample = sample_of(torch.tensor([3, 5]), torch.tensor([4, 2]), SIZE, "cpu")
    with torch.no_grad():
        expected, actual = (side.model.eval()(**sample["net_input"])[0] for side in (stock, packed))
    torch.testing.assert_close(actual, expected)
    assert packed.model.decoder.output_projection._packed is not None


def test_preparing_a_corpus_is_timed_against_the_command_lines(tmp_path: Path) -> None:
    words = ("--pairs", 400, "--peer-pairs", 200, "--rounds", 1, "--work", tmp_path / "work")
    answer, output = by_script("preprocessing", *words, where=tmp_path / "x.json")
    ways = [(row["name"], row["cores"], row["pairs"]) for row in answer["figures"]]
    assert ways[:3] == [("ours", 2, 400), ("ours", 2, 200), ("ours", 1, 200)]
    assert [cores for name, cores, _ in ways if name.startswith("command lines")] == [2, 2, 1]
    for row in answer["figures"]:
        assert row["name"] in output
        assert row["pairs_per_second"] == pytest.approx(row["pairs"] / row["seconds"][0], rel=1e-5)
        assert row["peak_mib"] > 20
    # Of 400 pairs 4 have an empty side and 4 are too long.
    fates = {fate: pairs for fate, (pairs, *_) in answer["pairs and tokens"].items()}
    assert fates == {"kept": 392, "empty side": 4, "more than 80 words": 4}


def test_servers_are_timed_under_load(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    pytest.importorskip("starlette")
    import serve
    import serve_systems

    load = ("--clients", 1, 3, "--requests", 6, "--repeats", 3, "--warmup", 0)
    search = ("--vocabulary", 60, "--words", 5, "--beam", 2, "--max-len-b", 8)
    where = tmp_path / "x.json"
    answer = measured(serve, *SMALL, *load, *search, "--threads", 1, where=where)
    assert [row["candidate"] for row in answer["figures"]] == serve_systems.SYSTEMS * 2
    assert {(row["n"], row["requests"]) for row in answer["figures"]} == {(1, 6), (3, 6)}
    for row in answer["figures"]:
        assert row["requests_per_second"] == pytest.approx(6 / row["ms"] * 1e3, rel=1e-5)
        assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert len(answer["ratios"]) == 4
    assert re.search(r"^(1?\d\d) of 200 translations", answer["notes"][1])
    assert where.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_the_engine_is_timed_beside_fairseq(tmp_path, copy_data, copy_model):
    where, lists = tmp_path / "engine.json", tmp_path / "lists"
    lists.write_text(f"fairseq-ext shortlist 1\t0\n{' '.join('0123456789')} <unk> <s>\n")
    words = ("--data", copy_data, "--model", f"small={copy_model}", "--shortlist", lists)
    answer = measured(engine, *words, "--words", 4, "--repeats", 3, "--batches", 2, where=where)
    ours = {f"engine {numbers}" for numbers in ("fp32", "bf16", "int8")}
    listed = {f"{system}, shortlist" for system in ours}
    systems = {row["candidate"] for row in answer["figures"]}
    assert systems == {"fairseq's generator", *ours, *listed}
    scored = {note.partition(":")[0] for note in answer["notes"]}
    assert scored == {f"small, {system}" for system in ours | listed}
    assert {row["tokens"] for row in answer["figures"]} == {8 * 5}
    assert min(row["equal"]["engine fp32"] for row in answer["figures"]) > 0.8  # but for ties
    assert len(answer["ratios"]) == 6
    assert str(tmp_path) not in where.read_text()
    assert where.with_suffix(".png").exists()


def test_long_sources_are_timed_in_every_system(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    where = tmp_path / "long.json"
    words = (*SMALL, "--words", 4, "--lengths", 8, 1100, "--k", 4, "--vocabulary", 50)
    answer = measured(engine_long, *words, "--repeats", 3, where=where)
    searches = ("engine fp32", "engine int8", "fairseq's generator")
    systems = {f"{model}, {system}" for model in ("k=4", "transformer") for system in searches}
    systems |= {f"transformer, CTranslate2 {numbers}" for numbers in ("fp32", "int8")}
    # Decoding is left out where the encoder's time varies by more than it.
    expected = systems | {f"{name}, decoding" for name in systems}
    assert systems <= {row["candidate"] for row in answer["figures"]} <= expected
    assert {row["n"] for row in answer["figures"]} == {8, 1100}
    assert {row["tokens"] for row in answer["figures"]} == {5}
    assert 2 * (2 * 3 + 1) <= len(answer["ratios"]) <= 2 * 2 * (2 * 3 + 1)
    assert where.with_suffix(".png").exists()


def test_peers_translate_the_same_sentences(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    pytest.importorskip("pymarian")
    where = tmp_path / "peers.json"
    # Marian needs as many words as the shortlist always has, 100.
    size = ("--embed-dim", 64, "--ffn-embed-dim", 64, "--heads", 2, "--layers", 1)
    words = (*size, "--repeats", 2, "--words", 5, "--vocabulary", 200)
    answer, _ = by_script("engine_peers", *words, "--batches", 1, 32, where=where)
    figures = answer["figures"]
    systems = [name for name in engine_peers.SYSTEMS if name not in answer["refused"]]
    assert {*answer["refused"]} <= {"CTranslate2 int8_bfloat16"}
    assert [(row["system"], row["batch"]) for row in figures] == [
        (name, size) for name in systems for size in (1, 32)
    ]
    # With a shortlist, the other systems' lists of a batch have more words than the engine's.
    exact = [
        row["equal"]
        for row in figures
        if "fp32" in row["system"] and (row["batch"] == 1 or "shortlist" not in row["system"])
    ]
    assert min(exact) > 0.9
    assert 100 < answer["candidates"]["1"] < answer["candidates"]["32"] <= 200
    assert where.with_suffix(".png").exists()


def test_a_transformer_in_marians_names(tmp_path: Path) -> None:
    """Products from the right, vectors as rows; positions from 0, and a beginning of zeros."""
    import marian_models

    side = Side([*TRANSFORMER, *LEARNED], Size(8, 12, 2, 1, 1, 50), positions=16)
    words = side.task.target_dictionary
    model = marian_models.like_marian(side.model, words)
    assert model.decoder.embed_positions.weight[words.pad() + 1].tolist() == [0] * 4 + [1] * 4
    assert not model.decoder.embed_tokens.weight[words.eos()].any()
    flags = marian_models.export(model, words, tmp_path)
    assert flags[1] == str(tmp_path / marian_models.MODEL)
    arrays = np.load(flags[1])
    layer = model.decoder.layers[0]
    np.testing.assert_array_equal(arrays["decoder_l1_ffn_W1"], layer.fc1.weight.detach().T)
    bias = layer.encoder_attn.k_proj.bias.detach()[None]
    np.testing.assert_array_equal(arrays["decoder_l1_context_bk"], bias)
    assert len(arrays.files) == 1 + 2 + (8 + 4 + 2 * 2) + (16 + 4 + 3 * 2)


def test_torchs_dynamic_int8_computes_about_the_same() -> None:
    side = Side(TRANSFORMER, SIZE, positions=16)
    model = side.model.eval()
    batch = [[5, 6, 7, EOS], [8, 9, EOS]]
    expected = engine.by_fairseq(model, side.task)(batch, (3, 3))
    quantized = engine.quantized_copy(model)
    actual = engine.by_fairseq(quantized, side.task)(batch, (3, 3))
    assert [len(tokens) for tokens in actual] == [len(tokens) for tokens in expected] == [4, 4]
    layers = [module for module in quantized.modules() if hasattr(module, "in_features")]
    assert layers
    assert all("quantized" in type(layer).__module__ for layer in layers)
    sample = sample_of(torch.tensor([4, 3]), torch.tensor([4, 4]), SIZE, "cpu")
    with torch.no_grad():
        outputs = [network(**sample["net_input"])[0] for network in (model, quantized)]
    assert not torch.equal(*outputs)
    torch.testing.assert_close(*outputs, atol=0.05, rtol=0.05)


def test_translation_in_parts_loses_nothing(copy_bundle, tmp_path):
    text = write_lines(tmp_path / "text", ["1 2 3", "", "9 8"])
    words = [copy_bundle, "--text", text, "--lines", 6, "--speed-lines", 40, "--part-lines", 4]
    words += ["--workers", 2, "--kills", 1, "--repeats", 1]
    figures = measured(mass_translation, *words, where=tmp_path / "figures.json")
    (memory,), (workers,) = figures["memory"], figures["workers"]
    assert (memory["lines"], workers["workers"]) == (6, 2)
    assert memory["peak_mib"] > 1
    expected = {"lost": 0, "doubled": 0, "bytes_equal": True}
    assert expected.items() <= figures["kills"].items()


ROWS = {
    "split_pairs": ["--pairs", 500, "--vocabulary", 300, "--part-lines", 400, "--workers", 1, 2],
    "data_start": ["--pairs", 5000, "--base", 500, "--repeats", 2],
    "updates": [
        *("--memory", "--models", "transformer 128", "--vocabulary", 60, "--tokens", 200, 300)
    ],
}


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_rows_have_figures(name: str, tmp_path: Path) -> None:
    rows = by_script(name, *ROWS[name], where=tmp_path / "x.json")[0]["rows"]
    assert len(rows) >= 2
    for row in rows:
        figures = {name: value for name, value in row.items() if isinstance(value, float)}
        assert figures
        assert all(map(math.isfinite, figures.values())), row
        # Figures without the base are 0 in the base's own row, and noise may make others negative.
        # `disk_mib` is 0 if a short run ends before the files on disk are looked at.
        positive = {name for name in figures if "_own_" not in name and name != "disk_mib"}
        assert all(figures[name] > 0 for name in positive), row


@pytest.mark.long
def test_updates_of_all_sides_on_a_made_up_corpus(tmp_path: Path) -> None:
    """Without dropout the plugin loses as it did before, to float's precision."""
    words = ["--repeats", 2, "--updates", 1, "--warmup", 1, "--tokens", 200]
    words += ["--vocabulary", 60, "--dropout", 0, "--models", "gru", "--more=--bf16"]
    answer, _ = by_script("updates", *words, where=tmp_path / "x.json")
    assert {row["candidate"] for row in answer["figures"]} == {"plugin", "before", "more", "rival"}
    for row in answer["figures"]:
        assert 0 <= row["largest_relative_difference_of_losses"]["before"] < 1e-5
        assert row["mebibytes_before_first_update"]["plugin"] < row["mebibytes"]["plugin"]
        assert row["parameters"]["before"] == row["parameters"]["plugin"]
        assert row["parameters"]["rival"] != row["parameters"]["plugin"]
