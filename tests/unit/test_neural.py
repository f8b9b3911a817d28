"""Neural metrics: a real process in an environment of its own, in it a library that stands in.

The stand-in has COMET's interface and scores by counting letters. What depends on COMET itself is
asked of the real one where there is an environment with it::

    FAIRSEQ_EXT_METRIC_PYTHON=comet_env/bin/python pytest tests/unit/test_neural.py --long
"""

import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from fairseq_ext.evaluation import neural
from fairseq_ext.evaluation.neural import PYTHON, NeuralMetric
from fairseq_ext.evaluation.score import read_scores
from tests.support.generated import write_generated
from tests.support.harness import REPO, command, leaves_no_trace, run, start, write_lines

LIBRARY = """
import os, signal, sys, time
from types import SimpleNamespace
print("a library may print this")

def download_model(name):
    if name != "Some/model":
        raise KeyError(f"Model '{name}' not supported by COMET.")
    return os.environ["DOWNLOADED"]

class Standin:
    def __init__(self, code):
        self.code = code
        inputs = ["mt", "src"] if code == "# estimates" else ["mt", "src", "ref"]
        self.hparams = SimpleNamespace(input_segments=inputs)
    def eval(self):
        pass
    def requires_references(self):
        return False
    def predict(self, samples, batch_size, gpus, progress_bar):
        print("nor is this an answer", batch_size, gpus, progress_bar)
        scores = [len(s["src"]) + len(s["mt"]) / 100 - len(s["ref"]) / 10000 for s in samples]
        exec(self.code)
        return SimpleNamespace(scores=scores)

def load_from_checkpoint(path):
    code = open(path).read()
    if code == "# damaged":
        raise OSError("cannot read it")
    return Standin(code)
"""
TORCH = "class cuda:\n    is_available = staticmethod(lambda: False)\n"
# The stand-in's models are code that it runs after scoring.
MODELS = {name: f"# {name}" for name in ("whole", "estimates", "damaged")} | {
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "leaves": "os._exit(7)",
    "exits": "sys.exit('no more')",
    "raises": r"raise RuntimeError('one line\nanother')",
    "short": "scores.pop()",
    "nan": "scores[1] = float('nan')",
    "slow": "print('computing', flush=True); time.sleep(600)",
}
SOURCES = ["Der Hund.", "Eine Katze schläft.", "Ja."]
REFERENCES = ["The dog.", "A cat sleeps.", "Yes."]
TRANSLATIONS = ["The dog.", "One cat, asleep.", "Ja"]


def naive(sources: list[str], translations: list[str], references: list[str]) -> list[float]:
    """What the stand-in counts."""
    segments_ = zip(sources, translations, references, strict=True)
    return [len(s) + len(t) / 100 - len(r) / 10000 for s, t, r in segments_]


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of an environment with the stand-in, and without anything else."""
    folder = tmp_path_factory.mktemp("other")
    venv.create(folder / "env", symlinks=True)
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "comet.py").write_text(LIBRARY, encoding="utf-8")
    (site / "torch.py").write_text(TORCH, encoding="utf-8")
    about = ["Name: unbabel-comet", "Version: 9.8"]
    write_lines(site / "unbabel_comet-9.8.dist-info" / "METADATA", about)
    return os.fspath(folder / "env" / "bin" / "python")


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    return os.fspath(folder / "bin" / "python")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts and models."""
    for name, code in MODELS.items():
        checkpoint = tmp_path / name / "checkpoints" / "model.ckpt"
        checkpoint.parent.mkdir(parents=True)
        checkpoint.write_text(code)
    for name, lines in {"src": SOURCES, "ref": REFERENCES, "hyp": TRANSLATIONS}.items():
        write_lines(tmp_path / name, lines)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(PYTHON, raising=False)
    return tmp_path


def signature(model: str, references: int = 1, name: str | None = None) -> str:
    checksum = hashlib.sha256(MODELS[model].encode()).hexdigest()[:12]
    return f"nrefs:{references}|model:{name or model}|sha256:{checksum}|version:unbabel-comet-9.8"


