"""``fairseq-ext translate``, against fairseq-interactive, fairseq-generate and their encoders."""

import io
import json
import os
import random
import re
import signal
import subprocess
from pathlib import Path

import pytest
from fairseq.data.encoders.moses_tokenizer import MosesTokenizer, MosesTokenizerConfig
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE, SubwordNMTBPEConfig

from fairseq_ext.commands.translate import write
from fairseq_ext.decoding.search import Candidate, Search
from fairseq_ext.decoding.stream import Translation
from fairseq_ext.decoding.translator import Translator
from fairseq_ext.evaluation import outputs
from fairseq_ext.evaluation.outputs import read_lines
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.reading import read_text
from fairseq_ext.text.subwords import remove_bpe
from tests.support import harness
from tests.support.harness import REPO, USER_DIR, command, ended, fairseq, run, start, write_lines

WORDS = ["Hello", "world", "small", "tree", "it's", "R&D", "well-known", "(green)", "Bäume", "3.5"]


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) + "." for _ in range(count)]


def train(data: Path, folder: Path, *flags: object) -> Path:
    fairseq(
        *("train", data, "--optimizer", "adam", "--lr", "0.01", "--max-tokens", "600"),
        *("--disable-validation", "--no-epoch-checkpoints", "--save-dir", folder, *flags),
    )
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copying model of Moses tokens and subwords: ``codes``, ``bpe``, ``bin``, ``model.pt``."""
    folder = tmp_path_factory.mktemp("words")
    moses = Pipeline("en", "en", tokenize=True).encoder()
    tokens = [moses(line) for line in sentences(300, 1)]
    write_lines(folder / "tokens", tokens)
    run("subword-nmt", "learn-bpe", "-s", "30", "-i", folder / "tokens", "-o", folder / "codes")
    split = Pipeline("en", "en", subwords="subword-nmt", files=(folder / "codes",)).encoder()
    for name, count in (("train", 300), ("valid", 10), ("test", 25)):
        lines = [split(moses(line)) for line in sentences(count, 1 if name == "train" else 2)]
        for side in ("src", "tgt"):
            write_lines(folder / "bpe" / f"{name}.{side}", lines)
    harness.binarize(folder / "bpe", folder / "bin", "--joined-dictionary")
    flags = ("--arch", "gru_tiny", "--max-update", "60")
    train(folder / "bin", folder / "run", *flags).rename(folder / "model.pt")
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Linformer that reads a start symbol and at most 12 source tokens."""
    folder = tmp_path_factory.mktemp("digits")
    harness.binarize(harness.digits_corpus(folder / "text"), folder / "bin")
    flags = ("--arch", "linformer_tiny", "--max-update", "8", "--max-source-positions", "12")
    task = ("--task", "translation_ext", "--source-bos")
    train(folder / "bin", folder / "run", *flags, *task).rename(folder / "model.pt")
    return folder


def translate(*words_: object, stdin: bytes = b"") -> list[str]:
    """The command's output, run in this process."""
    return command("translate", *words_, stdin=stdin).removesuffix("\n").split("\n")


def printed(text: str, letter: str) -> list[str]:
    """The last column of fairseq-interactive's lines of one letter."""
    return [line.split("\t")[-1] for line in text.splitlines() if line.startswith(f"{letter}-")]


def test_text_is_translated_as_by_fairseq_interactive(words: Path) -> None:
    """With the flags that the page on bundles names."""
    lines = sentences(20, 7)
    flags = re.search("add `(--tokenizer[^`]*)de-en/codes`", read_text(REPO / "docs/howto/ship.md"))
    assert flags
    theirs = fairseq(
        *("interactive", words / "bin", "--path", words / "model.pt", "--beam", "3"),
        *("--source-lang", "src", "--target-lang", "tgt", *flags[1].split(), words / "codes"),
        *("--buffer-size", "20", "--max-tokens", "300"),
        stdin="".join(f"{line}\n" for line in lines),
    ).stdout
    with_holes = [part for line in lines for part in (line, " \t" if len(line) % 2 else "")]
    ours = run(
        *("fairseq-ext", "translate", words / "bin", "--path", words / "model.pt", "--beam", "3"),
        *("--tokenize", "--bpe-codes", words / "codes", "--buffer-size", "7"),
        stdin="".join(f"{line}\n" for line in with_holes),
    )
    assert ours.stdout.split("\n")[1::2] == [""] * 20
    assert ours.stdout.split("\n")[:-1:2] == printed(theirs, "D")
    assert "40 lines in" in ours.stderr
    assert "INFO" not in ours.stderr


