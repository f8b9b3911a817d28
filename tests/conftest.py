"""Fixtures shared by all tests."""

import gc
import random
import shutil
import signal
import zlib
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from fairseq_ext import register
from tests.support import quick
from tests.support.harness import binarize, command, digits_corpus, fairseq

# A background job of a shell ignores Ctrl-C, and the commands that tests interrupt would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # a busy machine is no failure
)
hypothesis.settings.load_profile("repeatable")
hypothesis.settings.register_profile("long", max_examples=2500)  # of tests/unit/test_fuzz.py


def pytest_configure(config: pytest.Config) -> None:
    """Import fairseq and register our models, but not in the process that only starts workers."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        import torch

        from tests.support import hydra_parser

        hydra_parser.remember()
        register()
        gc.freeze()  # or each collection goes through the 400,000 objects of torch and fairseq
        torch.set_num_threads(1)  # some tests fork; a child without OpenMP's threads waits for them


def seed_from(name: str) -> None:
    """Draw the same random numbers in every run, whatever ran before; others for other names."""
    import torch

    seed = zlib.crc32(name.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes and long texts by their parameter: a test's name is short, and always the same."""
    is_long = isinstance(val, bytes) or (isinstance(val, str) and len(val) > 60)
    return argname if is_long else None


def pytest_fixture_setup(fixturedef: pytest.FixtureDef) -> None:
    """Each fixture has its own random numbers."""
    seed_from(fixturedef.argname)


def pytest_runtest_call(item: pytest.Item) -> None:
    """Each test has its own random numbers."""
    seed_from(item.nodeid)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--long`` and ``--quick``."""
    parser.addoption("--long", action="store_true", help="also run the tests marked `long`")
    parser.addoption("--quick", action="store_true", help="run no process, nothing slow")


def is_quick(item: pytest.Item) -> bool:
    """Whether ``--quick`` runs a test: no processes, and only some architectures in the laws."""
    if any(item.get_closest_marker(mark) for mark in ("system", "long")):
        return False
    if item.originalname in quick.SLOW_TESTS:
        return False
    if not quick.SLOW_FIXTURES.isdisjoint(item.fixturenames):
        return False
    if item.path.name == "test_laws.py":
        from tests.support.models import FIRST_OF_WINGS  # imports fairseq, as that file does

        return item.callspec.params["name"] in FIRST_OF_WINGS
    return True


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """End a quick run with what it has left out."""
    if config.getoption("--quick"):
        terminalreporter.write_line(quick.LEFT_OUT)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests that take minutes, with the reason in the summary, unless asked for."""
    if config.getoption("--quick"):
        quick_items = [item for item in items if is_quick(item)]
        config.hook.pytest_deselected(items=[item for item in items if not is_quick(item)])
        items[:] = quick_items
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: run with --long"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of this process, where unpacked models are: a folder that is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def copy_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A binarized digit-copy corpus (500 / 50 / 50 lines) that tests only read."""
    folder = tmp_path_factory.mktemp("copy")
    return binarize(digits_corpus(folder / "text"), folder / "bin")


@pytest.fixture
def data(copy_data: Path, tmp_path: Path) -> Path:
    """A copy of `copy_data` that a test may damage."""
    return Path(shutil.copytree(copy_data, tmp_path / "data"))


@pytest.fixture(scope="session")
def copy_model(copy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GRU after a few updates on `copy_data`: for tests of commands, not of quality."""
    folder = tmp_path_factory.mktemp("copy_model")
    options = ("--arch", "gru_tiny", "--optimizer", "adam", "--batch-size", 50, "--max-update", 4)
    fairseq("train", copy_data, *options, "--cpu", "--no-epoch-checkpoints", "--save-dir", folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def copy_bundle(copy_data, copy_model, tmp_path_factory) -> Path:
    """A bundle of `copy_model`, which the engine translates with."""
    path = tmp_path_factory.mktemp("copy_bundle") / "bundle"
    command("bundle", copy_model, "--data", copy_data, "-o", path)
    return path


@pytest.fixture(scope="session")
def unsure_model(copy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GRU that has begun to learn: it is unsure of every digit. ``train.log`` beside it."""
    folder = tmp_path_factory.mktemp("unsure_model")
    fairseq(
        *("train", copy_data, "--task", "translation", "--arch", "gru_tiny", "--save-dir", folder),
        *("--optimizer", "adam", "--lr", 0.003, "--max-tokens", 400, "--max-update", 25),
        *("--disable-validation", "--num-workers", 0, "--log-file", folder / "train.log"),
    )
    return folder / "checkpoint_last.pt"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list:
    """The figures that are drawn, in memory instead of files."""
    from fairseq_ext.evaluation import plots

    drawn: list = []
    monkeypatch.setattr(plots, "save_picture", lambda figure, *_: drawn.append(figure))
    return drawn
