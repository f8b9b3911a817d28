"""Train with fairseq's trainer for updates.py, as many updates at a time as it asks for.

``python benchmarks/updates_worker.py DATA FAIRSEQ_TRAIN_FLAG...`` reads lines from standard input
and answers them on standard output, as :func:`serve` describes.
"""

import itertools
import json
import logging
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

import torch


def batches(trainer: Any) -> Iterator[dict[str, Any]]:
    """Yield the corpus's batches, epoch after epoch without end, in fairseq's order."""
    for epoch in itertools.count(1):
        iterator = trainer.get_train_iterator(epoch=epoch)
        yield from iterator.next_epoch_itr(shuffle=True)


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.distributed import utils as distributed

    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, sys.argv[1:]))
    if "--user-dir" not in sys.argv:  # else stock fairseq takes --bf16 for a TPU and fails
        cfg.common.tpu = cfg.distributed_training.tpu = False
    # Start like fairseq-train, so that the plugin's repairs there (bf16 on a CPU) apply here.
    distributed.call_main(cfg, train, answers=answers)


def train(cfg: Any, answers: IO[str]) -> None:
    """Build model and trainer as fairseq-train does, and make updates by :func:`serve`."""
    from fairseq import tasks, utils
    from fairseq.logging import metrics
    from fairseq.trainer import Trainer

    logging.getLogger().setLevel(logging.WARNING)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    trainer = Trainer(cfg, task, model, criterion)

    train_step, losses = task.train_step, []

    def recorded(*args: Any, **kwargs: Any) -> Any:  # because the trainer logs rounded losses
        loss, sample_size, logged = train_step(*args, **kwargs)
        losses.append(loss.detach() / sample_size)
        return loss, sample_size, logged

    def update(sample: dict[str, Any]) -> torch.Tensor:
        trainer.train_step([sample])
        return losses.pop()

    task.train_step = recorded

    with metrics.aggregate("train_inner"):
        serve(batches(trainer), update, model, answers)


def serve(
    stream: Iterator[dict[str, Any]],
    update: Callable[[dict[str, Any]], float | torch.Tensor],
    model: torch.nn.Module,
    answers: IO[str],
) -> None:
    """Read numbers of updates from standard input, one per line, and make these updates.

    Each line is answered by a JSON object on a line of ``answers``:

    - ``seconds``: time of these updates, without data loading;
    - ``tokens``: target tokens of these updates;
    - ``losses``: loss of each update;
    - ``parameters``: number of the model's parameters;
    - ``mebibytes``: largest resident memory so far, and ``mebibytes_of_gpu`` the GPU's, if any.

    ``update`` makes an update on the next batch of ``stream`` and returns its loss.
    """
    for line in sys.stdin:
        samples = list(itertools.islice(stream, int(line)))  # data loading is not timed
        began = time.perf_counter()
        losses = [update(sample) for sample in samples]
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        answer = {
            "seconds": seconds,
            "tokens": sum(sample["ntokens"] for sample in samples),
            "losses": [float(loss) for loss in losses],  # later, as it waits for a GPU
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        if torch.cuda.is_available():
            answer["mebibytes_of_gpu"] = torch.cuda.max_memory_allocated() / 2**20
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    main()
