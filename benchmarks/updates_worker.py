"""One side of updates.py: a training of fairseq's that makes as many updates as each line asks.

``python benchmarks/updates_worker.py DATA FAIRSEQ_TRAIN_FLAG...``; a number on standard input is
answered by one line of JSON on standard output.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch


def batches(trainer: Any) -> Iterator[list[dict[str, Any]]]:
    """Batches of the corpus for ever, in fairseq's order."""
    for epoch in itertools.count(1):
        iterator = trainer.get_train_iterator(epoch=epoch)
        for sample in iterator.next_epoch_itr(shuffle=True):
            yield [sample]


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    from fairseq import options, tasks, utils
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.logging import metrics
    from fairseq.trainer import Trainer

    words = sys.argv[1:]
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
    logging.getLogger().setLevel(logging.WARNING)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    trainer = Trainer(cfg, task, model, criterion)
    stream = batches(trainer)
    for line in sys.stdin:
        samples = list(itertools.islice(stream, int(line)))  # data loading is not what is timed
        tokens, losses = 0, []
        began = time.perf_counter()
        with metrics.aggregate("train_inner"):
            for sample in samples:
                logged = trainer.train_step(sample)
                losses.append(float(logged["loss"]))
                tokens += sample[0]["ntokens"]
        seconds = time.perf_counter() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        answer = {"seconds": seconds, "tokens": tokens, "losses": losses, "mebibytes": memory}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    main()
