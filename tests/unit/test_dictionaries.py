"""A model is used with the dictionaries it was trained with: the first differing line is named."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from fairseq import hub_utils
from fairseq.tasks.translation import TranslationTask

from fairseq_ext import register
from fairseq_ext.checkpoints import dictionaries
from fairseq_ext.checkpoints.dictionaries import difference
from fairseq_ext.checkpoints.layout import DICTIONARIES as KEY
from fairseq_ext.plugin.checks import commands
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError
from tests.support.harness import binarize, command, fairseq, leaves_no_trace, refused, write_lines
from tests.support.trainings import load

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "a", "b", "c"]


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        (WORDS, None),
        ([*WORDS[:5], "c", "b"], "line 2 is `c`, but was `b`"),
        (WORDS[:-1], "line 3 is missing, but was `c`"),
        ([*WORDS, "d"], "line 4 is `d`, but was missing"),
        (["<S>", *WORDS[1:]], "symbol 0 is `<S>`, but was `<s>`"),
        ([*WORDS[:-1], "\x1b[31m"], r"line 3 is `\x1b[31m`, but was `c`"),
        ([*WORDS[:-1], "c" * 1000], f"line 3 is `{'c' * 40}`, but was `c`"),
    ],
    ids=["equal", "order", "shorter", "longer", "special", "control", "long"],
)
def test_the_first_difference_is_named(ours: list[str], message: str | None) -> None:
    assert difference(ours, WORDS) == message


@pytest.mark.parametrize("options", [{"threshold": 3}, {"nwords": 4}])
def test_a_dictionary_without_words_is_not_made(options: dict[str, int], tmp_path: Path) -> None:
    register()
    path = str(write_lines(tmp_path / "train.de", ["a b", "a"]))
    assert "a" in TranslationTask.build_dictionary([path], threshold=2)
    with pytest.raises(ConfigError, match=r"train\.de would have no words; lower `--threshold"):
        TranslationTask.build_dictionary([path], **options)


def test_symbols_of_a_file(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "dict.de.txt", ["a 9", "b 8", "c 7 #fairseq:overwrite"])
    assert dictionaries.symbols(path) == WORDS
    path.write_bytes(b"\xff 1\n")
    with pytest.raises(DataError, match=r"dict\.de\.txt is damaged: it is not UTF-8"):
        dictionaries.symbols(path)


def test_an_entry_that_overwrites_another_is_no_difference(tmp_path: Path) -> None:
    old = write_lines(tmp_path / "bin" / "dict.de.txt", ["a 9", "b 8 #fairseq:overwrite"])
    old.with_name("train.de-en.de.idx").touch()
    new = write_lines(tmp_path / "stage" / "dict.de.txt", ["a 9", "b 8"])
    commands._require_same_dictionaries(new.parent, old.parent)
    write_lines(new, ["a 9", "c 8"])
    with pytest.raises(DataError, match="line 2 is `c`, but was `b`"):
        commands._require_same_dictionaries(new.parent, old.parent)


def test_a_shared_dictionary_is_stored_once(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(20_000)]
    sizes = []
    for target in (list(words), [*words[1:], "other"]):
        path = tmp_path / "checkpoint.pt"
        torch.save({"extra_state": {KEY: dictionaries.record(words, target)}}, path)
        recorded = dictionaries.recorded(torch.load(path, weights_only=True), path)
        sides = {side: recorded[side].split("\n") for side in recorded}
        assert sides == {"source": words, "target": target}
        sizes.append(path.stat().st_size)
    assert sizes[0] < 1.2 * len("\n".join(words))
    assert sizes[1] > 1.9 * len("\n".join(words))


@pytest.mark.parametrize(
    "record", ["words", ["a"], {}, {"source": "a"}, {"source": 1, "target": 2}]
)
def test_a_record_that_is_none_is_refused(record: object) -> None:
    with pytest.raises(CheckpointError, match="is damaged: its dictionary is not text"):
        dictionaries.recorded({"extra_state": {KEY: record}}, "a.pt")


NO_COPIES = "--no-epoch-checkpoints"
TINY = ("--arch", "gru_tiny", "--optimizer", "adam", "--batch-size", 50, "--cpu", NO_COPIES)


@pytest.fixture(scope="module")
def other_data(copy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the corpus binarized with lines 3 and 4 of the target dictionary exchanged."""
    folder = tmp_path_factory.mktemp("other")
    lines = (copy_data / "dict.tgt.txt").read_text().splitlines()
    lines[2:4] = lines[3:1:-1]
    write_lines(folder / "dict.tgt.txt", lines)
    dictionaries = ("--srcdict", copy_data / "dict.src.txt", "--tgtdict", folder / "dict.tgt.txt")
    return binarize(copy_data.parent / "text", folder / "bin", *dictionaries)


@pytest.fixture(scope="module")
def message(copy_data: Path, other_data: Path) -> str:
    """Return the message of every command about `other_data`, after the checkpoint's name."""
    ours, theirs = (
        (folder / "dict.tgt.txt").read_text().splitlines()[2].split()[0]
        for folder in (other_data, copy_data)
    )
    return (
        "was trained with another target dictionary: in dict.tgt.txt of the data, line 3 is "
        f"`{ours}`, but was `{theirs}`. Use the dictionaries it was trained with."
    )


