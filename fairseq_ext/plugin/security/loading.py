"""Read each checkpoint safely and only once, and run nothing that a file names.

The plugin makes fairseq read checkpoints with :mod:`fairseq_ext.checkpoints.storage`. A checkpoint
names its task, its architecture and hundreds of options. Before fairseq builds the model,
:mod:`fairseq_ext.checkpoints.registry_checks` checks that these names suit the command. If a forged
configuration still causes an error, it becomes one message that names the file. Like fairseq, the
plugin ignores a saved ``user_dir``, but reads the files that other options of a configuration name.

fairseq calls ``eval()`` on options and saved configurations in some 40 places. A checkpoint whose
option ``decoder_attention`` is ``__import__("os").system("…")`` would run that command when the
model is built. torch's safe loading accepts such a string, because it is plain data. So every
module of fairseq gets :func:`fairseq_ext.utils.literals.literal` under the name ``eval``, which
Python looks up first in the calling module. Other packages and user directories keep ``eval``.
"""

import os
import shlex
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from fairseq_ext.checkpoints import bundle, registry_checks, safe_load, storage
from fairseq_ext.checkpoints.layout import differences, ties
from fairseq_ext.checkpoints.safe_load import about
from fairseq_ext.plugin.checks.checkpoints import require_dictionaries
from fairseq_ext.plugin.patching import COMMANDS, acting, around, replaced, replacing
from fairseq_ext.text.checks import check_merges
from fairseq_ext.utils.archives import write_member
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError
from fairseq_ext.utils.literals import literal

PACKAGES = ("fairseq", "fairseq_cli")
BEFORE_BUILDING = "checkpoints are checked before models are built"  # a patch


@around("importlib.machinery:SourceFileLoader.exec_module", patch="no string is evaluated")
def _without_eval(original: Callable, self: Any, module: ModuleType) -> None:
    """Import a module of fairseq with an ``eval`` that reads only literals.

    If the module is a command, apply the patches to it after the import.

    Problem: fairseq calls eval() on strings of saved configurations, so that a checkpoint of plain
    data can run any command.
    """
    if module.__name__.partition(".")[0] not in PACKAGES:
        return original(self, module)
    module.eval = literal  # type: ignore[attr-defined]
    original(self, module)
    if module.__name__.startswith(COMMANDS):
        from fairseq_ext.plugin import patches  # imported late, because it imports this module

        patches.complete(module.__name__)


@acting("no string is evaluated")
def install() -> None:
    """Replace ``eval`` in fairseq's imported modules by a function that reads only literals."""
    for name, module in list(sys.modules.items()):
        if name == "__main__":
            name = getattr(getattr(module, "__spec__", None), "name", None) or ""
        if module is not None and name.partition(".")[0] in PACKAGES:
            module.eval = literal  # type: ignore[attr-defined]


@acting("checkpoints are plain data")
def _load_nothing_but_data() -> None:
    """Make every ``torch.load``, also in child processes, read only data and a few classes.

    Problem: Loading a checkpoint can run code from the file if torch.load gets weights_only=False
    (as in fairseq's own repository), or if TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set (as advised on
    the web). Otherwise torch refuses fairseq's checkpoints, which contain argparse.Namespace.
    """
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    safe_load.allow_classes()


@replacing("fairseq.checkpoint_utils:torch", patch="checkpoints are read safely")
def _torch_that_loads_safely(original: ModuleType) -> ModuleType:
    """Return a copy of the module torch with our ``load``, for ``load_checkpoint_to_cpu``.

    Problem: torch reads damaged files without an error, its error messages are pages long, and a
    pickle may fill all memory.
    """

    def load(file: IO[bytes], map_location: Any = None) -> dict[str, Any]:
        return storage.load(file.name)

    view = ModuleType("torch")
    vars(view).update(vars(original), load=load)
    return view


@around("fairseq.checkpoint_utils:load_checkpoint_to_cpu", patch=BEFORE_BUILDING)
def _check_checkpoint(original: Callable, path: str, *rest: Any, **options: Any) -> Any:
    """Read a checkpoint with all checks; also accept a bundle in place of a checkpoint.

    Problem: fairseq builds any architecture, task, criterion or size that a file names, and faults
    end in tracebacks.
    """
    from fairseq.file_io import PathManager

    with about(path):
        file = bundle.as_file(PathManager.get_local_path(path))
        registry_checks.require_registered(path, storage.peek(file).get("args"))
        return original(str(file), *rest, **options)


@around("fairseq.checkpoint_utils:load_model_ensemble_and_task", patch=BEFORE_BUILDING)
def _load_one_by_one(
    original: Callable,
    filenames: list[str],
    arg_overrides: dict[str, Any] | None = None,
    task: Any = None,
    strict: bool = True,
    suffix: str = "",
    num_shards: int = 1,
    state: dict[str, Any] | None = None,
) -> tuple[list[Any], Any, Any]:
    """Load models; check each file before a model is built, and name the file in every error."""
    from fairseq import checkpoint_utils as utils

    if num_shards > 1:  # each file has a part of the model
        return original(filenames, arg_overrides, task, strict, suffix, num_shards, state)
    models: list[Any] = []
    cfg = None
    for name in filenames:
        path = utils.get_maybe_sharded_checkpoint_filename(name, suffix, 0, num_shards)
        with about(path):
            loaded = state or utils.load_checkpoint_to_cpu(path, arg_overrides)
            if not (loaded.get("cfg") or loaded.get("args")):
                raise CheckpointError(
                    f"{path} has weights alone, without the options of its model, which are needed "
                    "to build the model. Give the file that fairseq-train wrote. To train from "
                    "these weights, give `fairseq-train --finetune-from-model` with those options."
                )
            registry_checks.require_fitting(loaded["cfg"], task, path)
            _require_memory(path, loaded["model"])
            try:
                with registry_checks.no_larger_than(loaded["model"]):
                    # without `args`, so that fairseq does not convert it to `cfg` again, in 0.5 s
                    configured = {**loaded, "args": None}
                    built, cfg, task = original(
                        [name], arg_overrides, task, strict, suffix, num_shards, configured
                    )
            except RuntimeError as error:
                if "loading state_dict" not in str(error):
                    raise
                require_dictionaries(task, loaded, path)
                raise CheckpointError(
                    f"{path} does not fit the model built for this data: "
                    f"{differences(str(error))}. Use the dictionaries it was trained with."
                ) from error
            require_dictionaries(task, loaded, path)
            _require_source_bos(path, cfg, task)
        models += built
    return models, cfg, task


