"""Parts of the data beside the text itself: alignments, more sets, and layouts of files."""

import re
import shutil
from pathlib import Path

import pytest
from fairseq.data.indexed_dataset import IndexedDataset

from tests.support.harness import binarize, digits_corpus, fairseq, in_a_fork, refused, write_lines
from tests.support.trainings import ARCHITECTURES, TRAINING

SHORT = (*ARCHITECTURES["gru_tiny"], *TRAINING, "--max-update", 2, "--no-save")
GUIDED = ("--criterion", "label_smoothed_cross_entropy_with_alignment")
LOADED = (*GUIDED, "--load-alignments")
OTHER_IGNORED = ("--ignore-unused-valid-subsets",)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits, 60 and two sets of 12 and 8 pairs; each word of training is aligned with itself."""
    folder = tmp_path_factory.mktemp("subsets") / "text"
    digits_corpus(folder, train=60, valid=12, test=8, seed=3)
    for side in ("src", "tgt"):
        shutil.copy(folder / f"test.{side}", folder / f"other.{side}")
    sentences = (folder / "train.src").read_text().splitlines()
    lines = [" ".join(f"{n}-{n}" for n in range(len(line.split()))) for line in sentences]
    write_lines(folder / "train.align", lines)
    return folder


def preprocess(text: Path, folder: Path, *options: object, ok: bool = True):
    words = ("preprocess", "--source-lang", "src", "--target-lang", "tgt", "--destdir", folder)
    texts = ("--trainpref", text / "train", "--validpref", f"{text / 'valid'},{text / 'other'}")
    return fairseq(*words, *texts, *options, ok=ok)


@pytest.fixture(scope="module")
def data(text: Path) -> Path:
    preprocess(text, text.parent / "bin", "--align-suffix", "align")
    return text.parent / "bin"


def train(data: Path, *options: object, ok: bool = True):
    return fairseq("train", data, *SHORT, *options, ok=ok)


def validated(output: str) -> list[str]:
    return re.findall(r"INFO \| (valid\w*) \| epoch", output)


def test_guided_alignment(data: Path):
    output = train(data, *LOADED, *OTHER_IGNORED).stdout
    assert float(re.search(r"INFO \| train \| .* alignment_loss ([\d.]+)", output)[1]) > 0


def test_guided_alignment_without_alignments(text: Path, tmp_path: Path):
    preprocess(text, tmp_path / "bin")
    output = "train.align.src-tgt.idx must have", "fairseq-preprocess with `--align-suffix`"
    refused(train(tmp_path / "bin", *LOADED, *OTHER_IGNORED, ok=False), *output)


def test_alignments_of_another_text(data: Path, tmp_path: Path):
    """As those of stock fairseq, which takes a file of any length."""
    other = digits_corpus(tmp_path / "text", train=50, valid=12, test=8)
    binarize(other, tmp_path / "bin", "--srcdict", data / "dict.src.txt", "--joined-dictionary")
    for path in data.glob("train.align.*"):
        shutil.copy(path, tmp_path / "bin")
    done = train(tmp_path / "bin", *LOADED, ok=False)
    refused(done, "train.align.src-tgt.idx must have alignments of 50 sentences, but has 60.")


def test_preprocess_requires_alignments_of_training(text: Path, tmp_path: Path):
    done = preprocess(text, tmp_path / "bin", "--align-suffix", "algn", ok=False)
    refused(done, "train.algn does not exist")
    assert not (tmp_path / "bin").exists()


def test_folders_of_a_corpus_must_have_equal_dictionaries(data: Path, text: Path, tmp_path: Path):
    """fairseq would read the second folder, in the second epoch, by the words of the first."""
    write_lines(tmp_path / "dict.txt", [f"{digit} 1" for digit in range(10)])
    preprocess(text, tmp_path / "bin", "--srcdict", tmp_path / "dict.txt")
    done = train(f"{data}:{tmp_path / 'bin'}", *OTHER_IGNORED, ok=False)
    fault = f"{tmp_path / 'bin'} was binarized with another dictionary than {data}, whose"
    refused(done, fault, "in dict.src.txt, ")
    same = tmp_path / "same"
    preprocess(text, same, "--srcdict", data / "dict.src.txt", "--tgtdict", data / "dict.tgt.txt")
    done = train(f"{data}:{same}", *OTHER_IGNORED, "--max-epoch", 2, "--max-update", 20)
    assert f"{same} train src-tgt" in done.stdout


def test_each_named_set_is_validated(data: Path):
    assert validated(train(data, "--valid-subset", "valid,valid1").stdout) == ["valid", "valid1"]
    refused(train(data, ok=False), "Valid paths ['valid1'] will be ignored")


def test_combined_sets_are_validated_together(data: Path):
    done = train(data, "--combine-valid-subsets")
    assert validated(done.stdout) == ["valid"]
    assert "valid src-tgt 12 examples" in done.stdout
    assert "valid1 src-tgt 8 examples" in done.stdout


@pytest.mark.parametrize(("upsample", "size"), [((), 72), (("--upsample-primary", 2), 132)])
def test_training_on_two_parts(data: Path, tmp_path: Path, upsample: tuple, size: int):
    """Of 60 and 12 pairs; the first one is repeated on demand alone."""
    sides = shutil.copytree(data, tmp_path / "bin")
    for path in sides.glob("valid.src-tgt.*"):
        shutil.copy(path, sides / path.name.replace("valid", "train1"))
    options = ("--batch-size", 1, "--max-tokens", 40, "--max-update", 0, "--max-epoch", 1)
    output = train(sides, *options, *OTHER_IGNORED, *upsample, "--disable-validation").stdout
    assert re.search(r"num_updates (\d+)", output)[1] == str(size)


@pytest.fixture(scope="module")
def old_data(text: Path) -> Path:
    preprocess(text, text.parent / "old", "--dataset-impl", "lazy")
    return text.parent / "old"


def test_data_of_the_old_layout(data: Path, old_data: Path):
    trainings = ((data,), (old_data,), (old_data, "--dataset-impl", "cached"))
    outputs = (train(*words, *OTHER_IGNORED).stdout for words in trainings)
    losses = [re.search(r"INFO \| train \| .* loss ([\d.]+)", output)[1] for output in outputs]
    assert losses == losses[:1] * 3


def test_workers_read_the_old_layout_from_files_of_their_own(old_data: Path):
    """One position for all processes would be moved between the seek of one and its read."""
    data = IndexedDataset(str(old_data / "train.src-tgt.src"))
    assert len(data[5]) > 0
    place = data.data_file.tell()
    assert in_a_fork(lambda: data[40].tolist()) == IndexedDataset(data.path)[40].tolist()
    assert data.data_file.tell() == place
