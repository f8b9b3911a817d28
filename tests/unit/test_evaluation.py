"""Averaging, generated text, scores and pictures, each against an independent truth."""

import json
import math
import warnings
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from sacrebleu import CHRF

from fairseq_ext.checkpoints import averaging, storage
from fairseq_ext.evaluation import outputs, plots, score, training_log
from fairseq_ext.evaluation.breakdown import break_down, kinds_of, most_different
from fairseq_ext.text.generated import Postprocessor
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.subwords import remove_bpe
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError
from tests.support.harness import command, error_line, run, write_lines

GENERATED = """\
2026-01-01 00:00:00 | INFO | fairseq_cli.generate | H-9 is not a hypothesis here
S-1\tein@@ s zwei
T-1\tone two
H-1\t-0.25\to@@ ne <unk>
D-1\t-0.25\tone <unk>
P-1\t-0.1000 -0.2000 -0.3000 -0.4000
A-1\t0.1,0.2,0.3,0.4 0.4,0.3,0.2,0.1 0.25,0.25,0.25,0.25 0,0,0,1
H-1\t-1.5e-05\tsecond best
D-1\t-1.5e-05\tsecond best
P-1\t-0.1000 -0.2000 -0.3000
A-1\t0.1,0.2,0.3,0.4 0.4,0.3,0.2,0.1 0.25,0.25,0.25,0.25
S-0\tđông
T-0\teast
H-0\t-inf\t
D-0\t-inf\t
P-0\t-0.5000
A-0\t0.5,0.5
Generate test with beam=2: BLEU4 = 0.00
"""


@pytest.fixture
def generated(tmp_path) -> Path:
    path = tmp_path / "generated.txt"
    path.write_text(GENERATED, encoding="utf-8")
    return path


# Generated text
def test_generated_is_in_corpus_order(generated):
    first, second = outputs.read_generated(generated, expected=2)
    assert (first.index, first.source, first.target) == (0, "đông", "east")
    assert first.best == outputs.Hypothesis("", -math.inf, (-0.5,), ((0.5, 0.5),))
    assert [hypothesis.text for hypothesis in second.hypotheses] == ["o@@ ne <unk>", "second best"]
    assert [hypothesis.score for hypothesis in second.hypotheses] == [-0.25, -1.5e-05]
    assert second.best.token_scores == (-0.1, -0.2, -0.3, -0.4)
    assert np.array(second.best.soft).shape == (4, 4)
    assert second.best.soft[1] == (0.4, 0.3, 0.2, 0.1)
    assert outputs.best_hypotheses([first, second]) == ["", "o@@ ne <unk>"]


def test_hard_alignment(tmp_path):
    path = write_lines(tmp_path / "g", ["S-0\ta b", "H-0\t-1\tc d", "A-0\t1-0 0-1"])
    assert outputs.read_generated(path)[0].best.hard == ("1-0", "0-1")
    assert outputs.read_generated(path)[0].best.soft == ()


@pytest.mark.parametrize(
    ("lines", "expected", "message"),
    [
        (["H-0\t-1\ta", "H-2\t-1\tb", "H-5\t-1\tc"], None, "lacks 3 of 6 sentences: number 1, 3,"),
        (["H-0\t-1\ta"], 3, "lacks 2 of 3 sentences: number 1, 2"),
        (["H-0\t-1\ta", "H-1\t-1\tb"], 1, "translates 2 sentences, but 1 were expected"),
        (["S-0\ta", "S-1\tb", "H-1\t-1\tb"], None, "number 0"),
        (["S-0\ta", "H-0\t-1\ta", "S-0\ta", "H-0\t-1\ta"], None, "line 3: sentence 0 occurs twice"),
        (["S-0\ta", "P-0\t-1"], None, "line 2: `P-0` comes before"),
        (["H-0\t-1\ta", "P-0\t-1", "H-1\t-1\tb"], None, "ends inside a sentence"),
        (["H-0\tnoscore"], None, "line 1: expected a score"),
        (["H-0\t-1\ta", "P-0\t-1 x"], None, "line 2"),
        (["H-0\t-1\ta", "A-0\t0.5,0.5 1.0"], None, "line 2: the rows"),
        (["S-0\ta", "T-0\tb"], None, "no hypotheses"),
    ],
)
def test_incomplete_or_malformed_output_is_refused(tmp_path, lines, expected, message):
    path = write_lines(tmp_path / "g", lines)
    with pytest.raises(DataError, match=message):
        outputs.read_generated(path, expected)


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("a\u2028b\u0085c\r\n\nd".encode())
    assert outputs.read_lines(path) == ["a\u2028b\u0085c", "", "d"]
    path.write_bytes(b"fine\nnot \xff\n")
    with pytest.raises(DataError, match="line 2: not UTF-8, byte 0xff"):
        outputs.read_lines(path)


