"""The recipes that compare architectures, and the corpus they train on."""

import gzip
import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support.harness import run, write_lines
from tests.support.moses_scripts import ScriptNormalizer, ScriptTokenizer
from tests.support.recipes import RECIPES, bash, commands

COMPARE_ALL, MULTI30K = RECIPES / "compare_all.sh", RECIPES / "multi30k.sh"
PLAIN = {
    "en": ["Two young, White males are outside.", "A man's “hat” …", "R&D, a well-known dog!"],
    "de": ["Zwei junge weiße Männer sind im Freien.", "Ein „Hut“ …", "Ein Hund – bekannt!"],
}


def tokens(line: str, language: str) -> str:
    line = ScriptNormalizer(language).normalize(line)
    return ScriptTokenizer(language).tokenize(line, return_str=True).lower()


@pytest.mark.parametrize("name", ["multi30k", "multi30k_tok"])
def test_multi30k_is_read_from_its_official_files(tmp_path: Path, name: str) -> None:
    expected = {side: [tokens(line, side) for line in lines] for side, lines in PLAIN.items()}
    files = tmp_path / "files"
    files.mkdir()
    for split in ("train", "val", "test_2016_flickr"):
        for side, lines in PLAIN.items():
            if name == "multi30k":
                data = "".join(f"{line}\n" for line in lines).encode()
                (files / f"{split}.{side}.gz").write_bytes(gzip.compress(data))
            else:
                write_lines(files / f"{split}.lc.norm.tok.{side}", expected[side])
    out = tmp_path / "out"
    command = ("fairseq-ext", "corpus", name, "--out", out, "--bpe", 0)
    done = run(*command, "--mirror", files, "--workers", 1, ok=False)
    assert "train read: 3 pairs instead of 29,000" in done.stderr
    for split in ("train", "valid", "test"):
        for side in PLAIN:
            text = (out / "text" / f"{split}.{side}").read_text(encoding="utf-8")
            assert text.splitlines() == expected[side]
    reference = (out / "reference" / "test.en").read_text(encoding="utf-8").splitlines()
    assert reference[0] == PLAIN["en"][0].lower()


def test_further_test_sets_are_taken_where_they_can_be_had(tmp_path: Path) -> None:
    """A mirror without them does, and what it gets later is added without repeating the rest."""
    files, out = tmp_path / "files", tmp_path / "out"
    for split in ("train", "val", "test_2016_flickr", "test_2017_mscoco"):
        for side in PLAIN:
            write_lines(files / f"{split}.lc.norm.tok.{side}", [f"{split} {side} a"] * 3)
    (files / "test_2017_mscoco.lc.norm.tok.de").unlink()
    command = ("fairseq-ext", "corpus", "multi30k_tok", "--bpe", 4)
    command += ("--out", out, "--mirror", files, "--workers", 1, "--any-counts")
    done = run(*command)
    for name in ("test_2017_flickr", "test_2017_mscoco"):
        assert f"{name}: left out." in done.stderr
    assert not list(out.glob("*/test_2017*.de"))
    assert done.stdout.rstrip().endswith(f"--testpref {out}/bpe/test --destdir …")
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert set(manifest["splits"]) == {"train", "valid", "test"}

    write_lines(files / "test_2017_mscoco.lc.norm.tok.de", ["drei wörter hier"] * 3)
    done = run(*command)
    assert "test_2017_flickr: left out." in done.stderr
    for step in ("text", "merges", "subwords"):
        assert f"\n{step}: done before" in f"\n{done.stderr}"
    tests = f"{out}/bpe/test,{out}/bpe/test_2017_mscoco"
    assert done.stdout.rstrip().endswith(f"--testpref {tests} --destdir …")
    assert "test_2017_mscoco: 3 pairs, but 461 are known" in done.stdout
    for folder in ("text", "reference"):
        text = (out / folder / "test_2017_mscoco.de").read_text(encoding="utf-8")
        assert text == "drei wörter hier\n" * 3
    pieces = (out / "bpe" / "test_2017_mscoco.de").read_text(encoding="utf-8")
    assert pieces.replace("@@ ", "") == "drei wörter hier\n" * 3
    assert "@@ " in pieces
    assert "bpe/test_2017_mscoco.de" in json.loads((out / "manifest.json").read_text())["sha256"]


def test_compare_all_trains_every_architecture_and_compares(tmp_path: Path) -> None:
    done = bash(COMPARE_ALL, "--out", tmp_path / "out", "--updates", 7, DRY_RUN="1", SMOKE="0")
    corpus, training, curves, comparison = commands(done.stderr)
    assert corpus[2:5] == ["multi30k", "--bpe", "0"]
    models = [word for word in training if re.match(r"[\w-]+=\w+", word)]
    names = [model.partition("=")[0] for model in models]
    assert names == ["transformer", "gru", "linformer", "muse", "muse-simple", "bmt", "binary"]
    assert models[-1].endswith("--binary-weights qkv,out,ffn")
    assert training[training.index("--updates") + 1] == "7"
    assert "--no-table" in training  # `compare` makes the only one
    systems = [word for word in comparison if ",checkpoint=" in word]
    assert [system.partition("=")[0] for system in systems] == names
    assert comparison[comparison.index("--baseline") + 1] == "transformer"
    assert curves.count("--log") == len(names)
    assert list(tmp_path.iterdir()) == []