@pytest.mark.parametrize("name", ["whole", "./whole", "whole/checkpoints/model.ckpt"])
def test_a_local_model_is_a_folder_or_a_checkpoint(name: str, python: str, folder: Path) -> None:
    metric = NeuralMetric(f"comet:{name}", python)
    assert metric.signature == signature("whole")
    texts = (SOURCES, TRANSLATIONS, REFERENCES)
    assert metric.segments(*texts) == naive(*texts)
    odd = ["a\u2028b\x85c\n", "", '"\\\U0001f600']  # each character once, whatever it is
    assert metric.segments(odd, odd, odd) == naive(odd, odd, odd)


def test_a_name_on_the_hub(python: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOWNLOADED", os.fspath(folder / "estimates/checkpoints/model.ckpt"))
    monkeypatch.setenv(PYTHON, python)
    metric = NeuralMetric("comet:Some/model")
    assert metric.signature == signature("estimates", 0, "Some/model")


def test_another_python_is_not_told_of_this_ones_paths(bare, python, folder, monkeypatch):
    """And an environment's Python is not followed to the one that it links to."""
    monkeypatch.setenv("PYTHONPATH", os.fspath(folder))
    (folder / "comet.py").write_text("raise SystemExit('imported')")
    metric = NeuralMetric("comet:whole", python)
    assert metric.python == python
    assert metric.signature
    assert neural._environment(sys.executable)["PYTHONPATH"]
    assert "PYTHONPATH" not in neural._environment(bare)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_no_process_is_left_when_the_command_is_ended(how, python, folder):
    """Not even one that computes, and that alone would go on for ten minutes."""
    with start(
        *("fairseq-ext", "score", "--ref", "ref", "--hyp", "hyp", "--source", "src"),
        *("--metric", "comet:slow", "--metric-python", python),
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": folder},
    ) as process:
        try:
            assert any("computing" in line for line in process.stderr)
            process.send_signal(how)
            output = process.communicate(timeout=60)  # both processes hold the pipes
        finally:
            process.kill()
    assert output[0] == ""
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: -how}[how]


COMET = "--source src --metric comet:"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (f"{COMET}killed", "`comet:killed` ({python}) ended with status -9; if memory was short"),
        (f"{COMET}leaves", "`comet:leaves` ({python}) ended with status 7; if memory"),
        (f"{COMET}exits", "COMET ends with SystemExit: no more; if memory was short"),
        (f"{COMET}raises", "COMET ends with RuntimeError: one line\\nanother"),
        (f"{COMET}short", "`comet:short` gives 2 finite scores for 3 texts"),
        (f"{COMET}nan", "`comet:nan` gives 2 finite scores for 3 texts"),
        (f"{COMET}damaged", "COMET ends with OSError: cannot read it; give a model of"),
        (f"{COMET}Other/model", "KeyError: \"Model 'Other/model' not supported by COMET.\""),
        (f"{COMET}./no/where", "Model './no/where' not supported by COMET.\""),
        (f"{COMET}.", "No such file or directory: 'checkpoints/model.ckpt'; give a model"),
        (COMET, "must be comet:MODEL, but is `comet:` instead"),
        ("--source src --metric bleurt:x", "must be comet:MODEL, but is `bleurt:x` instead"),
        ("--metric comet:whole", "A neural metric uses the source too. Give the source"),
        ("--metric comet:whole --source one", "`one` has 1 lines, but there are 3"),
        ("--source src", "`--source` goes with `--metric comet:MODEL`, which is missing"),
        ("--metric-python x", "`--metric-python` goes with `--metric comet:MODEL`, which is"),
        (
            f"{COMET}whole --metric-python nowhere/python",
            "`nowhere/python` cannot be run (No such file or directory); give a Python",
        ),
        (f"{COMET}whole --metric-batch-size 0", "`--metric-batch-size` must be at least 1, but is"),
    ],
)
def test_errors_are_one_line_and_nothing_is_written(options, message, python, folder, monkeypatch):
    monkeypatch.setenv(PYTHON, python)
    write_lines(folder / "one", ["x"])
    words = ("score", "--ref", "ref", "--hyp", "hyp", "--json", "new", *options.split())
    leaves_no_trace(folder, message.format(python=python), *words)


def test_a_missing_library_is_said_with_its_cure(bare: str, folder: Path) -> None:
    texts = (SOURCES, TRANSLATIONS, REFERENCES)
    with pytest.raises(neural.EnvironmentProblem, match="No module named 'comet'") as raised:
        NeuralMetric("comet:whole", bare).segments(*texts)
    cure = "`python -m venv comet_env && comet_env/bin/pip install unbabel-comet 'setuptools<81'`"
    assert cure in str(raised.value)
    assert f"{PYTHON}=comet_env/bin/python or, where the command has it" in str(raised.value)


