"""Read scores from the JSON of ``fairseq-ext score`` or ``fairseq-ext compare``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_ext.evaluation.score import Score, shown
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.json_files import read_json


def read_scores(path: str | Path, system: str | None = None) -> list[Score]:
    """Read the scores of one system.

    Args:
        path: path of the JSON.
        system: name of the system in a comparison; None if there is only one.

    Raises:
        ConfigError: there is no such system, or there are several and none is named.
        DataError: the file cannot be read, or is of another kind.
    """
    content = read_json(path)
    try:
        if "systems" in content:
            return _of_comparison(path, content, system)
        if system is not None:
            raise ConfigError(f"`--system` does not go with {path}, which has scores of one only.")
        scores = [
            Score(entry["name"], float(entry["value"]), entry["signature"], entry["detail"])
            for entry in content["scores"]
        ]
        if not all(
            isinstance(part, str) for score in scores for part in (score.name, score.signature)
        ):
            raise TypeError
        return scores
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise DataError(
            f"{path} is neither of `fairseq-ext score --json` nor of `fairseq-ext compare --json`."
        ) from None


def _of_comparison(path: str | Path, content: Mapping[str, Any], system: str | None) -> list[Score]:
    """Read the scores of one system of a comparison, with their 95% intervals."""
    rows = {row["name"]: row for row in content["systems"]}
    if system is None and len(rows) == 1:
        (system,) = rows
    if system not in rows:
        but = "is missing" if system is None else f"is `{system}`"
        raise ConfigError(f"`--system` must be one of {', '.join(rows)} of {path}, but {but}.")
    return [
        Score(
            name,
            float(entry["value"]),
            str(content["signatures"].get(name, "")),
            f"{shown(name, entry['low'])} to {shown(name, entry['high'])} (95%)",
        )
        for name, entry in rows[system]["scores"].items()
    ]
