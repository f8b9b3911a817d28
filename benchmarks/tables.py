"""Print benchmark figures as Markdown: ``python benchmarks/tables.py docs/results/x.json …``

The files are the JSON files of the benchmarks. There is a table for each measurement, such as
"forward", and a row for each n, such as a number of tokens. A row has the time (or memory) of every
model or system, and ratios of other times to ours, with the quartiles over all rounds.
"""

import argparse
import json
import sys
from pathlib import Path

from fairseq_ext.evaluation import tables

VALUES = {  # keys of figures, and their units in tables
    "peak_mib": "MiB",
    "us_per_token": "µs per token",
    "ms": "ms",
    "tokens_per_second": "tokens/s",
}


def rows_of(report: dict, measurement: str) -> list[list[str]]:
    """Return a measurement's table as texts of cells; the first row is the heading."""
    figures = [row for row in report["figures"] if row["what"] == measurement]
    ratios = [row for row in report["ratios"] if row["what"] == measurement]
    value = report.get("unit") or next(name for name in VALUES if name in figures[0])
    candidates = list(dict.fromkeys(row["candidate"] for row in figures))
    pairs = list(dict.fromkeys((row["candidate"], row["peer"]) for row in ratios))
    header = [
        report.get("axis", "n"),
        *(f"{name}, {VALUES[value]}" for name in candidates),
        *(f"{ours} against {peer}" for ours, peer in pairs),
    ]
    table = [header]
    for n in dict.fromkeys(row["n"] for row in figures):
        row_of = {row["candidate"]: row for row in figures if row["n"] == n}
        compared = {(row["candidate"], row["peer"]): row for row in ratios if row["n"] == n}
        table.append(
            [
                "" if n is None else f"{n:,}",
                *(number(row_of.get(name, {}).get(value)) for name in candidates),
                *(ratio(compared.get(pair)) for pair in pairs),
            ]
        )
    return table


def number(value: float | None) -> str:
    """Format a value: three significant digits, or a whole number from 100 on; None as a dash."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio(row: dict | None) -> str:
    """Format a ratio and its quartiles, such as "1.52× (1.48–1.55)", or None as a dash."""
    if row is None:
        return "–"
    return f"{row['ratio']:.2f}× ({row['ratio_low']:.2f}–{row['ratio_high']:.2f})"


def rows_of_systems(figures: list[dict]) -> list[list[str]]:
    """Return a table of engine_peers.py's figures; latencies are for batches of 1 sentence."""
    sizes = list(dict.fromkeys(row["batch"] for row in figures))
    batches = ", ".join(map(str, sizes))
    header = ["", "ms for a sentence: median, 99th percentile"]
    header += [f"tokens/s, batch of {size}" for size in sizes]
    header += [f"processor seconds for 1,000 tokens, batches of {batches}"]
    header += ["memory of the process, MiB", "model file, MiB"]
    header += [f"tokens equal to fp32, batches of {batches}"]
    table = [header]
    for system in dict.fromkeys(row["system"] for row in figures):
        cells = [row for row in figures if row["system"] == system]
        alone = next((row for row in cells if row["batch"] == 1), cells[0])
        table.append(
            [
                system,
                f"{alone['p50_ms']:.1f}, {alone['p99_ms']:.1f}",
                *(f"{row['tokens_per_second']:,.0f}" for row in cells),
                ", ".join(f"{row['processor_ms_per_token']:.2f}" for row in cells),
                f"{max(row['resident_mib'] for row in cells):,.0f}",
                f"{cells[0]['size_mib']:,.0f}",
                ", ".join(f"{row['equal']:.0%}" for row in cells),
            ]
        )
    return table


def markdown(report: dict) -> str:
    """Format all tables of a report, and its notes, as Markdown."""
    if "system" in report["figures"][0]:
        left = {size: round(count) for size, count in report.get("candidates", {}).items()}
        parts = [f"**{report['title']}**", tables.markdown(rows_of_systems(report["figures"]))]
        return "\n\n".join([*parts, f"- words left by the shortlist, by batch: {left}"])
    parts = [f"**{report['title']}**"]
    for measurement in dict.fromkeys(row["what"] for row in report["figures"]):
        parts += [f"{measurement}:", tables.markdown(rows_of(report, measurement))]
    parts.append("\n".join(f"- {text}" for text in report["notes"]))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("reports", type=Path, nargs="+", help="JSON files of the benchmarks")
    for path in parser.parse_args().reports:
        try:
            print(markdown(json.loads(path.read_text(encoding="utf-8"))), end="\n\n")
        except (KeyError, TypeError):
            sys.exit(f"tables: error: `{path}` has no figures over n.")


if __name__ == "__main__":
    main()