@pytest.mark.parametrize(
    ("text", "joined"), [("a@@ b@@ c d", "abc d"), ("a@@", "a"), ("", ""), ("x@y @@z", "x@y @@z")]
)
def test_remove_bpe_is_fairseqs(text, joined):
    from fairseq.data.data_utils import post_process

    assert remove_bpe(text) == post_process(text, "subword_nmt") == joined


def test_hypotheses_command(generated, tmp_path):
    path = tmp_path / "out"
    text = GENERATED.replace("o@@ ne <unk>", "do@@ n &apos;t , he said .")
    generated.write_text(text, encoding="utf-8")
    options = ("--remove-bpe", "--detokenize", "en", "--expected", "2")
    command("hypotheses", generated, "-o", path, *options)
    assert path.read_text(encoding="utf-8") == "\ndon't, he said.\n"
    command("hypotheses", generated, "-o", path, *options[1:])  # detokenizing needs whole words
    assert path.read_text(encoding="utf-8") == "\ndon't, he said.\n"
    message = error_line("hypotheses", generated, "-o", path, "--no-remove-bpe", *options[1:])
    assert message.endswith("`--no-remove-bpe` keeps pieces; leave one out.")


# Scores
def naive_bleu(translations: list[str], references: list[str]) -> float:
    """Papineni et al. (2002), corpus level, up to 4-grams, no smoothing."""
    right, total = [0] * 4, [0] * 4
    for translation, reference in zip(translations, references, strict=True):
        hyp, ref = translation.split(), reference.split()
        for n in range(1, 5):
            grams = [Counter(zip(*(x[i:] for i in range(n)), strict=False)) for x in (hyp, ref)]
            right[n - 1] += (grams[0] & grams[1]).total()
            total[n - 1] += grams[0].total()
    lengths = [sum(len(line.split()) for line in side) for side in (translations, references)]
    brevity = min(0.0, 1 - lengths[1] / lengths[0])
    if 0 in right:
        return 0.0
    return 100 * math.exp(
        brevity + sum(math.log(r / t) for r, t in zip(right, total, strict=True)) / 4
    )


REFERENCES = ["The cat sat on the mat today.", "A dog, he said, barks at night."]
TRANSLATIONS = ["The cat sat on a mat today.", "A dog, he said, barks."]


@pytest.mark.system
def test_scores_are_those_of_the_sacrebleu_command(tmp_path):
    reference = write_lines(tmp_path / "ref", REFERENCES)
    translation = write_lines(tmp_path / "hyp", TRANSLATIONS)
    sacrebleu = ("sacrebleu", reference, "-i", translation, "-w", "10", "-m")
    truth = json.loads(run(*sacrebleu, "bleu", "chrf").stdout)
    truth += json.loads(run(*sacrebleu, "chrf", "ter", "--chrf-word-order", "2").stdout)
    scores_path = tmp_path / "scores.json"
    words = ("--ref", reference, "--hyp", translation, "--metric", "chrf++", "--metric", "ter")
    shown = command("score", *words, "--json", scores_path)
    scores = json.loads(scores_path.read_text())["scores"]
    assert [entry["name"] for entry in scores] == ["BLEU", "chrF", "chrF++", "TER"]
    for ours, theirs in zip(scores, truth, strict=True):
        assert ours["value"] == pytest.approx(theirs["score"], abs=1e-9)
        assert ours["signature"] == theirs["signature"]
        assert theirs["signature"] in shown


def test_translations_in_pieces_are_refused_where_the_reference_is_text(tmp_path):
    reference = write_lines(tmp_path / "ref", REFERENCES)
    pieces = write_lines(tmp_path / "hyp", ["The cat sat on a mat to@@ day.", TRANSLATIONS[1]])
    with pytest.raises(DataError, match=r"hyp` holds pieces of subword-nmt .* Join them: sed "):
        score.score_files(reference, pieces)
    also = write_lines(tmp_path / "also", [f"{REFERENCES[0]} to@@ day", REFERENCES[1]])
    assert score.score_files(also, pieces)
    mostly_text = write_lines(tmp_path / "few", ["a @@ b", *["x"] * 20, "@@ a@@"])
    assert score.score_files(write_lines(tmp_path / "ref", ["x"] * 22), mostly_text)