PIECES = ["Der Hu@@ nd .", "Eine Kat@@ ze schläft .", "Ja ."]
TOKENS = [["The dog ."], ["One c@@ at , asleep ."], ["Ja"]]


@pytest.mark.parametrize("how", ["text.json", "--source"])
def test_sources_become_text_as_translations_do(how, python, folder, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # with it nothing printed could get lost
    write_generated(folder / "out", TOKENS, PIECES)
    steps = {"format": 1, "src": "de", "tgt": "en", "tokenize": True, "subwords": "joined"}
    options = ["--source", "src", "--detokenize", "en"]
    if how == "text.json":
        (folder / "text.json").write_text(json.dumps(steps))
        options = []
    done = run(
        *("fairseq-ext", "score", "--ref", "ref", "--generated", "out", "--json", "scores"),
        *("--metric", "comet:whole", "--metric-python", python, *options),
        cwd=folder,
    )
    report = json.loads((folder / "scores").read_text())
    expected = naive(SOURCES, TRANSLATIONS, REFERENCES)
    assert report["segments"] == {"COMET": expected}
    (comet,) = (entry for entry in report["scores"] if entry["name"] == "COMET")
    mean = statistics.fmean(expected)
    assert (comet["value"], comet["signature"]) == (mean, signature("whole"))
    assert "COMET" in done.stdout
    assert f"  {mean:.4f}  {signature('whole')}" in done.stdout
    assert "not an answer" not in done.stdout
    assert "nor is this an answer 16 0 False" in done.stderr
    assert [score.name for score in read_scores(folder / "scores")][-1] == "COMET"
    (folder / "scores").write_text(" " * (1 << 24) + json.dumps(report))  # as of many segments
    assert read_scores(folder / "scores")[-1].value == mean


@pytest.mark.parametrize(
    ("sources", "options", "message"),
    [
        (["x", "a <unk> b", "y"], [], "sentence 1 has words that the dictionary lacks (`<unk>`)"),
        (["x", "y", "joined<unk>"], [], "sentence 2 has words that the dictionary lacks (`<unk>`)"),
        (SOURCES, ["--detokenize", "en"], "the language of its source tokens is not known"),
        (None, [], "lacks the source of sentence 0 (`S-0`)"),
    ],
)
def test_sources_that_cannot_become_text(sources, options, message, python, folder):
    path = write_generated(folder / "out", [["x"]] * 3, sources or SOURCES)
    if sources is None:
        write_lines(path, [f"H-{i}\t-1\tx" for i in range(3)])
    words = ("score", "--ref", "ref", "--generated", "out", "--metric", "comet:whole")
    cure = "Give the source text with `--source`."
    leaves_no_trace(folder, f"{message}. {cure}", *words, "--metric-python", python, *options)


def test_a_set_of_sacrebleu_has_its_source(python: str, folder: Path) -> None:
    for part, lines in {"src": SOURCES, "ref": REFERENCES}.items():
        write_lines(folder / "sets/wmt14/full" / f"wmt14_full.de-en.{part}", lines)
    for part in ("docid", "genre", "origlang"):
        write_lines(folder / "sets/wmt14/full" / f"wmt14_full.de-en.{part}", REFERENCES)
    run(
        *("fairseq-ext", "score", "--ref", "wmt14/full", "-l", "de-en", "--hyp", "hyp"),
        *("--metric", "comet:whole", "--json", "scores"),
        cwd=folder,
        SACREBLEU=os.fspath(folder / "sets"),
        **{PYTHON: python},
    )
    expected = naive(SOURCES, TRANSLATIONS, REFERENCES)
    assert json.loads((folder / "scores").read_text())["segments"] == {"COMET": expected}


def test_compare_has_score_deviation_and_p_in_every_form(python: str, folder: Path) -> None:
    outputs = {"a1": TRANSLATIONS, "a2": [*TRANSLATIONS[:2], "Yes, yes"], "b": ["x", "y", "z"]}
    for name, lines in outputs.items():
        write_lines(folder / name, lines)
    shown = command(
        *("compare", "--ref", "ref", "--source", "src", "--samples", "200"),
        *("--system", "a=text:a1,a2", "--system", "b=text:b", "-o", "table"),
        *("--metric", "comet:whole", "--metric", "comet:estimates", "--metric-python", python),
    )
    data = json.loads((folder / "table.json").read_text())
    first, second = data["systems"]
    scores = {name: naive(SOURCES, lines, REFERENCES) for name, lines in outputs.items()}
    means = {name: statistics.fmean(values) for name, values in scores.items()}
    label = "COMET whole"
    ours = first["scores"][label]
    assert ours["value"] == pytest.approx((means["a1"] + means["a2"]) / 2, abs=1e-12)
    assert ours["deviation"] == pytest.approx(statistics.stdev([means["a1"], means["a2"]]))
    assert ours["low"] < ours["value"] < ours["high"]
    assert second["scores"][label]["p"] is None  # three sentences say nothing about others
    difference = second["scores"][label]["difference"]["value"]
    assert difference == pytest.approx(means["b"] - ours["value"], abs=1e-12)
    assert data["segments"][label] == {"a": [scores["a1"], scores["a2"]], "b": [scores["b"]]}
    assert data["signatures"][label] == f"{signature('whole')}|bs:200|seed:12345"
    assert data["signatures"]["COMET estimates"].startswith(signature("estimates", 0))
    cell = f"{ours['value']:.4f} ± {(ours['high'] - ours['low']) / 2:.4f}"
    assert f"| {cell} | {ours['deviation']:.4f} |" in (folder / "table.md").read_text()
    assert f",{ours['value']},{ours['low']}," in (folder / "table.csv").read_text()
    assert cell.replace("±", r"$\pm$") in (folder / "table.tex").read_text()
    assert f"{label}: {signature('whole')}|bs:200" in shown
    assert read_scores(folder / "table.json", "a")[2].detail.startswith(f"{ours['low']:.4f} to ")


def test_a_recipe_tries_a_metric_first(python, folder, monkeypatch):
    monkeypatch.setenv(PYTHON, python)
    trial = (sys.executable, REPO / "recipes" / "try_metric.py")
    for model, message in (
        ("/no/such", "Model '/no/such' not supported by COMET"),
        ("damaged", "COMET ends with OSError: cannot read it"),
    ):
        line = run(*trial, f"comet:{model}", cwd=folder, ok=False).stderr.splitlines()[-1]
        assert line.startswith("try_metric: error: ")
        assert message in line
    assert run(*trial, "comet:whole", cwd=folder).stdout == f"COMET: {signature('whole')}\n"


def test_mbr_by_comet_takes_the_papers_argmax(python: str, folder: Path) -> None:
    samples = [["aaaa", "bb", "bb", "c"], ["d", "eee", "ff", "gg"]]
    write_generated(folder / "samples", samples, SOURCES)
    shown = command(
        *("mbr", "samples", "--num-candidates", 4, "-o", "best", "--json", "why"),
        *("--utility", "comet:whole", "--metric-python", python, "--keep-tokens"),
    )
    why = json.loads((folder / "why").read_text())
    assert len(why["sentences"]) == len(samples)
    for decision, source, texts in zip(why["sentences"], SOURCES, samples, strict=False):
        scores = (naive([source] * 4, [text] * 4, texts) for text in texts)
        means = [*map(statistics.fmean, scores)]
        assert decision["expected_utility"] == pytest.approx(max(means), abs=1e-9)
        assert decision["text"] == texts[int(np.argmax(means))]
    assert why["utility"] == f"COMET|{signature('whole')}"
    assert f"{why['expected_utility']:.4f}\n" in shown


@pytest.mark.parametrize(
    ("utility", "count", "message"),
    [
        ("comet:estimates", 2, "uses no reference, but MBR compares candidates"),
        ("comet:nan", 2, "`comet:nan` gives "),
        ("chrf", 2, "`--metric-python` goes with `--utility comet:MODEL`"),
        ("comet:damaged", 3, "Sentence 0 has 2 candidates instead of 3"),  # before it is loaded
    ],
)
def test_mbr_refuses(utility: str, count: int, message: str, python: str, folder: Path) -> None:
    write_generated(folder / "samples", [["a", "bb"]])
    flags = ("--num-candidates", count, "-o", "best", "--metric-python", python)
    leaves_no_trace(folder, message, "mbr", "samples", *flags, "--utility", utility)


# Makes a COMET model of random weights, then prints what COMET itself says of some segments.
REAL = """
import json, sys
from pathlib import Path
import torch, yaml
import pytorch_lightning as lightning
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import XLMRobertaConfig, XLMRobertaModel, XLMRobertaTokenizerFast
from comet import load_from_checkpoint
from comet.models import str2model

kind, out, segments = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
torch.manual_seed(1)
pieces = ["<s>", "<pad>", "</s>", "<unk>", "\\u2581", *map(chr, range(33, 127)), "<mask>"]
words = Tokenizer(models.Unigram([(one, -1.0 - i / 99) for i, one in enumerate(pieces)], unk_id=3))
words.pre_tokenizer = pre_tokenizers.Metaspace()
words.post_processor = processors.TemplateProcessing(
    single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
)
XLMRobertaTokenizerFast(tokenizer_object=words).save_pretrained(out / "encoder")
XLMRobertaModel(
    XLMRobertaConfig(
        vocab_size=len(pieces), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=130,
    ),
    add_pooling_layer=False,
).save_pretrained(out / "encoder")
model = str2model[kind](
    pretrained_model=str(out / "encoder"), hidden_sizes=[8], layer_transformation="sparsemax",
    local_files_only=True,
)
trainer = lightning.Trainer(logger=False, accelerator="cpu", enable_progress_bar=False)
trainer.strategy.connect(model)
(out / "checkpoints").mkdir()
trainer.save_checkpoint(out / "checkpoints" / "model.ckpt", weights_only=True)
(out / "hparams.yaml").write_text(yaml.safe_dump(dict(model.hparams)))
model = load_from_checkpoint(str(out / "checkpoints" / "model.ckpt"))
samples = [dict(zip(("src", "mt", "ref"), one)) for one in segments]
found = model.predict(samples, batch_size=16, gpus=0, progress_bar=False)
print("FOUND" + json.dumps([found.scores, float(found.system_score)]))
"""


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get(PYTHON), reason=f"{PYTHON} names no Python with COMET")
@pytest.mark.parametrize("kind", ["regression_metric", "unified_metric"])
def test_scores_are_those_of_comet_itself(kind: str, tmp_path: Path) -> None:
    words = ("", "lang und breit", "nun", "?"), ("", " or not", " now", "")
    sources = [f"{source} {word}" for source in SOURCES for word in words[0]]
    translations = [f"{translation}{word}" for translation in TRANSLATIONS for word in words[1]]
    translations[5] = ""
    references = [reference for reference in REFERENCES for _ in range(4)]
    segments = list(zip(sources, translations, references, strict=True))
    candidates = [*dict.fromkeys(translations)]
    pairs = [(sources[1], candidate, other) for candidate in candidates for other in candidates]
    sentences = json.dumps(segments + pairs)
    script = [os.environ[PYTHON], "-c", REAL, kind, tmp_path / "tiny", sentences]
    variables = neural._environment(os.environ[PYTHON]) | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(script, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    theirs, _ = json.loads(done.stdout.partition("FOUND")[2])
    assert len(set(theirs)) > 10  # the model tells segments apart
    for name, lines in {"src": sources, "ref": references, "hyp": translations}.items():
        write_lines(tmp_path / name, lines)
    words = ("score", "--ref", "ref", "--hyp", "hyp", "--source", "src", "--json", "scores")
    run("fairseq-ext", *words, "--metric", "comet:tiny", cwd=tmp_path)
    report = json.loads((tmp_path / "scores").read_text())
    assert report["segments"]["COMET"] == pytest.approx(theirs[: len(segments)], abs=1e-6)
    assert report["scores"][-1]["value"] == pytest.approx(statistics.fmean(theirs[: len(segments)]))
    metric = NeuralMetric(f"comet:{tmp_path / 'tiny'}", batch_size=3)
    rows = metric.matrix(candidates, sources[1])
    assert "model:tiny|sha256:" in metric.signature
    assert metric.signature.rpartition("-")[2] != "9.8"
    scores = [score for row in rows for score in row]
    assert scores == pytest.approx(theirs[len(segments) :], abs=1e-6)
