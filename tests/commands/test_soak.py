"""Quick parts of tests/soak.sh, tests/gpu.sh and the hostile grid, and what their pages say.

Other quick parts: test_files.py (kills), test_bad_input.py (full disks), test_distributed.py
(killed processes), test_locks.py (two runs in one folder).
"""

import json
import re
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.hostile.commands import BUNDLES_ALONE, COMMANDS
from tests.soak import kills
from tests.soak.report import RESULTS, table
from tests.support.harness import REPO, forked, run

DOCUMENT = REPO / "docs" / "reliability.md"


def test_a_killed_training_ends_with_the_same_bits(tmp_path, monkeypatch):
    """Three stages, an average and a worker that loads data; killed at each kind of moment."""
    path = tmp_path / "report.json"
    words = ("--runs", "bmt_tiny, EMA, a worker", "--kills", "3", "--seed", "2")
    monkeypatch.setattr(sys, "argv", ["kills", "--json", str(path), *words])
    with pytest.raises(SystemExit) as ended:
        kills.main()
    report = json.loads(path.read_text())
    assert not ended.value.code, report
    assert (report["count"], report["failed"]) == (3, 0)
    (row,) = report["checks"]
    assert row["moments"] == {"time": 1, "operation": 1, "byte": 1}
    assert any(row["updates_done_when_killed"])


def test_the_document_says_what_was_measured():
    """Its rows are those of ``python -m tests.soak.report``, all of each report that it shows."""
    text = DOCUMENT.read_text(encoding="utf-8")
    shown = set(re.findall(r"\(results/(reliability_\w+\.json)\)", text))
    assert len(shown) >= 4
    measured = table(RESULTS / name for name in sorted(shown)).splitlines()[2:]
    rows = [line for line in text.splitlines() if "(results/reliability_" in line]
    assert rows == measured


CELLS = {
    "laws": "counts",
    "processes": "to CPU gru fp32",
    "updates": "transformer fp32 stock",
    "layers": "ceiling",
    "generation": "gru fp32 batch 2",
    "multi30k": "gru",
}


@pytest.mark.long
@pytest.mark.parametrize("step", CELLS)
def test_step_writes_complete_results(step: str, tmp_path: Path) -> None:
    options = ("--tiny", "--out", tmp_path, "--steps", step, "--budget", 300)
    command = ("bash", REPO / "tests" / "gpu.sh", *options, "--data", tmp_path / "none")
    done = run(*command)
    content = json.loads((tmp_path / f"{step}.json").read_text())
    assert content["complete"], done.stdout
    assert not [cell for cell in content["cells"].values() if "error" in cell]
    assert CELLS[step] in {**content, **content["cells"]}
    assert f"== {step}: complete" in (tmp_path / "table.txt").read_text()


HOSTILE = REPO / "tests" / "hostile"
# A checkpoint's way and a bundle's; the others take minutes.
WAYS = ("fairseq-generate", "fairseq-ext describe")
# Whose code runs when stock fairseq, or an unsafe pickle, reads them.
SINGING = (
    *("pickle os.system", "pickle eval", "pickle in cfg", "legacy format with code"),
    *("lstm decoder_attention (cfg)", "lstm decoder_attention (args)"),
    *("transformer encoder_xformers_att_config (cfg)", "fconv encoder_layers (cfg)"),
)


def attack(data: Path, *options: object) -> CompletedProcess[str]:
    words = (forked("python"), HOSTILE / "grid.py", "--data", data, *options)
    return run(*words, timeout=7200, cwd=REPO)


def outcome(data: Path, *options: object) -> dict:
    """The counts of a grid."""
    done = attack(data, *options)
    return json.loads(done.stdout[done.stdout.index("{\n") :])  # behind what was logged


def check(result: dict) -> None:
    assert result["faults"] == []
    assert result["files"] >= 60
    assert result["runs"] == result["refused"] + result["used"]


def test_each_way_of_reading(copy_data: Path):
    """Without bombs, which the long grid gives to each command."""
    result = outcome(copy_data, "--no-bombs", "--commands", *WAYS)
    check(result)
    assert result["refused"] > 150
    assert result["by command"][WAYS[1]]["refused"] > 5


def test_malicious_checkpoint_in_every_command(copy_data: Path):
    """Two of the commands read text; they ask which member of the archive it is."""
    lines = attack(copy_data, "--files", "pickle os.system").stderr.splitlines()
    lines = [line for line in lines if "| pickle os.system |" in line]
    assert len(lines) == len(COMMANDS) - len(BUNDLES_ALONE)
    assert all(line.startswith("refused ") for line in lines)
    assert sum("contains the object `posix.system`" in line for line in lines) == len(lines) - 2


@pytest.mark.long
def test_every_command(copy_data: Path):
    check(outcome(copy_data))


@pytest.mark.long
def test_unprotected_the_canary_sings(tmp_path: Path, copy_data: Path):
    """The files are no dummies: with stock fairseq and unsafe pickles their code does run."""
    from tests.hostile import grid

    canary = tmp_path / "canary" / "sang"
    for folder in (canary.parent, tmp_path / "files"):
        folder.mkdir()
    files = grid.make_files(tmp_path / "files", copy_data, canary)
    names = tmp_path / "names.json"
    names.write_text(json.dumps({name: str(files[name]) for name in SINGING}))
    script = HOSTILE / "unprotected.py"
    # The plugin has forbidden unsafe loading in this process, and children would inherit that.
    bare = {"PYTHONPATH": "", "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "0"}
    done = run(sys.executable, script, names, copy_data, canary, **bare)
    assert json.loads(done.stdout.splitlines()[-1]) == list(SINGING)
