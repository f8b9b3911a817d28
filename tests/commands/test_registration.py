"""The plugin registers by every route, once, and never in place of somebody else's model."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.support.harness import REPO, USER_DIR, fairseq, run

pytestmark = pytest.mark.system

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
    done = run(sys.executable, "-c", IMPORT_USER_DIRS, *routes, cwd=cwd)
    return set(done.stdout.splitlines()[-1].split())


def copy_of_user_dir(folder: Path) -> Path:
    return Path(shutil.copytree(USER_DIR, folder, ignore=shutil.ignore_patterns("__pycache__")))


def test_symbolic_link_and_spaces(tmp_path: Path):
    copy_of_user_dir(tmp_path / "my plug ins" / "user dir")
    (tmp_path / "a link").symlink_to(tmp_path / "my plug ins" / "user dir")
    assert architectures(tmp_path / "a link") == ARCHITECTURES
    assert architectures(tmp_path / "my plug ins" / "user dir") == ARCHITECTURES


def test_every_route_in_one_process(tmp_path: Path):
    """Whatever comes first, the rest are harmless, and there is one class per model."""
    (tmp_path / "link").symlink_to(USER_DIR)
    package = run("fairseq-ext", "user-dir").stdout.strip()
    routes = [USER_DIR, "user_dir", "import", tmp_path / "link", package, package, USER_DIR]
    assert architectures(*routes, cwd=REPO) == ARCHITECTURES
    assert architectures("import", package, USER_DIR, "import") == ARCHITECTURES


def test_installed_folder_through_the_real_command(copy_data: Path, tmp_path: Path):
    """``--user-dir "$(fairseq-ext user-dir)"``: one absolute path, alone on standard output."""
    done = run("fairseq-ext", "user-dir", cwd=tmp_path)
    package = Path(done.stdout.removesuffix("\n"))
    assert package.is_absolute()
    assert (package / "__init__.py").is_file()
    # The architecture is accepted, so the command comes to its data, which is missing.
    options = ("--arch", "gru_tiny", "--batch-size", 1, "--save-dir", tmp_path / "save")
    options += ("--optimizer", "adam")
    done = run("fairseq-train", tmp_path / "none", "--user-dir", package, *options, ok=False)
    assert f"{tmp_path / 'none'}: No such file" in done.stderr
    done = fairseq("train", tmp_path / "none", *options, ok=False)
    assert f"{tmp_path / 'none'}: No such file" in done.stderr


SPAWN = """
import sys
from argparse import Namespace
import torch

def worker(rank, route):
    from fairseq import utils
    from fairseq.models import ARCH_MODEL_REGISTRY
    utils.import_user_module(Namespace(user_dir=route))
    print(ARCH_MODEL_REGISTRY["gru_tiny"].__name__)

if __name__ == "__main__":
    import fairseq_ext
    fairseq_ext.register()
    torch.multiprocessing.spawn(worker, args=(sys.argv[1],), nprocs=1)
"""


def test_spawned_worker(tmp_path: Path):
    (tmp_path / "script.py").write_text(SPAWN)
    done = run(sys.executable, tmp_path / "script.py", USER_DIR)
    assert done.stdout.splitlines()[-1] == "GRUAttentionModel"


REGISTERS_FIRST = """
import fairseq_ext
fairseq_ext.register()
from fairseq_cli.train import cli_main
cli_main()
"""


def test_a_command_that_is_imported_after_registering(copy_data: Path, tmp_path: Path):
    """It has every patch: a finished run is left alone, which takes a patch of the command."""
    options = (*("--arch", "gru_tiny", "--batch-size", 50, "--optimizer", "adam", "--cpu"),
               *("--max-update", 2, "--save-dir", tmp_path))  # fmt: skip
    fairseq("train", copy_data, *options)
    last = tmp_path / "checkpoint_last.pt"
    before = last.read_bytes()
    done = run(sys.executable, "-c", REGISTERS_FIRST, copy_data, *options)
    assert "nothing to do: this run has finished" in done.stdout + done.stderr
    assert last.read_bytes() == before


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
    done = run(sys.executable, "-c", code, ok=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    message = done.stderr.splitlines()[-1]
    assert message.startswith("fairseq-ext: error: ")
    assert f"`{owner_name}`" in message
