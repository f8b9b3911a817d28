"""The plugin registers by every route, once; fairseq's other entry points work as its commands."""

import re
import shutil
import signal
from pathlib import Path

import pytest

from fairseq_ext.model.find_model import SHIPPED
from tests.support import harness
from tests.support.harness import USER_DIR, fairseq, forked, python, run
from tests.support.trainings import load, same_state

FAULTY = harness.REPO / "tests" / "support" / "faulty"
# The options of docs/hydra.md, as flags.
OPTIONS: tuple[object, ...] = (
    *("--cpu", "--no-progress-bar", "--seed", 1, "--task", "translation"),
    *("--arch", "muse_tiny", "--muse-kernels", "3/7", "--dropout", 0.1),
    *("--optimizer", "adam", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", 10),
    *("--lr", 0.003, "--max-tokens", 400, "--num-workers", 0),
)
CRITERION = ("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1)
FLAGS = (*OPTIONS, *CRITERION)


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the YAML file of docs/hydra.md."""
    page = (harness.REPO / "docs" / "hydra.md").read_text(encoding="utf-8")
    (listing,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    folder = tmp_path_factory.mktemp("conf")
    (folder / "digits.yaml").write_text(listing)
    return folder


def hydra_train(conf: Path, data: Path, folder: Path, *options: object, ok: bool = True):
    """``fairseq-hydra-train`` of docs/hydra.md, short, in ``folder``."""
    folder.mkdir(exist_ok=True)
    overrides = (f"task.data={data}", "dataset.max_tokens=400", f"common.user_dir={USER_DIR}")
    words = ("--config-dir", conf, "--config-name", "digits", *overrides, *options)
    return run("fairseq-hydra-train", *words, cwd=folder, ok=ok)


def same_weights(left: Path, right: Path) -> bool:
    return same_state(load(left)["model"], load(right)["model"])


@pytest.fixture(scope="module")
def trained(conf: Path, copy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six updates by ``fairseq-hydra-train``, then six more by the same command."""
    folder = tmp_path_factory.mktemp("hydra")
    hydra_train(conf, copy_data, folder, "optimization.max_update=6")
    done = hydra_train(conf, copy_data, folder, "optimization.max_update=12")
    assert "@ 6 updates)" in done.stdout + done.stderr  # it has resumed
    return folder / "run" / "checkpoint_last.pt"


def test_hydra_trains_and_resumes_as_fairseq_train(trained: Path, copy_data: Path, tmp_path: Path):
    """Also the named architecture's sizes and the option that replaces one of its values."""
    fairseq("train", copy_data, *FLAGS, "--max-update", 12, "--save-dir", tmp_path)
    assert same_weights(trained, tmp_path / "checkpoint_last.pt")
    model = load(trained)["cfg"]["model"]
    assert (model["_name"], model["muse_kernels"]) == ("muse_tiny", "3/7")


@pytest.mark.long
def test_torchrun_starts_hydra_as_it_starts_fairseq_train(conf, copy_data, tmp_path):
    """Two processes on the CPU, as docs/hydra.md has it."""
    torchrun = ("torchrun", "--standalone", "--nproc-per-node", 2, "-m")
    options = (f"task.data={copy_data}", "dataset.max_tokens=400", "optimization.max_update=4")
    words = ("fairseq_cli.hydra_train", "--config-dir", conf, "--config-name", "digits", *options)
    run(*torchrun, *words, f"common.user_dir={USER_DIR}", cwd=tmp_path)
    words = ("fairseq_cli.train", copy_data, *FLAGS, "--max-update", 4, "--user-dir", USER_DIR)
    run(*torchrun, *words, "--save-dir", tmp_path / "flags")
    last = tmp_path / "run" / "checkpoint_last.pt"
    assert load(last)["cfg"]["distributed_training"]["distributed_world_size"] == 2
    assert same_weights(last, tmp_path / "flags" / last.name)


HUB = """
import sys
from fairseq.hub_utils import GeneratorHubInterface, from_pretrained
folder, name, data, user_dir, *sentences = sys.argv[1:]
found = from_pretrained(folder, name, data, user_dir=user_dir)
model = GeneratorHubInterface(found["args"], found["task"], found["models"])
print(*model.translate(sentences), sep="\\n")
"""


def test_hub_translates_as_fairseq_generate(trained: Path, copy_data: Path):
    """The plugin comes by ``user_dir`` alone, in the middle of loading; it names a missing file."""
    done = fairseq("generate", copy_data, "--path", trained, "--cpu", "--batch-size", 1)
    sources = (copy_data.parent / "text" / "test.src").read_text().splitlines()[:3]
    hub = python("-c", HUB, trained.parent, trained.name, copy_data, USER_DIR, *sources)
    assert hub.stdout.splitlines()[-3:] == harness.hypotheses(done.stdout)[:3]
    words = (trained.parent, "none.pt", copy_data, USER_DIR, "1 2")
    harness.refused(python("-c", HUB, *words, ok=False), "none.pt does not exist")


def test_hub_translates_with_a_bundle():
    """A bundle has its own dictionaries, but no options of the search and of the batches."""
    words = (SHIPPED / "tatoeba-es-en", "model.safetensors", ".", USER_DIR, "Ella le@@ e .")
    assert python("-c", HUB, *words).stdout.splitlines()[-1] == "She read@@ s ."


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("dataset.max_tokens=null", "Must specify batch size either with --max-tokens or"),
        ("+model.encoder_attention_heads=7", "`--encoder-attention-heads` must divide"),
        ("common.memory_efficient_fp16=true", "`--memory-efficient-fp16` trains on a CUDA device"),
        ("model._name=muse_tin", "lists, but is `muse_tin`; did you mean `muse_tiny`"),
    ],
)
def test_hydra_refuses_in_one_line(conf: Path, copy_data: Path, tmp_path: Path, option, message):
    harness.refused(hydra_train(conf, copy_data, tmp_path, option, ok=False), message)
    assert not (tmp_path / "run").exists()


