"""Every command that reads a checkpoint or a bundle, as words or as a call."""

import importlib
import sys
from pathlib import Path

from tests.hostile.bases import train_words
from tests.support.harness import USER_DIR

PLUGIN = "--user-dir PLUGIN"
BATCHES = "--batch-size 50 --cpu --num-workers 0"
SHORT = "--beam 1 --max-len-b 3 --cpu"
TRAINING = f"DATA {' '.join(train_words('lstm'))} --save-dir SAVE --no-save"
TRAINING += f" --num-workers 0 --disable-validation {PLUGIN}"
COMMANDS = {
    "fairseq-generate": f"DATA --path FILE {SHORT} --gen-subset valid --num-workers 0 {PLUGIN}",
    "fairseq-interactive": f"DATA --path FILE --input TEXT {SHORT} {PLUGIN}",
    "fairseq-validate": f"DATA --path FILE --task translation {BATCHES} {PLUGIN}",
    "fairseq-eval-lm": f"MONOLINGUAL --path FILE {BATCHES} {PLUGIN}",
    "fairseq-train --restore-file": f"FILE {TRAINING}",
    "fairseq-train --finetune-from-model": f"FILE {TRAINING}",
    "fairseq-train --teacher": f"FILE {TRAINING} --criterion distillation",
    "fairseq-ext bundle": "FILE --data DATA --beam 2 -o FOLDER",
    "fairseq-ext export": "FILE --output OUT",
    "fairseq-ext describe": "FILE",
    "fairseq-ext translate": "DATA --path FILE --input TEXT --cpu --beam 1",
    "fairseq-ext average": "--inputs FILE FILE --output OUT",
    "fairseq-ext mbr": "FILE --num-candidates 2 --output OUT",
    "fairseq-ext hypotheses": "FILE --output OUT",
    "demo: load": "FILE DATA",
    "hub: from_pretrained": "FILE DATA",
}
"""The words behind each command's name, with capitals for the paths of :func:`words_of`."""


def words_of(command: str, path: Path, data: Path, out: Path) -> list[str]:
    """Return a command on a file and binarized data; write its other inputs to an empty folder."""
    (out / "input").write_text("1 2 3\n")
    monolingual = out / "lm"
    monolingual.mkdir()
    for ending in ("bin", "idx"):
        (monolingual / f"test.{ending}").symlink_to(data / f"test.src-tgt.src.{ending}")
    (monolingual / "dict.txt").symlink_to(data / "dict.src.txt")
    paths = {"FILE": path, "DATA": data, "MONOLINGUAL": monolingual, "PLUGIN": USER_DIR}
    paths |= {"TEXT": out / "input", "OUT": out / "out.pt"}
    paths |= {"FOLDER": out / "bundle", "SAVE": out / "save"}
    words = [*command.split(), *COMMANDS[command].split()]
    return [str(paths.get(word, word)) for word in words]


BUNDLES_ALONE = {"fairseq-ext export", "fairseq-ext describe"}
"""Commands that refuse every checkpoint without reading it."""
PAUSES = {
    "fairseq-generate": "fairseq.checkpoint_utils:load_model_ensemble",
    "fairseq-interactive": "fairseq.checkpoint_utils:load_model_ensemble",
    "fairseq-validate": "fairseq_cli.validate:main",
    "fairseq-eval-lm": "fairseq.distributed.utils:call_main",
    "fairseq-train --restore-file": "fairseq.checkpoint_utils:load_checkpoint",
    "fairseq-train --finetune-from-model": "fairseq.checkpoint_utils:load_checkpoint",
    "fairseq-train --teacher": "fairseq_ext.binary.distillation:load_teacher",
    "fairseq-ext translate": "fairseq_ext.decoding.loading:open_model",
    "demo: load": "fairseq_ext.decoding.loading:open_model",
}
"""The functions with which commands begin to read the file; others read at once."""
MODULES = {
    f"fairseq-{name.replace('_', '-')}": f"fairseq_cli.{name}"
    for name in ("generate", "interactive", "validate", "eval_lm", "train")
}


def run(words: list[str]) -> None:
    """Run a command in this process, as its console script does; it ends with ``SystemExit``."""
    sys.argv = words
    name = words[0]
    if name == "demo:":
        _load_for_demo(*words[2:])
    elif name == "hub:":
        _load_from_hub(*words[2:])
    elif name == "fairseq-ext":
        from fairseq_ext import cli

        cli.main(words[1:])
    else:
        importlib.import_module(MODULES[name]).cli_main()


def _load_for_demo(path: str, data: str) -> None:
    from fairseq_ext.commands import demo
    from fairseq_ext.decoding.search import SearchOptions
    from fairseq_ext.demo import systems

    (named,) = systems.parse_systems([f"X={path}"], Path(data))
    demo.load(named, demo.Request([], search=SearchOptions(cpu=True)))  # no text is translated


def _load_from_hub(path: str, data: str) -> None:
    from fairseq.models.transformer import TransformerModel

    folder, name = Path(path).parent, Path(path).name
    TransformerModel.from_pretrained(str(folder), checkpoint_file=name, data_name_or_path=data)
