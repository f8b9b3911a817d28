"""A training of fairseq's that makes updates when asked: one side of a comparison in updates.py.

``python -m tests.gpu.train_worker DATA FAIRSEQ_TRAIN_FLAG...``. It prepares everything and answers
``{}``; each line ``[UPDATES, SECONDS]`` on standard input then asks for at most that much, and is
answered by a line of JSON.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import time
from typing import IO, Any

import torch


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.distributed import utils as distributed

    stock = "--user-dir" not in sys.argv
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, sys.argv[1:]))
    if stock and cfg.common.bf16 and "STOCK_AS_IT_IS" not in os.environ:
        # fairseq takes --bf16 for a TPU; without this, stock has nothing to be compared with
        cfg.common.tpu = cfg.distributed_training.tpu = False
    distributed.call_main(cfg, train, answers=answers)


def train(cfg: Any, answers: IO[str]) -> None:
    """Build the trainer as fairseq-train does, and serve updates."""
    from fairseq import tasks, utils
    from fairseq.logging import metrics
    from fairseq.trainer import Trainer

    logging.getLogger().setLevel(logging.WARNING)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    trainer = Trainer(cfg, task, model, criterion)
    iterator = trainer.get_train_iterator(epoch=1).next_epoch_itr(shuffle=False)
    samples = list(itertools.islice(iterator, 24))
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(len(samples), generator=generator).tolist()
    train_step, losses = task.train_step, []

    def recorded(*args: Any, **kwargs: Any) -> Any:  # what the trainer logs is rounded
        loss, sample_size, logged = train_step(*args, **kwargs)
        losses.append((loss.detach(), sample_size))
        return loss, sample_size, logged

    task.train_step = recorded
    cuda = trainer.cuda
    stream = (samples[place] for place in itertools.cycle(order))
    print("{}", file=answers, flush=True)
    with metrics.aggregate("train_inner"):
        for line in sys.stdin:
            limit, seconds = json.loads(line)
            losses.clear()
            tokens = updates = 0
            began = time.perf_counter()
            while updates < limit and time.perf_counter() - began < seconds:
                sample = next(stream)
                trainer.train_step([sample])
                tokens, updates = tokens + sample["ntokens"], updates + 1
            if cuda:
                torch.cuda.synchronize()
            answer = {"seconds": time.perf_counter() - began, "tokens": tokens, "updates": updates}
            answer["losses"] = [float(loss) / float(size) for loss, size in losses]
            if cuda:
                answer["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
