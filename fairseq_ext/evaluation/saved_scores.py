"""Scores of a file: the JSON of ``fairseq-ext score`` or of ``fairseq-ext compare``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_ext.evaluation.score import Score, shown
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.json_files import read_json


def read_scores(path: str | Path, system: str | None = None) -> list[Score]:
    """The scores of one system.

    Args:
        path: of the JSON.
        system: its name in a comparison; None where that has a single one.

    Raises:
        ConfigError: no such system, or several and none is named.
        DataError: the file cannot be read, or is of another kind.
    """
    content = read_json(path)
    try:
        if "systems" in content:
            return _of_comparison(path, content, system)
        if system is not None:
            raise ConfigError(f"`--system` does not go with {path}, which has scores of one only.")
        found = [
            Score(one["name"], float(one["value"]), one["signature"], one["detail"])
            for one in content["scores"]
        ]
        if not all(isinstance(part, str) for one in found for part in (one.name, one.signature)):
            raise TypeError
        return found
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise DataError(
            f"{path} is neither of `fairseq-ext score --json` nor of `fairseq-ext compare --json`."
        ) from None


def _of_comparison(path: str | Path, content: Mapping[str, Any], system: str | None) -> list[Score]:
    """Scores with 95% intervals of one row of a comparison."""
    rows = {row["name"]: row for row in content["systems"]}
    if system is None and len(rows) == 1:
        (system,) = rows
    if system not in rows:
        but = "is missing" if system is None else f"is `{system}`"
        raise ConfigError(f"`--system` must be one of {', '.join(rows)} of {path}, but {but}.")
    return [
        Score(
            name,
            float(one["value"]),
            str(content["signatures"].get(name, "")),
            f"{shown(name, one['low'])} to {shown(name, one['high'])} (95%)",
        )
        for name, one in rows[system]["scores"].items()
    ]
