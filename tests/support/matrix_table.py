"""Write the rows and the table of `tests/matrix.sh`: fairseq, Python and results of the tests.

``row FOLDER`` is run by the Python of one environment and writes ``FOLDER/row.json``;
``table FOLDER`` gathers the rows of all environments in it. Only the standard library is needed.
"""

import argparse
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

BEGIN, END = "<!-- table of tests/matrix.sh -->", "<!-- end -->"
COLUMNS = (
    *("environment", "python", "torch", "fairseq", "selection"),
    *("run", "passed", "failed", "skipped", "seconds"),
)
HEADINGS = {name: name for name in COLUMNS} | {"python": "Python", "selection": "tests"}


def counts(report: Path) -> dict[str, int]:
    """Count a JUnit report's tests run, passed, failed (errors too), skipped, and seconds."""
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    names = ("tests", "failures", "errors", "skipped", "time")
    total = {name: round(float(suite.get(name, 0))) for name in names}
    failed, skipped = total["failures"] + total["errors"], total["skipped"]
    run = total["tests"] - skipped
    figures = {"run": run, "passed": run - failed, "failed": failed, "skipped": skipped}
    return {**figures, "seconds": total["time"]}


def failures(report: Path) -> list[str]:
    """List the names of the tests that failed."""
    return sorted(
        f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        for case in ElementTree.parse(report).getroot().iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    )


def fairseq(clone: Path) -> str:
    """Name the installed distribution of fairseq, its version, and the commit of a clone."""
    names = sorted(set(metadata.packages_distributions().get("fairseq", [])))
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    if not clone.exists():
        return versions
    command = ["git", "-C", str(clone), "log", "-1", "--format=%h"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return f"{versions} ({commit})"


def row(folder: Path, name: str, selection: str, commit: str) -> dict[str, object]:
    """Collect everything that is reported on one environment."""
    return {
        "environment": name,
        "python": sys.version.split()[0],
        "torch": metadata.version("torch"),
        "numpy": metadata.version("numpy"),
        "fairseq": fairseq(folder / "fairseq"),
        "selection": selection,
        "commit": commit,
        **counts(folder / "tests.xml"),
        "failures": failures(folder / "tests.xml"),
    }


def gather(folder: Path, out: Path, names: list[str]) -> list[dict[str, object]]:
    """Read the rows below ``folder``, and other environments' rows from ``out``, in order."""
    rows = json.loads(out.read_text("utf-8")) if out.exists() else []
    rows += [json.loads(path.read_text("utf-8")) for path in folder.glob("*/row.json")]
    latest = {row["environment"]: row for row in rows}
    return [latest[name] for name in names if name in latest]


def as_table(rows: list[dict[str, object]]) -> str:
    """Format the rows in Markdown."""
    lines = [f"| {' | '.join(HEADINGS.values())} |", f"|{' --- |' * len(HEADINGS)}"]
    lines += [f"| {' | '.join(str(row[key]) for key in HEADINGS)} |" for row in rows]
    return "\n".join(lines) + "\n"


def with_table(page: str, table: str) -> str:
    """Replace the table in a page."""
    before, mark, rest = page.partition(BEGIN)
    return f"{before}{mark}\n{table}{END}{rest.partition(END)[2]}"


def main() -> None:
    """Write a row, or the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("row", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", nargs="+")
    parser.add_argument("--selection")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    if args.what == "row":
        result: object = row(args.folder, args.names[0], args.selection, args.commit)
        out = args.folder / "row.json"
    else:
        result, out = gather(args.folder, args.out, args.names), args.out
        print(as_table(result), end="")
        page = args.page.read_text("utf-8")
        args.page.write_text(with_table(page, as_table(result)), encoding="utf-8")
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
