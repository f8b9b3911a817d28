"""The table of predicted cost is what the figures say."""

from __future__ import annotations

import json

import predicted_cost
import pytest


def test_the_page_has_the_table() -> None:
    predicted_cost.main(["--check"])


def test_a_row_is_pairs_over_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    row = predicted_cost.Row("work", 1000, "preprocessing")
    assert row.cells()[1:3] == ["10", "280"]
    costs = {cost.what: cost for cost in predicted_cost.rows(10)}
    (epoch,) = [cost for work, cost in costs.items() if work.startswith("an epoch: GRU with")]
    figures = json.loads((predicted_cost.RESULTS / "updates_rivals_512.json").read_text())
    (speed,) = [
        figure["tokens_per_second"]
        for figure in figures["figures"]
        if (figure["what"], figure["candidate"]) == ("gru 512", "plugin")
    ]
    assert epoch.per_second == speed / 10


def test_another_table_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    page = tmp_path / "scale.md"
    page.write_text(predicted_cost.PAGE.read_text().replace("| an epoch: MUSE", "| MUSE"))
    monkeypatch.setattr(predicted_cost, "PAGE", page)
    with pytest.raises(SystemExit, match=r"is not what the figures say"):
        predicted_cost.main(["--check"])
    predicted_cost.main([])
    predicted_cost.main(["--check"])
