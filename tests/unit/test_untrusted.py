"""Files hold plain data of bounded size and name nothing to resolve or import; none runs code."""

import ast
import builtins
import codecs
import functools
import importlib
import importlib.util
import math
import pickle
import re
import sys
import zipfile
from argparse import Namespace
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from fairseq import options as commands
from fairseq_cli import validate
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torch import nn

from fairseq_ext import register
from fairseq_ext.checkpoints import registry_checks, safe_load, storage
from fairseq_ext.plugin.security import loading
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError
from fairseq_ext.utils.literals import MOST_ELEMENTS, LiteralError, literal
from tests.hostile.pickles import Calls
from tests.support.harness import python, write_lines


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


def test_nodes_of_omegaconf_become_plain(tmp_path: Path):
    """But only as a configuration; their values are checked like any other."""
    plain = {"task": {"data": "x", "seeds": [1, None]}, "name": "${task.data}"}
    options = Namespace(arch="transformer")
    nodes = OmegaConf.create({**plain, "model": options}, flags={"allow_objects": True})
    torch.save({"model": {}, "cfg": nodes}, tmp_path / "a.pt")
    state = storage.load(tmp_path / "a.pt")
    assert state["cfg"] == {**plain, "model": options}
    assert {type(value) for value in safe_load.walk(state["cfg"])} >= {dict, list, Namespace}
    nodes.name = "${oc.env:HOME}"
    torch.save({"model": {}, "cfg": nodes}, tmp_path / "b.pt")
    torch.save({"model": {}, "extra_state": OmegaConf.create(plain)}, tmp_path / "c.pt")
    for name, message in (("b.pt", "OmegaConf would resolve"), ("c.pt", "type `Node`")):
        with pytest.raises(CheckpointError, match=message):
            storage.load(tmp_path / name)


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
    "numpy array of objects": np.array([{}], dtype=object),
    "numpy array of text": np.array(["a"]),
    "numpy array of records": np.zeros(1, [("a", "i8")]),
    "numpy time": np.datetime64("2020-01-01"),
    "numpy type of objects": np.dtype("O"),
    "numpy array of a size": Calls(np.ndarray, (1,)),
    "numpy type of records": Calls(np.dtype, [("a", "O")]),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_could_take_any_memory(name: str, tmp_path: Path):
    """And nothing of numpy but numbers."""
    torch.save({"model": {}, "extra_state": [CALLS[name]]}, tmp_path / "a.pt")
    made = r"numpy\.\w+" if "numpy" in name else f".*{name.rpartition('.')[2]}"
    with pytest.raises(CheckpointError, match=f"contains the object `{made}`"):
        storage.load(tmp_path / "a.pt")


