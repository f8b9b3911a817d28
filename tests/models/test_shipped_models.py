"""The models that come with the plugin."""

import shutil
from pathlib import Path

import pytest
import sacrebleu

import fairseq_ext
from fairseq_ext.checkpoints import bundle
from fairseq_ext.decoding.loading import Opened, open_model
from fairseq_ext.decoding.search import Search
from fairseq_ext.model import find_model
from fairseq_ext.utils.errors import ConfigError
from tests.support.bundles import edit
from tests.support.harness import REPO, refused, run

PAIRS = REPO / "tests" / "support" / "tatoeba_es_en.tsv"
EVERYDAY = REPO / "tests" / "support" / "everyday.tsv"
BLEU = {"tatoeba-en-es": 56.3, "tatoeba-es-en": 54.7, "tatoeba-es-en-bmt-1": 48.8}
"""On the pairs in that file. Two models may have seen some of them: this shows changes alone."""


def test_all_are_tested_and_small_and_known_by_name(tmp_path: Path, monkeypatch):
    assert find_model.shipped() == sorted(BLEU)
    files = [path for path in find_model.SHIPPED.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 12 * 2**20
    monkeypatch.chdir(tmp_path)
    name = Path("tatoeba-es-en")
    assert find_model.resolved(name) == find_model.SHIPPED / name
    name.touch()  # a file of this name is meant first
    for path in (name, Path("tatoeba"), Path("x/tatoeba-es-en.pt")):
        assert find_model.resolved(path) == path


@pytest.mark.parametrize("name", sorted(BLEU))
def test_each_has_its_figure_and_its_card(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = find_model.resolved(Path(name))
    bundle.read(folder).check()
    card = (folder / "README.md").read_text(encoding="utf-8")
    recipe = "tatoeba.sh --src" if name == "tatoeba-es-en-bmt-1" else "shipped_models.sh"
    for statement in ("license: cc-by-2.0\n", f"recipes/{recipe}", "seed 1", "| BLEU | "):
        assert statement in card

    model = fairseq_ext.load(name)
    rows = [line.split("\t") for line in PAIRS.read_text(encoding="utf-8").splitlines()[1:]]
    spanish, english = zip(*rows, strict=True)
    if name.endswith("en-es"):
        spanish, english = english, spanish
    hypotheses = [translation.text for translation in model.translate(spanish)]
    # Processors round differently, which may decide between two equally good words.
    assert sacrebleu.corpus_bleu(hypotheses, [english]).score == pytest.approx(BLEU[name], abs=0.5)


@pytest.mark.parametrize(("direction", "most_wrong"), [("es-en", 0), ("en-es", 1)])
def test_everyday_sentences_are_right(direction: str, most_wrong: int):
    rows = [line.split("\t") for line in EVERYDAY.read_text(encoding="utf-8").splitlines()[1:]]
    rows = [row for row in rows if row[0] == direction]
    assert len(rows) == 60
    translations = fairseq_ext.load(f"tatoeba-{direction}").translate([row[1] for row in rows])
    wrong = {
        row[1]: translation.text
        for row, translation in zip(rows, translations, strict=True)
        if translation.text not in row[2:]
    }
    assert len(wrong) <= most_wrong, wrong


def test_an_ensemble_reads_text_as_each_of_its_models_does(tmp_path: Path):
    shipped, other = find_model.resolved(Path("tatoeba-es-en")), tmp_path / "other"
    shutil.copytree(shipped, other)

    def opened() -> Opened:
        return open_model([other, shipped], None, (None, None), lambda values: Search(**values))

    edit(other, "text.json", lambda text: text.update(lowercase=True))
    with pytest.raises(ConfigError, match="cannot form an ensemble: their text"):
        opened()
    for name in ("text.json", "codes"):
        (other / name).unlink()
        edit(other, bundle.MANIFEST, lambda content, name=name: content["files"].pop(name))
    assert opened().text().subwords == "subword-nmt"


def test_the_readmes_example(tmp_path: Path):
    words = ("translate", "--model", "tatoeba-es-en", "¿Dónde está la biblioteca?")
    done = run("fairseq-ext", *words, cwd=tmp_path)
    assert (done.stdout, "note: " in done.stderr) == ("Where is the library?\n", False)
    done = run("fairseq-ext", *words[:3], "Hola.", "Buenos días, Luisa. ¿Cómo estás?", cwd=tmp_path)
    assert "note: line 2 seems to have several sentences. " in done.stderr
    done = run("fairseq-ext", "translate", "--model", "tatoeba-es", "Hola", cwd=tmp_path, ok=False)
    refused(done, "`--model tatoeba-es`: there is no such file", f"are {', '.join(sorted(BLEU))}.")
    (tmp_path / "in.es").write_text("Hola.\n", encoding="utf-8")
    done = run("fairseq-ext", *words[:3], "in.es", cwd=tmp_path, ok=False)
    refused(done, "in.es is a file; translate its lines by `--input in.es`.")
    weights = find_model.SHIPPED / "tatoeba-es-en" / bundle.WEIGHTS  # also names its bundle
    assert run("fairseq-ext", "translate", "--model", weights, words[3]).stdout.startswith("Where")
    done = run("fairseq-ext", "serve", "tatoeba-es", cwd=tmp_path, ok=False)
    refused(done, "tatoeba-es does not exist; the plugin's own models are ")
