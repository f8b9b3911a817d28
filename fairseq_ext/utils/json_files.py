"""Write JSON files; read a user's JSON files, and raise :class:`DataError` for every fault.

Python's reader accepts too much (``NaN``, ``1e999`` as infinity, halves of surrogate pairs, a key
twice), and raises four kinds of errors for what it refuses.
"""

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.files import atomic_write, require_file

DIGITS = 18  # most digits of a whole number, so that it fits into int64
LARGEST = 1 << 24  # most bytes of a file; its content may take forty times as much memory


def read_json(path: str | Path, *, largest: int = LARGEST) -> Any:
    """Read a JSON file in UTF-8, like :func:`parse_json`; errors name the file and the line.

    A file of more than ``largest`` bytes is refused.
    """
    path = require_file(path)
    if path.stat().st_size > largest:
        raise DataError(f"`{path}` has more than {largest:,} bytes; give the original file.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"`{path}`, line {line}: not UTF-8; give the original file.") from None
    return parse_json(text, f"`{path}`")


def write_json(path: Path, content: Any, **options: Any) -> None:
    """Write ``content`` as JSON in UTF-8, atomically; ``options`` are those of ``json.dumps``."""
    with atomic_write(path) as file:
        file.write(json.dumps(content, **{"ensure_ascii": False, "indent": 1, **options}) + "\n")


def parse_json(text: str, where: str) -> Any:
    """Parse JSON, but refuse numbers out of range, repeated keys and halves of surrogate pairs.

    ``where`` names the file in messages.
    """

    def refuse(number: str) -> NoReturn:
        line = text.count("\n", 0, text.find(number)) + 1
        raise DataError(f"{where}, line {line}: the number {number:.20} is out of range.")

    def integer(number: str) -> int:
        return int(number) if len(number.lstrip("-")) <= DIGITS else refuse(number)

    def finite(number: str) -> float:
        return value if math.isfinite(value := float(number)) else refuse(number)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for name, value in pairs:
            if name in content:
                raise DataError(f"{where} has the key {name!r:.60} twice in one object.")
            content[name] = value
        return content

    text = text.removeprefix("\ufeff")  # a byte-order mark, as Windows writes it
    hooks: dict[str, Any] = {"object_pairs_hook": once, "parse_constant": refuse}
    try:
        content = json.loads(text, parse_int=integer, parse_float=finite, **hooks)
        if "\\ud" in text.lower():
            json.dumps(content, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise DataError(f"{where}, line {error.lineno}: not JSON ({error.msg}).") from None
    except UnicodeEncodeError:
        raise DataError(f"{where} has half of a surrogate pair (`\\ud…`) in a text.") from None
    except RecursionError:
        raise DataError(f"{where} is JSON that is nested too deeply.") from None
    return content
