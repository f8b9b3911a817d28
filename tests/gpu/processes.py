"""Step 6: from the GPU to the CPU, resuming, and two processes on one GPU."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from torch.distributed.elastic.utils.distributed import get_free_port

from tests.gpu.material import Command, base, binarize, log_lines
from tests.gpu.results import Results, arguments
from tests.support.harness import hypotheses
from tests.support.trainings import load

HALF, ALL = 10, 20
TRAINING = "--optimizer adam --lr 0.001 --criterion label_smoothed_cross_entropy "
TRAINING += "--label-smoothing 0.1 --dropout 0.1 --num-workers 0 --clip-norm 1.0 --seed 1 "
TRAINING += "--no-epoch-checkpoints --disable-validation --log-format json --log-interval 1"


def training_of(options: Namespace, data: Path, model: str, precision: str) -> list[object]:
    """Flags of a short training of a small model."""
    flags = base(tiny=True)[model]
    flags += [] if precision == "fp32" else [f"--{precision}"]
    flags += ["--cpu"] if options.tiny else []
    return ["train", data, *flags, *TRAINING.split(), "--max-tokens", 400]


def largest_difference(left: Path, other: Path) -> float:
    ours, theirs = load(left)["model"], load(other)["model"]
    return max((ours[name].float() - theirs[name].float()).abs().max().item() for name in ours)


class Case:
    """One model in one precision: trained in one go, and again from the middle.

    Args:
        options: of the step.
        data: binarized corpus.
        model, precision: which.
    """

    def __init__(self, options: Namespace, data: Path, model: str, precision: str) -> None:
        self.options, self.data, self.name = options, data, f"{model} {precision}"
        self.training = training_of(options, data, model, precision)
        self.folder = options.work / "processes" / self.name.replace(" ", "-")
        self.middle = self.folder / "straight" / f"checkpoint_1_{HALF}.pt"
        self.last = self.folder / "straight" / "checkpoint_last.pt"
        words = [*self.training, "--save-dir", self.folder / "straight", "--max-update", ALL]
        words += ["--save-interval-updates", HALF]
        self.straight = Command(self.folder / "straight.log", *words)

    def go_on(self) -> None:
        """Start what needs the checkpoints."""
        words = [*self.training, "--save-dir", self.folder / "resumed", "--max-update", ALL]
        log = self.folder / "resumed.log"
        self.resumed = Command(log, *words, "--restore-file", self.middle)
        words = ["generate", self.data, "--path", self.last, "--beam", 4, "--max-len-b", 20]
        self.on_cpu = Command(self.folder / "cpu.log", *words, "--cpu")
        self.on_gpu = Command(
            self.folder / "gpu.log", *words, *(["--cpu"] if self.options.tiny else [])
        )

    def resume(self, limit: float) -> dict[str, Any]:
        """Whether the resumed training ends with the same weights and losses."""
        resumed = log_lines(self.resumed.wait(limit), "train_inner")
        straight = log_lines(self.straight.log.read_text(), "train_inner")
        last = self.folder / "resumed" / "checkpoint_last.pt"
        return {
            "largest_difference_of_weights": largest_difference(self.last, last),
            "losses": [line["loss"] for line in resumed][-3:],
            "losses_in_one_go": [line["loss"] for line in straight][-3:],
        }

    def move(self, limit: float) -> dict[str, Any]:
        """Whether the CPU finds the GPU's translations from the GPU's checkpoint."""
        on_gpu, on_cpu = (hypotheses(run.wait(limit)) for run in (self.on_gpu, self.on_cpu))
        same = sum(ours == theirs for ours, theirs in zip(on_gpu, on_cpu, strict=True))
        return {"sentences": len(on_gpu), "same": same}


def start_pair(options: Namespace, data: Path, backend: str, ddp: str) -> list[Command]:
    """Start two processes of a job, both on the first GPU."""
    folder = options.work / "processes" / f"{backend}-{ddp}"
    words = [*training_of(options, data, "transformer", "fp32"), "--max-update", HALF]
    words += ["--distributed-backend", backend, "--ddp-backend", ddp, "--save-dir", folder]
    words += ["--distributed-world-size", 2]  # fairseq's default is the number of GPUs here
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(get_free_port()), "WORLD_SIZE": "2"}
    return [
        Command(folder / f"{rank}.log", *words, **job, RANK=str(rank), LOCAL_RANK="0")
        for rank in range(2)
    ]


def finish_pair(commands: list[Command], reference: Command, limit: float) -> dict[str, Any]:
    """Losses of the pair, and of one process that adds up two batches."""
    try:
        output, _ = [command.wait(limit) for command in commands]
    finally:
        for command in commands:
            command.process.kill()
            command.process.wait()
    losses = [line["loss"] for line in log_lines(output, "train_inner")]
    alone = log_lines(reference.wait(limit), "train_inner")
    return {"losses": losses, "losses_of_one_process": [line["loss"] for line in alone]}


def main() -> None:
    options = arguments("processes")
    results = Results("processes", options)
    data = binarize(options.work / "small", sentences=400, vocabulary=100, mean=8)
    models = ("gru",) if options.tiny else ("transformer", "gru", "bmt-1")
    pairs = [("gloo", "legacy_ddp")] if options.tiny else [
        ("gloo", "legacy_ddp"), ("gloo", "pytorch_ddp"), ("nccl", "pytorch_ddp")
    ]  # fmt: skip
    precisions = ("fp32",) if options.tiny else ("fp32", "bf16", "fp16")
    cases = [
        Case(options, data, model, precision)
        for model in models
        for precision in precisions
        if not results.has(f"resume {model} {precision}")
        and (model == "transformer" or precision == "fp32" or options.tiny)
    ]
    reference = Command(
        options.work / "processes" / "alone.log",
        *training_of(options, data, "transformer", "fp32"),
        *("--max-update", HALF, "--update-freq", 2),
        *("--save-dir", options.work / "processes" / "alone"),
    )
    jobs = {" ".join(pair): start_pair(options, data, *pair) for pair in pairs}
    started = []
    for case in cases:
        try:
            case.straight.wait(results.left)
            case.go_on()
            started.append(case)
        except RuntimeError as error:
            results.add(f"resume {case.name}", error=str(error))
    for case in started:
        results.measure(f"resume {case.name}", lambda case=case: case.resume(results.left))
        results.measure(f"to CPU {case.name}", lambda case=case: case.move(results.left))
    for name, commands in jobs.items():
        results.measure(
            f"two processes {name}",
            lambda commands=commands: finish_pair(commands, reference, min(45, results.left)),
        )
    results.finish()


if __name__ == "__main__":
    main()
