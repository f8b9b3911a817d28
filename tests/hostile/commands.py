"""Every command that reads a checkpoint or a bundle, as words or as a call."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from tests.hostile.bases import train_words
from tests.support.harness import USER_DIR

Command = Callable[[Path, Path, Path], list[str]]
"""From a file, the binarized data and an empty folder to the words of the command."""

PLUGIN = ["--user-dir", str(USER_DIR)]


def _generate(path: Path, data: Path, out: Path) -> list[str]:
    searched = ["--beam", "1", "--max-len-b", "3", "--gen-subset", "valid", "--num-workers", "0"]
    return ["fairseq-generate", str(data), "--path", str(path), "--cpu", *searched, *PLUGIN]


def _interactive(path: Path, data: Path, out: Path) -> list[str]:
    text = out / "input"
    text.write_text("1 2 3\n")
    words = ["--input", str(text), "--beam", "1", "--max-len-b", "3", "--cpu"]
    return ["fairseq-interactive", str(data), "--path", str(path), *words, *PLUGIN]


def _validate(path: Path, data: Path, out: Path) -> list[str]:
    words = ["--task", "translation", "--batch-size", "50", "--cpu", "--num-workers", "0"]
    return ["fairseq-validate", str(data), "--path", str(path), *words, *PLUGIN]


def _eval_lm(path: Path, data: Path, out: Path) -> list[str]:
    monolingual = out / "lm"
    monolingual.mkdir()
    for ending in ("bin", "idx"):
        (monolingual / f"test.{ending}").symlink_to(data / f"test.src-tgt.src.{ending}")
    (monolingual / "dict.txt").symlink_to(data / "dict.src.txt")
    words = ["--batch-size", "50", "--cpu", "--num-workers", "0"]
    return ["fairseq-eval-lm", str(monolingual), "--path", str(path), *words, *PLUGIN]


def _train(option: str, *arguments: str) -> Command:
    def words(path: Path, data: Path, out: Path) -> list[str]:
        settings = [*train_words("lstm"), "--num-workers", "0", "--no-save", "--disable-validation"]
        named = [option, str(path), "--save-dir", str(out / "save"), *arguments]
        return ["fairseq-train", str(data), *settings, *named, *PLUGIN]

    return words


def _ours(name: str, *options: str) -> Command:
    """A subcommand of ours; ``FILE``, ``DATA`` and ``OUT`` stand for the paths."""

    def words(path: Path, data: Path, out: Path) -> list[str]:
        stands = {
            "FILE": path,
            "DATA": data,
            "OUT": out / "out.pt",
            "FOLDER": out / "bundle",
            "TEXT": out / "input",
        }
        (out / "input").write_text("1 2 3\n")
        return ["fairseq-ext", name, *(str(stands.get(word, word)) for word in options)]

    return words


COMMANDS: dict[str, Command] = {
    "fairseq-generate": _generate,
    "fairseq-interactive": _interactive,
    "fairseq-validate": _validate,
    "fairseq-eval-lm": _eval_lm,
    "fairseq-train --restore-file": _train("--restore-file"),
    "fairseq-train --finetune-from-model": _train("--finetune-from-model"),
    "fairseq-train --teacher": _train("--teacher", "--criterion", "distillation"),
    "fairseq-ext bundle": _ours("bundle", "FILE", "--data", "DATA", "--beam", "2", "-o", "FOLDER"),
    "fairseq-ext export": _ours("export", "FILE", "--output", "OUT"),
    "fairseq-ext describe": _ours("describe", "FILE"),
    "fairseq-ext translate": _ours(
        "translate", "DATA", "--path", "FILE", "--input", "TEXT", "--cpu", "--beam", "1"
    ),
    "fairseq-ext average": _ours("average", "--inputs", "FILE", "FILE", "--output", "OUT"),
    "fairseq-ext mbr": _ours("mbr", "FILE", "--num-candidates", "2", "--output", "OUT"),
    "fairseq-ext hypotheses": _ours("hypotheses", "FILE", "--output", "OUT"),
    "demo: load": lambda path, data, out: ["demo", str(path), str(data)],
    "hub: from_pretrained": lambda path, data, out: ["hub", str(path), str(data)],
}


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
    "fairseq-ext translate": "fairseq_ext.model.trained:load",
    "demo: load": "fairseq_ext.model.trained:load",
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
    if name == "demo":
        _load_for_demo(*words[1:])
    elif name == "hub":
        _load_from_hub(*words[1:])
    elif name == "fairseq-ext":
        from fairseq_ext import cli

        cli.main(words[1:])
    else:
        importlib.import_module(MODULES[name]).cli_main()


def _load_for_demo(path: str, data: str) -> None:
    from fairseq_ext.decoding.search import Search
    from fairseq_ext.demo import systems

    (named,) = systems.parse_systems([f"X={path}"], Path(data))
    search = Search(cpu=True, attention=True)
    systems.load(named, lambda _: search, lambda *_: None)  # no text is translated


def _load_from_hub(path: str, data: str) -> None:
    from fairseq.models.transformer import TransformerModel

    folder, name = Path(path).parent, Path(path).name
    TransformerModel.from_pretrained(str(folder), checkpoint_file=name, data_name_or_path=data)
