#!/usr/bin/env python
"""Predict the classes of a test set and compute their accuracy.

python recipes/linformer/classify_scores.py predict --bin bin --checkpoint C.pt --out FILE
python recipes/linformer/classify_scores.py report --dir RUN --title TEXT
python recipes/linformer/classify_scores.py compare RUN…
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from scipy.stats import binomtest
from sklearn.metrics import precision_recall_fscore_support

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from report import aligned, markdown, read_training, stage_seconds, times, write


def predict(data: Path, checkpoint: Path, batch_size: int) -> list[str]:
    """Predict the most probable label of each test sentence, in the order of the text."""
    import torch
    from fairseq import utils
    from fairseq.checkpoint_utils import load_model_ensemble_and_task

    from fairseq_ext import register

    register()
    overrides = {"data": str(data)}
    (model,), _, task = load_model_ensemble_and_task([str(checkpoint)], arg_overrides=overrides)
    cuda = torch.cuda.is_available()
    model = model.eval().cuda() if cuda else model.eval()
    task.load_dataset("test")
    sentences = task.dataset("test")
    batches = task.get_batch_iterator(
        sentences, max_sentences=batch_size, max_positions=model.max_positions()
    ).next_epoch_itr(shuffle=False)
    classes = task.label_dictionary
    predictions: dict[int, str] = {}
    with torch.no_grad():
        for batch in batches:
            batch = utils.move_to_cuda(batch) if cuda else batch
            head = task.cfg.classification_head_name
            logits, _ = model(**batch["net_input"], classification_head_name=head)
            best = logits.argmax(1) + classes.nspecial
            for index, label in zip(batch["id"].tolist(), best.tolist(), strict=True):
                predictions[index] = classes[label]
    return [predictions[index] for index in range(len(sentences))]


def score(truth: Sequence[str], guesses: Sequence[str]) -> dict:
    """Compute how well ``guesses`` agree with the labels ``truth``. All scores are in per cent.

    Return a dict:

    - ``accuracy``, and ``interval``, its 95 % interval (Wilson 1927);
    - ``macro_f1``: the mean of the classes' F1;
    - ``largest_class``: the percentage of the most frequent label in ``truth``;
    - ``lines``: the number of sentences;
    - ``classes``: for each label a dict of ``precision``, ``recall``, ``f1`` and ``lines``. A class
      that was never predicted has a precision of 0.
    """
    right = sum(label == guess for label, guess in zip(truth, guesses, strict=True))
    interval = binomtest(right, len(truth)).proportion_ci(method="wilson")
    labels = sorted({*truth, *guesses})
    columns = precision_recall_fscore_support(truth, guesses, labels=labels, zero_division=0)
    classes = {
        label: {"precision": 100 * p, "recall": 100 * r, "f1": 100 * f1, "lines": int(lines)}
        for label, p, r, f1, lines in zip(labels, *columns, strict=True)
    }
    return {
        "accuracy": 100 * right / len(truth),
        "interval": (100 * interval.low, 100 * interval.high),
        "macro_f1": sum(figures["f1"] for figures in classes.values()) / len(classes),
        "largest_class": 100 * Counter(truth).most_common(1)[0][1] / len(truth),
        "lines": len(truth),
        "classes": classes,
    }


def report(folder: Path, title: str) -> str:
    """Write ``results.json`` and ``results.md`` of a run; return the tables as text."""
    truth = _lines(folder / "text" / "test.label")
    predictions = _lines(folder / "predicted.label")
    if len(predictions) != len(truth):
        raise ValueError(
            f"`{folder}/predicted.label` must have a line for each of the {len(truth)} test "
            f"sentences, but has {len(predictions)} lines."
        )
    scores = score(truth, predictions)
    training = read_training(folder / "checkpoints" / "train.log")
    seconds = stage_seconds(folder)
    low, high = scores["interval"]
    rows = [
        ("accuracy", f"{scores['accuracy']:.2f}", f"95 % interval {low:.2f} to {high:.2f}"),
        ("macro-F1", f"{scores['macro_f1']:.2f}", f"mean over {len(scores['classes'])} classes"),
        ("largest class", f"{scores['largest_class']:.2f}", "accuracy of always guessing it"),
        ("parameters", f"{training.parameters:,}", ""),
        ("updates", f"{training.updates:,}", f"{training.seconds:.0f} s in updates"),
        ("wall time", f"{sum(seconds.values()):,} s", times(seconds)),
    ]
    classes = [("class", "precision", "recall", "F1", "lines")]
    for label, row in scores["classes"].items():
        rates = (f"{row[name]:.2f}" for name in ("precision", "recall", "f1"))
        classes.append((label, *rates, str(row["lines"])))
    figures = {"title": title, **scores, **asdict(training), "stages": seconds}
    write(folder / "results.json", json.dumps(figures, ensure_ascii=False, indent=2))
    table = markdown([("", "figure", "remark"), *rows])
    write(folder / "results.md", f"# {title}\n\n{table}\n\n## Classes\n\n{markdown(classes)}")
    return f"{aligned(classes)}\n\n{title}\n\n{aligned(rows)}"


def compare(runs: Sequence[Path]) -> str:
    """Return a table that compares finished runs, a row for each."""
    rows = [("run", "accuracy", "95 % interval", "macro-F1", "parameters", "updates", "s")]
    for run in runs:
        results = json.loads((run / "results.json").read_text(encoding="utf-8"))
        low, high = results["interval"]
        rows.append(
            (
                run.name,
                f"{results['accuracy']:.2f}",
                f"{low:.2f} to {high:.2f}",
                f"{results['macro_f1']:.2f}",
                f"{results['parameters']:,}",
                f"{results['updates']:,}",
                f"{results['seconds']:.0f}",
            )
        )
    return aligned(rows)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    predicting = commands.add_parser("predict", help="predict the labels of the test set")
    predicting.add_argument("--bin", type=Path, required=True, help="folder with input0 and label")
    predicting.add_argument("--checkpoint", type=Path, required=True)
    predicting.add_argument("--batch-size", type=int, default=64)
    predicting.add_argument(
        "--out", type=Path, required=True, help="file with a label on each line"
    )
    reporting = commands.add_parser("report", help="write the table of one run")
    reporting.add_argument("--dir", type=Path, required=True, help="the run's folder")
    reporting.add_argument("--title", required=True)
    comparing = commands.add_parser("compare", help="compare finished runs in a table")
    comparing.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    args = parser.parse_args()
    try:
        if args.command == "predict":
            labels = predict(args.bin, args.checkpoint, args.batch_size)
            write(args.out, "\n".join(labels))
        elif args.command == "report":
            print(report(args.dir, args.title))
        else:
            print(compare(args.runs))
    except (OSError, ValueError, RuntimeError) as error:
        sys.exit(f"classify_scores: error: {error}")


if __name__ == "__main__":
    main()
