"""The scaling-law recipe: the paper's design in a dry run, and its measure against fairseq's."""

import json
import math
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import scaling_losses

from fairseq_ext.binary.scaling import read_table
from fairseq_ext.utils.errors import ConfigError
from tests.support.harness import fairseq, run, write_lines
from tests.support.models import build
from tests.support.recipes import RECIPES, dry_run, settings, value

RECIPE = RECIPES / "bmt" / "scaling_law.sh"
DEPTHS = (6, 8, 10, 12, 14, 18, 22, 26, 30, 36, 42, 48)


def word_lists(folder: Path, *options: object) -> list[list[str]]:
    """Return the commands of a dry run on a corpus with the endings src and tgt."""
    corpus = folder / "text"
    for split in ("train", "valid", "test"):
        for side in ("src", "tgt"):
            write_lines(corpus / f"{split}.{side}", ["1 2 3"])
    return dry_run(RECIPE, folder, corpus, "src", "tgt", *options)


def test_dry_run_has_the_papers_design(tmp_path: Path) -> None:
    trainings = [words for words in word_lists(tmp_path) if words[0] == "fairseq-train"]
    sizes = {
        (value(words, "--bmt-preset"), value(words, "--save-dir")): (
            int(value(words, "--encoder-layers")),
            int(value(words, "--decoder-layers")),
            int(value(words, "--max-update")),
        )
        for words in trainings
    }
    for preset, family, updates in (("float", "float", 50_000), ("bmt-1", "binary", 90_000)):
        designs = {s for (p, folder), s in sizes.items() if p == preset and family in folder}
        expected = {(d, 6, updates) for d in DEPTHS} | {(6, d, updates) for d in DEPTHS}
        assert designs == expected
    assert len(trainings) == len(sizes) == 46
    for words in trainings:
        assert value(words, "--criterion") == "cross_entropy"
        assert "--label-smoothing" not in words
    for words in (trainings[0], trainings[-1]):
        cfg = settings(words)
        assert cfg.model.encoder_embed_dim == cfg.model.decoder_embed_dim == 512
        assert cfg.model.encoder_ffn_embed_dim == cfg.model.decoder_ffn_embed_dim == 2048
        assert cfg.model.encoder_attention_heads == cfg.model.decoder_attention_heads == 8
        assert cfg.model.share_all_embeddings
        assert cfg.lr_scheduler._name == "staged_cosine"
        assert cfg.lr_scheduler.stage_updates == cfg.model.stage_updates == "50000,40000"


def test_binary_models_begin_with_the_float_ones_of_their_size(tmp_path: Path) -> None:
    shown = word_lists(tmp_path, "--depths", "2,4", "--base", 2)
    done: list[str] = []
    for words in shown:
        if words[0] == "fairseq-train":
            done.append(value(words, "--save-dir"))
        elif words[0] == "cp":
            assert words[1] == f"{done[-1]}/checkpoint_last.pt"
            done.append(Path(words[2]).parent.as_posix())
    names = ("2L2L", "4L2L", "2L4L")
    assert done == [
        f"models/{family}-{name}" for name in names for family in ("float", "binary", "binary")
    ]
    measured = next(words for words in shown if "scaling_losses.py" in " ".join(words))
    for name in names:
        for family in ("float", "binary"):
            assert f"{family}=models/{family}-{name}/checkpoint_last.pt" in measured


