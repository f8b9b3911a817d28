"""Bundles: the same translations as of their checkpoints, and nothing in them is trusted."""

import json
import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fairseq_ext
from fairseq_ext.binary.binarize import TERNARY, Binarizer
from fairseq_ext.binary.linear import BinaryLinear
from fairseq_ext.checkpoints import bundle, storage
from fairseq_ext.checkpoints.size import read_size
from fairseq_ext.decoding.text_model import Model
from fairseq_ext.engine.program import Signs
from fairseq_ext.engine.tensors import Tensors, pack_trits, unpack_trits
from fairseq_ext.model import program_file, write
from fairseq_ext.utils import archives, files
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError, FairseqExtError
from tests.models.test_loaded import LINES
from tests.support.bundles import bundled as bundle_of
from tests.support.bundles import edit, saved, sign_again
from tests.support.harness import command
from tests.support.killed import at_operation

ARCHIVES = ("b.zip", "b.tar.zst")
SHORT = {"max_len_b": 8, "nbest": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("bundles") / "run", "transformer")


@pytest.fixture(scope="module")
def bundled(run: Path) -> Path:
    folder = run.parent / "whole"
    write.write(run / "checkpoint_best.pt", run, folder, search={"beam": 3})
    return folder


@pytest.fixture
def copy(bundled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundled, tmp_path / "copy"))


def texts(model: Model, **search: int) -> list[list[str]]:
    return [translation.texts for translation in model.translate(LINES, **SHORT, **search)]


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """Round to int8, with a unit for each row, whose largest is 127."""
    units = tensor.abs().amax(1, keepdim=True).clamp(min=1e-37) / 127
    return (tensor / units).round() * units


@pytest.mark.parametrize("numbers", ["fp32", "bf16", "int8"])
def test_weights_are_the_checkpoints(run: Path, tmp_path: Path, numbers: str):
    """In the bundle, and in the checkpoint that it is exported to."""
    path = run / "checkpoint_best.pt"
    assert write.write(path, run, tmp_path / "b", numbers=numbers).numbers == numbers
    output = command("export", tmp_path / "b", "-o", tmp_path / "back.pt")
    checkpoint, bundled_state, back = (
        storage.load(file)["model"] for file in (path, tmp_path / "b", tmp_path / "back.pt")
    )
    assert f"{len(checkpoint)} tensors in {tmp_path}/back.pt, as stored in {numbers}" in output
    assert checkpoint.keys() == bundled_state.keys() == back.keys()
    for name, expected in checkpoint.items():
        if numbers == "bf16" and expected.is_floating_point():
            expected = expected.bfloat16().float()
        if numbers == "int8" and expected.dim() == 2:
            expected = rounded(expected)
        assert torch.equal(bundled_state[name], expected), name
        assert torch.equal(back[name], expected), name
    translations = texts(fairseq_ext.load(tmp_path / "b"))
    assert numbers == "int8" or translations == texts(fairseq_ext.load(tmp_path / "back.pt", run))
    size = (tmp_path / "b" / bundle.WEIGHTS).stat().st_size
    assert (size < 0.6 * path.stat().st_size) == (numbers != "fp32")


