"""Step 5: Multi30k, English to German, all systems at once on one GPU in bf16, while time lasts."""

import re
import subprocess
import tarfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from tests.gpu.material import Command, binarize, log_lines
from tests.gpu.results import Results, arguments
from tests.support.harness import REPO, hypotheses

SYSTEMS = REPO / "recipes" / "systems.sh"
EXTRA = {"linformer-32": "--linformer-k 32", "bmt": "--bmt-preset float"}
NAMES = ("transformer", "muse", "bmt", "muse-simple", "linformer-32", "gru", "lstm", "binary")
SEEDS = ("transformer@2", "muse@2", "gru@2", "linformer-32@2")
# Seconds left for translation and until the first update; twelve processes start in up to 45.
GENERATION, START = 60, 45
TRAINING = "--optimizer adam --lr-scheduler inverse_sqrt --lr 0.005 --clip-norm 1.0 "
TRAINING += "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout 0.3 "
TRAINING += "--no-epoch-checkpoints --no-last-checkpoints --num-workers 0 --log-format json "
TRAINING += "--log-interval 20 --max-update 8000"


def matched_flags() -> dict[str, list[str]]:
    """Flags of the recipes' systems of matched size."""
    script = f'source "{SYSTEMS}"; for n in "${{!matched[@]}}"; do echo "$n ${{matched[$n]}}"; done'
    output = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
    flags = {}
    for line in output.stdout.splitlines():
        name, arch, *words = line.split()
        flags[name] = ["--arch", arch, *words]
    return flags


def data_of(options: Namespace) -> Path:
    """The carried corpus; in a tiny run one made on the spot, unless an archive is there."""
    folder = options.work / "multi30k"
    if options.data is not None and options.data.exists():
        folder.mkdir(exist_ok=True)
        with tarfile.open(options.data) as archive:
            archive.extractall(folder, filter="data")
        return folder
    if options.tiny:
        return binarize(options.work / "small", sentences=400, vocabulary=100, mean=8)
    raise FileNotFoundError(f"{options.data} is not there; CONTRIBUTING.md says what to carry")


def start(options: Namespace, data: Path, name: str, flags: list[str], hours: float) -> Command:
    """Start the training of a system, or of another seed of it."""
    system, _, seed = name.partition("@")
    words = ["train", data, *flags, *EXTRA.get(system, "").split(), *TRAINING.split()]
    words += ["--stop-time-hours", hours, "--seed", seed or "1"]
    words += ["--save-dir", options.work / "models" / name]
    if options.tiny:
        words += ["--cpu", "--max-tokens", "600", "--warmup-updates", "10", "--max-update", "12"]
    else:
        words += ["--bf16", "--max-tokens", "8192", "--warmup-updates", "400"]
    return Command(options.work / "models" / f"{name}.log", *words)


def translate(options: Namespace, data: Path, name: str) -> Command:
    """Start the translation of the validation set by the best checkpoint."""
    path = options.work / "models" / name / "checkpoint_best.pt"
    words = ["generate", data, "--path", path, "--gen-subset", "valid", "--beam", "5"]
    words += ["--remove-bpe", "--max-len-b", "50", "--batch-size", "256"]
    words += ["--cpu"] if options.tiny else []
    return Command(options.work / "models" / f"{name}.generated", *words)


def results_of(training: Command, translation: Command, limit: float) -> dict[str, Any]:
    """Validation losses, updates and BLEU of a system; no BLEU if its translation is late."""
    log = training.log.read_text(errors="replace")
    valid = log_lines(log, "valid")
    try:
        output = translation.wait(limit)
    except RuntimeError as error:
        output = ""
        print(error)
    bleu = re.search(r"BLEU4? = ([\d.]+)", output)
    return {
        "valid_bleu_of_tokens": float(bleu[1]) if bleu else None,
        "updates": int(valid[-1]["valid_num_updates"]),
        "valid_losses": [float(line["valid_loss"]) for line in valid],
        "sentences": len(hypotheses(output)),
    }


def main() -> None:
    options = arguments("multi30k")
    results = Results("multi30k", options)
    results.content["setting"] = TRAINING
    data, flags = data_of(options), matched_flags()
    names = ("gru",) if options.tiny else (*NAMES, *SEEDS)
    names = [name for name in names if not results.has(name)]
    seconds = results.left - GENERATION - START
    if seconds < 30 and not options.tiny:
        raise SystemExit(f"{results.left:.0f} s are too few for a training and a translation.")
    trainings = {}
    for name in names:
        system = name.partition("@")[0]
        matched = flags[system.removesuffix("-32")]
        trainings[name] = start(options, data, name, matched, max(seconds, 5) / 3600)
    failed = set()
    for name, training in trainings.items():
        try:
            training.wait(results.left - GENERATION)
        except RuntimeError as error:
            if not (options.work / "models" / name / "checkpoint_best.pt").exists():
                results.add(name, error=str(error))
                failed.add(name)
    names = [name for name in names if name not in failed]
    translations = {name: translate(options, data, name) for name in names}
    for name in names:
        results.measure(
            name,
            lambda name=name: results_of(trainings[name], translations[name], results.left - 2),
        )
    results.finish()


if __name__ == "__main__":
    main()