def test_more_evaluation_sets_get_fairseqs_numbers(tmp_path: Path) -> None:
    sets = ("--eval", f"wiki={tmp_path}/w", "--eval", f"news={tmp_path}/n")
    shown = word_lists(tmp_path, *sets, "--subwords", "sentencepiece-unigram")
    copied = [words[1:] for words in shown if words[0] == "cp" and words[2].startswith("text/")]
    assert [f"{tmp_path}/w.src", "text/wiki.src"] in copied
    assert len(copied) == 4
    split = next(words for words in shown if words[:2] == ["fairseq-ext", "subwords"])
    assert value(split, "--kind") == "sentencepiece-unigram"
    assert shown.index(split) > shown.index(["cp", *copied[-1]])
    preprocess = next(words for words in shown if words[0] == "fairseq-preprocess")
    assert value(preprocess, "--testpref") == "bpe/test,bpe/sample,bpe/wiki,bpe/news"
    measured = next(words for words in shown if "scaling_losses.py" in " ".join(words))
    splits = [measured[i + 1] for i, word in enumerate(measured) if word == "--split"]
    assert splits == ["valid", "test", "sample=test1", "wiki=test2", "news=test3"]
    assert value(measured, "--train") == "sample"


@pytest.mark.parametrize(("lines", "sample_lines"), [(10, 4), (7, 7), (3, 5), (100, 7)])
def test_sample_is_spread_over_the_training_text(lines, sample_lines, tmp_path):
    script = next(words[3] for words in word_lists(tmp_path / "corpus") if words[0] == "awk")
    text = write_lines(tmp_path / "text", [str(i) for i in range(lines)])
    drawn = run("awk", "-v", f"wanted={sample_lines}", script, text, text).stdout.split()
    numbers = [int(line) for line in drawn]
    assert len(numbers) == min(lines, sample_lines)
    gaps = {after - before for before, after in pairwise(numbers)}
    assert max(gaps, default=1) - min(gaps, default=1) <= 1


@pytest.mark.parametrize(("encoder", "decoder"), [(6, 6), (2, 5)])
def test_size_counts_layers_and_no_embeddings(encoder: int, decoder: int) -> None:
    layers = ("--encoder-layers", str(encoder), "--decoder-layers", str(decoder))
    model, _ = build(["--arch", "transformer", *layers, "--decoder-learned-pos"])
    assert scaling_losses.size(model.encoder) == encoder * 3_152_384
    assert scaling_losses.size(model.decoder) == decoder * 4_204_032


def test_losses_are_fairseqs_in_nats(copy_data: Path, tmp_path: Path) -> None:
    layers = ("--encoder-layers", 1, "--decoder-layers", 2)
    fairseq(
        *("train", copy_data, "--arch", "bmt_tiny", *layers, "--save-dir", tmp_path),
        *("--bmt-preset", "bmt-1", "--stage-updates", "3,4", "--optimizer", "adam", "--lr", 0.003),
        *("--lr-scheduler", "staged_cosine", "--warmup-updates", 1, "--max-update", 7),
        *("--criterion", "cross_entropy", "--max-tokens", 400, "--num-workers", 0),
    )
    checkpoint, table = tmp_path / "checkpoint_last.pt", tmp_path / "table.json"
    run(
        *(sys.executable, RECIPES / "bmt" / "scaling_losses.py", f"binary={checkpoint}"),
        *("--data", copy_data, "--split", "valid", "--split", "held=test", "--train", "held"),
        *("-o", table),
    )
    (row,) = read_table(table)
    assert (row.name, row.family, row.dataset) == ("1L2L", "binary", "valid")
    validation = fairseq(
        *("validate", copy_data, "--path", checkpoint, "--task", "translation"),
        *("--valid-subset", "valid", "--max-tokens", 400, "--num-workers", 0),
    )
    bits = float(re.search(r"\| loss ([\d.]+)", validation.stdout + validation.stderr)[1])
    assert row.loss == pytest.approx(bits * math.log(2), abs=1e-3)
    assert row.train_loss != row.loss
    assert len(json.loads(table.read_text())) == 1


def test_names_and_values_are_taken_apart() -> None:
    assert scaling_losses.pairs(["valid", "a=b=c"], "X") == [("valid", "valid"), ("a", "b=c")]
    for wrong in ("=x", "a="):
        with pytest.raises(ConfigError, match="X must be NAME=VALUE"):
            scaling_losses.pairs([wrong], "X")
