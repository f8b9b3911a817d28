"""``fairseq-ext models``: list the trained models that come with the plugin."""

from __future__ import annotations

import argparse
from typing import Any

from fairseq_ext.commands import options


def add(commands: options.Subparsers) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "models",
        help="list the trained models that come with the plugin",
        description="List the trained models that come with the plugin: languages, architecture "
        "and size. `translate --model`, `serve` and `demo` take their names.",
    )
    options.add_json(parser, "the list")
    parser.set_defaults(run=_models)


def _models(args: argparse.Namespace) -> int:
    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.model import find_model

    rows: list[dict[str, Any]] = []
    for name in find_model.shipped():
        model = bundle.read(find_model.SHIPPED / name)
        size = sum(path.stat().st_size for path in model.folder.iterdir() if path.is_file())
        rows.append({"name": name, "src": model.src, "tgt": model.tgt})
        rows[-1] |= {"architecture": model.architecture, "bytes": size}
    options.write_json(args.json, rows)
    if not rows:
        print("none: this installation was built without models (FAIRSEQ_EXT_WITHOUT_MODELS)")
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        languages = f"{row['src']} → {row['tgt']}"
        megabytes = f"{row['bytes'] / 1e6:.1f} MB"
        print(f"{row['name']:<{width}}  {languages}  {megabytes:>8}  {row['architecture']}")
    return 0
