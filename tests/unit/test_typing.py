"""The types of the public API, as somebody else's checker sees them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.harness import REPO, run

CLIENT = REPO / "tests" / "support" / "client.py"


def check(path: Path, *, ok: bool = True) -> str:
    pytest.importorskip("mypy")
    return run(
        *(sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--follow-imports"),
        *("silent", "--cache-dir", path.parent / ".mypy_cache", path),
        cwd=path.parent,
        ok=ok,
        MYPYPATH=str(REPO),
    ).stdout


@pytest.mark.system
@pytest.mark.slow
def test_a_client_of_the_public_api_is_strictly_typed(tmp_path: Path) -> None:
    """One that takes a translation for a list is told so: the API's types are not `Any`."""
    client = tmp_path / "client.py"
    client.write_text(CLIENT.read_text(encoding="utf-8"), encoding="utf-8")
    assert "Success: no issues found" in check(client)
    text = client.read_text(encoding="utf-8")
    client.write_text(text.replace("text: str =", "text: int ="), encoding="utf-8")
    assert 'expression has type "str", variable has type "int"' in check(client, ok=False)
