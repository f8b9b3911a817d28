"""Healthy files from which the hostile ones are made: tiny, untrained, in both forms of options."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from fairseq_ext.checkpoints import storage
from fairseq_ext.model import write
from tests.support.models import SMALL

LSTM = [
    *("--encoder-embed-dim", "8", "--encoder-hidden-size", "8"),
    *("--decoder-embed-dim", "8", "--decoder-hidden-size", "8", "--decoder-out-embed-dim", "8"),
]
FCONV = [
    *("--encoder-embed-dim", "8", "--decoder-embed-dim", "8", "--decoder-out-embed-dim", "8"),
    *("--encoder-layers", "[(8, 3)]", "--decoder-layers", "[(8, 3)]"),
]
FLAGS: dict[str, list[str]] = {
    "lstm": LSTM,
    "transformer": SMALL,
    "fconv": FCONV,
    "lightconv": [*SMALL, "--encoder-kernel-size-list=[3]", "--decoder-kernel-size-list=[3]"],
    "muse": SMALL,
    "linformer": [*SMALL, "--linformer-k", "4", "--linformer-max-len", "22"],
    "bmt": SMALL,
}
TRAINING = ["--optimizer", "adam", "--batch-size", "50", "--cpu", "--max-update", "1"]


def train_words(name: str) -> list[str]:
    """The options of fairseq-train for a base."""
    return ["--arch", name, *FLAGS[name], *TRAINING]


def namespace(name: str, data: Path) -> Namespace:
    """The options of a base as the old form of checkpoints keeps them."""
    parser = options.get_training_parser()
    return options.parse_args_and_arch(parser, [str(data), *train_words(name)])


def checkpoint(name: str, data: Path, form: str = "cfg") -> dict[str, Any]:
    """What fairseq-train would save of an untrained model.

    Args:
        name: of ``FLAGS``.
        data: binarized.
        form: ``cfg`` or, as before fairseq 0.11, ``args``.
    """
    args = namespace(name, data)
    cfg = convert_namespace_to_omegaconf(args)
    model = tasks.setup_task(cfg.task).build_model(cfg.model)
    history = {"criterion_name": "CrossEntropyCriterion", "optimizer_name": "FairseqAdam"}
    history |= {"lr_scheduler_state": {}, "num_updates": 0}
    position = {"epoch": 1, "iterations_in_epoch": 0}
    held = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    return {
        "args": args if form == "args" else None,
        "cfg": plain(held) if form == "cfg" else None,
        "model": model.state_dict(),
        "criterion": None,
        "optimizer_history": [history],
        "task_state": {},
        "extra_state": {"train_iterator": position},
    }


def plain(cfg: dict[str, Any]) -> dict[str, Any]:
    """A configuration whose sections of legacy models are dictionaries, too."""
    return {k: dict(vars(v)) if isinstance(v, Namespace) else v for k, v in cfg.items()}


def bundled(path: Path, data: Path) -> None:
    """A bundle of ``bmt`` in bits, in a folder or an archive."""
    source = path.with_name(f"{path.name}.pt")
    storage.save(checkpoint("bmt", data), source)
    write.write(source, data, path, numbers="bits")
    source.unlink()
