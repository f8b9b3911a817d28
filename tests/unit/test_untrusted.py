"""What a file may hold and name: plain data of bounded size, nothing to resolve or to import."""

import codecs
import pickle
import zipfile
from argparse import Namespace
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fairseq_ext.checkpoints import registry_checks, safe_load, storage
from fairseq_ext.plugin.security import loading
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError
from tests.hostile.pickles import Calls


def repeated(times: int) -> list:
    value: list = [0]
    for _ in range(times):
        value = [value, value]
    return value


def circle() -> dict:
    value: dict = {}
    value["again"] = value
    return value


def with_attributes(**attributes: Any) -> OrderedDict:
    value = OrderedDict(a=1)
    vars(value).update(attributes)
    return value


def tensor_with(attribute: Any) -> torch.Tensor:
    value = torch.zeros(1)
    value.numel, value.own = Counter, attribute
    return value


def test_numbers_of_numpy_come_back(tmp_path: Path):
    """As plain arrays and numbers, which are saved as such again."""
    kinds = ("bool", "int8", "uint16", "int32", "int64", "float16", "float32", "float64", ">f8")
    counts = {kind: np.arange(6).reshape(2, 3).astype(kind) for kind in kinds}
    counts["fortran"] = np.asfortranarray(counts["int64"])
    numbers = {f"{kind} number": np.dtype(kind).type(1) for kind in kinds}
    state = {"model": {"x": torch.zeros(1)}, "extra_state": {**counts, **numbers}}
    torch.save(state, tmp_path / "a.pt")
    torch.save(storage.load(tmp_path / "a.pt"), tmp_path / "b.pt")
    for name in ("a.pt", "b.pt"):
        result = storage.load(tmp_path / name)["extra_state"]
        for kind, expected in {**counts, **numbers}.items():
            np.testing.assert_array_equal(result[kind], expected)
            assert result[kind].dtype == expected.dtype.newbyteorder("=")
    assert b"fairseq_ext" not in (tmp_path / "b.pt").read_bytes()


@pytest.mark.parametrize(
    "value",
    [
        np.array([{}], dtype=object),
        np.array(["a"]),
        np.zeros(1, [("a", "i8")]),
        np.datetime64("2020-01-01"),
        np.dtype("O"),
        Calls(np.ndarray, (1,)),
        Calls(np.dtype, [("a", "O")]),
    ],
)
def test_nothing_else_of_numpy_is_made(value: Any, tmp_path: Path):
    torch.save({"model": {}, "extra_state": {"x": value}}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"contains the object `numpy\.\w+`"):
        storage.load(tmp_path / "a.pt")


EXPANDED = torch.zeros(1).expand(1000)
CALLS = {
    "builtins.bytearray": Calls(bytearray, 1000),
    "builtins.set": Calls(set, EXPANDED),
    "collections.OrderedDict": Calls(OrderedDict, torch.zeros(1, 1).expand(1000, 2)),
    "collections.Counter": Calls(Counter, EXPANDED),
    "torch.Size": Calls(torch.Size, EXPANDED),
    "torch.Tensor": Calls(torch.Tensor, 1000),
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": Calls(
        torch._utils._rebuild_device_tensor_from_cpu_tensor, EXPANDED, torch.float64, "cpu", False
    ),
    "_codecs.encode": Calls(codecs.encode, b"0", "hex"),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_could_take_any_memory(name: str, tmp_path: Path):
    torch.save({"model": {}, "extra_state": [CALLS[name]]}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=f"contains the object `.*{name.rpartition('.')[2]}`"):
        storage.load(tmp_path / "a.pt")


