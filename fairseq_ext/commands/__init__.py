"""The subcommands of ``fairseq-ext``, listed here by purpose.

A subcommand has a module with its name (``scaling_fit.py`` for ``scaling-fit``). The module's
function ``add(commands)`` adds a parser, and sets the parser's default ``run``: a function that
takes the parsed arguments, and may return an exit status. So that ``--help`` is fast, only ``run``
imports more than argparse and the like.

``MODULES`` names the module of each subcommand that has none of its own. There the function
``add_NAME`` adds the subcommand NAME.

An architecture keeps its own subcommands in its folder ``commands``. The architecture's
``__init__.py`` lists them in ``COMMANDS``, which has the form of ``GROUPS``, and its pictures for
``plot`` in ``PICTURES``.
"""

import argparse
import importlib
from itertools import groupby
from typing import NamedTuple

from fairseq_ext.base import wings
from fairseq_ext.utils.parsing import Parser

GROUPS: dict[str, tuple[str, ...]] = {
    "installation": ("user-dir", "doctor"),
    "text": ("corpus", "prepare", "subwords", "binarize"),
    "translating": ("models", "translate", "serve", "demo", "hypotheses", "mbr", "shortlist"),
    "evaluation": ("score", "compare", "plot"),
    "models": ("average", "bundle", "trim", "describe", "export", "push"),
}
"""Headings of ``fairseq-ext --help``, and the subcommands below each."""
MODULES = {
    **dict.fromkeys(("trim", "describe", "export", "push", "models"), "bundle"),
    **dict.fromkeys(("prepare", "subwords", "binarize"), "corpus"),
    "mbr": "hypotheses",
    "user-dir": "doctor",
}
"""The module of each subcommand that has no module of its own."""

EXAMPLES = {
    "user-dir": 'fairseq-train data-bin --user-dir "$(fairseq-ext user-dir)" --arch gru_attention',
    "doctor": "fairseq-ext doctor --patches",
    "corpus": "fairseq-ext corpus pairs --help",
    "corpus multi30k": "fairseq-ext corpus multi30k -o multi30k",  # one of the published corpora
    "corpus tatoeba": "fairseq-ext corpus tatoeba --src es --tgt en -o text",
    "corpus pairs": "fairseq-ext corpus pairs --source my.de --target my.en --src de --tgt en "
    "-o text",
    "corpus translations": "fairseq-ext corpus translations po/ --src en --tgt de -o pairs.tsv",
    "corpus contamination": "fairseq-ext corpus contamination test.en --training train.en",
    "corpus noise": "fairseq-ext corpus noise test.de --kind typos --seed 1 -o test.typos.de",
    "corpus monolingual": "fairseq-ext corpus monolingual --data text --src de --tgt en "
    "--language en -o plain.en",
    "corpus mix": "fairseq-ext corpus mix --data text --src de --tgt en --source back.de "
    "--target plain.en -o mixed --tag '<BT>'",
    "prepare": "fairseq-ext prepare --data text --src de --tgt en --tokenize -o prepared",
    "subwords": "fairseq-ext subwords prepared --src de --tgt en --size 8000 -o bpe",
    "binarize": "fairseq-ext binarize bpe --src de --tgt en --shards 20 -o data-bin",
    "models": "fairseq-ext models",
    "translate": "fairseq-ext translate --model tatoeba-es-en 'Hola. ¿Cómo estás?'",
    "serve": "fairseq-ext serve tatoeba-es-en tatoeba-en-es --port 5000",
    "demo": "fairseq-ext demo muse=tatoeba-es-en bmt=tatoeba-es-en-bmt-1",
    "hypotheses": "fairseq-ext hypotheses generated.txt --detokenize en -o hypotheses.en",
    "mbr": "fairseq-ext mbr generated.txt --num-candidates 32 --utility chrf -o chosen.en",
    "shortlist": "fairseq-ext shortlist data-bin -o shortlist.txt",
    "score": "fairseq-ext score --hyp hypotheses.en --ref test.en",
    "compare": "fairseq-ext compare --system gru=a.txt --system muse=b.txt --ref test.en",
    "plot": "fairseq-ext plot curves --help",
    "plot curves": "fairseq-ext plot curves --log runs/gru --log muse=muse/train.log -o curves.png",
    "plot alignment": "fairseq-ext plot alignment generated.txt --index 0 1 -o alignment.png",
    "plot lengths": "fairseq-ext plot lengths --system gru=a.txt --system muse=b.txt "
    "--ref test.en -o lengths.png",
    "average": "fairseq-ext average --dir checkpoints --last-epochs 5 -o average.pt",
    "bundle": "fairseq-ext bundle checkpoints/average.pt --numbers int8 -o my-model",
    "trim": "fairseq-ext trim en-de --for train.en train.de -o en-de-small",
    "push": "fairseq-ext push my-model my-name/my-model",
    "describe": "fairseq-ext describe tatoeba-es-en",
    "export": "fairseq-ext export tatoeba-es-en -o model.pt",
}
"""An example of each subcommand, shown at the end of its ``--help``."""


class Command(NamedTuple):
    """A subcommand of ``fairseq-ext``, whose module is imported only when needed."""

    group: str  # the heading below which `--help` lists the subcommand
    name: str  # the name that users type
    module: str  # the full name of its module, such as ``fairseq_ext.commands.doctor``


def all_commands() -> list[Command]:
    """List all subcommands by group, in the order of ``--help``."""
    packages = [(__name__, GROUPS)]
    packages += [(f"{wing}.commands", groups) for wing, groups in wings.declared("COMMANDS")]
    return [
        Command(group, name, f"{package}.{MODULES.get(name, name).replace('-', '_')}")
        for group in GROUPS
        for package, groups in packages
        for name in groups.get(group, ())
    ]


def add_all(parser: Parser, only: str | None = None) -> None:
    """Add every subcommand to a parser, and list them by group in its ``--help``.

    If ``only`` is the name of a subcommand, add this subcommand alone.
    """
    commands = all_commands()
    commands = [command for command in commands if command.name == only] or commands
    subparsers = parser.add_subparsers(
        prog=parser.prog,
        metavar="COMMAND",
        help=argparse.SUPPRESS,  # listed by group instead
    )
    for command in commands:
        function = f"add_{command.name.replace('-', '_')}" if command.name in MODULES else "add"
        getattr(importlib.import_module(command.module), function)(subparsers)
    _add_examples(subparsers.choices)
    # argparse itself has a single heading for all subcommands.
    lines = zip(commands, subparsers._choices_actions, strict=True)
    for group, pairs in groupby(lines, key=lambda pair: pair[0].group):
        parser.add_argument_group(group)._group_actions += [line for _, line in pairs]


def _add_examples(parsers: dict[str, Parser], prefix: str = "") -> None:
    """Set the examples that the parsers show; ``prefix`` is "plot " for ``plot curves``."""
    for name, parser in parsers.items():
        parser.example = EXAMPLES.get(f"{prefix}{name}", parser.example)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                _add_examples(action.choices, f"{name} ")