def test_nbest_has_the_hypotheses_and_scores_of_fairseq_generate(words, tmp_path):
    search = ("--path", words / "model.pt", "--beam", "4", "--nbest", "3", "--lenpen", "0.6")
    search += ("--max-len-a", "1.5", "--max-len-b", "5")
    done = fairseq("generate", words / "bin", *search, "--print-alignment", "soft")
    generated, details, source = tmp_path / "out", tmp_path / "json", words / "bpe" / "test.src"
    generated.write_text(done.stdout, encoding="utf-8")
    theirs = outputs.read_generated(generated)
    command = (words / "bin", *search, "--max-tokens", "200", "--input", source)
    rows = translate(*command, "--json", details, "--remove-bpe")
    lines = [json.loads(line) for line in read_lines(details)]
    assert len(lines) == len(theirs) == 25
    expected_rows = []
    for number, (ours, sentence) in enumerate(zip(lines, theirs, strict=True), start=1):
        assert (ours["line"], ours["source"]) == (number, sentence.source)
        pairs = zip(ours["translations"], sentence.hypotheses, strict=True)
        for rank, (best, hypothesis) in enumerate(pairs, start=1):
            assert best["tokens"] == hypothesis.text
            assert best["score"] == pytest.approx(hypothesis.score, abs=1e-4)
            text = remove_bpe(hypothesis.text)
            expected_rows.append(f"{number}\t{rank}\t{best['score']:.4f}\t{text}")
    assert rows == expected_rows
    soft = Search(beam=4, nbest=3, lenpen=0.6, max_len_a=1.5, max_len_b=5, attention=True)
    translator = Translator(words / "bin", [words / "model.pt"], search=soft)
    for ours, sentence in zip(translator.translate(read_lines(source)), theirs, strict=True):
        for candidate, hypothesis in zip(ours, sentence.hypotheses, strict=True):
            rows = [pytest.approx(row, abs=1e-5) for row in hypothesis.soft]
            assert [*candidate.attention] == rows


def test_mbr_chooses_as_the_command_mbr_does_among_fairseqs_samples(words, tmp_path):
    """The samples are fairseq-interactive's of the same seed, in the same batches."""
    source = write_lines(tmp_path / "source", read_lines(words / "bpe" / "test.src")[:12])
    common = ("--path", words / "model.pt", "--input", source, "--epsilon-sampling", "0.05")
    common += ("--max-len-a", "1.5", "--max-len-b", "5", "--max-tokens", "60", "--seed", "3")
    common += ("--engine", "fairseq")
    sampled = fairseq(
        *("interactive", words / "bin", *common, "--source-lang", "src", "--target-lang", "tgt"),
        *("--task", "translation_ext", "--sampling", "--beam", "6", "--nbest", "6"),
        *("--buffer-size", "100"),
    ).stdout
    (tmp_path / "samples").write_text(sampled, encoding="utf-8")
    wording = ("--utility", "bleu", "--remove-bpe")
    samples = ("mbr", tmp_path / "samples", "--num-candidates", "6", *wording)
    command(*samples, "-o", tmp_path / "best")
    ours = translate(words / "bin", *common, "--mbr", "6", *wording)
    assert ours == read_lines(tmp_path / "best")


def test_the_task_of_the_training_is_taken_from_the_checkpoint(digits):
    text = "".join(f"{line}\n" for line in read_lines(digits / "text" / "test.src")[:15])
    model, search = digits / "model.pt", ("--beam", "2", "--max-len-b", "12")
    theirs = fairseq(
        *("interactive", digits / "bin", "--path", f"{model}:{model}", *search),
        *("--task", "translation_ext", "--source-bos", "--max-source-positions", "12"),
        *("--buffer-size", "50", "--max-tokens", "200"),
        stdin=text,
    ).stdout
    words = (digits / "bin", "--path", model, model, *search)
    assert translate(*words, stdin=text.encode()) == printed(theirs, "H")