def test_a_reference_in_pieces_is_refused_and_one_in_tokens_causes_a_warning(tmp_path, capsys):
    text = write_lines(tmp_path / "text", ["A cat sat, today."] * 10)
    tokens = write_lines(tmp_path / "tokens", ["A cat sat , today ."] * 10)
    pieces = write_lines(tmp_path / "pieces", ["A cat sat , to@@ day ."] * 10)
    with pytest.raises(DataError, match=r"pieces` holds pieces of subword-nmt"):
        score.score_files(pieces, text)
    score.score_files(text, text)
    score.score_files(tokens, tokens)
    assert not capsys.readouterr().err
    for reference, translation in ((tokens, text), (text, tokens)):
        score.score_files(reference, translation)
        message = f"warning: {tokens} seems to be tokenized, but {text} does not"
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "translations", [TRANSLATIONS, REFERENCES, ["x", "y"], ["The cat sat x y z", "A dog, x y z"]]
)
def test_tokenized_bleu_is_the_papers_formula(translations):
    result = score.tokenized_bleu(translations, REFERENCES)
    assert result.value == pytest.approx(naive_bleu(translations, REFERENCES), abs=1e-9)
    assert "not comparable" in result.name
    assert "tok:none" in result.signature


def test_score_generated(tmp_path):
    tokens = ["The cat sat on a mat to@@ day .", "A dog , he said , barks ."]
    targets = ["The cat sat on the mat to@@ day .", "A dog , he said , barks at <<unk>> ."]
    lines = []
    for i in (1, 0):
        lines += [f"S-{i}\tx", f"T-{i}\t{targets[i]}", f"H-{i}\t-1\t{tokens[i]}"]
    generated = write_lines(tmp_path / "g", lines)
    reference = write_lines(tmp_path / "ref", REFERENCES)
    english = Postprocessor.by_language("en")
    scores = score.score_generated(generated, reference, undoing=english)
    truth = score.score_lines(TRANSLATIONS, REFERENCES)
    assert scores[:2] == truth
    joined_sides = [[remove_bpe(line) for line in side] for side in (tokens, targets)]
    assert scores[2].value == pytest.approx(naive_bleu(*joined_sides), abs=1e-9)
    joined_sides[1][1] = joined_sides[1][1].replace("<<unk>>", "night")
    tokenized = write_lines(tmp_path / "tok", joined_sides[1])
    better = score.score_generated(generated, reference, tokenized, english)[2].value
    assert better == pytest.approx(naive_bleu(*joined_sides), abs=1e-9)
    with pytest.raises(DataError, match="empty` has no words"):
        score.score_generated(generated, write_lines(tmp_path / "empty", ["", ""]))
    as_it_is = Postprocessor(Pipeline("de", "en"))  # as a text.json without subwords says
    with pytest.raises(DataError, match=f"Join them: sed 's/@@ //g' {generated} > "):
        score.score_generated([generated], reference, undoing=as_it_is)
    with pytest.raises(DataError, match="lacks 1 of 3"):
        score.score_generated(generated, write_lines(tmp_path / "ref", [*REFERENCES, "x"]))


# Averaging
def checkpoint(seed: int, arch: str = "gru_tiny", **tensors: torch.Tensor) -> dict:
    random = torch.Generator().manual_seed(seed)
    embedding = torch.randn(5, 3, generator=random)
    model = {
        "encoder.embed.weight": embedding,
        "decoder.embed.weight": embedding,  # tied
        "decoder.slice": embedding[:2],  # overlaps, but is not tied
        "decoder.half": torch.randn(4, generator=random).half(),
        "decoder.steps": torch.tensor([seed]),
        "decoder.flag": torch.tensor(seed % 2 == 0),
        **tensors,
    }
    return {
        "args": None,
        "cfg": {"model": {"_name": arch}, "checkpoint": {"maximize_best_checkpoint_metric": False}},
        "model": model,
        "optimizer_history": [{"num_updates": seed}],
        "extra_state": {"epoch": seed, "ema": {"w": torch.zeros(2)}},
        "last_optimizer_state": {"exp_avg": torch.zeros(9)},
    }


def save(folder: Path, count: int, name: str = "checkpoint{}.pt") -> list[Path]:
    paths = [folder / name.format(i) for i in range(1, count + 1)]
    for seed, path in enumerate(paths, start=1):
        torch.save(checkpoint(seed), path)
    return paths


