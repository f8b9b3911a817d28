"""The engine translates as fairseq's generator does, whatever the models and options."""

import pytest

from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.library import Machine, Team, available_paths
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.utils.errors import ConfigError, DataError
from tests.support import models
from tests.support.engine import (
    ALL,
    LENGTHS,
    LIGHTCONV,
    SIZE,
    STOCK,
    WITH_FULL_FORWARD,
    assert_same,
    bits,
    fairseqs,
    naive,
    program_of,
    sharpened,
    together,
    worker_of,
)

ENSEMBLES = [
    *("transformer+transformer", "gru+gru", "linformer+linformer", "muse+muse", "bmt-1+bmt-1"),
    *("binary-transformer+binary-transformer", "transformer+gru", "gru-luong+bmt-6"),
    *("transformer-learned+muse-ordinary+linformer+gru-dot",),
    *("binary-muse+transformer-pre-norm+binary-linformer",),
]
SENTENCES = models.random_sentences(LENGTHS, size=SIZE)


@pytest.mark.parametrize("names", [*ALL, *ENSEMBLES])
def test_beam_search(names: str):
    """All hypotheses, of sentences together in a batch, with scores and alignments."""
    voters, task = together(names)
    sentences = SENTENCES[:4] if "+" in names else SENTENCES
    rules = Rules(beam=4, max_len_b=15, attention=True)
    ours = worker_of(voters, task).translate(sentences, rules)
    theirs = fairseqs(voters, task, sentences, beam_size=4, max_len_b=15)
    assert_same(ours, theirs, attention=True)


WIDE = [flag for side in ("encoder", "decoder") for flag in (f"--{side}-embed-dim", "144")]
"""Two heads of 72: more than is copied at a time, and not a multiple of any vector."""
LONG = {
    "transformer": [*STOCK["transformer"], *WIDE],
    "linformer": [*models.LINFORMER, *WIDE, "--linformer-k", "33", "--linformer-max-len", "301"],
}


@pytest.mark.parametrize("path", available_paths())
@pytest.mark.parametrize("name", LONG)
def test_long_sources(name: str, path: str):
    """Of several chunks of keys and values, and beams wider than what is answered at once."""
    model, task = models.build(LONG[name], size=SIZE)
    sentences = models.random_sentences([300, 128, 129], size=SIZE)
    rules = Rules(beam=7, max_len_b=4, attention=True)
    ours = worker_of(model, task, path=path).translate(sentences, rules)
    theirs = fairseqs(model, task, sentences, beam_size=7, max_len_b=4)
    assert_same(ours, theirs, attention=True)


@pytest.mark.parametrize("name", WITH_FULL_FORWARD)
def test_against_a_search_without_caches(name: str):
    model, task = sharpened(name)
    sentences = models.random_sentences([7, 2, 4], size=SIZE, seed=8)
    ours = worker_of(model, task).translate(sentences, Rules(beam=2, max_len_b=7))
    searched = [naive(model, sentence, beam=2, longest=7) for sentence in sentences]
    assert searched.count(None) < 2
    assert_same(ours, searched)


@pytest.mark.parametrize("numbers", ["bf16", "int8"])
@pytest.mark.parametrize("names", ["transformer", "gru", "linformer", "muse", "transformer+gru"])
def test_rounded_weights(names: str, numbers: str):
    """What a model with rounded weights computes: its log-probabilities are near the exact ones."""
    program, rules = program_of(*together(names)), Rules(beam=1, max_len_b=1)
    exact, rounded = (
        Machine(program, kind).worker().translate(SENTENCES, rules) for kind in ("fp32", numbers)
    )
    for (expected, *_), (actual, *_) in zip(exact, rounded, strict=True):
        assert actual.scores[0] == pytest.approx(expected.scores[0], abs=0.15)
        assert actual.scores[0] != expected.scores[0]
    if numbers == "int8":  # integers do not round
        for path in available_paths():
            other = Machine(program, "int8", path).worker().translate(SENTENCES, rules)
            assert_same(other, rounded, atol=1e-3)


