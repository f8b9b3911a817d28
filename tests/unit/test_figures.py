"""BLEU by length and the gates of MUSE, against sacrebleu and the model itself."""

import json
import random
from pathlib import Path

import pytest
import sacrebleu
import torch

from fairseq_ext.evaluation import lengths, outputs, plots, training_log
from fairseq_ext.muse.commands import plot_gates as gates
from fairseq_ext.text.generated import Postprocessor
from fairseq_ext.text.subwords import remove_bpe
from fairseq_ext.utils.errors import CheckpointError
from tests.support.bundles import save_run
from tests.support.generated import write_generated
from tests.support.harness import ended, leaves_no_trace, run, write_lines
from tests.support.models import MUSE, SMALL, build
from tests.unit.test_evaluation import check_picture, naive_bleu

WORDS = [f"w{number}" for number in range(12)]
LENGTHS = [1, 9, 10, 11, 20, 21, 35, *range(2, 30)]  # of sources; between and on the limits


def pieces(words: list[str], generator: random.Random) -> str:
    """Some words in two subword pieces."""
    return " ".join(f"{w[0]}@@ {w[1:]}" if generator.random() < 0.4 else w for w in words)


def generated(path: Path, seed: int, wrong: float) -> Path:
    """Output of fairseq-generate in which ``wrong`` is the share of words that are others."""
    source, reference = random.Random(1), random.Random(2)  # the same in every system
    generator, sources, translations = random.Random(seed), [], []
    for length in LENGTHS:
        words = reference.choices(WORDS, k=length + 2)
        translated = [w if generator.random() > wrong else generator.choice(WORDS) for w in words]
        sources.append(pieces(source.choices(WORDS, k=length), generator))
        translations.append([pieces(translated, generator)])
    return write_generated(path, translations, sources)


@pytest.fixture
def systems(tmp_path) -> dict[str, Path]:
    generator = random.Random(2)
    references = [" ".join(generator.choices(WORDS, k=length + 2)) for length in LENGTHS]
    write_lines(tmp_path / "ref", references)
    return {
        "good": generated(tmp_path / "good.out", 3, 0.1),
        "worse, 50%": generated(tmp_path / "worse.out", 4, 0.5),
    }


@pytest.mark.parametrize("tokenized", [False, True])
def test_buckets_are_scored_as_corpora_of_their_own(systems, tmp_path, tokenized):
    bounds = lengths.parse_bounds("10,20,40,60")
    options = {"tokenizer": None} if tokenized else {}
    scores = lengths.score_by_length(systems, tmp_path / "ref", bounds, **options)
    references = (tmp_path / "ref").read_text().splitlines()
    limits = [(1, 10), (11, 20), (21, 40), (41, 60), (61, float("inf"))]
    assert [bucket.label for bucket in scores.buckets] == [
        *("1–10", "11–20", "21–40", "41–60", "> 60")
    ]
    assert [bucket.sentences for bucket in scores.buckets[3:]] == [0, 0]
    for name, path in systems.items():
        texts = [*map(remove_bpe, outputs.best_hypotheses(outputs.read_generated(path)))]
        for bucket, (first, last) in zip(scores.buckets, limits, strict=True):
            options = [i for i, length in enumerate(LENGTHS) if first <= length <= last]
            assert bucket.sentences == len(options)
            sides = [texts[i] for i in options], [references[i] for i in options]
            if options and tokenized:
                assert bucket.bleu[name] == pytest.approx(naive_bleu(*sides), abs=1e-9)
            elif options:
                truth = sacrebleu.corpus_bleu(sides[0], [sides[1]]).score
                assert bucket.bleu[name] == pytest.approx(truth, abs=1e-9)
            else:
                assert bucket.bleu == {}
        truth = sacrebleu.corpus_bleu(texts, [references]).score
        assert tokenized or scores.whole[name] == pytest.approx(truth, abs=1e-9)