def _require_memory(path: str, weights: dict[str, Any]) -> None:
    """Refuse a model whose weights would not fit into memory in fp32, before they are loaded."""
    tied = ties(weights)
    size = 4 * sum(weight.numel() for name, weight in weights.items() if name not in tied)
    remedy = "Make a bundle of it with `fairseq-ext bundle --numbers int8`"
    safe_load.require_memory(path, size, " for its weights in fp32", remedy)


def _require_source_bos(name: str, cfg: Any, task: Any) -> None:
    """Raise ConfigError if only the training, or only this run, has `--source-bos`.

    This option puts `<s>` before each source. ``cfg`` is the configuration in the checkpoint
    ``name``. fairseq-generate ignores the option in ``cfg``, and reads that of the command line.
    """
    trained, requested = (
        bool(getattr(getattr(owner, attribute, None), "source_bos", False))
        for owner, attribute in ((cfg, "task"), (task, "cfg"))
    )
    if trained and not requested:
        raise ConfigError(
            f"{name} was trained with `--source-bos`; give `--task translation_ext --source-bos`."
        )
    if requested and not trained:
        raise ConfigError(f"{name} was trained without `--source-bos`; leave it out.")


@around("fairseq_cli.validate:main", patch=BEFORE_BUILDING)
def _name_checkpoint(original: Callable, cfg: Any, *rest: Any, **options: Any) -> Any:
    """Make `fairseq-validate` name the checkpoint in errors about the criterion saved in it."""
    with about(getattr(cfg, "common_eval", cfg).path):  # callers may pass fairseq's flat options
        return original(cfg, *rest, **options)


@around("fairseq.logging.meters:MetersDict.load_state_dict", patch=BEFORE_BUILDING)
def _require_meters(original: Callable, self: Any, state_dict: Any) -> None:
    """Refuse meters of unknown kinds, because fairseq would call any function that a file names."""
    from fairseq.logging import meters

    for _, _, name, _ in state_dict:
        kind = getattr(meters, name, None) if isinstance(name, str) else None
        if not (isinstance(kind, type) and issubclass(kind, meters.Meter)):
            raise CheckpointError(f"has a meter of the unknown kind {name!r:.40}")
    original(self, state_dict)


@around(
    "fairseq.data.encoders.subword_nmt_bpe:SubwordNMTBPE.__init__",
    patch="merges are checked before they are read",
)
def _check_merges(original: Callable, self: Any, cfg: Any) -> None:
    """Check a file of BPE merges, then let subword-nmt read it.

    Problem: A damaged file of BPE merges, which a checkpoint may name, ends the program with the
    usage text of subword-nmt.
    """
    # fairseq itself downloads a URL, and reports missing codes.
    path = str(cfg.bpe_codes or "")
    if path and "://" not in path:
        check_merges(Path(path))
    original(self, cfg)


@around("fairseq.data.fasta_dataset:FastaDataset.__init__", patch="paths in a shell command")
def _check_path(original: Callable, self: Any, path: str, *rest: Any, **options: Any) -> None:
    """Open a FASTA data set; refuse its path if :func:`shlex.quote` would change it.

    Problem: The path of a FASTA data set becomes part of a shell command.
    """
    self.threadlocal = threading.local()  # the destructor reads it
    if shlex.quote(path) != path:
        raise DataError(
            f"the path of a FASTA data set must be of plain characters, but is {path!r}: "
            "fairseq makes it part of a shell command. Rename the folder."
        )
    original(self, path, *rest, **options)


@around("fairseq.file_utils:load_archive_file", patch="no code that data names")
def _unpack_inside(original: Callable, archive_file: str) -> Any:
    """Unpack an archive only within its folder; report a damaged or unsafe archive in one line.

    Another function of this patch, :func:`_refuse_speech`, refuses code from GitHub.

    Problem: An archive of a model can write files outside its folder. The data configuration of a
    speech model can name a repository on GitHub, whose code fairseq then runs.
    """
    try:
        with replaced(tarfile.TarFile, "extractall", _extract_all):
            return original(archive_file)
    except (tarfile.TarError, ValueError) as error:
        raise CheckpointError(
            f"{archive_file} is damaged or unsafe: {error}. Do not use it."
        ) from error


def _extract_all(tar: tarfile.TarFile, folder: str) -> None:
    for member in tar:
        write_member(tar, member, Path(folder))


@around(
    "fairseq.models.speech_to_text.hub_interface:S2THubInterface.get_prediction",
    patch="no code that data names",
)
def _refuse_speech(
    original: Callable, cls: type, *args: Any, synthesize_speech: bool = False, **options: Any
) -> Any:
    if synthesize_speech or len(args) > 5:  # that option is the sixth argument
        raise ConfigError(
            "`synthesize_speech` must be False: the model's data configuration names a "
            "repository whose code would be fetched and run. Load that model yourself."
        )
    return original(cls, *args, **options)