def test_hydra_runs_a_sweep_to_its_end(conf: Path, copy_data: Path, tmp_path: Path):
    options = ("hydra.sweep.dir=.", "hydra.sweep.subdir=${hydra.job.num}")
    options += ("optimization.max_update=2", "optimization.lr=[0.01],[1e-9]")
    options += ("common.log_file=train.log", "common.log_format=json")
    hydra_train(conf, copy_data, tmp_path, *options, "--multirun")
    first, second = ((tmp_path / job / "train.log").read_text() for job in "01")
    assert first.count("valid_num_updates") == second.count("valid_num_updates") > 0
    for number, lr in (("0", 0.01), ("1", 1e-9)):
        cfg = load(tmp_path / number / "run" / "checkpoint_last.pt")["cfg"]
        assert cfg["optimization"]["lr"] == [lr]
        assert cfg["model"]["encoder_embed_dim"] == 128
        # the best of its own, though the first job in the same process was better
        assert (tmp_path / number / "run" / "checkpoint_best.pt").is_file()


def test_python_m(copy_data: Path, tmp_path: Path):
    """The module of the command is ``__main__`` there."""
    words = (copy_data, *FLAGS, "--user-dir", USER_DIR, "--save-dir", tmp_path / "run")
    done = python("-m", "fairseq_cli.train", *words, "--fp16", ok=False)
    harness.refused(done, "`--fp16` trains on a CUDA device only")
    assert not (tmp_path / "run").exists()
    python("-m", "fairseq_cli.train", *words, "--max-update", 2)
    assert (tmp_path / "run" / "checkpoint_last.pt").is_file()
    assert python("-m", "fairseq_ext", "user-dir").stdout == (run("fairseq-ext", "user-dir").stdout)


@pytest.mark.parametrize(
    ("number", "command"), [(signal.SIGINT, "torchrun"), (signal.SIGTERM, "hydra")]
)
def test_interruption(copy_data, conf, tmp_path, number, command):
    """One line of ours; ``torchrun`` adds a traceback of its own process, whatever it runs."""
    train = (forked("fairseq-train"), copy_data, *OPTIONS, "--save-dir", "run")
    faulty = ("--criterion", "faulty", "--user-dir", FAULTY)
    torchrun = ("torchrun", "--standalone", "--nproc_per_node", 2, "--no-python")
    hydra = ("fairseq-hydra-train", "--config-dir", conf, "--config-name", "digits")
    hydra += (f"task.data={copy_data}", f"common.user_dir={FAULTY}", "criterion._name=faulty")
    hydra += ("~criterion.label_smoothing", "dataset.max_tokens=400")
    words = hydra if command == "hydra" else (*torchrun, *train, *faulty)
    group = number == signal.SIGINT
    status, output, _ = harness.interrupted(words, tmp_path, "training", number, group=group)
    assert status != 0
    (message,) = [line for line in output.splitlines() if "fairseq-ext: " in line]
    assert message.endswith("yet: the same command starts from the beginning.")
    assert f"stopped by {number.name}." in message
    *_, after = output.partition("Traceback")
    assert ("SignalException" in after) == (command == "torchrun")
    # A path may name the folder of the clone.
    assert not re.search(r"/fairseq(_cli|_ext)?/[\w/]+\.py", after)