def test_lengths_command(systems, tmp_path):
    named = [word for name, path in systems.items() for word in ("--system", f"{name}={path}")]
    options = ("--tokenized-ref", tmp_path / "ref", "--buckets", "10,20,60", "-o", tmp_path / "out")
    status, printed, errors = ended("plot", "lengths", *named, *options, "--relative-to", "good")
    written = [tmp_path / f"out.{kind}" for kind in ("png", "json")]
    check_picture(written)
    assert (status, errors) == (0, "")
    data = json.loads(written[1].read_text())
    assert data["metric"] == "BLEU on tokens"
    assert [bucket["last"] for bucket in data["buckets"]] == [10, 20, 60, None]
    assert data["buckets"][3] == {"first": 61, "last": None, "sentences": 0, "bleu": {}}
    lines = printed.splitlines()
    assert lines[:2] == [str(path) for path in written]
    bucket = data["buckets"][0]
    scores = [f"{bucket['bleu'][name]:.2f}" for name in systems]
    assert lines[3].split() == ["1–10", str(bucket["sentences"]), *scores]
    assert lines[6].split() == [">", "60", "0", "–", "–"]
    assert lines[7].split()[:2] == ["all", str(len(LENGTHS))]
    relative = data["relative"]
    assert relative["to"] == "good"
    assert relative["whole"].keys() == data["whole"].keys() == systems.keys()
    for difference, score in zip(relative["buckets"], data["buckets"], strict=True):
        assert difference["bleu"].keys() == score["bleu"].keys()
        for name, value in difference["bleu"].items():
            assert value == pytest.approx(score["bleu"][name] - score["bleu"]["good"])


def test_the_axis_begins_near_the_lowest_score(figures):
    def drawn(scores: lengths.LengthScores, relative_to: str | None = None):
        lengths.plot_lengths(scores, "out", relative_to)
        (axes,) = figures[-1].axes
        return axes

    buckets = tuple(lengths.Bucket(n, n, 3, {"a": 40.0 + n, "b": 41.0}) for n in (1, 2, 9))
    scores = lengths.LengthScores("BLEU", buckets, {"a": 43.0, "b": 41.0})
    axes = drawn(scores)
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["1\nn = 3", "2\nn = 3", "9\nn = 3"]
    low, high = axes.get_ylim()
    assert 40 < low < 41
    assert 49 < high < 50
    axes = drawn(scores, "b")
    low, high = axes.get_ylim()
    assert -1 < low < 0
    assert 8 < high < 9
    difference, zero = axes.lines
    assert list(difference.get_ydata()) == [0, 1, 8]
    assert list(zero.get_ydata()) == [0, 0, 0]
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert shown == ["a (all: +2.00)", "b (all: +0.00)"]
    worst = lengths.LengthScores("BLEU", (lengths.Bucket(1, 1, 3, {"a": 0.0}),), {"a": 0.0})
    assert drawn(worst).get_ylim() == (0, 1)
    plots.plot_curves({"worst": training_log.Curves(valid={"bleu": {1: 0.0, 2: 0.0}})}, "out")
    assert figures[-1].axes[0].get_ylim()[0] == 0


def test_no_two_systems_of_a_picture_look_alike():
    names = [f"system {n}" for n in range(28)]
    styles = plots.looks(names)
    assert list(styles) == names
    for kind in ("ls", "marker"):
        assert len({(look["color"], look[kind]) for look in styles.values()}) == len(names)


def test_text_is_detokenized_for_sacrebleu(tmp_path):
    out = write_generated(tmp_path / "g", [["Well , it 's so !"]], ["a b"])
    reference = write_lines(tmp_path / "ref", ["Well, it's so!"])
    undoing = {"a": Postprocessor.by_language("en")}
    scores = lengths.score_by_length({"a": out}, reference, [10], undoing=undoing)
    assert scores.buckets[0].bleu["a"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--buckets", "20,10"], "must be rising lengths like 10,20,30, but is `20,10`"),
        (["--buckets", "10,10"], "`10,10` instead"),
        (["--buckets", "ten"], "`ten` instead"),
        (["--buckets", "0,5"], "`0,5` instead"),
        (["--system", "x"], "`--system` must be NAME=FILE"),
        (["--system", "one=two.out"], "`--system` must be NAME=FILE with a name of its own"),
        (["--system", "two=two.out"], "sentence 1 has 2 words in one and 1 in the other"),
        (["--system", "bare=bare.out"], "`bare` has no sources"),
        (["--system", "three=absent.out"], "absent.out"),
        (["--relative-to", "x"], "`--relative-to x` must be one of the systems: one."),
        (["--detokenize", "de"], "`--detokenize` goes with `--ref`"),
        (["-o", "absent/out.png"], "absent/out.png"),
    ],
)
def test_lengths_errors(options, message, tmp_path):
    write_lines(tmp_path / "ref", ["a b", "c d"])
    for name, text in (("one", "b c"), ("two", "b@@ c")):
        write_generated(tmp_path / f"{name}.out", [["x"], ["y"]], ["a", text])
    write_lines(tmp_path / "bare.out", ["H-0\t-1\tx", "H-1\t-1\ty"])
    words = ("plot", "lengths", "--system", "one=one.out", "--tokenized-ref", "ref", "-o", "out")
    leaves_no_trace(tmp_path, message, *words, *options)