@pytest.mark.parametrize(
    "how",
    [
        {"beam_size": 1, "max_len_b": 12},
        {"beam_size": 3, "max_len_a": 0.5, "max_len_b": 4, "len_penalty": 0.3},
        {"beam_size": 5, "max_len_b": 9, "normalize_scores": False, "unk_penalty": 0.7},
        {"beam_size": 2, "max_len_b": 30, "min_len": 6, "temperature": 1.7},
        {"beam_size": 3, "max_len_b": 5, "unk_penalty": -4.0, "len_penalty": 2.0},
        # 0.7 of 10 tokens are 7, but fewer in fp32, and the last token would be lost
        {"beam_size": 1, "min_len": 7, "max_len_a": 0.7, "max_len_b": 0},
    ],
)
@pytest.mark.parametrize("names", ["transformer", "gru", "muse", "transformer+gru"])
def test_rules(names: str, how: dict):
    voters, task = together(names)
    lengths = [10] if how["max_len_b"] == 0 else LENGTHS
    sentences = models.random_sentences(lengths, size=SIZE, seed=5)
    rules = Rules(
        beam=how["beam_size"],
        min_len=how.get("min_len", 1),
        max_len_a=how.get("max_len_a", 0),
        max_len_b=how["max_len_b"],
        lenpen=how.get("len_penalty", 1) if how.get("normalize_scores", True) else None,
        unkpen=how.get("unk_penalty", 0),
        temperature=how.get("temperature", 1),
    )
    ours = worker_of(voters, task).translate(sentences, rules)
    assert_same(ours, fairseqs(voters, task, sentences, **how))
    if how["max_len_b"] == 0:
        assert len(ours[0][0].tokens) == 8


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--weight-softmax", "False"], "dynamic convolution without `--weight-softmax`"),
        (["--encoder-kernel-size-list", "[3, 4]"], "even number of taps in the encoder"),
    ],
)
def test_convolutions_that_the_engine_does_not_have(flags: list[str], message: str):
    model, task = models.build([*LIGHTCONV, *flags], size=SIZE)
    with pytest.raises(ConfigError, match=f"^the engine has no .*{message}"):
        compile_model(model, task.target_dictionary)


def test_limits_of_length_may_be_any_number():
    """Also one that 32 bits cannot hold: a translation ends where its positions do."""
    worker = worker_of(*sharpened("transformer"))
    long, scaled, enough = (
        worker.translate(SENTENCES, Rules(beam=2, min_len=3, max_len_a=a, max_len_b=b))
        for a, b in ((0, 3_000_000_000), (1e300, 0), (0, 200_000))
    )
    assert bits(long) == bits(scaled) == bits(enough)
    assert min(len(hypotheses[0].tokens) for hypotheses in long) > 3
    with pytest.raises(ConfigError, match="`--max-len-a` must be a number, but is inf"):
        Rules(max_len_a=float("inf"))


SEVERAL = "transformer+gru+muse"


@pytest.mark.parametrize("path", available_paths())
@pytest.mark.parametrize("names", ["transformer", "gru", "linformer", "muse", "bmt-1", SEVERAL])
def test_batch_mates_change_nothing(names: str, path: str):
    """To the last bit, with every instruction set that this processor has; as fairseq has it."""
    voters, task = together(names)
    worker, rules = worker_of(voters, task, path=path), Rules(beam=3, max_len_b=20)
    batch = worker.translate(SENTENCES, rules)
    alone = [worker.translate([sentence], rules)[0] for sentence in SENTENCES]
    assert bits(alone) == bits(batch)
    if names in ("muse", SEVERAL):
        assert_same(batch, fairseqs(voters, task, SENTENCES, beam_size=3, max_len_b=20))


@pytest.mark.parametrize("threads", [2, 3, 11])
@pytest.mark.parametrize("names", ["muse", SEVERAL])
def test_threads_change_nothing(names: str, threads: int):
    rules, machine = Rules(beam=3, max_len_b=20), Machine(program_of(*together(names)))
    for forced in (None, [[4 + number] for number in range(len(SENTENCES))]):
        alone = machine.worker().translate(SENTENCES, rules, forced)
        assert bits(Team(machine, threads).translate(SENTENCES, rules, forced)) == bits(alone)


@pytest.mark.parametrize("names", ["transformer", "gru", "transformer+gru"])
def test_prefixes(names: str):
    voters, task = together(names)
    sentences = models.random_sentences([5, 5, 5], size=SIZE)
    prefixes = [sentence[:-1] for sentence in models.random_sentences([4] * 3, size=SIZE, seed=9)]
    ours = worker_of(voters, task).translate(sentences, Rules(beam=3, max_len_b=15), prefixes)
    assert_same(ours, fairseqs(voters, task, sentences, prefixes, beam_size=3, max_len_b=15))
    assert [hypotheses[0].tokens.tolist()[:3] for hypotheses in ours] == prefixes


@pytest.mark.parametrize("sentence", [[], [2] * 2000, [4, 40, 2], [-1, 2]])
def test_sentences_that_cannot_be_read(sentence: list[int]):
    worker = worker_of(*sharpened("transformer"))
    with pytest.raises(DataError):
        worker.translate([[4, 2], sentence], Rules())
    with pytest.raises(DataError, match="prefix"):
        worker.translate([[4, 2]], Rules(), [[40]])
    assert worker.translate([], Rules()) == []
