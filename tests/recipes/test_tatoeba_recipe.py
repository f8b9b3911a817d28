"""The recipe of the small models for Spanish and English, and the one for fine-tuning."""

import json
import re
from pathlib import Path

import finetune_flags
import pytest

from fairseq_ext.checkpoints import bundle
from fairseq_ext.model import find_model
from tests.support.harness import run, write_lines, write_sides
from tests.support.models import configuration
from tests.support.published import LINES, publish, publish_many
from tests.support.recipes import RECIPES, bash, check_pictures, dry_run

RECIPE = RECIPES / "tatoeba.sh"
SMOKE = {"SMOKE": "1"}


@pytest.fixture
def options(tmp_path: Path) -> tuple[object, ...]:
    """Return a dry run's first options."""
    return ("--archive", write_lines(tmp_path / "pairs.tsv", ["Go.\tVe."]))


@pytest.mark.parametrize(("src", "tgt", "columns"), [("es", "en", "2,1"), ("en", "es", "1,2")])
def test_both_directions_take_their_columns(src, tgt, columns: str, options, tmp_path: Path):
    word_lists = dry_run(RECIPE, tmp_path, *options, "--src", src, "--tgt", tgt, "muse")
    (split,) = word_lists.calls("fairseq-ext", "corpus", "pairs")
    assert split.value("--columns") == columns
    ((folder, words),) = word_lists.trainings().items()
    assert folder == "models/muse"
    assert words.values("--source-lang", "--target-lang") == [src, tgt]
    (bundled,) = word_lists.calls("fairseq-ext", "bundle")
    assert bundled[-1] == f"models/muse/tatoeba-{src}-{tgt}-muse"


@pytest.mark.parametrize(
    "name",
    [
        *("transformer", "lstm", "gru", "linformer", "linformer-8", "muse", "muse-simple"),
        *("bmt", "bmt-1"),
    ],
)
def test_the_rate_ends_at_zero_with_the_last_update(name: str, options, tmp_path: Path):
    options = (*options, "--updates", 5000, "--warmup", 400, name)
    (words,) = dry_run(RECIPE, tmp_path, *options).trainings().values()
    cfg = words.settings()
    assert cfg.model.share_all_embeddings
    assert cfg.optimization.max_update == 5000
    schedule = cfg.lr_scheduler
    assert schedule.warmup_updates + schedule.lr_period_updates == 5000
    assert cfg.optimization.lr == [0.004 if name.startswith("bmt") else 0.002]
    assert cfg.model.dropout == (0 if name == "bmt-1" else 0.2)
    assert getattr(cfg.model, "attention_dropout", 0) == 0  # of none: they are to be compared
    assert getattr(cfg.model, "activation_dropout", 0) == 0


def test_it_ends_in_a_bundle_that_translates(tmp_path: Path):
    check_run(tmp_path / "run", "gru")
    output = bash(RECIPE, "--out", tmp_path / "run", "gru", **SMOKE).stderr
    assert output.count("done before") == 4


@pytest.mark.long
def test_a_binary_model_goes_on_from_its_float_one(tmp_path: Path):
    out = tmp_path / "run"
    output = bash(RECIPE, "--out", out, "bmt-1", ok=False, **SMOKE).stderr
    assert "`bmt-1` starts from `bmt`; train that first." in output
    check_run(out, "bmt")
    check_run(out, "bmt-1")
    comparison = json.loads((out / "compare.json").read_text())
    assert [system["name"] for system in comparison["systems"]] == ["bmt", "bmt-1"]


def check_run(out: Path, name: str) -> None:
    bash(RECIPE, "--out", out, name, **SMOKE)
    folder = out / "models" / name
    assert len((folder / "hyp.en").read_text().splitlines()) == 20
    check_pictures(out, "curves", "lengths", "compare")
    assert "lengths.png" in (out / "compare.md").read_text()
    scores = json.loads((folder / "scores.json").read_text())["scores"]
    assert {"BLEU", "chrF"} < {score["name"] for score in scores}
    bundle = folder / f"tatoeba-es-en-{name}"
    card = (bundle / "README.md").read_text()
    assert f"recipes/tatoeba.sh --src es --tgt en {name}`, seed 1, on " in card
    assert "license: cc-by-2.0\n" in card
    assert "| chrF | " in card
    translated = run("fairseq-ext", "translate", "--path", bundle, stdin="1 2\n3\n")
    assert translated.stdout.count("\n") == 2


@pytest.mark.parametrize("name", find_model.shipped())
def test_flags_build_a_shipped_model_again(name: str):
    folder = find_model.SHIPPED / name
    model = configuration(finetune_flags.flags(str(folder))).model
    saved = bundle.configuration(bundle.read(folder))["cfg"]["model"]
    assert {key: model[key] for key in saved} == saved


@pytest.mark.parametrize("family", ["bilingual", "of many languages"])
def test_published_model_is_trained_on(family: str, tmp_path: Path):
    if family == "bilingual":
        model = publish(tmp_path / "model", "transformer", share_all_embeddings=True)
    else:
        pairs = {"lang_pairs": ["en-de", "de-en"], "langs": ["cs", "de", "en", "fr"]}
        options = {**pairs, "encoder_langtok": "src", "decoder_langtok": True}
        model, *_ = publish_many(tmp_path / "model", "translation_multi_simple_epoch", **options)
    data = write_sides(tmp_path / "my", {"en": LINES, "de": LINES[::-1]})
    words = ["--model", model, "--data", data, "--src", "en", "--tgt", "de"]
    out = tmp_path / "run"
    words += ["--out", out, "--updates", "30", "--lr", "3e-3"]
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = bash(RECIPES / "finetune.sh", *words, **environment)
    assert "5 sentences of test.en are in train.en too" in done.stderr
    (averaged,) = re.findall(r"fairseq-ext average --inputs (.*) -o", done.stderr)
    assert averaged.endswith("checkpoints/checkpoint_last.pt")
    assert "_30.pt" not in averaged  # the same weights once more
    before, after = (float((out / name).read_text()) for name in ("before", "after"))
    assert after < before
    trained, start = bundle.read(out / "bundle"), out / "start"
    assert (trained.src, trained.tgt, bundle.has_program(trained.folder)) == ("en", "de", True)
    for name in ("dict.en.txt", "dict.de.txt"):  # the model's own dictionaries
        assert (trained.folder / name).read_bytes() == (start / name).read_bytes()
    assert re.search(r"\| *after", (out / "compare.md").read_text("utf-8"))
    if family == "bilingual":
        manifest = start / "bundle.json"
        fields = json.loads(manifest.read_text("utf-8")) | {"search": {"beam": 2, "max_len_b": 9}}
        manifest.write_text(json.dumps(fields), encoding="utf-8")
        (out / ".stages" / "bundle").unlink()
        second_run = bash(RECIPES / "finetune.sh", *words, **environment)
        assert "fairseq-train" not in second_run.stderr
        assert bundle.read(trained.folder).search == fields["search"]
