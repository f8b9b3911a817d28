"""Hostile files in every command: none runs code, hangs or ends in a traceback."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.harness import REPO, run

HOSTILE = REPO / "tests" / "hostile"
# A checkpoint's way and a bundle's; the others take minutes.
WAYS = ("fairseq-generate", "fairseq-ext describe")
# Whose code runs when stock fairseq, or an unsafe pickle, reads them.
SINGING = (
    *("pickle os.system", "pickle eval", "pickle in cfg", "legacy format with code"),
    *("lstm decoder_attention (cfg)", "lstm decoder_attention (args)"),
    *("transformer encoder_xformers_att_config (cfg)", "fconv encoder_layers (cfg)"),
)


def outcome(tmp_path: Path, data: Path, *options: object) -> dict:
    """The counts of a grid."""
    words = (sys.executable, "-m", "tests.hostile.grid", "--data", data, *options)
    done = run(*words, timeout=7200, cwd=REPO, PYTHONPATH=str(REPO))
    return json.loads(done.stdout)


def check(result: dict) -> None:
    assert result["faults"] == []
    assert result["files"] >= 60
    assert result["runs"] == result["refused"] + result["used"]


@pytest.mark.system
@pytest.mark.slow
def test_each_way_of_reading(tmp_path: Path, copy_data: Path):
    result = outcome(tmp_path, copy_data, "--commands", *WAYS)
    check(result)
    assert result["refused"] > 150
    assert result["by command"][WAYS[1]]["refused"] > 10


@pytest.mark.system
@pytest.mark.long
def test_every_command(tmp_path: Path, copy_data: Path):
    check(outcome(tmp_path, copy_data))


@pytest.mark.system
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
