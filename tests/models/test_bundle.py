"""Bundles: the same translations as of their checkpoints, and nothing in them is trusted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fairseq_ext
from fairseq_ext import files
from fairseq_ext.checkpoints import bundle, storage
from fairseq_ext.decoding import bundling
from fairseq_ext.engine.weights import to_int8
from fairseq_ext.errors import CheckpointError, ConfigError, FairseqExtError
from tests.models.test_loaded import LINES, TARGETS, saved

NAMES = ("transformer", "gru-shared", "linformer", "muse", "bmt-1")
SHORT = {"max_len_b": 8, "nbest": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("bundles") / "run", "transformer")


@pytest.fixture(scope="module")
def whole(run: Path) -> Path:
    """A bundle in fp32."""
    folder = run.parent / "whole"
    bundling.write(run / "checkpoint_best.pt", run, folder, search={"beam": 3})
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.mark.parametrize("name", NAMES)
def test_it_translates_as_its_checkpoint(name: str, tmp_path: Path):
    """Also when the checkpoint and its data are gone; to the last bit."""
    folder = saved(tmp_path / "run", name)
    wanted = fairseq_ext.load(folder)
    found, scores = wanted.translate(LINES, **SHORT), wanted.score(["w1 w2"], ["w3"])
    bundling.write(folder / "checkpoint_best.pt", folder, tmp_path / "bundle")
    shutil.rmtree(folder)
    model = fairseq_ext.load(tmp_path / "bundle")
    assert model.name == wanted.name
    assert model.translate(LINES, **SHORT) == found
    assert model.score(["w1 w2"], ["w3"]) == scores


@pytest.mark.parametrize("numbers", ["bf16", "int8"])
def test_rounded_weights(run: Path, tmp_path: Path, numbers: str):
    """Those of the checkpoint, rounded as the engine rounds them."""
    checkpoint = storage.load(run / "checkpoint_best.pt")
    written = bundling.write(run / "checkpoint_best.pt", run, tmp_path / "b", numbers=numbers)
    assert written.numbers == numbers
    state = storage.load(tmp_path / "b")["model"]
    assert state.keys() == checkpoint["model"].keys()
    for name, tensor in checkpoint["model"].items():
        wanted = tensor
        if numbers == "bf16" and tensor.is_floating_point():
            wanted = tensor.bfloat16().float()
        if numbers == "int8" and tensor.dim() == 2:
            whole, units = to_int8(tensor.numpy())
            wanted = torch.from_numpy(whole * units[:, None])
            np.testing.assert_array_equal(to_int8(state[name].numpy())[0], whole)
        assert torch.equal(state[name], wanted), name
    assert len(fairseq_ext.load(tmp_path / "b").translate(LINES, **SHORT)) == len(LINES)
    size = (tmp_path / "b" / bundle.WEIGHTS).stat().st_size
    assert size < 0.6 * (run / "checkpoint_best.pt").stat().st_size


def test_what_is_in_it(run: Path, whole: Path):
    content = json.loads((whole / "bundle.json").read_text())
    assert (content["src"], content["tgt"], content["architecture"]) == ("de", "en", "transformer")
    assert content["files"] == {
        path.name: files.sha256(path)
        for path in whole.iterdir()
        if path.name not in ("bundle.json", "README.md")
    }
    said = "".join(path.read_text() for path in whole.glob("*.json"))
    assert str(run.parent) not in said
    assert "de → en: lowercase" in (whole / "README.md").read_text()
    assert fairseq_ext.load(whole)._search.beam == 3


def test_the_engines_model_is_used_where_there_is_one(run: Path, tmp_path: Path):
    bundling.write(run / "checkpoint_best.pt", run, tmp_path / "b", engine="int8")
    wanted = fairseq_ext.load(tmp_path / "b" / "engine.safetensors").translate(LINES, **SHORT)
    assert fairseq_ext.load(tmp_path / "b").translate(LINES, **SHORT) == wanted
    other = fairseq_ext.load(tmp_path / "b", engine="fairseq", cpu=True)
    assert [one.text for one in other.translate(LINES, **SHORT)]
    assert other.score(["w1"], TARGETS[:1]) != fairseq_ext.load(tmp_path / "b").score(
        ["w1"], TARGETS[:1]
    )


def test_weights_that_are_one_are_stored_once(tmp_path: Path):
    folder = saved(tmp_path / "run", "gru-shared")
    bundling.write(folder / "checkpoint_best.pt", folder, tmp_path / "b")
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert config["tied"]
    assert not config["tied"].keys() & load_file(tmp_path / "b" / "model.safetensors").keys()


def test_a_folder_with_files_stays_as_it_is(run: Path, whole: Path):
    before = {path.name: files.sha256(path) for path in whole.iterdir()}
    with pytest.raises(ConfigError, match="is there already; choose another name"):
        bundling.write(run / "checkpoint_best.pt", run, whole)
    assert {path.name: files.sha256(path) for path in whole.iterdir()} == before


def test_nothing_is_left_of_one_that_cannot_be_written(tmp_path: Path):
    folder = saved(tmp_path / "run", "bmt-1")
    with pytest.raises(ConfigError, match="would round what"):
        bundling.write(folder / "checkpoint_best.pt", folder, tmp_path / "b", numbers="int8")
    (folder / "text.json").write_text("{}")
    with pytest.raises(FairseqExtError):
        bundling.write(folder / "checkpoint_best.pt", folder, tmp_path / "b")
    assert not (tmp_path / "b").exists()


# ---- nothing is trusted --------------------------------------------------------------------------


def resigned(folder: Path) -> None:
    """Give a changed bundle the right checksums, as whoever changes it could."""
    content = json.loads((folder / "bundle.json").read_text())
    content["files"] = {name: files.sha256(folder / name) for name in content["files"]}
    (folder / "bundle.json").write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "dict.de.txt", "text.json"])
def test_a_flipped_bit(copy: Path, name: str):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged: its checksum is wrong"):
        storage.load(copy)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "dict.en.txt"])
def test_a_missing_file(copy: Path, name: str):
    (copy / name).unlink()
    with pytest.raises(CheckpointError, match="does not exist"):
        storage.load(copy)


def test_a_file_that_is_not_listed(copy: Path):
    (copy / "engine.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="does not belong to its bundle"):
        storage.load(copy)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "another"},
        {"version": 2},
        {"src": 1},
        {"numbers": "int4"},
        {"search": {"beam": True}},
        {"search": {"sampling": 1}},
        {"files": []},
        {"files": {"config.json": "0" * 64}},
        *(
            {"files": {"config.json": "0" * 64, "model.safetensors": "0" * 64, name: "0" * 64}}
            for name in ("../outside", "/etc/passwd", "..", "", "a\\b", "a\0b")
        ),
    ],
)
def test_a_manifest_that_cannot_be(copy: Path, change: dict):
    content = {**json.loads((copy / "bundle.json").read_text()), **change}
    (copy / "bundle.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"bundle\.json is"):
        storage.load(copy)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"[]"),
        ("config.json", b"{"),
        ("config.json", b"[" * 100_000),
        ("config.json", b'{"cfg": {"model": {}, "task": []}, "tied": {}}'),
        ("config.json", b'{"cfg": {"model": {}, "task": {}}, "tied": {"a": "nothing"}}'),
        ("config.json", b'{"cfg": {"model": {"_target_": "os.system"}, "task": {}}, "tied": {}}'),
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff" * 100),
        ("dict.de.txt", b"\xff 1\n"),
    ],
)
def test_files_that_cannot_be(copy: Path, name: str, content: bytes):
    (copy / name).write_bytes(content)
    resigned(copy)
    with pytest.raises(FairseqExtError) as error:
        fairseq_ext.load(copy)
    assert str(copy) in str(error.value)


def test_a_configuration_of_another_size(copy: Path):
    content = json.loads((copy / "config.json").read_text())
    content["cfg"]["model"]["encoder_layers"] = 1_000_000
    (copy / "config.json").write_text(json.dumps(content))
    resigned(copy)
    with pytest.raises(CheckpointError, match="far larger model"):
        fairseq_ext.load(copy)