def test_compare_all_takes_some_architectures_and_other_text(tmp_path: Path) -> None:
    options = ("--data", tmp_path, "--src", "es", "--tgt", "en", "--tokenize", "--out", "/x")
    options = (*options, "--metric", "comet:org/model")
    done = bash(COMPARE_ALL, *options, "muse", "gru", DRY_RUN="1", SMOKE="0")
    trial, training, _, comparison = commands(done.stderr)
    assert trial == ["python", str(RECIPES / "try_metric.py"), "comet:org/model"]
    assert training[1:5] == [str(RECIPES / "compare.sh"), str(tmp_path), "es", "en"]
    assert [word.partition("=")[0] for word in training[-2:]] == ["gru", "muse"]
    text = " ".join(comparison)
    assert f"--ref {tmp_path}/test.en --detokenize en --tokenized-ref /x/text/test.en" in text
    assert f"--metric comet:org/model --source {tmp_path}/test.es" in text


def test_every_seed_is_a_training_and_every_model_a_row(tmp_path: Path) -> None:
    models = ("--seeds", 2, "--out", tmp_path / "out")
    shown = commands(bash(COMPARE_ALL, *models, "gru", DRY_RUN="1", SMOKE="0").stderr)
    outputs = [f"{tmp_path}/out/models/{name}/generated.txt" for name in ("gru", "gru@2")]
    (system,) = [word for word in shown[-1] if ",checkpoint=" in word]
    assert system.startswith(f"gru={','.join(outputs)},checkpoint=")
    models = ("my", "es", "en", *models, "muse_tiny")
    shown = commands(bash(RECIPES / "compare.sh", *models, DRY_RUN="1", SMOKE="0").stderr)
    trainings = [words for words in shown if words[0] == "fairseq-train"]
    folders = [words[words.index("--save-dir") + 1] for words in trainings]
    assert folders == ["models/muse_tiny", "models/muse_tiny@2"]
    assert trainings[1] == [
        word.replace("muse_tiny", "muse_tiny@2") if "/" in word else word for word in trainings[0]
    ] + ["--seed", "2"]


def test_words_have_one_dictionary_where_models_share_their_embeddings(tmp_path: Path) -> None:
    words = ("my", "es", "en", "--bpe", 0, "--out", tmp_path / "out")
    for flags, joined in (("", False), (" --share-all-embeddings", True)):
        done = bash(RECIPES / "compare.sh", *words, f"a=lstm{flags}", DRY_RUN="1", SMOKE="0")
        (preprocess,) = [line for line in commands(done.stderr) if line[0] == "fairseq-preprocess"]
        assert ("--joined-dictionary" in preprocess) == joined


def test_pasted_commands_find_their_folders(tmp_path: Path) -> None:
    """Relative paths are relative to the shared folder, into which each model's part returns."""
    out = str(tmp_path / "out")
    models = ("gru_tiny", "muse_tiny")
    done = bash(
        RECIPES / "compare.sh", "my", "es", "en", "--out", out, *models, DRY_RUN="1", SMOKE="0"
    )
    shown, folder = commands(done.stderr), ""
    for words in shown:
        folder = words[1] if words[0] == "cd" else folder
        if words[0] in ("fairseq-train", "fairseq-generate"):
            assert folder == out
    assert [words[1] for words in shown if words[0] == "cd"] == [
        out,
        *(place for name in models for place in (f"{out}/models/{name}", out)),
    ]


def test_multi30k_trains_any_architecture_on_either_form(tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    shown = commands(bash(MULTI30K, "--tok", *out, DRY_RUN="1", SMOKE="0").stderr)
    programs = [words[1] if words[0] == "fairseq-ext" else words[0] for words in shown]
    expected = ["corpus", "fairseq-preprocess", "fairseq-train", "average", "fairseq-generate"]
    assert [name for name in dict.fromkeys(programs) if name in expected] == expected
    assert [words[2] for words in shown if words[1:2] == ["corpus"]] == ["multi30k_tok"]
    train = next(words for words in shown if words[0] == "fairseq-train")
    assert train[train.index("--encoder-layers") + 1] == "4"
    other = commands(bash(MULTI30K, "--arch", "gru_attention", *out, DRY_RUN="1", SMOKE="0").stderr)
    train = next(words for words in other if words[0] == "fairseq-train")
    assert "gru_attention" in train
    assert "--encoder-layers" not in train


@pytest.mark.system
@pytest.mark.slow
def test_compare_all_from_nothing_to_the_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = bash(COMPARE_ALL, "--out", out, "gru", "muse")
    assert re.search(r"^system +BLEU .*\ngru .*\nmuse ", done.stdout, re.MULTILINE)
    assert len(re.findall(r"^muse .* ± ", done.stdout, re.MULTILINE)) == 1
    systems = json.loads((out / "compare.json").read_text(encoding="utf-8"))["systems"]
    assert [system["name"] for system in systems] == ["gru", "muse"]
    for system in systems:
        assert system["updates"] == 20
        assert system["parameters"] > 0
        assert system["generation_speed"] > 0
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    second_run = bash(COMPARE_ALL, "--out", out, "gru", "muse")
    assert "fairseq-train" not in second_run.stderr
    (advice,) = re.findall(
        r"^Translate a line of yours: echo … \| (.*)$", done.stdout, re.MULTILINE
    )
    assert run(*shlex.split(advice), stdin="12 May\n", cwd="/").stdout.count("\n") == 1


@pytest.mark.system
@pytest.mark.long
def test_multi30k_from_nothing_to_the_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = bash(MULTI30K, "--arch", "gru_tiny", "--out", out)
    assert "about 41 BLEU on tokens" in done.stdout
    assert json.loads((out / "results.json").read_text(encoding="utf-8"))["updates"] == 24
