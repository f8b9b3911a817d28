"""Run fairseq's own test suite with and without the plugin, and show the tests that differ.

The suite is not part of fairseq's distribution: clone fairseq's repository (its last commit is
3d262bb25690e4eb2e7d3c1309b1e9c406ca4b99) and give the clone's folder::

    python tests/fairseq_suite.py FOLDER                          # all files, some 40 minutes
    python tests/fairseq_suite.py FOLDER test_train.py test_ema.py

Each file runs in two processes of pytest, once in plain fairseq and once after
``fairseq_ext.register()``. The exit status is 1 if a test that passes in plain fairseq does not
pass with the plugin, unless :data:`REFUSED` names it with the reason.
"""

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REFUSED = {
    **dict.fromkeys(
        (
            "test_binaries.py::TestActivationCheckpointing::"
            f"test_activation_{kind}_does_not_change_metrics"
            for kind in ("checkpointing", "offloading")
        ),
        "give a `--restore-file` that does not exist, which would start from the beginning",
    ),
    **dict.fromkeys(
        (
            f"test_roberta.py::RobertaTest::test_{name}"
            for name in (
                *("roberta_shared_params", "ffn_prune_for_adaprune_in_roberta"),
                "regularize_for_adaprune_in_roberta",
            )
        ),
        "make an encoder alone for online back-translation, which could not train it",
    ),
    "test_binaries.py::TestTranslation::test_max_positions": (
        "expects fairseq's words about a sentence that is too long; ours say more"
    ),
    "test_checkpoint_utils.py::TestCheckpointUtils::test_load_model_ensemble_and_task": (
        "loads an ensemble of two models whose dictionaries differ, which would translate nonsense"
    ),
    "test_checkpoint_utils.py::TestCheckpointUtils::test_torch_persistent_save_async": (
        "expects a write under the checkpoint's own name, which a kill would leave torn"
    ),
    "test_iterators.py::TestIterators::test_grouped_iterator_skip_remainder_batch": (
        "has an epoch without an update, which fairseq-train would end in UnboundLocalError"
    ),
}
"""Tests that fail with the plugin on purpose, ``file::class::test``, and why."""

REGISTERING = "import fairseq_ext\nfairseq_ext.register()\n"
SECONDS = 3600  # of one file


def main(arguments: list[str] | None = None) -> int:
    """Run the files on both sides; the exit status is 1 if the plugin breaks a test."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="clone of fairseq's repository")
    parser.add_argument("files", nargs="*", help="files of its tests/ (all)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome there")
    args = parser.parse_intermixed_args(arguments)
    tests = args.folder / "tests"
    files = args.files or sorted(path.name for path in tests.glob("test_*.py"))
    missing = [name for name in files if not (tests / name).is_file()]
    if missing or not files:
        parser.error(f"{tests} has no {', '.join(missing) or 'test_*.py'}")
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(args.jobs) as pool:
        for side in ("plain", "plugin"):
            # Of the clone the tests alone, so that `import fairseq` finds the installed one.
            shutil.copytree(tests, Path(scratch, side, "tests"))
        Path(scratch, "plugin", "registering.py").write_text(REGISTERING, encoding="utf-8")
        plain, plugin = (
            list(pool.map(functools.partial(outcomes, Path(scratch, side)), files))
            for side in ("plain", "plugin")
        )
    results = {"plain": plain, "plugin": plugin}
    sides = {side: dict(zip(files, rows, strict=True)) for side, rows in results.items()}
    if args.json:
        args.json.write_text(json.dumps(sides, indent=1) + "\n", encoding="utf-8")
    return report(sides["plain"], sides["plugin"])


def outcomes(folder: Path, name: str) -> dict[str, str]:
    """Run one file in a process; the outcome of each test: passed, skipped, failed or error."""
    junit = folder / f"{name}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{name}"]
    if (folder / "registering.py").exists():
        command += ["-p", "registering"]
    paths = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # Without this, today's torch refuses the checkpoints of plain fairseq, and few tests pass.
    variables = {**os.environ, "PYTHONPATH": paths, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    how = {"cwd": folder, "env": variables, "timeout": SECONDS, **silent}
    try:
        subprocess.run([*command, f"--junitxml={junit}"], **how)
        cases = list(ElementTree.parse(junit).getroot().iter("testcase"))
    except (subprocess.TimeoutExpired, OSError, ElementTree.ParseError) as error:
        return {name: f"no result ({type(error).__name__})"}
    return {
        f"{name}::{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}": next(
            (child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed"
        )
        for case in cases
    }


def report(plain: dict[str, dict[str, str]], plugin: dict[str, dict[str, str]]) -> int:
    """Print a line per file and each test that only the plugin breaks; 1 if there is any."""
    broken = []
    for name, results in plain.items():
        passed = [test for test, outcome in results.items() if outcome == "passed"]
        lost = [test for test in passed if plugin[name].get(test) != "passed"]
        gained = [
            test
            for test, outcome in plugin[name].items()
            if outcome == "passed" and results.get(test) != "passed"
        ]
        shared = len(passed) - len(lost)
        print(
            f"{name}: {len(passed)} of {len(results)} pass in fairseq, {shared} of these and "
            f"{len(gained)} more with the plugin"
        )
        broken += [test for test in lost if test not in REFUSED]
        for test in lost:
            print(f"  {test}: {REFUSED.get(test) or plugin[name].get(test, 'not run')}")
    print(f"{len(broken)} tests pass in fairseq and fail with the plugin without a reason")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