def test_average_is_the_exact_mean(tmp_path):
    paths = save(tmp_path, 7)
    storage.save(averaging.average_checkpoints(paths), tmp_path / "mean.pt")
    result = torch.load(tmp_path / "mean.pt", weights_only=True)
    inputs = [checkpoint(seed)["model"] for seed in range(1, 8)]
    for name in ("encoder.embed.weight", "decoder.embed.weight", "decoder.slice", "decoder.half"):
        stacked = torch.stack([model[name] for model in inputs]).double().numpy()
        mean = np.apply_along_axis(lambda x: math.fsum(x) / 7, 0, stacked)
        truth = torch.from_numpy(mean).to(inputs[0][name].dtype)
        assert result["model"][name].dtype == truth.dtype
        assert torch.equal(result["model"][name], truth), name
    assert result["model"]["decoder.steps"].item() == 7
    assert result["model"]["decoder.flag"].item() is False
    tied = [result["model"][f"{side}.embed.weight"].data_ptr() for side in ("encoder", "decoder")]
    assert tied[0] == tied[1]
    assert "last_optimizer_state" not in result
    assert result["cfg"] == checkpoint(7)["cfg"]
    assert result["optimizer_history"] == [{"num_updates": 7}]
    assert result["extra_state"] == {"epoch": 7, "averaged": [path.name for path in paths]}


def test_a_file_twice_and_other_seeds_are_remarked(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def load(path: str | Path) -> dict:
        state = checkpoint(1)
        return {**state, "cfg": {**state["cfg"], "common": {"seed": int(Path(path).stem)}}}

    monkeypatch.setattr(storage, "load", load)
    averaging.average_checkpoints(["1.pt", "1/../1.pt"])
    assert caplog.messages == ["1/../1.pt is given twice, and counts twice in the mean"]
    caplog.clear()
    averaging.average_checkpoints(["3.pt", "1.pt"])
    (message,) = caplog.messages
    assert message.startswith("the checkpoints come from trainings with the seeds 1, 3: unless")


def test_tie_of_only_some_checkpoints_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    states = [checkpoint(1), checkpoint(2)]
    states[1]["model"]["decoder.embed.weight"] = torch.ones(5, 3)
    state_dicts = [dict(state["model"]) for state in states]
    monkeypatch.setattr(storage, "load", lambda _: states.pop(0))
    result = averaging.average_checkpoints(["a", "b"])["model"]
    for name in ("encoder.embed.weight", "decoder.embed.weight"):
        mean = (state_dicts[0][name].double() + state_dicts[1][name].double()) / 2
        assert torch.equal(result[name], mean.float())


def test_memory_does_not_grow_with_the_number_of_checkpoints(monkeypatch: pytest.MonkeyPatch):
    alive: weakref.WeakSet = weakref.WeakSet()
    counts = []

    def load(seed: str) -> dict:
        state = checkpoint(int(seed))
        alive.add(state["model"]["decoder.half"])
        counts.append(len(alive))
        return state

    monkeypatch.setattr(storage, "load", load)
    averaging.average_checkpoints([str(seed) for seed in range(8)])
    assert len(counts) == 8
    assert max(counts) <= 2  # the one being read, and the one before


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"arch": "lstm"}, "the architecture is gru_tiny and lstm"),
        ({"decoder.half": torch.zeros(2, 2)}, "`decoder.half` is 4 and 2×2"),
        ({"extra": torch.zeros(1)}, "`extra` is missing and 1"),
        ({"decoder.half": torch.full((4,), math.nan)}, "second.pt`: .*`decoder.half` holds NaN"),
        ({"decoder.half": torch.full((4,), math.inf)}, "`decoder.half` holds NaN or infinity"),
        ({"decoder.half": torch.ones(4, dtype=torch.int64)}, "`decoder.half` is 4 and 4 of whole"),
        ({"decoder.half": torch.ones(4).to(torch.float8_e4m3fn)}, "second.pt cannot be used"),
    ],
)
def test_unlike_checkpoints_are_refused(tmp_path, other, message):
    first, second = tmp_path / "first.pt", tmp_path / "second.pt"
    torch.save(checkpoint(1), first)
    torch.save(checkpoint(2, **other), second)
    output = tmp_path / "mean.pt"
    output.write_text("precious")
    with pytest.raises(CheckpointError, match=message):
        storage.save(averaging.average_checkpoints([first, second]), output)
    assert output.read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 3


