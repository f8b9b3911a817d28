"""The recipe that trains a published model on: nothing but text is given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairseq_ext.checkpoints import bundle
from tests.support.published import LINES, publish, publish_many
from tests.support.recipes import RECIPES, bash


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("family", ["bilingual", "of many languages"])
def test_published_model_is_trained_on(family: str, tmp_path: Path):
    if family == "bilingual":
        model = publish(tmp_path / "model", "transformer", share_all_embeddings=True)
    else:
        pairs = {"lang_pairs": ["en-de", "de-en"], "langs": ["cs", "de", "en", "fr"]}
        options = {**pairs, "encoder_langtok": "src", "decoder_langtok": True}
        model, *_ = publish_many(tmp_path / "model", "translation_multi_simple_epoch", **options)
    data = tmp_path / "my"
    data.mkdir()
    for split in ("train", "valid", "test"):
        for side, lines in (("en", LINES), ("de", LINES[::-1])):
            (data / f"{split}.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["--model", model, "--data", data, "--src", "en", "--tgt", "de"]
    words += ["--out", tmp_path / "run", "--updates", "30", "--lr", "3e-3"]
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = bash(RECIPES / "finetune.sh", *words, **environment)
    assert "5 sentences of test.en are in train.en too" in done.stderr
    before, after = (float((tmp_path / "run" / name).read_text()) for name in ("before", "after"))
    assert after < before
    trained = bundle.read(tmp_path / "run" / "bundle")
    assert (trained.src, trained.tgt, bundle.has_program(trained.folder)) == ("en", "de", True)
    for language in ("en", "de"):  # the model's own dictionaries
        ours, theirs = (
            (tmp_path / "run" / folder / f"dict.{language}.txt").read_text("utf-8")
            for folder in ("bundle", "start")
        )
        assert ours == theirs
    assert re.search(r"\| *after", (tmp_path / "run" / "compare.md").read_text("utf-8"))
    again = bash(RECIPES / "finetune.sh", *words, **environment)
    assert "fairseq-train" not in again.stderr


def test_what_is_missing():
    done = bash(RECIPES / "finetune.sh", "--model", "m", ok=False)
    assert "`--model`, `--data`, `--src` and `--tgt` are needed" in done.stderr
