"""The page on other fairseqs says what `tests/matrix.sh` has found."""

from __future__ import annotations

import json

from fairseq_ext.version import PYTHONS, TESTED_FAIRSEQ
from tests.support.harness import REPO
from tests.support.matrix_table import as_table, with_table

RESULTS = REPO / "docs" / "results" / "compatibility.json"


def test_the_page_has_the_table_of_the_results():
    page = (REPO / "docs" / "compatibility.md").read_text("utf-8")
    assert with_table(page, as_table(json.loads(RESULTS.read_text("utf-8")))) == page
    assert with_table(page, "another\n") != page
    assert " ".join(TESTED_FAIRSEQ).replace(" ", "` ") in page
    assert f"Python {PYTHONS[0]}" in page