@pytest.mark.parametrize(("escape", "aggressive"), [(False, False), (True, True)])
def test_words_are_split_and_joined_as_by_fairseqs_encoders(words, escape, aggressive):
    options = {"moses_no_dash_splits": not aggressive, "moses_no_escape": not escape}
    moses = MosesTokenizer(MosesTokenizerConfig(source_lang="en", target_lang="en", **options))
    pieces = SubwordNMTBPE(SubwordNMTBPEConfig(bpe_codes=str(words / "codes"), bpe_separator="@@"))
    steps = {"tokenize": True, "escape": escape, "aggressive": aggressive}
    merges = {"subwords": "subword-nmt", "files": (words / "codes",)}
    pipeline = Pipeline("en", "en", **steps, **merges)
    encode, decode = pipeline.encoder(), pipeline.decoder()
    for sentence in sentences(30, 5):
        line = f"{sentence} !"  # of a full stop at the very end, fairseq's know less
        tokens = pieces.encode(moses.encode(line))
        assert encode(line) == tokens
        assert decode(tokens) == moses.decode(pieces.decode(tokens))


def test_a_long_line_is_named_after_all_before_it_were_written(digits):
    text = f"1 2\n\n3\n{'4 ' * 11}\n5".encode()  # <s> and </s> make the fourth line 13
    words = (digits / "bin", "--path", digits / "model.pt", "--buffer-size", "2")
    words += ("--max-len-b", "9")
    status, output, errors = ended("translate", *words, stdin=text)
    assert (status, output.count("\n")) == (1, 2)
    message = errors.splitlines()[-1]
    assert "standard input, line 4: 13 source tokens, but the model takes at most 12." in message
    skipped = translate(*words, "--skip-long", stdin=text)
    assert [bool(line) for line in skipped] == [True, False, True, False, True]


def test_an_empty_line_has_one_row_among_the_nbest(digits):
    command = (digits / "bin", "--path", digits / "model.pt", "--nbest", "2", "--max-len-b", "9")
    rows = [row.split("\t") for row in translate(*command, stdin=b"1 2\r\n\n3")]
    assert ["".join(row[:2]) for row in rows] == ["11", "12", "21", "31", "32"]
    assert rows[2] == ["2", "1", "0.0000", ""]


def test_a_line_that_stays_as_it_is_has_its_text_in_the_details_too() -> None:
    out, details = io.StringIO(), io.StringIO()
    kept = [Translation(1, "x.org", ["x.org"], []), Translation(2, "", [""], [])]
    write(kept, 1, out, details)
    rows = [json.loads(row)["translations"] for row in details.getvalue().splitlines()]
    assert rows == [[{"text": "x.org", "tokens": "", "score": 0.0}], []]
    assert out.getvalue() == "x.org\n\n"