def test_choice_of_checkpoints(tmp_path):
    save(tmp_path, 11)
    save(tmp_path, 10, "checkpoint_1_{}0.pt")
    for value in ("3.1234", "3.0001", "12.5000"):
        torch.save(checkpoint(1), tmp_path / f"checkpoint.best_loss_{value}.pt")
    save(tmp_path, 1, "checkpoint_last.pt")

    def names(paths):
        return [path.name for path in paths]

    newest = [f"checkpoint{epoch}.pt" for epoch in (9, 10, 11)]
    assert names(averaging.select(tmp_path, "last_epochs", 3)) == newest
    last = ["checkpoint_1_90.pt", "checkpoint_1_100.pt"]
    assert names(averaging.select(tmp_path, "last_updates", 2)) == last
    lowest = ["checkpoint.best_loss_3.1234.pt", "checkpoint.best_loss_3.0001.pt"]
    assert names(averaging.select(tmp_path, "best", 2)) == lowest
    for path in tmp_path.glob("checkpoint.best*"):
        state = checkpoint(1)
        state["cfg"]["checkpoint"]["maximize_best_checkpoint_metric"] = True
        torch.save(state, path)
    highest = ["checkpoint.best_loss_3.1234.pt", "checkpoint.best_loss_12.5000.pt"]
    assert names(averaging.select(tmp_path, "best", 2)) == highest
    save(tmp_path, 1, "checkpoint.best_bleu_{}.5.pt")
    with pytest.raises(CheckpointError, match=r"several metrics \(bleu, loss\), .* `--inputs`"):
        averaging.select(tmp_path, "best", 2)
    with pytest.raises(CheckpointError, match=r"holds 11 of 12 checkpoints named .*: "):
        averaging.select(tmp_path, "last_epochs", 12)
    for count in (0, -1):
        with pytest.raises(ConfigError, match=rf"`--last-\w+` must be at least 1, but is {count}"):
            averaging.select(tmp_path, "last_epochs", count)


# Learning curves
def write_log(path: Path, log_format: str) -> Path:
    """What fairseq's own progress bar writes for known numbers, twice where it would."""
    from fairseq.logging.progress_bar import logger, progress_bar

    for epoch in (1, 2):
        bar = progress_bar(range(10), log_format, 5, str(path), epoch, default_log_format="json")
        for step, _ in enumerate(bar, start=1):
            update = (epoch - 1) * 10 + step
            stats = {"loss": 9 - update / 4, "ppl": 2.0**update, "num_updates": update}
            bar.log(stats, tag="train_inner", step=update)
        prefix = "valid on 'valid' subset"
        valid = progress_bar([], log_format, 5, None, epoch, prefix, default_log_format="json")
        valid.print({"loss": 8 / epoch, "bleu": 40.0, "num_updates": update}, tag="valid")
        bar.print({"loss": 77.0, "num_updates": update}, tag="train")
    for handler in logger.handlers[:]:
        handler.close()
        logger.removeHandler(handler)
    return path


@pytest.mark.parametrize("log_format", ["json", "simple"])
def test_log_reading(tmp_path, caplog, log_format):
    caplog.set_level("INFO", logger="fairseq.logging.progress_bar")
    curves = training_log.read_log(write_log(tmp_path / "log", log_format))
    assert curves.train["loss"] == {5: 7.75, 10: 6.5, 15: 5.25, 20: 4.0}
    assert curves.train["ppl"] == {5: 32, 10: 1024, 15: 32768, 20: pytest.approx(1048576, rel=1e-5)}
    assert curves.valid == {"loss": {10: 8.0, 20: 4.0}, "bleu": {10: 40.0, 20: 40.0}}


def test_log_of_epochs_only(tmp_path):
    lines = [
        "2026 | INFO | train | epoch 001 | loss 5 | ppl 32 | num_updates 7",
        "2026 | INFO | train | epoch 002 | loss nan | ppl inf | num_updates 14",
        "2026 | INFO | other | epoch 002 | valid on 'other' subset | loss 4 | num_updates 14",
    ]
    curves = training_log.read_log(write_lines(tmp_path / "log", lines))
    assert (curves.train, curves.valid) == ({"loss": {7: 5.0}, "ppl": {7: 32.0}}, {})


