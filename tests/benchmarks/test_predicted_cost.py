"""The table of predicted cost is what the figures say."""

import json

import predicted_cost
import pytest


def test_the_page_has_the_table() -> None:
    predicted_cost.main(["--check"])


def test_a_row_is_pairs_over_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted_cost, "rows", lambda tokens: [("work", 1000, "preprocessing")])
    assert "| work | 10 | 280 | " in predicted_cost.table(10)
    monkeypatch.undo()
    (speed_of_rows,) = [
        per_second
        for work, per_second, _ in predicted_cost.rows(10)
        if work.startswith("an epoch: GRU with")
    ]
    figures = json.loads((predicted_cost.RESULTS / "updates_rivals_512.json").read_text())
    (speed,) = [
        figure["tokens_per_second"]
        for figure in figures["figures"]
        if (figure["what"], figure["candidate"]) == ("gru 512", "plugin")
    ]
    assert speed_of_rows == speed / 10


def test_another_table_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    page = tmp_path / "scale.md"
    page.write_text(predicted_cost.PAGE.read_text().replace("| an epoch: MUSE", "| MUSE"))
    monkeypatch.setattr(predicted_cost, "PAGE", page)
    with pytest.raises(SystemExit, match=r"is not what the figures say"):
        predicted_cost.main(["--check"])
    predicted_cost.main([])
    predicted_cost.main(["--check"])