@pytest.mark.parametrize(
    "flags",
    [
        ["--muse-kernels", "3,15"],
        ["--muse-kernels", "3,7,31/15"],
        ["--muse-kernels", "5/3,15", "--muse-separate-projection"],
    ],
)
def test_gates_are_the_models(flags, tmp_path):
    model, task = build([*MUSE, *flags])
    random_gates = torch.Generator().manual_seed(1)
    sides = {"encoder": model.encoder, "decoder": model.decoder}
    for layer in (*model.encoder.layers, *model.decoder.layers):
        if layer.attention.convolution.gate is not None:
            layer.attention.convolution.gate.data.normal_(generator=random_gates)
    folder = save_run(tmp_path / "run", [*MUSE, *flags], model, task)
    gate_values = gates.read_gates(folder / "checkpoint_best.pt")
    for name, side in sides.items():
        for shares, layer in zip(gate_values[name], side.layers, strict=True):
            convolution = layer.attention.convolution
            assert [*shares] == [*convolution.kernel_sizes]
            assert [*shares.values()] == pytest.approx(convolution.gate_values().tolist(), abs=1e-6)


def test_equal_kernel_sizes_count_together():
    assert gates.shares((3, 5, 3), torch.zeros(3)) == pytest.approx({3: 2 / 3, 5: 1 / 3})


def test_gates_command(tmp_path):
    """As a process, on a checkpoint with what ``--eval-bleu`` leaves behind."""
    flags = [*MUSE, "--muse-kernels", "3,15/7"]
    model, task = build(flags)
    gate = torch.tensor([0.0, 1.0]).log_softmax(0)
    model.encoder.layers[0].attention.convolution.gate.data = gate
    path = save_run(tmp_path / "run", flags, model, task) / "checkpoint_best.pt"
    state = torch.load(path, weights_only=True)
    counts = torch.arange(4).numpy()
    torch.save({**state, "extra_state": {"metrics": {"_bleu_counts": counts}}}, path)
    done = run("fairseq-ext", "plot", "gates", path, "-o", tmp_path / "out.png")
    written = [tmp_path / f"out.{kind}" for kind in ("png", "json")]
    check_picture(written)
    assert done.stderr == ""
    share = 1 / (1 + 2.718281828)
    data = json.loads(written[1].read_text())
    assert data["encoder"][0] == pytest.approx({"3": share, "15": 1 - share})
    assert data["encoder"][1] == data["decoder"][1] == {"7": 1.0}
    table = [line.split() for line in done.stdout.splitlines()[2:]]
    assert table[1:3] == [
        ["encoder", "1", f"{share:.4f}", "–", f"{1 - share:.4f}", "0.368"],
        ["encoder", "2", "–", "1.0000", "–", "–"],
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([*MUSE, "--muse-kernels", "7"], r"has no gate.*`--muse-kernels 7`"),
        ([*MUSE, "--muse-kernels", "none"], r"has no gate.*`--muse-kernels none`"),
        (
            [*MUSE, "--muse-convolution", "ordinary", "--muse-kernels", "3"],
            "has no gate: none of its layers has several dynamic kernels",
        ),
        (["--arch", "transformer", *SMALL], "holds the architecture `transformer`; give a"),
        (["--arch", "gru_tiny"], "holds the architecture `gru_tiny`; give a"),
    ],
)
def test_checkpoints_without_gates_are_refused(flags, message, tmp_path):
    folder = save_run(tmp_path / "run", flags, *build(flags))
    with pytest.raises(CheckpointError, match=message):
        gates.read_gates(folder / "checkpoint_best.pt")