@pytest.mark.parametrize("end", ["", "\r\n"])
def test_a_last_line_that_may_be_cut_is_not_believed(tmp_path, end):
    line = "2026 | INFO | train | epoch 00{} | loss {} | num_updates {}"
    text = "\n".join([line.format(1, 5, 7), line.format(2, 4, 14)])
    (tmp_path / "log").write_text(text + end, newline="")
    losses = training_log.read_log(tmp_path / "log").train["loss"]
    assert losses == ({7: 5.0, 14: 4.0} if end else {7: 5.0})
    (tmp_path / "log").write_text('{"epoch": 1, "update": 1, "loss": "4", "num_updates": "100"}')
    assert training_log.read_log(tmp_path / "log").train == {"loss": {100: 4.0}}


def test_curves_are_drawn(tmp_path):
    """The name of a picture may have an ending or none; the same curves give the same bytes."""
    train = {"loss": {1: 3.0, 2: 2.0}, "nll_loss": {1: 3.0, 2: 2.0}, "ppl": {1: 8.0, 2: 4.0}}
    runs = {
        "gru": training_log.Curves(train, {"loss": {2: 2.5}, "bleu": {2: 12.0}}),
        "lstm $x_1": training_log.Curves(train, {}),
    }
    names = {"a": "a.png", "a.png": "a.png", "a.json": "a.png", "a.svg": "a.svg"}
    names |= {"a.SVG": "a.svg", "beam1.5": "beam1.5.png", "beam1.5.png": "beam1.5.png"}
    pictures: dict[str, list[bytes]] = {}
    for name, picture in names.items():
        written = plots.plot_curves(runs, tmp_path / name)
        assert [path.name for path in written] == [picture, f"{picture[:-4]}.json"]
        check_picture(written)
        content = [path.read_bytes() for path in written]
        assert pictures.setdefault(picture, content) == content
    assert {path.name for path in tmp_path.iterdir()} == {*pictures, "a.json", "beam1.5.json"}
    data = json.loads(written[1].read_text())["runs"]
    # Only what is drawn: `ppl` says what `nll_loss` says.
    assert data["gru"]["train"] == {"loss": [[1, 3.0], [2, 2.0]], "ppl": [[1, 8.0], [2, 4.0]]}
    assert data["gru"]["valid"] == {"loss": [[2, 2.5]], "bleu": [[2, 12.0]]}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["_run {}", "{}" + "W" * 62, "{} a name of words " * 5])
@pytest.mark.parametrize("count", [1, 2, 4, 13])
def test_the_names_of_runs_cover_nothing(count, name, figures, tmp_path):
    valid = {"loss": {1: 3.0, 2: 2.0}, "ppl": {1: 8.0, 2: 4.0}}
    train = valid if count <= 3 else {}
    runs = {name.format(*[n] * 5): training_log.Curves(train, valid) for n in range(count)}
    plots.plot_curves(runs, tmp_path)
    (figure,) = figures
    figure.draw_without_rendering()
    for axes in figure.axes:
        legend = axes.get_legend().get_window_extent()
        assert legend.y0 > -1  # pixels
        assert legend.y1 <= axes.xaxis.label.get_window_extent().y0
        assert figure.bbox.x0 <= legend.x0 < legend.x1 <= figure.bbox.x1
        shown = "".join(text.get_text() for text in axes.get_legend().get_texts())
        assert all("".join(label.split()) in "".join(shown.split()) for label in runs) or count == 1
        assert axes.get_window_extent().height > 3 * figure.dpi
        looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
        assert len(looks) == (count if count > 1 else 2)


def check_picture(written: list[Path]) -> None:
    """A PNG shows something and has a palette, and an SVG is XML."""
    from xml.etree import ElementTree

    from PIL import Image

    if written[0].suffix == ".svg":
        assert ElementTree.parse(written[0]).getroot().tag.endswith("svg")
        return
    picture = Image.open(written[0])
    assert picture.mode == "P"
    assert min(picture.size) > 300
    assert np.array(picture.convert("RGB")).std() > 0.02 * 255


