"""No place of the installed fairseq runs what a file says: its syntax trees, walked.

Each place that could is covered by a mechanism or listed below with the reason why it is harmless.
A new fairseq with another one fails here.
"""

import ast
import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairseq_ext.plugin.security import loading

# Names and last parts of names whose call can run code or a program, or import by a name.
BUILTINS = {"eval", "exec", "compile", "execfile", "__import__"}
CALLS = {
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
# has a reader of literals under that name (see test_literals.py).
REVIEWED: dict[tuple[str, str], tuple[int, str]] = {
    ("fairseq/checkpoint_utils.py", "torch.load"): (2, "weights_only, after our own safe loading"),
    ("fairseq/data/codedataset.py", "np.load"): (5, "allow_pickle is off by default"),
    ("fairseq/data/codedataset.py", "torch.load"): (3, "weights_only by default"),
    ("fairseq/data/audio/audio_utils.py", "np.load"): (2, "allow_pickle is off by default"),
    ("fairseq/data/audio/data_cfg.py", "yaml.load"): (1, "FullLoader makes no objects"),
    ("fairseq/data/audio/feature_transforms/global_cmvn.py", "np.load"): (1, "no pickles"),
    ("fairseq/data/fasta_dataset.py", "np.load"): (1, "allow_pickle is off by default"),
    ("fairseq/data/fasta_dataset.py", "subprocess.check_output"): (
        2,
        "a shell, with a path that our row `no code that data names` has checked",
    ),
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
    ("fairseq/tasks/audio_pretraining.py", "subprocess.call"): (
        1,
        "`--post-save-script` of the command line: only the task of a training saves",
    ),
    ("fairseq/tasks/text_to_speech.py", "np.load"): (1, "allow_pickle is off by default"),
    ("fairseq/logging/meters.py", "globals()[…]"): (1, "meters alone, by our row"),
    ("fairseq/modules/quantization/scalar/ops.py", "globals()[…]"): (1, "of `emulate_int8_…`"),
    ("fairseq_cli/eval_lm.py", "utils.import_user_module"): (1, "of the command line"),
    ("fairseq_cli/generate.py", "utils.import_user_module"): (1, "of the command line"),
    ("fairseq_cli/hydra_validate.py", "utils.import_user_module"): (1, "of the command line"),
    ("fairseq_cli/interactive.py", "utils.import_user_module"): (1, "of the command line"),
    ("fairseq_cli/preprocess.py", "utils.import_user_module"): (1, "of the command line"),
    ("fairseq_cli/train.py", "utils.import_user_module"): (1, "of the command line"),
    ("fairseq_cli/validate.py", "utils.import_user_module"): (1, "of the command line"),
}
# Packages that import all modules of their own folder, by `os.listdir` or `glob`.
OWN_FOLDERS = {
    "fairseq/criterions/__init__.py",
    "fairseq/data/audio/__init__.py",
    "fairseq/data/encoders/__init__.py",
    "fairseq/model_parallel/criterions/__init__.py",
    "fairseq/model_parallel/models/__init__.py",
    "fairseq/models/__init__.py",
    "fairseq/models/ema/__init__.py",
    "fairseq/models/huggingface/__init__.py",
    "fairseq/optim/__init__.py",
    "fairseq/optim/lr_scheduler/__init__.py",
    "fairseq/scoring/__init__.py",
    "fairseq/tasks/__init__.py",
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    """The trees of fairseq's and its commands' modules, by path.

    Its `examples` are programs of their own, which nothing in fairseq imports by itself; evaluated
    strings are covered in them, too, where they are imported as part of fairseq.
    """
    for package in loading.PACKAGES:
        (folder,) = importlib.util.find_spec(package).submodule_search_locations
        for path in sorted(Path(folder).rglob("*.py")):
            name = path.relative_to(Path(folder).parent).as_posix()
            if not name.startswith("fairseq/examples/"):
                yield name, ast.parse(path.read_text(encoding="utf-8"))


def dangerous(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Calls in a module that can run code, by the text of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            owner, _, name = called.rpartition(".")
            loads = name == "load" and (owner in LOADERS or not isinstance(node.func, ast.Name))
            text = owner.rpartition(".")[2].lower().endswith("dictionary") or owner == "json"
            if called in BUILTINS or (not text and (loads or name in CALLS)):
                yield called, node
        read = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
        if read and ast.unparse(node.value) == "globals()":
            yield "globals()[…]", node
        if isinstance(node, ast.Name) and node.id in ("builtins", "__builtins__"):
            yield node.id, node


@pytest.fixture(scope="module")
def result() -> dict[tuple[str, str], list[ast.AST]]:
    places: dict[tuple[str, str], list[ast.AST]] = {}
    for path, tree in sources():
        for called, node in dangerous(tree):
            places.setdefault((path, called), []).append(node)
    return places


def test_every_place_is_covered_or_reviewed(result: dict[tuple[str, str], list[ast.AST]]):
    for (path, called), nodes in result.items():
        if called == "eval":
            continue
        if called == "importlib.import_module" and path in OWN_FOLDERS:
            continue
        expected, _ = REVIEWED.get((path, called), (0, ""))
        lines = [getattr(node, "lineno", 0) for node in nodes]
        assert len(nodes) == expected, f"{path}, lines {lines}: {called} is not reviewed"


def test_nothing_is_reviewed_that_is_not_there(result: dict[tuple[str, str], list[ast.AST]]):
    assert set(REVIEWED) <= set(result)


def test_evaluations_are_those_that_a_reader_of_literals_can_replace(result):
    """`eval` by its bare name and of one argument, in dozens of places."""
    count = Counter()
    for (path, called), nodes in result.items():
        if called == "eval":
            for node in nodes:
                assert len(node.args) == 1, path
                assert not node.keywords
            count[path] += len(nodes)
    assert count["fairseq/utils.py"] == 3
    assert sum(count.values()) >= 30


def test_no_module_has_another_eval(result: dict[tuple[str, str], list[ast.AST]]):
    """No module of fairseq defines, imports or deletes the name that ours stands under."""
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == "eval":
                assert isinstance(node.ctx, ast.Load), path
            if isinstance(node, ast.ImportFrom | ast.Import):
                assert not any("eval" in (a.name, a.asname) for a in node.names), path
        for node in tree.body:
            assert getattr(node, "name", "") != "eval", path


def test_safe_loaders_are_what_the_review_says(result: dict[tuple[str, str], list[ast.AST]]):
    """numpy reads no pickles, torch no classes, and YAML makes no objects."""
    for (path, called), nodes in result.items():
        for node in nodes:
            options = {}
            if isinstance(node, ast.Call):
                options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            if called in ("np.load", "torch.load"):
                assert "allow_pickle" not in options, path
                assert options.get("weights_only", "True") == "True", path
            if called == "yaml.load":
                assert options["Loader"] in ("yaml.FullLoader", "yaml.SafeLoader")
