"""Step 1: the tests of CUDA, every law of every architecture on the GPU among them."""

import os
import sys
from typing import Any

import pytest

from tests.gpu.results import ERROR_LENGTH, Results, arguments

FILES = ("tests/models/test_cuda_laws.py", "tests/models/test_engine_devices.py")


class Recorder:
    """A plugin of pytest that writes each outcome as it comes.

    Args:
        results: of the step.
    """

    def __init__(self, results: Results) -> None:
        self.results, self.count = results, 0

    def pytest_collectreport(self, report: Any) -> None:
        """Add a file that could not be imported."""
        if report.failed:
            error = str(report.longrepr)[-ERROR_LENGTH:]
            self.results.content["cells"][report.nodeid] = {"outcome": "failed", "error": error}
            self.results.save()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add a test that has run, failed in its set-up, or was skipped."""
        if report.when != "call" and report.outcome == "passed":
            return
        cell = {"outcome": report.outcome, **dict(report.user_properties)}
        if report.failed:
            cell["error"] = str(report.longrepr)[-ERROR_LENGTH:]
        elif report.skipped:
            cell["reason"] = str(report.longrepr)[-200:]
        name = report.nodeid.removeprefix("tests/")
        self.results.content["cells"][name] = cell
        self.count += 1
        if self.count % 20 == 0 or report.failed:
            self.results.save()


def main() -> None:
    options = arguments("laws")
    results = Results("laws", options)
    if results.content["complete"]:
        return
    os.environ["FAIRSEQ_EXT_TEST_DEVICE"] = options.device
    words = [*FILES, "-q", "-k", "cuda", "-p", "no:cacheprovider", "--tb", "short"]
    if options.tiny:
        words = [FILES[0], "-q", "-k", "transformer or gru-dot", "-p", "no:cacheprovider"]
    else:
        words += ["-n", "14", "--dist", "worksteal"]
    status = pytest.main(words, plugins=[Recorder(results)])
    outcomes = [cell["outcome"] for cell in results.content["cells"].values()]
    counts = {name: outcomes.count(name) for name in sorted(set(outcomes))}
    results.content["counts"], results.content["status"] = counts, int(status)
    results.finish()
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        results.content["complete"] = False
        results.save()
    print(counts)


if __name__ == "__main__":
    sys.exit(main())