# Alignments
def test_alignment_merges_pieces(generated):
    sentence = outputs.read_generated(generated)[1]
    pieces = plots.alignment(sentence)
    assert pieces.source == ("ein@@", "s", "zwei", "</s>")
    assert pieces.target == ("o@@", "ne", "<unk>", "</s>")
    words = plots.alignment(sentence, merge_bpe=True)
    assert words.source == ("eins", "zwei", "</s>")
    assert words.target == ("one", "<unk>", "</s>")
    truth = [[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0, 0, 1]]
    assert np.allclose(words.weights, truth, atol=1e-12)


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("<s> ein@@ s zwei </s>", "o@@ ne ss@@ </s>", ("<s> eins zwei </s>", "one ss </s>")),
        ("▁ein s ▁zwei </s>", "▁o ne </s>", ("eins zwei </s>", "one </s>")),
        ("▁ ▁ein s </s>", "</s>", ("▁ eins </s>", "</s>")),
    ],
)
def test_pieces_are_joined_and_never_to_the_end(source, target, words):
    source, target = tuple(source.split()), tuple(target.split())
    rows = tuple(tuple(1 / len(source) for _ in source) for _ in target)
    alignment = plots._merged(plots.Alignment(0, source, target, rows))
    assert (" ".join(alignment.source), " ".join(alignment.target)) == words
    assert [sum(row) for row in alignment.weights] == pytest.approx([1] * len(alignment.target))


def test_alignment_knows_a_start_symbol_that_is_not_printed(generated):
    """Of a model trained with `translation_ext --source-bos`."""
    text = GENERATED.replace("A-0\t0.5,0.5", "A-0\t0.25,0.25,0.5")
    generated.write_text(text, encoding="utf-8")
    alignment = plots.alignment(outputs.read_generated(generated)[0])
    assert alignment.source == ("<s>", "đông", "</s>")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("S-0\tđông", "S-0\tđ ông", "alignment is 1 × 2, but the sentences have 1 × 3"),
        ("A-0\t0.5,0.5", "A-0\t0.5,0.1", "sum to 0.600 instead of 1"),
        ("A-0\t0.5,0.5", "A-0\tnan,0.1", "sum to nan instead of 1"),
        ("0.25,0.25 0,0,0,1", "nan,0.25 0,0,0,1", "sum to nan instead of 1"),  # in a later row
        ("A-0\t0.5,0.5", "A-0\t1-0", "no soft alignment"),
    ],
)
def test_alignment_of_other_tokens_is_refused(generated, old, new, message):
    generated.write_text(GENERATED.replace(old, new), encoding="utf-8")
    sentences = outputs.read_generated(generated)
    with pytest.raises(DataError, match=message):
        plots.alignment(sentences[new.startswith("nan")])


