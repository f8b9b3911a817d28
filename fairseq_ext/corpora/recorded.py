"""Steps of a long command, which are repeated only if their settings change."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fairseq_ext.text.writing import write_all
from fairseq_ext.utils.json_files import read_json

Report = dict[str, Any]


class Steps:
    """Records of finished steps, one file each in ``folder/.steps``.

    A step is done if its record has the same settings, and every file it wrote still has the same
    size. The record is written last, so a step that was killed does not count as done.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records = folder / ".steps"

    def run(
        self,
        name: str,
        settings: Report,
        outputs: Iterable[Path],
        work: Callable[[], Report],
    ) -> Report:
        """Do ``work`` unless it is done; return its result, recorded or new.

        Args:
            name: name of the step.
            settings: everything that its result depends on, as plain data.
            outputs: files in the folder that it writes; listed after the work.
            work: writes the files and returns plain data.
        """
        record = self._records / f"{name}.json"
        key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        if (report := self._done(record, key)) is not None:
            print(f"{name}: done before", file=sys.stderr)
            return report
        record.unlink(missing_ok=True)
        report = work()
        sizes = {str(path.relative_to(self._folder)): path.stat().st_size for path in outputs}
        state = {"settings": key, "files": sizes, "report": report}
        write_all(self._records, {record.name: [json.dumps(state, ensure_ascii=False, indent=2)]})
        return report

    def _done(self, record: Path, key: str) -> Report | None:
        if not record.exists():
            return None
        try:
            state = read_json(record)
            paths = {self._folder / name: size for name, size in state["files"].items()}
            complete = all(path.is_file() and path.stat().st_size == s for path, s in paths.items())
            return state["report"] if complete and state["settings"] == key else None
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None  # the file is not the record of a step
