"""The models that come with the plugin."""

from __future__ import annotations

from pathlib import Path

import pytest
import sacrebleu

import fairseq_ext
from fairseq_ext.checkpoints import bundle, names
from fairseq_ext.demo import systems
from tests.support.harness import REPO, refused, run

PAIRS = REPO / "tests" / "support" / "tatoeba_es_en.tsv"
BLEU = {"tatoeba-en-es": 41.0, "tatoeba-es-en": 49.3}
"""On the pairs in that file."""


def pairs() -> tuple[list[str], list[str]]:
    lines = PAIRS.read_text(encoding="utf-8").splitlines()[1:]
    spanish, english = zip(*(line.split("\t") for line in lines), strict=True)
    return list(spanish), list(english)


def test_all_are_tested_and_small():
    assert names.shipped() == sorted(BLEU)
    files = [path for path in names.SHIPPED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8 * 2**20


@pytest.mark.parametrize("name", sorted(BLEU))
def test_each_has_its_figure_and_its_card(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = names.resolved(Path(name))
    bundle.read(folder).check()
    card = (folder / "README.md").read_text(encoding="utf-8")
    for said in ("license: cc-by-2.0\n", "recipes/tatoeba.sh --src", ", seed 1, ", "| BLEU | "):
        assert said in card

    model = fairseq_ext.load(name)
    spanish, english = pairs()
    if name.endswith("en-es"):
        spanish, english = english, spanish
    found = [one.text for one in model.translate(spanish)]
    # Processors round differently, which may decide between two equally good words.
    assert sacrebleu.corpus_bleu(found, [english]).score == pytest.approx(BLEU[name], abs=0.5)


@pytest.mark.system
def test_the_readmes_example(tmp_path: Path):
    words = ("translate", "--model", "tatoeba-es-en", "¿Dónde está la biblioteca?")
    assert run("fairseq-ext", *words, cwd=tmp_path).stdout == "Where is the library?\n"
    done = run("fairseq-ext", "translate", "--model", "tatoeba-es", "Hola", cwd=tmp_path, ok=False)
    refused(done, "`--model tatoeba-es`: there is no such file", f"are {', '.join(sorted(BLEU))}.")


def test_the_demo_takes_it_by_name(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (named,) = systems.parse_systems(["GRU=tatoeba-es-en"], None)
    assert named.checkpoint == names.SHIPPED / "tatoeba-es-en"