def test_alignment_is_drawn_with_every_letter(tmp_path):
    source = ("Größe", "Giêng", "đông", "$5", "$x^{$", "</s>")  # the last but one is no formula
    shown = plots.Alignment(3, source, ("ñandú", "</s>"), ((1.0, 0, 0, 0, 0, 0),) * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a missing letter is a warning
        written = plots.plot_alignments([shown] * 3, tmp_path / "heat.png")
    check_picture(written)
    data = json.loads(written[1].read_text(encoding="utf-8"))["sentences"]
    assert data[0]["source"] == list(source)
    assert data[0]["weights"] == [[1.0, 0, 0, 0, 0, 0]] * 2


def test_a_letter_that_the_font_lacks_is_drawn_by_one_that_has_it(tmp_path, monkeypatch, capsys):
    """Of matplotlib's own fonts, STIX alone has ⌗, and DejaVu Sans Mono alone has ⌵."""
    import matplotlib
    from matplotlib import font_manager

    def drawn(*source: str) -> list[bytes]:
        weights = ((1.0, *[0.0] * len(source)),)
        shown = plots.Alignment(3, (*source, "</s>"), ("ñandú",), weights)
        written = plots.plot_alignments([shown], tmp_path / "letters.png")
        return [path.read_bytes() for path in written]

    fonts, folder = font_manager.fontManager, Path(matplotlib.get_data_path(), "fonts", "ttf")
    installed: list[str] = []
    listed = [font for font in fonts.ttflist if font.name in (plots.FONT, plots.LAST_RESORT)]
    monkeypatch.setattr(fonts, "ttflist", listed)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: installed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        latin, boxes = drawn("a"), drawn("日本。", "हि", "⌗")
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert message.startswith("warning: no installed font has ह ि ⌗ 。 日 本, so they are ")
        assert "Noto Sans CJK and Noto Sans Devanagari and Noto Sans Symbols.\n" in message
        fonts.addfont(folder / "STIXGeneral.ttf")
        assert drawn("a") == latin  # nothing changes where nothing was missing
        assert drawn("日本。", "हि", "⌗")[0] != boxes[0]
        assert "has ह ि 。 日 本, so they are drawn as boxes;" in capsys.readouterr().err
        installed.append(str(folder / "DejaVuSansMono.ttf"))
        drawn("⌗", "⌵")
        assert capsys.readouterr().err == ""


SOURCES = ["Ana wohnt ähnlich in Rom .", "Sie hat 3 Katzen .", "nein nein nein", "Was ?", "x " * 12]
VARIED_REFERENCES = [
    *("Then Ana lives ähnlich .", "She has 3 cats .", "no no no", "What ?", "y " * 12)
]
SYSTEMS = {
    "good": [["Ana lives in Rom .", "She has 3 dogs .", "no no no", "What ?", "y " * 11]],
    "bad": [
        ["Ana .", "a cat a cat a cat a cat", "no", "was ?", ""],
        ["<unk> lives", "She has cats .", "nein nein nein", "who", "y"],
    ],
}
TRAINING = ["no what then lives ähnlich .", *["she has 3 cats . ana"] * 12]


def test_sentences_are_sorted_into_kinds():
    kinds = kinds_of(VARIED_REFERENCES, SOURCES, TRAINING)
    assert kinds == {
        "0 to 10 words": [0, 1, 2, 3],
        "11 to 20 words": [4],
        "21 to 30 words": [],
        "31 or more words": [],
        "rarest word in 0 training lines": [4],
        "rarest word in 1 to 9 training lines": [0, 2, 3],
        "rarest word in 10 to 99 training lines": [1],
        "rarest word in 100 or more training lines": [],
        "with a number": [1],
        "with a name": [0],
    }
    assert kinds_of(VARIED_REFERENCES)["with a name"] == [0]
    assert kinds_of([line.lower() for line in VARIED_REFERENCES])["with a name"] == []
    assert "0 to 20 characters" in kinds_of(["私は昨日、友達と一緒に学校へ行きました。"] * 3)


def test_scores_are_those_of_sacrebleu_on_the_same_sentences():
    result = break_down(VARIED_REFERENCES, SYSTEMS, SOURCES, TRAINING)
    rows = kinds_of(VARIED_REFERENCES, SOURCES, TRAINING)
    assert [kind.name for kind in result.kinds] == [name for name in rows if rows[name]]
    for kind in result.kinds:
        lines = rows[kind.name]
        assert kind.sentences == len(lines)
        references = [[VARIED_REFERENCES[i] for i in lines]]
        for name, runs in SYSTEMS.items():
            scores = [CHRF().corpus_score([t[i] for i in lines], references).score for t in runs]
            assert kind.scores[name] == pytest.approx(sum(scores) / len(scores), abs=1e-9)


def test_faults_are_counted_in_all_runs():
    faults = break_down(VARIED_REFERENCES, SYSTEMS, SOURCES).faults
    assert {fault: shares["bad"] for fault, shares in faults.items()} == {
        "unknown words": 10,
        "words three times in a row": 10,
        "copies of the source": 20,  # "was ?" but for case, and "nein nein nein"
        "no translation": 10,
    }
    assert {shares["good"] for shares in faults.values()} == {0}
    assert "copies of the source" not in break_down(VARIED_REFERENCES, SYSTEMS).faults


def test_most_different_sentences_come_first():
    first, second = SYSTEMS["good"][0], SYSTEMS["bad"][0]

    def chrf(line: str, i: int) -> float:
        return CHRF().sentence_score(line, [VARIED_REFERENCES[i]]).score

    truth = {i: abs(chrf(first[i], i) - chrf(second[i], i)) for i in range(5)}
    shown = most_different(first, second, VARIED_REFERENCES, count=3)
    assert [i for i, *_ in shown] == sorted(truth, key=truth.get, reverse=True)[:3]
    assert most_different(first, first, VARIED_REFERENCES) == []


def test_the_command_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_lines(tmp_path / "ref.en", VARIED_REFERENCES)
    write_lines(tmp_path / "train.en", TRAINING)
    for name, runs in SYSTEMS.items():
        write_lines(tmp_path / name, runs[0])
    systems = [word for name in SYSTEMS for word in ("--system", f"{name}=text:{name}")]
    monkeypatch.chdir(tmp_path)
    words = ("compare", *systems, "--ref", "ref.en", "--differing", "bad")
    assert "`--differing` goes with `--output` or `--json`" in error_line(*words)
    options = ("--kinds", "--training", "train.en", "-o", "table")
    shown = command(*words, *options)
    assert "rarest word in 10 to 99 training lines" in shown
    page = (tmp_path / "table.md").read_text()
    assert "| with a number | 1 | " in page
    assert page.index("## Sentences that differ most") < page.index("bad, chrF")
