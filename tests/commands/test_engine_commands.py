"""The engine in commands: the same output, and the log says where fairseq translates."""

from pathlib import Path

import pytest

from fairseq_ext.evaluation import outputs
from tests.support.harness import fairseq, run

HOW = ("--beam", 4, "--nbest", 3, "--max-len-b", 15, "--cpu", "--batch-size", 20)


def generated(data: Path, model: Path, path: Path, *options: object) -> tuple[list, str]:
    """Sentences of fairseq-generate's output, and its log; without ``--engine`` fairseq's own."""
    engine = () if "--engine" in options else ("--engine", "fairseq")
    done = fairseq("generate", data, "--path", model, *HOW, *engine, *options)
    path.write_text(done.stdout, encoding="utf-8")
    return outputs.read_generated(path), done.stdout + done.stderr


def require_same(ours: list, theirs: list) -> None:
    """The same hypotheses with the same scores and attention, but for a few candidates in a tie."""
    assert len(ours) == len(theirs) == 50
    ties = 0  # of candidates with equal scores either may come first
    for our, their in zip(ours, theirs, strict=True):
        assert (our.index, our.source, our.target) == (their.index, their.source, their.target)
        for our_hypothesis, their_hypothesis in zip(our.hypotheses, their.hypotheses, strict=True):
            assert our_hypothesis.score == pytest.approx(their_hypothesis.score, abs=1e-4)
            if our_hypothesis.text != their_hypothesis.text:
                ties += 1
                continue
            rows = zip(our_hypothesis.soft or (), their_hypothesis.soft or (), strict=True)
            for row, their_row in rows:
                assert row == pytest.approx(their_row, abs=1e-5)
    assert ties <= 6


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("native", ()),
        ("native", ("--print-alignment", "soft", "--prefix-size", 1)),
        ("torch", ("--print-alignment", "soft", "--prefix-size", 1)),
    ],
)
def test_generate(copy_data: Path, copy_model: Path, tmp_path: Path, engine: str, options: tuple):
    theirs, _ = generated(copy_data, copy_model, tmp_path / "fairseq", *options)
    ours, log = generated(copy_data, copy_model, tmp_path / "ours", *options, "--engine", engine)
    assert "instead of the engine" not in log
    require_same(ours, theirs)
    hypotheses = [hypothesis for sentence in ours for hypothesis in sentence.hypotheses]
    assert len(hypotheses) == 3 * 50
    assert {bool(hypothesis.soft) for hypothesis in hypotheses} == {bool(options)}


def test_what_the_engine_lacks_is_left_to_fairseq(copy_data, copy_model, tmp_path):
    options = ("--diversity-rate", 0.5)
    theirs, _ = generated(copy_data, copy_model, tmp_path / "fairseq", *options)
    ours, log = generated(copy_data, copy_model, tmp_path / "ours", *options, "--engine", "native")
    message = "the engine has no diverse search"
    assert f"fairseq's generator translates instead of the engine: {message}" in log
    assert ours == theirs


def test_samples(copy_data: Path, copy_model: Path, tmp_path: Path):
    """The same for all batches; others with another seed."""

    def samples(*options: object) -> list:
        drawn = ("--sampling", "--task", "translation_ext", "--epsilon-sampling", 0.05)
        flags = ("--engine", "native", *drawn, "--nbest", 4, *options)
        sentences, log = generated(copy_data, copy_model, tmp_path / "out", *flags)
        assert "instead of the engine" not in log
        return [
            [(hypothesis.text, hypothesis.score) for hypothesis in sentence.hypotheses]
            for sentence in sentences
        ]

    first = samples()
    assert samples("--batch-size", 7) == first
    assert samples("--seed", 2) != first
    assert len({text for sentence in first for text, _ in sentence}) > 60  # of 200


@pytest.mark.parametrize("options", ["--fp16", "--retain-dropout"])
def test_models_that_the_engine_would_change(copy_data, copy_model, tmp_path, options):
    _, log = generated(copy_data, copy_model, tmp_path / "out", options, "--engine", "native")
    assert "fairseq's generator translates instead of the engine: the " in log


@pytest.mark.parametrize(("engine", "level"), [("native", "INFO"), ("native-int8", "WARNING")])
def test_translate_says_who_translates(copy_data: Path, copy_model: Path, engine: str, level: str):
    command = ("fairseq-ext", "translate", copy_data, "--path", copy_model, "--cpu")
    done = run(*command, "--engine", engine, stdin="1 2\n", FAIRSEQ_EXT_ENGINE="none")
    assert f"{level}:fairseq_ext.generation.on_engine:fairseq's generator translates" in done.stderr


def test_the_engine_is_the_default(copy_data: Path, copy_model: Path, tmp_path: Path):
    """Of every command that translates: the digits are as the engine's, to the last one."""
    command = (copy_data, "--path", copy_model, *HOW)
    unnamed, named, theirs = (
        fairseq("generate", *command, *engine)
        for engine in ((), ("--engine", "native"), ("--engine", "fairseq"))
    )
    assert "instead of the engine" not in unnamed.stdout + unnamed.stderr
    lines = [
        [line for line in done.stdout.splitlines() if line[:2] in ("H-", "P-")]
        for done in (unnamed, named, theirs)
    ]
    assert lines[0] == lines[1] != lines[2]
    # A machine without it: as if the processor lacked the chosen instructions.
    missing = fairseq("generate", *command, FAIRSEQ_EXT_ENGINE="none")
    log = missing.stdout + missing.stderr
    assert log.count("translates instead of the engine: `FAIRSEQ_EXT_ENGINE`") == 1
    assert lines[2] == [line for line in missing.stdout.splitlines() if line[:2] in ("H-", "P-")]
