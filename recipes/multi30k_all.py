#!/usr/bin/env python
"""Read the trainings of ``multi30k_all.sh``: choose learning rates, and write the table of systems.

    python recipes/multi30k_all.py choose models/muse --updates 2000 --rates 0.001 0.002 0.004
    python recipes/multi30k_all.py report --dir runs/… --tests test --names transformer muse muse@2

``choose`` writes ``rates.json`` into the folder of a system, here ``models/muse``. It has the rate
with the lowest validation loss after ``--updates``, and the losses of all rates. ``report`` writes
``systems.json`` and ``systems.md``, with a row for each training. ``muse@2`` is the training of the
system ``muse`` with seed 2.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import write

from fairseq_ext.evaluation.score import TOKENIZED_BLEU, score_generated
from fairseq_ext.evaluation.tables import aligned, markdown
from fairseq_ext.evaluation.training_log import read_log, read_training
from fairseq_ext.text.generated import Postprocessor
from fairseq_ext.utils.errors import DataError
from fairseq_ext.utils.json_files import read_json

STOPPED_EARLY = "early stop since valid performance hasn't improved"  # fairseq's words
Row = dict[str, Any]


def choose(folder: Path, rates: Sequence[str], updates: int) -> Row:
    """Choose the learning rate whose training has the lowest validation loss.

    ``folder`` has a training ``rate-R`` for each R of ``rates``. The loss of a training is that of
    its last validation up to update ``updates``. Return the chosen ``rate``, ``updates``, and
    ``losses``, a dict from each rate to its loss. Raise DataError if a training has no such
    validation.
    """
    losses = {}
    for rate in rates:
        log = folder / f"rate-{rate}" / "train.log"
        valid = read_log(log).valid.get("loss", {})
        until = [update for update in valid if update <= updates]
        if not until:
            raise DataError(f"`{log}` has no validation up to update {updates}.")
        losses[rate] = valid[max(until)]
    return {"rate": min(losses, key=losses.__getitem__), "updates": updates, "losses": losses}


def training_row(name: str, models: Path, patience: int) -> Row:
    """Return the row of a training ``SYSTEM`` or ``SYSTEM@SEED``: size, length and why it ended.

    ``models`` is the folder of all trainings, and ``patience`` the value of ``--patience``.
    """
    folder, (system, _, seed) = models / name, name.partition("@")
    log = folder / "train.log"
    text = log.read_text(encoding="utf-8", errors="replace")
    training, valid = read_training(log), read_log(log).valid
    best = min(valid["loss"], key=valid["loss"].__getitem__)
    return {
        "system": system,
        "seed": int(seed or 1),
        "settings": (folder / "settings.txt").read_text(encoding="utf-8").strip().split("\n"),
        "rate": read_json(models / system / "rates.json")["rate"],
        "parameters": training.parameters,
        "updates": training.updates,
        "tokens": training.tokens,
        "seconds": round(training.seconds),
        "machine": read_json(folder / "machine.json"),
        "ended": f"no gain in {patience} validations" if STOPPED_EARLY in text else "all updates",
        "best_update": best,
        "validations_after_best": sum(update > best for update in valid["loss"]),
        "valid_loss": valid["loss"][best],
        "valid_perplexity": valid["ppl"][best],
    }


def scores(folder: Path, data: Path, test: str, tgt: str) -> list[Row]:
    """Score the training in ``folder`` on the test set ``test``: BLEU, chrF, and BLEU on tokens.

    ``data`` is the recipe's output folder.
    """
    results = score_generated(
        folder / test / "generated.txt",
        data / "reference" / f"{test}.{tgt}",
        data / "text" / f"{test}.{tgt}",
        Postprocessor.by_language(tgt),
    )
    return [score.as_dict() for score in results]


def table(rows: Sequence[Row], tests: Sequence[str]) -> list[list[str]]:
    """Return the table of systems: the heading, then a row for each training."""
    heading = ["system", "seed", "rate", "parameters", "updates", "million tokens", "minutes"]
    heading += ["ended by", "validations after the best", "valid perplexity"]
    lines = [[*heading, *(f"{kind}, {test}" for test in tests for kind in ("BLEU-tok", "BLEU"))]]
    for row in rows:
        cells = [row["system"], str(row["seed"]), row["rate"], f"{row['parameters']:,}"]
        cells += [f"{row['updates']:,}", f"{row['tokens'] / 1e6:.1f}", f"{row['seconds'] / 60:.0f}"]
        cells += [row["ended"], str(row["validations_after_best"])]
        cells.append(f"{row['valid_perplexity']:.2f}")
        for test in tests:
            by_name = {score["name"]: score["value"] for score in row["tests"].get(test, [])}
            for name in (TOKENIZED_BLEU, "BLEU"):
                cells.append(f"{by_name[name]:.2f}" if name in by_name else "–")
        lines.append(cells)
    return lines


def rates_table(grids: dict[str, Row]) -> list[list[str]]:
    """Return a table of validation losses, system by rate; the loss of the best rate is in bold."""
    rates = list(dict.fromkeys(rate for grid in grids.values() for rate in grid["losses"]))
    lines = [["system", *(f"rate {rate}" for rate in rates)]]
    for name, grid in grids.items():
        cells = {rate: f"{loss:.3f}" for rate, loss in grid["losses"].items()}
        cells[grid["rate"]] = f"**{cells[grid['rate']]}**"
        lines.append([name, *(cells.get(rate, "–") for rate in rates)])
    return lines


def as_markdown(rows: Sequence[Row], tests: Sequence[str], grids: dict[str, Row]) -> str:
    """Return the text of ``systems.md``.

    It has a table of systems, a table of the learning rates tried (``grids``), the signatures of
    the scores, and the machines.
    """
    scored = [
        score for row in rows for test_scores in row["tests"].values() for score in test_scores
    ]
    signatures = {score["name"]: score["signature"] for score in scored}
    machines = {_machine(row["machine"]): None for row in rows}
    updates = sorted({grid["updates"] for grid in grids.values()})
    return "\n\n".join(
        [
            "# All systems",
            markdown(table(rows, tests)),
            "“All updates” means that the training reached its limit of updates before the "
            "stopping rule ended it. The number of validations after the best shows whether the "
            "loss was still falling. Tokens are target tokens; minutes are those spent in updates.",
            f"## Validation loss after {' or '.join(f'{n:,}' for n in updates)} updates",
            markdown(rates_table(grids)),
            "Training continued with the best rate, which further seeds use too. A distilled "
            "system's loss is without label smoothing.",
            "\n".join(f"- {name}: `{signature}`" for name, signature in signatures.items()),
            "\n".join(f"- trained on {machine}" for machine in machines),
        ]
    )


def _machine(machine: Row) -> str:
    return machine["gpu"] or f"{machine['processor']}, {machine['threads']} thread(s)"


def report(args: argparse.Namespace) -> str:
    """Write ``systems.json`` and ``systems.md`` about all systems; return the tables as text."""
    models = args.dir / "models"
    rows = [training_row(name, models, args.patience) for name in args.names]
    for name, row in zip(args.names, rows, strict=True):
        row["checkpoint"] = f"average of the last {args.average} epochs, beam {args.beam}"
        row["tests"] = {
            test: scores(models / name, args.dir, test, args.tgt)
            for test in args.tests
            if (models / name / test / "generated.txt").exists()
        }
    systems = dict.fromkeys(row["system"] for row in rows)
    grids = {name: read_json(models / name / "rates.json") for name in systems}
    write(args.dir / "systems.json", json.dumps({"systems": rows, "rates": grids}, indent=1))
    write(args.dir / "systems.md", as_markdown(rows, args.tests, grids))
    return f"{aligned(rates_table(grids))}\n\n{aligned(table(rows, args.tests))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    rate = commands.add_parser("choose", help="choose the best learning rate of a system")
    rate.add_argument("folder", type=Path, help="the system's folder")
    rate.add_argument("--updates", type=int, required=True, help="updates after which to compare")
    rate.add_argument("--rates", nargs="+", required=True, help="rates, as in the folders' names")
    end = commands.add_parser("report", help="write the table of all systems")
    end.add_argument("--dir", type=Path, required=True, help="output folder of multi30k_all.sh")
    end.add_argument("--names", nargs="+", required=True, help="finished trainings")
    end.add_argument("--tests", nargs="+", required=True, help="test sets")
    end.add_argument("--tgt", default="de", help="target language (%(default)s)")
    for option, default in (("patience", 10), ("average", 10), ("beam", 5)):
        end.add_argument(f"--{option}", type=int, default=default, help="as trained and translated")
    args = parser.parse_args()
    try:
        if args.command == "choose":
            choice = choose(args.folder, args.rates, args.updates)
            write(args.folder / "rates.json", json.dumps(choice, indent=1))
        else:
            print(report(args))
    except (OSError, ValueError, LookupError) as error:
        sys.exit(f"multi30k_all: error: {error}")


if __name__ == "__main__":
    main()