@pytest.mark.parametrize(
    ("options", "stdin", "message"),
    [
        (["--nbest", "6"], b"1", "`--nbest` must be at most `--beam`, which is 5, but is 6"),
        (["--mbr", "0"], b"1", "`--mbr` must be at least 1, but is 0 instead."),
        (["--mbr", "4", "--nbest", "2"], b"1", "`--nbest` does not go with `--mbr`, which samples"),
        (["--mbr", "4", "--utility", "ter"], b"1", "`--utility` must be chrf, bleu, comet:"),
        (["--mbr", "4", "--epsilon-sampling", "1"], b"1", "must be at least 0 and less than 1"),
        (["--seed", "2"], b"1", "`--seed` goes with `--mbr` or `--sampling`, which are missing."),
        (["--utility", "bleu"], b"1", "`--utility` goes with `--mbr`, which is missing."),
        (["--sampling", "--beam", "2"], b"1", "`--beam` does not go with `--sampling`, which"),
        (["--sampling", "--mbr", "2"], b"1", "`--sampling` does not go with `--mbr`, which"),
        (["--sampling", "--sampling-topk", "-1"], b"1", "must be at least 0, but is -1 instead."),
        (["--gnmt-lenpen", "-1"], b"1", "`--gnmt-lenpen` must be a number from 0 to 100, but is"),
        (
            ["--gnmt-lenpen", "1", "--lenpen", "2"],
            b"1",
            "does not go with `--lenpen`; leave one out",
        ),
        (["--beam", "0"], b"1", "`--beam` must be at least 1, but is 0 instead."),
        (["--buffer-size", "0"], b"1", "`--buffer-size` must be at least 1, but is 0 instead."),
        (["--escape"], b"1", "`--escape` goes with `--tokenize`, which is missing."),
        (["--bpe-codes", "none"], b"1", "file of merges none does not exist"),
        (["--bpe-codes", "bad"], b"1", "bad, line 2: `one two three` is not a merge of two"),
        (["--path", "none.pt"], b"1", "none.pt does not exist"),
        (["--path", "bad"], b"1", "bad is not a checkpoint"),
        (["--input", "none"], b"", "none does not exist"),
        (["--max-tokens", "4"], b"1\n2 3 4", "line 2: 5 source tokens, but `--max-tokens` allows"),
        ([], b"1 2\n3 \xff", "standard input, line 2: not UTF-8, byte 0xff"),
        (["--src", "xx", "--tgt", "tgt"], b"1", "dict.xx.txt does not exist"),
        (["--src", "src"], b"1", "`--src` and `--tgt` go together; give both, or neither."),
    ],
)
def test_errors_are_one_line(digits, options, stdin, message, tmp_path):
    write_lines(tmp_path / "bad", ["#version: 0.2", "one two three"])
    words = ("translate", digits / "bin", "--path", digits / "model.pt", "--json", "new")
    harness.leaves_no_trace(tmp_path, message, *words, "-o", "out", *options, stdin=stdin)


def test_a_reader_that_leaves_early_is_no_error_message(digits: Path, tmp_path: Path) -> None:
    words = [harness.forked("fairseq-ext"), "translate", digits / "bin", "--buffer-size", "1"]
    words += ["--path", digits / "model.pt", "--input", digits / "text" / "train.src"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start(*words, "--max-len-b", "5", **streams) as process:
        assert process.stdout.readline().endswith("\n")
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == 1
    details = write_lines(tmp_path / "details.jsonl", ["of another day"])
    with start(*words, "--max-len-b", "5", "--json", details, **streams) as process:
        process.stdout.close()
        process.stderr.read()
    assert process.returncode == 1
    assert details.read_text() == "of another day\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "command",
    [
        "fairseq-ext translate --model tatoeba-es-en --input text.es --output out",
        f"fairseq-preprocess --user-dir {USER_DIR} --only-source -s es --trainpref text"
        " --destdir out",
    ],
    ids=lambda command: command.split()[0],
)
def test_a_signal_leaves_no_unfinished_file(
    command: str, number: signal.Signals, tmp_path: Path
) -> None:
    text = write_lines(tmp_path / "text.es", ["hola amigo"] * 20_000)
    code = f"signal.signal({number}, signal.SIG_DFL)  # `nohup` ignores it\n{harness.SESSION}"
    process = start(*harness.after(code, *command.split()), cwd=tmp_path)
    leader = tmp_path / "leader"
    harness.wait_for(lambda: len({*tmp_path.iterdir()} - {leader}) > 1, process)
    os.kill(int(leader.read_text()), number)
    assert process.wait(60) == -number
    assert {*tmp_path.iterdir()} == {text, leader}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_dictionary_does_not_control_the_terminal(is_terminal: bool) -> None:
    text = "a \x1b[2J b\x9b31m é 猫"
    shown = "a \\x1b[2J b\\x9b31m é 猫" if is_terminal else text
    translation = Translation(7, "", [text], [Candidate(text, -1.0)])
    for nbest, row in ((1, f"{shown}\n"), (2, f"7\t1\t-1.0000\t{shown}\n")):
        out = io.StringIO()
        out.isatty = lambda: is_terminal
        assert write([translation], nbest, out, None) == 7
        assert out.getvalue() == row