def test_the_case_of_a_part_does_not_count(tmp_path: Path):
    """torch reads `DATA.PKL` as well."""
    torch.save({"model": {}, "extra_state": Calls(bytearray, 1000)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as old, zipfile.ZipFile(tmp_path / "b.pt", "w") as new:
        for part in old.namelist():
            new.writestr(part.replace("data.pkl", "DATA.PKL"), old.read(part))
    with pytest.raises(CheckpointError, match="contains the object `"):
        storage.load(tmp_path / "b.pt")


def test_a_part_that_claims_more_bytes_than_the_file_has(tmp_path: Path):
    path = tmp_path / "a.pt"
    torch.save({"model": {}}, path)
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")  # of the directory: the size is at its 20th byte
    content[entry + 20 : entry + 24] = (1 << 31).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="parts that overlap"):
        safe_load.read(path)


def test_an_archive_whose_sizes_take_all_memory_is_damaged(tmp_path: Path, monkeypatch):
    path = tmp_path / "a.pt"
    torch.save({"model": {}}, path)

    def read(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(zipfile.ZipFile, "testzip", read)
    with pytest.raises(CheckpointError, match=r"a\.pt is truncated or damaged \(MemoryError; "):
        safe_load.read(path)


def test_what_checkpoints_call(tmp_path: Path):
    named = torch.zeros(1)
    named.own = "a"
    state = {
        "model": OrderedDict(x=torch.zeros(2), y=nn.Parameter(torch.ones(3)), z=named),
        "args": Namespace(lr=[0.1]),
        "task_state": [{1, 2}, torch.Size([2]), np.zeros(3), np.float64(1), torch.device("cpu")],
    }
    torch.save(state, tmp_path / "a.pt")
    read = storage.load(tmp_path / "a.pt")
    assert read["task_state"][:2] == state["task_state"][:2]
    assert read["model"]["z"].own == "a"


def test_checkpoints_are_plain():
    weights = {"x": torch.zeros(3, 4), "half": torch.zeros(2, dtype=torch.half)}
    counts = {"array": np.zeros(4), "scalar": np.float64(1), "size": torch.Size([2])}
    state = {"model": weights, "args": Namespace(lr=[0.1]), "extra": [counts, (None, True, "a")]}
    safe_load.require_plain(state, 1000)


@pytest.mark.parametrize(
    ("value", "output"),
    [
        (repeated(40), "contain each other"),
        (circle(), "contain each other"),
        ([[0] * 2000] * 2000, "far too many"),
        (torch.zeros(1).expand(1 << 20, 1 << 20), "claim to be larger"),
        ([torch.zeros(1 << 20)] * 40, "claim to be larger"),
        (np.array([{}], dtype=object), "array of Python objects"),
        (torch.zeros(2, 2).to_sparse(), "of a kind"),
        (torch.zeros(2, 2, device="meta"), "of a kind"),
        (bytearray(3), "type `bytearray`"),
        (with_attributes(values=Counter), "dictionary with attributes"),
        (with_attributes(_metadata=repeated(40)), "contain each other"),
        (tensor_with(repeated(40)), "contain each other"),
        (np.dtype("i8"), "an object of type"),
        (print, "type `builtin_function_or_method`"),
    ],
)
def test_others_are_not(value: Any, output: str, monkeypatch: pytest.MonkeyPatch):
    if output == "contain each other":  # of any number of parts; to count millions takes seconds
        monkeypatch.setattr(safe_load, "MOST_ENTRIES", 20_000)
    with pytest.raises(CheckpointError, match=output):
        safe_load.require_plain({"task_state": {"x": value}}, 1000)


@pytest.mark.parametrize("text", ["", "a", "$HOME", "${common.seed}", "x/${task.data}", "$1 {}"])
def test_inert(text: str):
    safe_load.require_inert({"model": {"x": [text]}, "args": Namespace(y=text)})


@pytest.mark.parametrize(
    "text", ["${oc.env:HOME}", "${a}${b}", "${${a}}", "${hydra:runtime.cwd}", "${oc.create:${x}}"]
)
def test_to_be_resolved(text: str):
    with pytest.raises(CheckpointError, match="which OmegaConf would resolve"):
        safe_load.require_inert({"x": {"y": [text]}})
    with pytest.raises(CheckpointError, match="which OmegaConf would resolve"):
        safe_load.require_inert(Namespace(x={"y": [text]}))


@pytest.mark.parametrize("text", ["${b}", "x ${b.list}", "${b.0}", "${b.list.0}", "${.b}", "${}"])
def test_sections_that_double(text: str):
    settings = {"a": {"x": text, "y": text}, "b": {"list": [["z"]], 0: {"x": 1}}}
    with pytest.raises(CheckpointError, match="which OmegaConf would resolve"):
        safe_load.require_inert(settings)
    with pytest.raises(CheckpointError, match="which OmegaConf would resolve"):
        safe_load.require_inert(Namespace(a=text, b=["z"]))


def test_to_be_imported():
    with pytest.raises(CheckpointError, match="`_target_`, which is an instruction"):
        safe_load.require_inert({"model": {"x": [{"_target_": "os.system"}]}})


def test_no_model_larger_than_its_file():
    state = {"weight": torch.zeros(4, 4), "bias": torch.zeros(4)}
    with registry_checks.no_larger_than(state):
        nn.Linear(4, 4)
        with pytest.raises(CheckpointError, match="far larger"):
            nn.Linear(1 << 12, 1 << 12)
    with pytest.raises(CheckpointError, match="far larger"), registry_checks.no_larger_than(state):
        nn.ModuleList(nn.Linear(1, 1) for _ in range(10**9))
    nn.Linear(1 << 12, 1 << 12)  # no trace of it afterwards


def test_positions():
    registry_checks.require_sizes({"max_source_positions": 1024, "seed": 10**12})
    registry_checks.require_sizes({"max_source_positions": 10**6, "decoder_embed_dim": 128})
    with pytest.raises(CheckpointError, match="`max_target_positions` 1,000,000,000,000"):
        registry_checks.require_sizes({"max_target_positions": 10**12})
    with pytest.raises(CheckpointError, match="`decoder_embed_dim` 512, whose table of positions"):
        registry_checks.require_sizes({"max_target_positions": 10**6, "decoder_embed_dim": 512})
    nested = {"model": {"decoder": Namespace(embed_dim=512)}, "task": {"max_positions": 10**6}}
    with pytest.raises(CheckpointError, match="`embed_dim` 512, whose table of positions"):
        registry_checks.require_sizes(nested)
    registry_checks.require_sizes(
        {"max_positions": "${task.max_positions}", "decoder_embed_dim": None}
    )
    wide = {"encoder_ffn_embed_dim": 2048, "encoder_embed_dim": 512}
    registry_checks.require_sizes({"max_source_positions": 131_072, **wide})  # 256 MiB
    for number in ("300000000", 3e8, [1]):
        with pytest.raises(CheckpointError, match="which is not a whole number"):
            registry_checks.require_sizes({"max_source_positions": number})


def test_one_message_about_a_file():
    for error, output in (
        (KeyError("x"), "cannot be used here (KeyError: 'x')"),
        (RuntimeError("one\ntwo"), "(RuntimeError: one)"),
        (CheckpointError("has a fault"), "f.pt has a fault."),
    ):
        with pytest.raises(CheckpointError) as raised, safe_load.about("f.pt"):
            raise error
        assert output in str(raised.value)
        assert str(raised.value).startswith("f.pt ")
    for error in (DataError("as it is"), FileNotFoundError("as it is")):
        with pytest.raises(type(error), match="as it is"), safe_load.about("f.pt"):
            raise error


def test_meters():
    from fairseq.logging.meters import MetersDict

    meters = MetersDict()
    meters.load_state_dict([(0, "x", "SumMeter", {"sum": 1})])
    assert meters["x"].sum == 1
    for name in ("exec", "np", "OrderedDict", "eval", 5):
        with pytest.raises(CheckpointError, match="unknown kind"):
            meters.load_state_dict([(0, "x", name, {})])


def test_no_shell_and_no_code_from_elsewhere():
    from fairseq.data.fasta_dataset import FastaDataset
    from fairseq.models.speech_to_text.hub_interface import S2THubInterface

    with pytest.raises(DataError, match="plain characters"):
        FastaDataset("$(touch x)")
    with pytest.raises(ConfigError, match="would be fetched and run"):
        S2THubInterface.get_prediction(None, None, None, None, synthesize_speech=True)


class Code:
    def __reduce__(self):
        return (print, ("code has run",))


def test_no_argument_and_no_variable_lets_a_file_run_code(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0")
    loading._load_nothing_but_data()
    torch.save({"model": Code()}, tmp_path / "code.pt")
    for options in ({}, {"weights_only": False}):
        with pytest.raises(pickle.UnpicklingError):
            torch.load(tmp_path / "code.pt", **options)
    assert "code has run" not in capsys.readouterr().out