def test_the_case_of_a_part_and_a_size_beyond_the_file(tmp_path: Path):
    """torch reads `DATA.PKL` as well."""
    torch.save({"model": {}, "extra_state": Calls(bytearray, 1000)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as old, zipfile.ZipFile(tmp_path / "b.pt", "w") as new:
        for part in old.namelist():
            new.writestr(part.replace("data.pkl", "DATA.PKL"), old.read(part))
    with pytest.raises(CheckpointError, match="contains the object `"):
        storage.load(tmp_path / "b.pt")
    path = tmp_path / "a.pt"
    torch.save({"model": {}}, path)
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")  # of the directory: the size is at its 20th byte
    content[entry + 20 : entry + 24] = (1 << 31).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="parts that overlap"):
        safe_load.read(path)


def test_an_archive_whose_sizes_take_all_memory_is_damaged(tmp_path: Path):
    torch.save({"model": {}}, tmp_path / "a.pt")
    with (
        mock.patch.object(zipfile.ZipFile, "testzip", side_effect=MemoryError),
        pytest.raises(CheckpointError, match=r"a\.pt is truncated or damaged \(MemoryError; "),
    ):
        safe_load.read(tmp_path / "a.pt")


def test_what_checkpoints_call(tmp_path: Path):
    named = torch.zeros(1)
    named.own = "a"
    state = {
        "model": OrderedDict(x=torch.zeros(2).half(), y=nn.Parameter(torch.ones(3)), z=named),
        "args": Namespace(lr=[0.1]),
        "extra_state": {"x": [(None, True, "a"), {"y": np.zeros(4)}]},
        "task_state": [{1, 2}, torch.Size([2]), np.zeros(3), np.float64(1), torch.device("cpu")],
    }
    torch.save(state, tmp_path / "a.pt")
    read = storage.load(tmp_path / "a.pt")
    assert read["task_state"][:2] == state["task_state"][:2]
    assert read["model"]["z"].own == "a"


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
    if output in ("contain each other", "far too many"):  # to count millions takes seconds
        monkeypatch.setattr(safe_load, "MOST_ENTRIES", 20_000)
    with pytest.raises(CheckpointError, match=output):
        safe_load.require_plain({"task_state": {"x": value}}, 1000)


@pytest.mark.parametrize("text", ["", "a", "$HOME", "${common.seed}", "x/${task.data}", "$1 {}"])
def test_inert(text: str):
    safe_load.require_inert({"model": {"x": [text]}, "args": Namespace(y=text)})


TO_BE_RESOLVED = (
    *("${oc.env:HOME}", "${a}${b}", "${${a}}", "${hydra:runtime.cwd}", "${oc.create:${x}}"),
    *("${b}", "x ${b.list}", "${b.0}", "${b.list.0}", "${.b}", "${}"),  # sections that double
)


@pytest.mark.parametrize("text", TO_BE_RESOLVED)
def test_to_be_resolved(text: str):
    sections = {"b": {"list": [["z"]], 0: {"x": 1}}, "x": {"y": [text]}}
    for options in (sections, Namespace(**sections), Namespace(a=text, b=["z"])):
        with pytest.raises(CheckpointError, match="which OmegaConf would resolve"):
            safe_load.require_inert(options)
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


def test_names_that_only_the_code_of_another_folder_registers():
    message = (
        "`--user-dir` of fairseq's commands must be .* `fairseq_ext.load` works in Python once"
    )
    with pytest.raises(CheckpointError, match=message):
        registry_checks.registered("f.pt", "architecture", "muse_of_mine", {})


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


def test_validation_of_flat_options_names_its_file(tmp_path: Path):
    """fairseq's own tests call `fairseq_cli.validate.main` with the parser's Namespace."""
    register()
    words = [str(tmp_path), "--task", "translation", "--path", "gone.pt", "--max-tokens", "9"]
    args = commands.parse_args_and_arch(commands.get_validation_parser(), words)
    with pytest.raises(CheckpointError, match=r"gone\.pt"):
        validate.main(args)


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


def test_no_argument_and_no_variable_lets_a_file_run_code(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0")
    loading._load_nothing_but_data.wrapper()
    torch.save({"model": Calls(print, "code has run")}, tmp_path / "code.pt")
    for options in ({}, {"weights_only": False}):
        with pytest.raises(pickle.UnpicklingError):
            torch.load(tmp_path / "code.pt", **options)
    assert "code has run" not in capsys.readouterr().out


# No string is ever evaluated: `literal` against Python itself, and where fairseq finds it
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
# Texts in Python's grammar, most of which stand for something and some for an error.
TEXTS = st.recursive(
    PLAIN.map(repr).filter(
        lambda text: not re.search(r"nan|inf|\d{4}", text)
    )  # products stay small
    | st.sampled_from(["(512, 3)", "[(512, 10, 5)]", "True", "-0.0", "'a'", "1e3", "0x1f", "1_0"])
    | st.integers(-99, 99).map(str),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", " + ", "*", " * "]), inner).map("".join)
        | st.tuples(inner, st.sampled_from("+*"), st.sampled_from("01234")).map(" ".join)
        | inner.map("({})".format)
        | inner.map("[{}]".format)
        | inner.map("-{}".format)
    ),
    max_leaves=6,
)
RUNS = (
    *("__import__('os')", "open", "().__class__", "[x for x in ()]", "lambda: 1", "f'{1}'"),
    *("b''", "{1}", "{**{}}", "[*()]", "(1)(2)", "[1][0]", "1 if 1 else 2", "not 1", "a := 1"),
    *("1;2", "...", "1j", "2 ** 9", "9 // 2", "1 - 1", "~1", "1 < 2", "print`1`", "", "#", "$"),
    *("'a' * 1.5", "{} + {}", "[] + ()", "-'a'", "{[]: 1}", "'\\x", "\x00", "\ud800", "1\n+2"),
)
HUGE = {
    "a product": "[0] * 1000000000000",
    "products of products": "[[[0] * 1000] * 1000] * 1000",
    "a string": "'ab' * 99999999",
    "brackets": "(" * 90_000,
    "signs": "-" * 90_000 + "1",
    "sums": "1+" * 45_000 + "1",
    "digits": "1" * 90_000,
    "a power": "0x" + "f" * 90_000,
    "characters": " " * 200_000,
}


def size(value: object) -> int:
    """1, and the size of each element: what `MOST_ELEMENTS` limits."""
    match value:
        case str():
            return 1 + len(value)
        case list() | tuple():
            return 1 + sum(map(size, value))
        case dict():
            return size(list(value)) + size(list(value.values()))
    return 1


def evaluated(text: str) -> object:
    """What Python gives, as a text that tells 1 from True and -0.0 from 0.0.

    None for an error, and for what is larger than anything of ours may be.
    """
    try:
        value = eval(text, {"__builtins__": {}})
    except Exception:
        return None
    return None if size(value) > MOST_ELEMENTS else repr(value)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(TEXTS)
@example("[(512,10,5)] + [(512,3,2)] * 4 + [(512,2,2)] * 2")
@example("{'left': [True, None], 'right': -1e-3}")
@example("[(1, 2)] * 33333")
@example("33334 * [(1, 2)]")
@example("'a' * 99999 + 'b'")
@example("[123456, -1.2345678e-17, 0.1234567]")
@example("[nan, 'inf']")  # a number that is not finite: its text is a name
def test_what_python_evaluates(text: str):
    """The same value as from `eval`, and a refusal just where that ends in an error."""
    expected = evaluated(text)
    if expected is None:
        with pytest.raises(LiteralError):
            literal(text)
    else:
        assert repr(literal(text)) == expected


@pytest.mark.parametrize("text", RUNS)
def test_nothing_else(text: str):
    with pytest.raises(LiteralError, match="must be a short literal"):
        literal(text)


@pytest.mark.parametrize("kind", HUGE)
def test_huge_ones_are_refused(kind: str):
    with pytest.raises(LiteralError) as refused:
        literal(HUGE[kind])
    assert len(str(refused.value)) < 400


def test_fairseq_reads_options_as_before():
    from fairseq import utils

    assert utils.eval_str_list("(0.9, 0.98)") == [0.9, 0.98]
    assert utils.eval_str_list("3", type=int) == [3]
    assert utils.eval_str_dict("{'left': 1}") == {"left": 1}
    assert utils.eval_bool("True") is True
    assert utils.eval_bool(5, default=True) is True  # for a TypeError
    with pytest.raises(LiteralError, match=r"`__import__\('os'\)` must be a short literal"):
        utils.eval_bool("__import__('os')")


def sources() -> Iterator[tuple[str, Path]]:
    """Every module of fairseq and of its commands, as `fairseq/utils.py`, and its file."""
    for package in loading.PACKAGES:
        (folder,) = importlib.util.find_spec(package).submodule_search_locations
        for path in sorted(Path(folder).rglob("*.py")):
            yield path.relative_to(Path(folder).parent).as_posix(), path


def test_the_modules_of_fairseq_have_it_and_no_others():
    assert builtins.eval is not literal
    assert "eval" not in {*vars(math), *vars(sys.modules["collections"])}
    count = 0
    for path, _ in sources():
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if name in sys.modules:
            assert sys.modules[name].__dict__["eval"] is literal, name
            count += 1
    assert count > 300


def test_a_module_imported_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is there before the module's first line, and the loader's other methods still work."""
    import fairseq

    (tmp_path / "later.py").write_text("FIRST = eval\ndef read(text):\n    return eval(text)\n")
    monkeypatch.setattr(fairseq, "__path__", [*fairseq.__path__, str(tmp_path)])
    module = importlib.import_module("fairseq.later")
    try:
        assert module.FIRST is literal
        assert module.read("[1] * 2") == [1, 1]
        assert "FIRST" in module.__loader__.get_source("fairseq.later")
    finally:
        del sys.modules["fairseq.later"]


def test_under_python_m(tmp_path: Path):
    """`python -m fairseq_cli.train` has its own copy of the command, in `__main__`."""
    code = ["import fairseq_ext, sys", "fairseq_ext.register()"]
    code += ["sys.exit(sys.modules['__main__'].eval.__module__)"]
    plugin = write_lines(tmp_path / "plugin_main" / "__init__.py", code)
    words = ("-m", "fairseq_cli.eval_lm", tmp_path, "--user-dir", plugin.parent)
    done = python(*words, ok=False)
    assert done.stderr.splitlines()[-1] == "fairseq_ext.utils.literals"


# No place of the installed fairseq runs what a file says: its syntax trees, walked. Each place
# that could is covered by a mechanism or listed below with the reason why it is harmless; a new
# fairseq with another one fails here.

# Names and last parts of names whose call can run code or a program, or import by a name.
BUILTINS = {"eval", "exec", "compile", "execfile", "__import__"}
RUNNING = {
    *("import_module", "run_path"),
    *("run_module", "exec_module", "spec_from_file_location", "system", "popen", "Popen", "call"),
    *("check_call", "check_output", "getoutput", "startfile", "instantiate", "locate", "get_class"),
    *("get_method", "load_module", "import_user_module", "extractall", "unpack_archive"),
    *("unsafe_load", "full_load", "load_all", "read_pickle", "Unpickler", "hub_load"),
    *("loads", "runstring"),
}
# Methods `load` of these modules; `Dictionary.load` and its like read text.
LOADERS = {"torch", "pickle", "cPickle", "dill", "joblib", "yaml", "np", "numpy", "torch.hub"}

# What remains: file and call, how many, and why it is harmless. `eval` is not here: every module
# has a reader of literals under that name (see above).
REVIEWED: dict[tuple[str, str], tuple[int, str]] = {
    ("fairseq/checkpoint_utils.py", "torch.load"): (2, "weights_only, after our own safe loading"),
    ("fairseq/data/codedataset.py", "np.load"): (5, "allow_pickle is off by default"),
    ("fairseq/data/codedataset.py", "torch.load"): (3, "weights_only by default"),
    ("fairseq/data/audio/audio_utils.py", "np.load"): (2, "allow_pickle is off by default"),
    ("fairseq/data/audio/data_cfg.py", "yaml.load"): (1, "FullLoader makes no objects"),
    ("fairseq/data/audio/feature_transforms/global_cmvn.py", "np.load"): (1, "no pickles"),
    ("fairseq/data/fasta_dataset.py", "np.load"): (1, "allow_pickle is off by default"),
    ("fairseq/data/fasta_dataset.py", "subprocess.check_output"): (2, "a path checked by our row"),
    ("fairseq/data/plasma_utils.py", "subprocess.Popen"): (2, "a fixed program, no shell"),
    ("fairseq/distributed/utils.py", "subprocess.check_output"): (1, "Slurm's, of the environment"),
    ("fairseq/distributed/utils.py", "pickle.loads"): (1, "from the other processes of one job"),
    ("fairseq/distributed/utils.py", "torch.load"): (1, "replaced: what one job's ranks exchange"),
    ("fairseq/file_utils.py", "archive.extractall"): (1, "inside its folder by our row"),
    ("fairseq/hub_utils.py", "utils.import_user_module"): (1, "of the caller's own arguments"),
    ("fairseq/options.py", "utils.import_user_module"): (2, "of the command line"),
    ("fairseq/utils.py", "importlib.import_module"): (1, "`--user-dir` of the command line"),
    ("fairseq/models/speech_to_text/hub_interface.py", "torch.hub.load"): (1, "refused by our row"),
    ("fairseq/models/speech_to_text/xm_transformer.py", "torch.load"): (1, "weights_only"),
    ("fairseq/models/text_to_speech/vocoder.py", "torch.load"): (3, "weights_only by default"),
    ("fairseq/modules/quantization/pq/em.py", "torch.load"): (3, "weights_only by default"),
    ("fairseq/optim/cpu_adam.py", "CPUAdamBuilder().load"): (1, "an installed extension"),
    ("fairseq/optim/fused_adam.py", "importlib.import_module"): (2, "a fixed name"),
    ("fairseq/speech_generator.py", "np.load"): (1, "allow_pickle is off by default"),
    ("fairseq/tasks/audio_pretraining.py", "subprocess.call"): (1, "of a training's command line"),
    ("fairseq/tasks/text_to_speech.py", "np.load"): (1, "allow_pickle is off by default"),
    ("fairseq/logging/meters.py", "globals()[…]"): (1, "meters alone, by our row"),
    ("fairseq/modules/quantization/scalar/ops.py", "globals()[…]"): (1, "of `emulate_int8_…`"),
    **{
        (f"fairseq_cli/{name}.py", "utils.import_user_module"): (1, "of the command line")
        for name in (
            *("eval_lm", "generate", "hydra_validate", "interactive", "preprocess", "train"),
            "validate",
        )
    },
}
# Packages that import all modules of their own folder, by `os.listdir` or `glob`.
OWN_FOLDERS = {
    f"fairseq/{folder}/__init__.py"
    for folder in (
        *("criterions", "data/audio", "data/encoders", "model_parallel/criterions"),
        *("model_parallel/models", "models", "models/ema", "models/huggingface"),
        *("optim", "optim/lr_scheduler", "scoring", "tasks"),
    )
}


@functools.cache
def trees() -> list[tuple[str, ast.Module]]:
    """The trees of fairseq's and its commands' modules, by path.

    Its `examples` are programs of their own, which nothing in fairseq imports by itself; evaluated
    strings are covered in them, too, where they are imported as part of fairseq.
    """
    return [
        (name, ast.parse(path.read_text(encoding="utf-8")))
        for name, path in sources()
        if not name.startswith("fairseq/examples/")
    ]


def dangerous(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Calls in a module that can run code, by the text of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            owner, _, name = called.rpartition(".")
            loads = name == "load" and (owner in LOADERS or not isinstance(node.func, ast.Name))
            text = owner.rpartition(".")[2].lower().endswith("dictionary") or owner == "json"
            if called in BUILTINS or (not text and (loads or name in RUNNING)):
                yield called, node
        read = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
        if read and ast.unparse(node.value) == "globals()":
            yield "globals()[…]", node
        if isinstance(node, ast.Name) and node.id in ("builtins", "__builtins__"):
            yield node.id, node


@pytest.fixture(scope="module")
def calls() -> list[tuple[str, str, ast.AST]]:
    """Path of the module, text of what is called, and the call."""
    return [(path, called, node) for path, tree in trees() for called, node in dangerous(tree)]


def test_every_place_is_covered_or_reviewed(calls):
    assert Counter(
        (path, called)
        for path, called, _ in calls
        if called != "eval" and not (called == "importlib.import_module" and path in OWN_FOLDERS)
    ) == {place: count for place, (count, _) in REVIEWED.items()}


def test_evaluations_are_those_that_a_reader_of_literals_can_replace(calls):
    """`eval` by its bare name and of one argument, in dozens of places.

    No module of fairseq defines, imports or deletes the name that ours stands under.
    """
    evaluations = [(path, node) for path, called, node in calls if called == "eval"]
    for path, node in evaluations:
        assert len(node.args) == 1, path
        assert not node.keywords, path
    assert [path for path, _ in evaluations].count("fairseq/utils.py") == 3
    assert len(evaluations) >= 30
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == "eval":
                assert isinstance(node.ctx, ast.Load), path
            if isinstance(node, ast.ImportFrom | ast.Import):
                assert not any("eval" in (a.name, a.asname) for a in node.names), path
        for node in tree.body:
            assert getattr(node, "name", "") != "eval", path


def test_safe_loaders_are_what_the_review_says(calls):
    """numpy reads no pickles, torch no classes, and YAML makes no objects."""
    for path, called, node in calls:
        options = {}
        if isinstance(node, ast.Call):
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
        if called in ("np.load", "torch.load"):
            assert "allow_pickle" not in options, path
            assert options.get("weights_only", "True") == "True", path
        if called == "yaml.load":
            assert options["Loader"] in ("yaml.FullLoader", "yaml.SafeLoader")
