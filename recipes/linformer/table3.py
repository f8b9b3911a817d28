#!/usr/bin/env python
"""Compare test perplexity and BLEU with Table 3 of the Linformer paper.

python recipes/linformer/table3.py perplexity validate.log -o perplexity.json
python recipes/linformer/table3.py table RUN… --out RUN
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from report import aligned, markdown, write

from fairseq_ext.utils.errors import EnvironmentProblem

# Model, PPL (test), BLEU (test); the paper does not say which tool computed BLEU.
PAPER = (
    ("paper: Transformer", 3.41, 29.92),
    ("paper: Linformer (k=32)", 3.96, 30.08),
    ("paper: Linformer (k=64)", 3.84, 27.74),
)
VALID = re.compile(r"\| loss (\S+) \|(?:.* \|)? ppl (\S+)")


def write_perplexity(log: Path, out: Path) -> None:
    """Write the perplexity that ``fairseq-validate`` printed, in the format of ``scores.json``.

    Perplexity is 2 to the power of the mean loss, in bits, of all target tokens and ``</s>``.
    """
    matches = VALID.findall(log.read_text(encoding="utf-8"))
    if len(matches) != 1:
        raise ValueError(
            f"`{log}` must have one line with `loss` and `ppl`, but has {len(matches)}."
        )
    loss, perplexity = matches[0]
    score = {
        "name": "PPL",
        "value": float(perplexity),
        "signature": "fairseq-validate, per BPE token with </s>",
        "detail": f"loss {float(loss)} bits per token",
    }
    write(out, json.dumps({"scores": [score]}, indent=2))


def table(runs: Sequence[Path], out: Path) -> str:
    """Write a table of finished runs and of the paper's models to ``out``; return it as text."""
    ours = []
    for run in runs:
        results = json.loads((run / "results.json").read_text(encoding="utf-8"))
        values = {score["name"]: score["value"] for score in results["scores"]}
        name = (run / "model.txt").read_text(encoding="utf-8").strip()
        ours.append((name, values["PPL"], values["BLEU"]))
    figures = [
        {"model": name, "ppl_test": perplexity, "bleu_test": bleu}
        for name, perplexity, bleu in (*ours, *PAPER)
    ]
    rows = [("Model", "PPL (test)", "BLEU (test)")]
    rows += [(name, f"{ppl:.2f}", f"{bleu:.2f}") for name, ppl, bleu in (*ours, *PAPER)]
    write(out / "table3.json", json.dumps(figures, ensure_ascii=False, indent=2))
    write(out / "table3.md", markdown(rows))
    return aligned(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    perplexity_parser = commands.add_parser(
        "perplexity", help="read the perplexity from fairseq-validate's output"
    )
    perplexity_parser.add_argument("log", type=Path)
    perplexity_parser.add_argument("-o", "--output", type=Path, required=True)
    table_parser = commands.add_parser("table", help="compare finished runs with the paper")
    table_parser.add_argument("runs", type=Path, nargs="+")
    table_parser.add_argument(
        "--out", type=Path, required=True, help="folder for table3.json and .md"
    )
    args = parser.parse_args()
    try:
        if args.command == "perplexity":
            write_perplexity(args.log, args.output)
        else:
            print(table(args.runs, args.out))
    except (OSError, ValueError, KeyError, EnvironmentProblem) as error:
        sys.exit(f"table3: error: {error}")


if __name__ == "__main__":
    main()
