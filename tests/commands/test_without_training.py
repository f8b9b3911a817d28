"""Commands where neither torch nor fairseq is installed, as `pip install fairseq-ext` leaves it."""

import os
import sys
from pathlib import Path

import pytest

from fairseq_ext.model import find_model
from tests.support.harness import REPO, command, run
from tests.support.serving import serving

HIDE = """
import sys
from importlib.machinery import PathFinder

HIDDEN = {"torch", "fairseq", "fairseq_cli", "fairseq-fixed", "hydra", "omegaconf"}
sys.modules.update(dict.fromkeys(HIDDEN))


class WithoutTraining(PathFinder):
    @classmethod
    def find_distributions(cls, *context):
        for distribution in super().find_distributions(*context):
            if distribution.metadata["Name"].replace("_", "-") not in HIDDEN:
                yield distribution


sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTraining
"""
TRAIN = "pip install 'fairseq-ext[train]'"


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a process that finds no library of training."""
    folder = tmp_path_factory.mktemp("hidden")
    (folder / "sitecustomize.py").write_text(HIDE)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{REPO}"}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder of Spanish lines and English ones."""
    (tmp_path / "in.es").write_text("Hola.\nNo.\n¿Dónde está la biblioteca?\n")
    (tmp_path / "ref.en").write_text("Hello.\nNo.\nWhere is the library?\n")
    (tmp_path / "worse.en").write_text("Hello.\nYes.\nWhere is library?\n")
    return tmp_path


def ours(hidden: dict[str, str], folder: Path, *words: object) -> str:
    done = run("fairseq-ext", *words, cwd=folder, **hidden)
    assert "Traceback" not in done.stderr
    return done.stdout


def test_translating_scoring_and_comparing(hidden: dict[str, str], text: Path):
    model = ("--model", "tatoeba-es-en")
    ours(hidden, text, "translate", *model, "--input", "in.es", "-o", "out.en")
    assert len((text / "out.en").read_text().splitlines()) == 3
    assert "BLEU" in ours(hidden, text, "score", "--hyp", "out.en", "--ref", "ref.en")
    model = find_model.resolved(Path("tatoeba-es-en"))
    systems = ("--system", f"a=text:out.en,checkpoint={model}", "--system", "b=text:worse.en")
    table = ours(hidden, text, "compare", *systems, "--ref", "ref.en", "--json", "table.json")
    assert "4,566,032" in table


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("models",), "tatoeba-es-en"),
        (("describe", "tatoeba-es-en"), "es to en"),
        (("help",), "evaluation"),
        (("help", "translate"), "--model"),
        (("version",), "fairseq-ext "),
        (("user-dir",), "fairseq_ext_plugin"),
        (("doctor",), "ready"),
    ],
)
def test_a_command(hidden: dict[str, str], tmp_path: Path, words: tuple[str, ...], part: str):
    assert part in ours(hidden, tmp_path, *words)


def test_serving(hidden: dict[str, str], tmp_path: Path):
    with serving(tmp_path, "tatoeba-es-en", **hidden) as server:
        assert server.translate("No.", source="es", target="en").status == 200


def test_the_demo(hidden: dict[str, str], tmp_path: Path):
    """Of models by their names, as in the README, and of one in an archive."""
    command("bundle", "tatoeba-en-es", "-o", tmp_path / "mine.zip")
    models = ("MUSE=tatoeba-es-en", "bmt=tatoeba-es-en-bmt-1", "mine=mine.zip")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with serving(tmp_path, *models, command="demo", **cache, **hidden) as demo:
        assert "M parameters" in demo.ask("/").body.decode("utf-8")
        pair = ("¿Dónde está la biblioteca?", "Where is the library?")
        for system, (sentence, expected) in (("MUSE", pair), ("mine", pair[::-1])):
            answer = demo.ask("/translate", {"sentence": sentence, "systems": [system]})
            assert [shown["text"] for shown in answer.body if shown] == [expected]
        demo.end()


def test_the_demo_names_a_model_that_does_not_exist(hidden: dict[str, str], tmp_path: Path):
    done = run("fairseq-ext", "demo", "x=nothing", cwd=tmp_path, ok=False, **hidden)
    assert "nothing does not exist" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("average", "--inputs", "a.pt", "b.pt", "-o", "c.pt"),
        ("bundle", "a.pt", "--data", ".", "-o", "bundle"),
        ("export", "tatoeba-es-en", "-o", "c.pt"),
        ("translate", ".", "--path", "a.pt", "--input", "text"),
        ("translate", "--model", "tatoeba-es-en", "--engine", "fairseq", "No."),
    ],
    ids=lambda words: "-".join(words[:1] + words[3:4]),
)
def test_what_needs_torch_says_what_to_install(hidden, tmp_path, words):
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).write_bytes(b"PK\3\4")
    (tmp_path / "text").write_text("No.\n")
    done = run("fairseq-ext", *words, cwd=tmp_path, ok=False, **hidden)
    assert TRAIN in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "b.pt", "text"]


@pytest.mark.parametrize("module", ["user_dir", "fairseq_ext.plugin.fairseq_ext_plugin"])
def test_the_plugin_says_what_to_install(hidden: dict[str, str], tmp_path: Path, module: str):
    done = run(sys.executable, "-c", f"import {module}", cwd=tmp_path, ok=False, **hidden)
    assert done.stderr == f"fairseq-ext: error: `torch` is not installed: `{TRAIN}`.\n"


def test_a_recipe_does_not_take_such_an_environment(hidden: dict[str, str]):
    script = "source recipes/lib.sh; unusable sacrebleu"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run("bash", "-c", script, cwd=REPO, ok=False, **hidden, PATH=path)
    assert done.stdout == "it cannot train: fairseq-ext[train] is not installed\n"