@pytest.mark.parametrize(
    "name", ["bmt-1", "bmt-6", "binary-muse", "ternary-transformer", "ternary-muse"]
)
def test_bits(name: str, tmp_path: Path):
    """The same translations as of the checkpoint, also when fairseq computes them."""
    folder = saved(tmp_path / "run", name)
    expected = fairseq_ext.load(folder)
    translations, scores = expected.translate(LINES, **SHORT), expected.score(["w1 w2"], ["w3"])
    written = write.write(folder / "checkpoint_best.pt", folder, tmp_path / "b", numbers="bits")
    assert written.numbers == "bits"
    trained, packed = map(read_size, (folder / "checkpoint_best.pt", tmp_path / "b"))
    assert packed.parameters == trained.parameters
    names = [*Tensors(tmp_path / "b" / "model.safetensors").all_names()]
    ending = ".trits" if name.startswith("ternary") else ".bits"
    bits = [tensor.removesuffix(ending) for tensor in names if tensor.endswith(ending)]
    assert bits
    assert not set(bits) & set(names)
    shutil.rmtree(folder)
    model = fairseq_ext.load(tmp_path / "b")
    assert model.translate(LINES, **SHORT) == translations
    assert model.score(["w1 w2"], ["w3"]) == pytest.approx(scores, abs=1e-4)
    write.write(tmp_path / "b", tmp_path / "b", tmp_path / "fp32")  # as a checkpoint
    latent = fairseq_ext.load(tmp_path / "fp32")
    assert latent.translate(LINES, **SHORT) == translations
    assert texts(fairseq_ext.load(tmp_path / "b", engine="fairseq", cpu=True)) == texts(latent)


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_ternary_weights_come_back_with_their_values_and_levels(granularity: str):
    """To the bit, also those of rows that are zeros, or have no zeros."""
    draw = torch.Generator().manual_seed(1)
    ternary = {"granularity": granularity, "weight_binarizer": Binarizer(TERNARY)}
    layer = BinaryLinear(131, 40, **ternary).requires_grad_(False)
    layer.weight.copy_(torch.randn(layer.weight.shape, generator=draw))
    layer.weight[0], layer.weight[1, 1:], layer.weight[2] = 0, 0, 0.37
    layer.weight[3] *= 1e-3
    signs, levels = (tensor.numpy() for tensor in layer.signs())
    expected, stored = layer.binarized_weight(), Signs.packed(signs, levels, ternary=True)
    assert (stored.array() == signs).all()
    binary = {"binarizer": TERNARY, "granularity": granularity}
    layer.weight.copy_(torch.from_numpy(bundle.latent_weights(stored, binary)))
    assert torch.equal(layer.binarized_weight(), expected)
    for inputs in range(126, 132):
        packed = pack_trits(signs[:, :inputs])
        assert packed.shape == (40, -(-inputs // 5))
        np.testing.assert_array_equal(unpack_trits(packed, inputs), signs[:, :inputs])


@pytest.mark.parametrize("read", [storage.load, program_file.read])
def test_a_byte_that_stands_for_no_weights_is_refused(read: Callable, tmp_path: Path):
    path = bundle_of(tmp_path, "ternary-transformer", "bits")
    tensors = load_file(path / bundle.WEIGHTS)
    next(tensor for name, tensor in tensors.items() if name.endswith(".trits"))[1, 1] = 243
    save_file(tensors, path / bundle.WEIGHTS)
    sign_again(path)
    with pytest.raises(CheckpointError, match="a byte of its ternary weights is above 242"):
        read(path)


def test_bits_and_embeddings_in_int8(tmp_path: Path):
    """A quarter of the embeddings' size."""
    folder = saved(tmp_path / "run", "bmt-1")
    path = folder / "checkpoint_best.pt"
    for numbers in ("bits", "bits-int8"):
        write.write(path, folder, tmp_path / numbers, numbers=numbers)
    weights = [tmp_path / numbers / bundle.WEIGHTS for numbers in ("bits-int8", "bits")]
    name = "encoder.embed_tokens.weight"
    table = storage.load(path)["model"][name]
    sizes = [file.stat().st_size for file in weights]
    assert sizes[1] - sizes[0] > 2 * table.numel()
    assert torch.equal(storage.load(tmp_path / "bits-int8")["model"][name], rounded(table))
    assert fairseq_ext.load(tmp_path / "bits-int8").translate(LINES, **SHORT)


def test_a_bundle_without_a_program_is_left_to_fairseq(run: Path, copy: Path):
    (copy / "program.json").unlink()
    edit(copy, "bundle.json", lambda content: content["files"].pop("program.json"))
    model, expected = fairseq_ext.load(copy), fairseq_ext.load(run)
    assert type(model._translator).__name__ == "Translator"
    assert model.translate(LINES, beam=5, **SHORT) == expected.translate(LINES, **SHORT)


def test_size_and_updates_of_what_was_rounded(run: Path, tmp_path: Path):
    state = storage.load(run / "checkpoint_best.pt")
    state["optimizer_history"][-1]["num_updates"] = 70
    storage.save(state, tmp_path / "trained.pt")
    write.write(tmp_path / "trained.pt", run, tmp_path / "b", numbers="int8")
    expected, rounded = map(read_size, (run / "checkpoint_best.pt", tmp_path / "b"))
    assert rounded.parameters == expected.parameters
    assert rounded.tensor_bytes < 0.4 * expected.tensor_bytes
    assert rounded.updates == 70
    assert write.write(tmp_path / "b", run, tmp_path / "again").updates == 70


def test_what_is_in_it(run: Path, bundled: Path):
    content = json.loads((bundled / "bundle.json").read_text())
    assert (content["src"], content["tgt"], content["architecture"]) == ("de", "en", "transformer")
    assert content["files"] == {
        path.name: files.sha256(path)
        for path in bundled.iterdir()
        if path.name not in ("bundle.json", "README.md")
    }
    assert len({path.stat().st_mode for path in bundled.iterdir()}) == 1  # all may be read alike
    text = "".join(path.read_text() for path in bundled.glob("*.json"))
    assert str(run.parent) not in text
    assert "de → en: lowercase" in (bundled / "README.md").read_text()
    assert fairseq_ext.load(bundled)._translator.search.beam == 3


def test_other_numbers_than_its_own(run: Path, bundled: Path, tmp_path: Path):
    """Weights are laid out as asked when the bundle is opened; fairseq reads them, too."""
    write.write(run / "checkpoint_best.pt", run, tmp_path / "b", numbers="int8")
    expected = texts(fairseq_ext.load(tmp_path / "b"), beam=5)
    assert texts(fairseq_ext.load(bundled, engine="native-int8"), beam=5) == expected
    other = fairseq_ext.load(bundled, engine="fairseq", cpu=True)
    source = fairseq_ext.load(run / "checkpoint_best.pt", run, engine="fairseq", cpu=True)
    assert other.translate(LINES, beam=5, **SHORT) == source.translate(LINES, beam=5, **SHORT)


def test_weights_that_are_one_are_stored_once(tmp_path: Path):
    path = bundle_of(tmp_path, "gru-shared")
    config = json.loads((path / "config.json").read_text())
    assert config["tied"]
    assert not config["tied"].keys() & load_file(path / "model.safetensors").keys()


def test_nothing_is_left_of_one_that_cannot_be_written(run: Path, tmp_path: Path):
    folder = saved(tmp_path / "run", "bmt-1")
    with pytest.raises(CheckpointError, match=r"checkpoint_best\.pt has no binary weights"):
        write.write(run / "checkpoint_best.pt", run, tmp_path / "b", numbers="bits")
    with pytest.raises(ConfigError, match="would round weights that"):
        write.write(folder / "checkpoint_best.pt", folder, tmp_path / "b", numbers="int8")
    (folder / "text.json").write_text("{}")
    with pytest.raises(FairseqExtError):
        write.write(folder / "checkpoint_best.pt", folder, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def killed(operation: int, write: Callable[[], object], folder: Path) -> bool:
    """Whether ``kill -9`` ended the process before that file operation in the folder."""

    def work() -> None:
        os.setpgid(0, 0)
        at_operation(operation, str(folder))
        write()

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


@pytest.mark.parametrize("name", ["b", "b.zip", pytest.param("b.tar.zst", marks=pytest.mark.long)])
def test_killed_at_any_file_operation(run: Path, tmp_path: Path, name: str):
    """There is no bundle, or all of it; and the same command works again."""
    if name.endswith("zst"):
        pytest.importorskip("zstandard")
    place, output = tmp_path / "out", tmp_path / "out" / name
    place.mkdir()

    def write_bundle() -> None:
        write.write(run / "checkpoint_best.pt", run, output)

    operation, outcomes = 1, []
    while killed(operation, write_bundle, place):
        outcomes.append(output.exists())
        if output.exists():
            storage.load(output)
            shutil.rmtree(output) if output.is_dir() else output.unlink()
        operation += 1
    assert outcomes.count(False) > 10
    storage.load(output)


@pytest.fixture(params=ARCHIVES)
def archive(request, bundled, tmp_path, cache):
    if request.param.endswith("zst"):
        pytest.importorskip("zstandard")
    path = tmp_path / request.param
    bundle.archive(bundled, path)
    return path


def test_an_archive_is_taken_as_its_folder(bundled: Path, archive: Path, tmp_path: Path):
    expected, from_archive = fairseq_ext.load(bundled), fairseq_ext.load(archive)
    assert from_archive.translate(LINES, **SHORT) == expected.translate(LINES, **SHORT)
    assert from_archive._translator.search.beam == 3
    (unpacked,) = (tmp_path / "cache" / "fairseq-ext" / "bundles").iterdir()
    assert bundle.home(archive) == unpacked / "b"
    assert bundle.as_file(archive) == unpacked / "b" / "bundle.json"
    before = archive.read_bytes()
    bundle.archive(bundled, archive)
    assert archive.read_bytes() == before
    damaged = bundle.home(archive) / "model.safetensors"  # is unpacked again
    damaged.write_bytes(b"")
    archives._unpacked.cache_clear()  # as another process
    storage.load(archive)
    assert damaged.stat().st_size


def test_an_archive_replaced_while_it_is_read_fills_no_cache(
    bundled, archive, tmp_path, monkeypatch
):
    """The folder of a version of the file has what that version has."""
    other = tmp_path / f"other{bundle.suffix(archive)}"
    shutil.copytree(bundled, tmp_path / "b")
    (tmp_path / "b" / "README.md").write_text("another model's")
    bundle.archive(tmp_path / "b", other)
    extract = archives.extract

    for before in (True, False):

        def replace_and_extract(*arguments: Any, before: bool = before) -> None:
            if not before:
                extract(*arguments)
            shutil.copy(other, tmp_path / "new")
            (tmp_path / "new").replace(archive)
            if before:
                extract(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(archives, "extract", replace_and_extract)
            with pytest.raises(CheckpointError, match="was written to while it was read"):
                storage.load(archive)
        bundle.archive(bundled, archive)
    assert (bundle.home(archive) / "README.md").read_text() != "another model's"


def test_a_bundle_replaced_while_it_is_read_is_refused(copy, tmp_path, monkeypatch):
    check = bundle.Bundle.check

    def check_and_replace(manifest: bundle.Bundle) -> None:
        check(manifest)
        shutil.copy(copy / "model.safetensors", tmp_path / "new")
        (tmp_path / "new").replace(copy / "model.safetensors")

    monkeypatch.setattr(bundle.Bundle, "check", check_and_replace)
    for load in (fairseq_ext.load, storage.load):
        with pytest.raises(DataError, match="has changed since"):
            load(copy)


def test_weights_that_change_after_opening_change_no_translation(copy: Path):
    weights, model = copy / "model.safetensors", fairseq_ext.load(copy)
    expected = model.translate(LINES, **SHORT)
    weights.write_bytes(b"")
    assert model.translate(LINES, **SHORT) == expected


def test_weights_that_are_cut_off_while_they_are_read(copy: Path, monkeypatch: pytest.MonkeyPatch):
    weights, read = copy / "model.safetensors", program_file.Tensors

    def read_and_cut_off(path: Path) -> Any:
        tensors = read(path)
        os.truncate(weights, weights.stat().st_size // 2)
        return tensors

    monkeypatch.setattr(program_file, "Tensors", read_and_cut_off)
    with pytest.raises(CheckpointError, match="it ends within the weight"):
        fairseq_ext.load(copy)


def test_archives_that_are_damaged_or_far_larger_than_they_look(
    archive: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    content = archive.read_bytes()
    for size in (len(content) - 1, len(content) // 2, 5):
        archive.write_bytes(content[:size])
        with pytest.raises(CheckpointError):
            storage.load(archive)
    with (copy / "config.json").open("a") as file:
        file.write(" ")
    bundle.archive(copy, archive)
    message = r"b\.\S+ cannot be used: \w+/config.json is damaged: its checksum is wrong"
    with pytest.raises(CheckpointError, match=message):
        storage.load(archive)
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(archives, "MOST_TIMES", 0)
    monkeypatch.setattr(archives, "SPARE", 1000)
    with pytest.raises(CheckpointError, match="unpacks to more than"):
        storage.load(archive)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "dict.de.txt", "text.json"])
def test_a_flipped_bit_or_a_missing_file(copy: Path, name: str):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged: its checksum is wrong"):
        storage.load(copy)
    (copy / name).unlink()
    with pytest.raises(DataError, match="does not exist"):
        storage.load(copy)


def test_a_file_that_is_not_listed(copy: Path):
    (copy / "shortlist.txt").write_bytes(b"")
    with pytest.raises(CheckpointError, match="does not belong to its bundle"):
        storage.load(copy)


NEEDED = ["config.json", "model.safetensors", "dict.de.txt", "dict.en.txt"]


@pytest.mark.parametrize(
    "change",
    [
        {"format": "another"},
        {"version": 3},
        {"version": True},
        {"src": 1},
        {"src": 1, "files": dict.fromkeys([*NEEDED, "dict.1.txt"], "0" * 64)},
        {"numbers": "int4"},
        {"search": {"beam": True}},
        {"search": {"sampling": 1}},
        {"files": []},
        {"files": {"config.json": "0" * 64}},
        {"files": dict.fromkeys(NEEDED[:-1], "0" * 64)},
        *(
            {"files": dict.fromkeys([*NEEDED, name], "0" * 64)}
            for name in ("../outside", "/etc/passwd", "..", "", "a\\b", "a\0b", 300 * "a")
        ),
        *({"src": src} for src in ("fr", "x/../../secret/words", "x\0", "x\\y")),
    ],
)
def test_a_manifest_that_cannot_be(copy: Path, change: dict):
    edit(copy, "bundle.json", lambda content: content.update(change))
    with pytest.raises(CheckpointError, match=r"bundle\.json (is damaged\.|has the format)"):
        storage.load(copy)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"[]", ""),
        ("config.json", b"{", ""),
        ("config.json", b"[" * 100_000, ""),
        ("config.json", b'{"cfg": {"model": {}, "task": []}, "tied": {}}', ""),
        ("config.json", b'{"cfg": {"model": {}, "task": {}}, "tied": {"a": "nothing"}}', ""),
        (
            *(
                "config.json",
                b'{"cfg": {"model": {"_target_": "os.system"}, "task": {}}, "tied": {}}',
            ),
            "has the key `_target_`, which is an instruction to import code",
        ),
        ("model.safetensors", b"", ""),
        ("model.safetensors", b"\xff" * 100, ""),
        ("program.json", b"[" * 100_000, ""),
        ("program.json", b"{", ""),
        ("dict.de.txt", b"\xff 1\n", ""),
        ("dict.de.txt", b"w 1\n" * 50, "source dictionary belongs to another model"),
        ("dict.en.txt", b"w 1\n" * 9, "target dictionary belongs to another model"),
        ("text.json", b'{"format": 1}', "text.json cannot be used"),
    ],
)
def test_files_that_cannot_be(copy: Path, name: str, content: bytes, message: str):
    (copy / name).write_bytes(content)
    sign_again(copy)
    engine = "fairseq" if name == "config.json" else "native"  # which does not read that file
    with pytest.raises((CheckpointError, DataError), match=re.escape(str(copy))) as refusal:
        fairseq_ext.load(copy, engine=engine)
    assert (message or name) in str(refusal.value)


@pytest.mark.parametrize(
    ("table", "scale"),
    [
        (torch.zeros(1, 300_000, dtype=torch.int8), torch.zeros(300_000)),  # 335 GiB in fp32
        (torch.zeros(300_000, dtype=torch.int8), torch.zeros(300_000)),
        (torch.zeros(3, 2, dtype=torch.int8), torch.zeros(1)),
        (torch.zeros(3, 2, dtype=torch.int8), torch.zeros(3, 1)),
        (torch.zeros(3, 2, dtype=torch.int8), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(3, 2), torch.zeros(3)),
    ],
)
def test_a_table_in_int8_that_cannot_be(copy: Path, table: torch.Tensor, scale: torch.Tensor):
    held = load_file(copy / "model.safetensors")
    save_file({**held, "x.int8": table, "x.scale": scale}, copy / "model.safetensors")
    sign_again(copy)
    with pytest.raises(CheckpointError, match=r"model.safetensors .*x.int8 and its scale do not"):
        storage.load(copy)


def test_a_configuration_of_another_size(copy: Path):
    layers = {"encoder_layers": 1_000_000}
    edit(copy, "config.json", lambda content: content["cfg"]["model"].update(layers))
    with pytest.raises(CheckpointError, match="far larger model"):
        fairseq_ext.load(copy, engine="fairseq")
