"""Loading and saving: whole, safe, and of the architecture that was asked for."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fairseq_ext import files
from fairseq_ext.compat import wrap
from fairseq_ext.errors import CheckpointError, ConfigError, EnvironmentProblem


def install() -> None:
    """Wrap the functions that read and write checkpoints."""
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    wrap(checkpoint_utils, "load_checkpoint_to_cpu", _load_checkpoint_to_cpu)
    wrap(checkpoint_utils, "load_model_ensemble_and_task", _load_model_ensemble_and_task)
    wrap(checkpoint_utils, "load_checkpoint", _load_checkpoint)
    wrap(checkpoint_utils, "torch_persistent_save", _persistent_save)
    wrap(checkpoint_utils, "_torch_persistent_save", _save_once)
    wrap(Trainer, "load_checkpoint", _trainer_load_checkpoint)


def _load_checkpoint_to_cpu(original: Callable) -> Callable:
    from fairseq.file_io import PathManager

    def load_checkpoint_to_cpu(path: str, *rest: Any, **options: Any) -> Any:
        files.load_checkpoint(PathManager.get_local_path(path))
        return original(path, *rest, **options)

    return load_checkpoint_to_cpu


def _load_model_ensemble_and_task(original: Callable) -> Callable:
    def load_model_ensemble_and_task(filenames: list[str], *rest: Any, **options: Any) -> Any:
        try:
            models, cfg, task = original(filenames, *rest, **options)
        except OSError as error:
            if not str(error).startswith("Model file not found"):
                raise
            name = str(error).partition(": ")[2]
            raise CheckpointError(f"checkpoint {name} does not exist; check `--path`.") from error
        except RuntimeError as error:
            if "loading state_dict" not in str(error):
                raise
            raise CheckpointError(
                f"{', '.join(filenames)} does not fit the model built for this data: "
                f"{differences(str(error))}. Use the dictionaries it was trained with."
            ) from error
        _refuse_other_sources(", ".join(filenames), cfg, task)
        return models, cfg, task

    return load_model_ensemble_and_task


def _refuse_other_sources(name: str, cfg: Any, task: Any) -> None:
    """fairseq-generate and -interactive take the task's options from the command line alone."""
    trained, given = (
        bool(getattr(getattr(owner, attribute, None), "source_bos", False))
        for owner, attribute in ((cfg, "task"), (task, "cfg"))
    )
    if trained and not given:
        raise ConfigError(
            f"{name} was trained with `--source-bos`; give `--task translation_ext --source-bos`."
        )
    if given and not trained:
        raise ConfigError(f"{name} was trained without `--source-bos`; leave it out.")


def _load_checkpoint(original: Callable) -> Callable:
    from fairseq.file_io import PathManager

    def load_checkpoint(cfg: Any, trainer: Any, **options: Any) -> Any:
        default = cfg.restore_file == "checkpoint_last.pt"
        for option, path in (
            ("--restore-file", None if default else cfg.restore_file),
            ("--finetune-from-model", cfg.finetune_from_model),
        ):
            suffix = f"{trainer.checkpoint_suffix or ''}.pt"
            if path and not any(map(PathManager.exists, (path, path.replace(".pt", suffix)))):
                # fairseq would start from random weights without a word
                raise CheckpointError(f"`{option}` names {path}, which does not exist.")
        return original(cfg, trainer, **options)

    return load_checkpoint


def _trainer_load_checkpoint(original: Callable) -> Callable:
    def load_checkpoint(self: Any, filename: str, *rest: Any, **options: Any) -> Any:
        try:
            return original(self, filename, *rest, **options)
        except AssertionError as error:  # another criterion or optimizer
            raise CheckpointError(f"{filename}: {error}") from error
        except Exception as error:
            if not str(error).startswith("Cannot load model parameters"):
                raise
            theirs = architecture(files.load_checkpoint(filename))
            ours = architecture({"cfg": {"model": self.cfg.model}})
            asked = f"`{ours}` was" if ours != theirs else "other options were"
            raise CheckpointError(
                f"{filename} holds the architecture `{theirs}`, but {asked} asked for; "
                f"{differences(str(error.__context__))}. Give the options it was trained with, "
                "or another `--save-dir`."
            ) from error

    return load_checkpoint


def _persistent_save(original: Callable) -> Callable:
    def torch_persistent_save(obj: Any, filename: str, *rest: Any, **options: Any) -> None:
        try:
            original(obj, filename, *rest, **options)
        except (OSError, RuntimeError) as error:  # torch reports some failed writes as the latter
            reason: BaseException | None = error
            while reason is not None and not isinstance(reason, OSError):
                reason = reason.__context__
            if reason is None:
                raise
            raise EnvironmentProblem(files.explain(reason, f"the checkpoint {filename}")) from error

    return torch_persistent_save


def _save_once(original: Callable) -> Callable:
    """fairseq tries three times, each behind the broken bytes of the one before, and logs this."""

    def _torch_persistent_save(obj: Any, f: Any) -> None:
        import torch

        torch.save(obj, f)

    return _torch_persistent_save


def architecture(state: dict[str, Any]) -> str:
    """The name of the architecture a checkpoint was trained with, or `unknown`."""
    model = (state.get("cfg") or {}).get("model") or state.get("args") or {}
    fields = vars(model) if isinstance(model, Namespace) else model
    return str(fields.get("arch") or fields.get("_name") or "unknown")


def differences(report: str, most: int = 2) -> str:
    """What torch reports on a state that does not fit, in one line: a few names of each kind."""
    shapes = re.findall(r"size mismatch for (\S+): .*?Size\((.*?)\).*?Size\((.*?)\)", report)
    kinds = {"other sizes": [f"{key} {theirs}, not {ours}" for key, theirs, ours in shapes]}
    for heading, kind in (("Missing", "not in it"), ("Unexpected", "only in it")):
        listed = re.search(rf"{heading} key\(s\) in state_dict: (.*)", report)
        kinds[kind] = re.findall(r'"([^"]+)"', listed[1]) if listed else []
    return "; ".join(f"{kind}: {_some(keys, most)}" for kind, keys in kinds.items() if keys)


def _some(names: list[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
