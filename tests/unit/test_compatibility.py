"""The page on other fairseqs says what `tests/matrix.sh` has found."""

from __future__ import annotations

import json

from fairseq_ext.version import PYTHONS, TESTED_FAIRSEQ
from tests.support.harness import REPO
from tests.support.matrix_table import HEADINGS, as_table, counts, gather, with_table

RESULTS = REPO / "docs" / "results" / "compatibility.json"
REPORT = """<testsuites><testsuite tests="4" failures="1" errors="1" skipped="1" time="2.6">
<testcase classname="tests.test_a" name="test_b"><failure/></testcase></testsuite></testsuites>"""


def test_the_page_has_the_table_of_the_results():
    page = (REPO / "docs" / "compatibility.md").read_text("utf-8")
    assert with_table(page, as_table(json.loads(RESULTS.read_text("utf-8")))) == page
    assert with_table(page, "another\n") != page
    assert " ".join(TESTED_FAIRSEQ).replace(" ", "` ") in page
    assert f"Python {PYTHONS[0]}" in page


def test_counts_of_a_report(tmp_path):
    (tmp_path / "tests.xml").write_text(REPORT)
    result = counts(tmp_path / "tests.xml")
    assert result == {"run": 3, "passed": 1, "failed": 2, "skipped": 1, "seconds": 3}


def test_rows_of_other_environments_stay(tmp_path):
    row = dict.fromkeys(HEADINGS, 1)
    out = tmp_path / "out.json"
    out.write_text(json.dumps([{**row, "environment": "b"}, {**row, "environment": "a"}]))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "row.json").write_text(json.dumps({**row, "environment": "b", "run": 9}))
    rows = gather(tmp_path, out, ["a", "b", "c"])
    assert [(row["environment"], row["run"]) for row in rows] == [("a", 1), ("b", 9)]
    table = as_table([{**row, "seconds": 2}])
    assert table.count("\n") == 3
    assert table.endswith("| 2 |\n")