@pytest.mark.system
def test_commands_that_translate_refuse_another_order(other_data, copy_model, message, tmp_path):
    for name in ("generate", "interactive", "validate"):
        options = ("--task", "translation", "--batch-size", 50) if name == "validate" else ()
        command = (name, other_data, "--path", copy_model, "--cpu", *options)
        refused(fairseq(*command, ok=False, stdin="1 2\n"), f"{copy_model} {message}")
    with pytest.raises(CheckpointError, match=re.escape(f"{copy_model} {message}")):
        hub_utils.from_pretrained(str(copy_model.parent), copy_model.name, str(other_data))
    words = ("translate", other_data, "--path", copy_model, "--cpu")
    leaves_no_trace(tmp_path, f"{copy_model} {message}", *words, stdin=b"1 2\n")


@pytest.mark.system
def test_trainings_refuse_another_order(other_data, copy_model, message, tmp_path):
    """Other tests show that resuming, fine-tuning and a teacher go on with their own data."""
    resumed = tmp_path / "resumed" / "checkpoint_last.pt"
    resumed.parent.mkdir()
    shutil.copy(copy_model, resumed)
    distill = ("--criterion", "distillation", "--teacher", copy_model)
    for checkpoint, options in (
        (resumed, ("--save-dir", resumed.parent)),
        (copy_model, ("--save-dir", tmp_path / "new", "--finetune-from-model", copy_model)),
        (copy_model, ("--save-dir", tmp_path / "new", *distill)),
    ):
        train = (*TINY, "--max-update", 6, *options)
        refused(fairseq("train", other_data, *train, ok=False), f"{checkpoint} {message}")


@pytest.mark.system
def test_a_dictionary_of_another_size_is_named_before_the_weights(copy_data, copy_model, tmp_path):
    """Resuming builds the model first, so torch would report sizes of tensors."""
    lines = (copy_data / "dict.src.txt").read_text().splitlines()
    write_lines(tmp_path / "dict.src.txt", lines[:-1])
    dictionaries = ("--srcdict", tmp_path / "dict.src.txt", "--tgtdict", copy_data / "dict.tgt.txt")
    binarize(copy_data.parent / "text", tmp_path / "bin", *dictionaries)
    (tmp_path / "save").mkdir()
    shutil.copy(copy_model, tmp_path / "save" / "checkpoint_last.pt")
    train = (*TINY, "--max-update", 6, "--save-dir", tmp_path / "save")
    refused(
        fairseq("train", tmp_path / "bin", *train, ok=False),
        "was trained with another source dictionary: in dict.src.txt of the data, line "
        f"{len(lines)} is missing, but was `{lines[-1].split()[0]}`",
    )


@pytest.mark.system
def test_a_checkpoint_without_a_record_loads_with_one_warning(copy_data, copy_model, tmp_path):
    state = load(copy_model)
    del state["extra_state"][KEY]
    (tmp_path / "save").mkdir()
    old = tmp_path / "save" / "checkpoint_last.pt"
    torch.save(state, old)
    warning = f"{old} does not say with which dictionaries it was trained"
    done = fairseq("generate", copy_data, "--path", old, "--cpu")
    assert (done.stdout + done.stderr).count(warning) == 1
    assert done.stdout.count("\nH-") == 50
    done = fairseq("train", copy_data, *TINY, "--max-update", 6, "--save-dir", old.parent)
    assert (done.stdout + done.stderr).count(warning) == 1
    assert load(old)["extra_state"][KEY] == load(copy_model)["extra_state"][KEY]
    done = fairseq("generate", copy_data, "--path", old, "--cpu")
    assert "does not say" not in done.stdout + done.stderr


@pytest.mark.system
def test_averages_keep_the_record_and_mix_no_dictionaries(copy_model: Path, tmp_path: Path) -> None:
    state = load(copy_model)
    out = tmp_path / "average.pt"
    command("average", "--inputs", copy_model, copy_model, "-o", out)
    assert load(out)["extra_state"][KEY] == state["extra_state"][KEY]
    words = state["extra_state"][KEY]["target"].split("\n")
    words[5:7] = words[6:4:-1]
    state["extra_state"][KEY]["target"] = "\n".join(words)
    torch.save(state, tmp_path / "other.pt")
    fault = f"`other.pt` was trained with another target dictionary than `{copy_model}`: line 2 is"
    words = ("average", "--inputs", copy_model, "other.pt", "-o", "no.pt")
    leaves_no_trace(tmp_path, fault, *words)


@pytest.mark.system
def test_bundling_and_exporting_keep_the_record(copy_data, copy_model, other_data, tmp_path):
    bundle, out = tmp_path / "bundle", tmp_path / "out.pt"
    words = ("bundle", copy_model, "--numbers", "fp32", "-o", bundle, "--data")
    leaves_no_trace(tmp_path, "line 3 is", *words, other_data)
    command(*words, copy_data)
    refused(fairseq("generate", other_data, "--path", bundle, "--cpu", ok=False), "line 3 is")
    command("export", bundle, "-o", out)
    assert load(out)["extra_state"][KEY] == load(copy_model)["extra_state"][KEY]
    refused(fairseq("generate", other_data, "--path", out, "--cpu", ok=False), "line 3 is")
