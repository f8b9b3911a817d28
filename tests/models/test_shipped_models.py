"""The models that come with the plugin."""

import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import sacrebleu

import fairseq_ext
from fairseq_ext.checkpoints import bundle
from fairseq_ext.model import find_model
from tests.soak.demo import Page
from tests.support.harness import BIN, REPO, refused, run

PAIRS = REPO / "tests" / "support" / "tatoeba_es_en.tsv"
EVERYDAY = REPO / "tests" / "support" / "everyday.tsv"
BLEU = {
    "tatoeba-en-es": 41.0,
    "tatoeba-es-en": 54.1,
    "tatoeba-es-en-bmt-1": 48.8,
}
"""On the pairs in that file. `tatoeba-es-en` may have seen some: this shows changes alone."""


def pairs() -> tuple[list[str], list[str]]:
    lines = PAIRS.read_text(encoding="utf-8").splitlines()[1:]
    spanish, english = zip(*(line.split("\t") for line in lines), strict=True)
    return list(spanish), list(english)


def test_all_are_tested_and_small():
    assert find_model.shipped() == sorted(BLEU)
    files = [path for path in find_model.SHIPPED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 12 * 2**20


@pytest.mark.parametrize("name", sorted(BLEU))
def test_each_has_its_figure_and_its_card(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = find_model.resolved(Path(name))
    bundle.read(folder).check()
    card = (folder / "README.md").read_text(encoding="utf-8")
    recipe = "shipped_models.sh" if name == "tatoeba-es-en" else "tatoeba.sh --src"
    for statement in ("license: cc-by-2.0\n", f"recipes/{recipe}", "seed 1", "| BLEU | "):
        assert statement in card

    model = fairseq_ext.load(name)
    spanish, english = pairs()
    if name.endswith("en-es"):
        spanish, english = english, spanish
    hypotheses = [translation.text for translation in model.translate(spanish)]
    # Processors round differently, which may decide between two equally good words.
    assert sacrebleu.corpus_bleu(hypotheses, [english]).score == pytest.approx(BLEU[name], abs=0.5)


def test_everyday_sentences_are_right():
    rows = [line.split("\t") for line in EVERYDAY.read_text(encoding="utf-8").splitlines()[1:]]
    rows = [row for row in rows if row[0] == "es-en"]
    assert len(rows) == 60
    translations = fairseq_ext.load("tatoeba-es-en").translate([row[1] for row in rows])
    wrong = {
        row[1]: translation.text
        for row, translation in zip(rows, translations, strict=True)
        if translation.text not in row[2:]
    }
    assert not wrong


@pytest.mark.system
def test_the_readmes_example(tmp_path: Path):
    words = ("translate", "--model", "tatoeba-es-en", "¿Dónde está la biblioteca?")
    assert run("fairseq-ext", *words, cwd=tmp_path).stdout == "Where is the library?\n"
    done = run("fairseq-ext", "translate", "--model", "tatoeba-es", "Hola", cwd=tmp_path, ok=False)
    refused(done, "`--model tatoeba-es`: there is no such file", f"are {', '.join(sorted(BLEU))}.")


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.skipif(find_spec("gradio") is None, reason="gradio is not installed")
def test_the_demo_takes_bundles_and_needs_no_more(tmp_path: Path):
    """One by its name, as in the README, and one in an archive."""
    run("fairseq-ext", "bundle", "tatoeba-en-es", "-o", "mine.zip", cwd=tmp_path)
    command = ["demo", "MUSE=tatoeba-es-en", "mine=mine.zip", "--port", "0"]
    with subprocess.Popen(
        [BIN / "fairseq-ext", *command],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    ) as process:
        try:
            page = Page(process.stdout.readline().strip())
            english = json.dumps(page.ask("¿Dónde está la biblioteca?", ["MUSE"]))
            spanish = json.dumps(page.ask("Where is the library?", ["mine"]), ensure_ascii=False)
        finally:
            process.terminate()
    assert '"Where is the library?"' in english
    assert '"¿Dónde está la biblioteca?"' in spanish