# The plugin registers by every route, once, and never in place of somebody else's model
ARCHITECTURES = {"gru_attention", "gru_europarl_es_en", "gru_tiny"}

IMPORT_USER_DIRS = """
import sys
from argparse import Namespace
from fairseq import utils
from fairseq.models import ARCH_MODEL_REGISTRY
classes = set()
for route in sys.argv[1:]:
    if route == "import":
        import fairseq_ext
        fairseq_ext.register()
    else:
        utils.import_user_module(Namespace(user_dir=route))
    classes.add(ARCH_MODEL_REGISTRY["gru_tiny"])
assert len(classes) == 1, classes
print(*sorted(name for name, model in ARCH_MODEL_REGISTRY.items() if model in classes))
"""


def architectures(*routes: object, cwd: Path | None = None) -> set[str]:
    """The architectures of our model's class after registering by each route in one process."""
    done = python("-c", IMPORT_USER_DIRS, *routes, cwd=cwd)
    return set(done.stdout.splitlines()[-1].split())


def test_every_route_in_one_process(tmp_path: Path):
    """Whatever comes first, the rest are harmless, and there is one class per model."""
    copied, link = tmp_path / "my plug ins" / "user dir", tmp_path / "a link"
    shutil.copytree(USER_DIR, copied, ignore=shutil.ignore_patterns("__pycache__"))
    link.symlink_to(copied)
    package = run("fairseq-ext", "user-dir").stdout.strip()
    routes = [USER_DIR, "user_dir", "import", link, package, package, USER_DIR]
    for order in (routes, ["import", package, USER_DIR, "import"], [link], [copied, link]):
        assert architectures(*order, cwd=harness.REPO) == ARCHITECTURES


def test_installed_folder_through_the_real_command(tmp_path: Path):
    """``--user-dir "$(fairseq-ext user-dir)"``: one absolute path, alone on standard output."""
    done = run("fairseq-ext", "user-dir", cwd=tmp_path)
    package = Path(done.stdout.removesuffix("\n"))
    assert package.is_absolute()
    assert (package / "__init__.py").is_file()
    # The architecture is accepted, so the command comes to its data, which is missing.
    options = ("--arch", "gru_tiny", "--batch-size", 1, "--optimizer", "adam")
    options += ("--save-dir", tmp_path / "save", "--user-dir", package)
    done = run("fairseq-train", tmp_path / "none", *options, ok=False)
    assert f"{tmp_path / 'none'}: No such file" in done.stderr


REGISTERS_FIRST = """
import fairseq_ext
fairseq_ext.register()
from fairseq_cli.train import cli_main
cli_main()
"""


def test_a_command_that_is_imported_after_registering(copy_data, copy_model, tmp_path):
    """It has every patch: a finished run is left alone, which takes a patch of the command."""
    last = Path(shutil.copy(copy_model, tmp_path / "checkpoint_last.pt"))
    options = ("--arch", "gru_tiny", "--batch-size", 50, "--optimizer", "adam", "--cpu")
    options += ("--max-update", 4, "--save-dir", tmp_path)
    done = python("-c", REGISTERS_FIRST, copy_data, *options)
    assert "nothing to do: this run has finished" in done.stdout + done.stderr
    assert last.read_bytes() == copy_model.read_bytes()


TAKEN = """
from fairseq.models import FairseqEncoderDecoderModel, register_model, register_model_architecture
@register_model("{model}")
class Other(FairseqEncoderDecoderModel):
    pass
register_model_architecture("{model}", "{architecture}")(lambda args: None)
import fairseq_ext
fairseq_ext.register()
"""


@pytest.mark.parametrize(
    ("model", "architecture", "owner_name"),
    [
        ("gru_attention", "somebody_elses", "gru_attention"),
        ("somebody_elses", "gru_tiny", "gru_tiny"),
    ],
    ids=["model", "architecture"],
)
def test_a_name_already_taken_is_an_error(model: str, architecture: str, owner_name: str):
    code = TAKEN.format(model=model, architecture=architecture)
    harness.refused(python("-c", code, ok=False), f"`{owner_name}`")
