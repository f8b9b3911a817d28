"""Subcommands for trained models as bundles: bundle, trim, describe, export, push and models.

A bundle is a folder with all that translation needs: the model's weights and dictionaries, and the
steps between text and tokens.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from fairseq_ext.commands import options
from fairseq_ext.decoding.search import DATA_HELP, MODEL_DEFAULTS, Search, SearchOptions
from fairseq_ext.engine import NUMBERS
from fairseq_ext.utils.errors import ConfigError, wrong_value
from fairseq_ext.utils.files import is_special, require_new
from fairseq_ext.utils.option_fields import add_options, specified

OUTPUT = "bundle to write: a folder, or an archive if named OUT.zip or OUT.tar.zst"


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "bundle",
        help="pack a trained model, with all that it needs, into one folder",
        description="Write weights, options, dictionaries, text steps and a model card into one "
        "folder or archive. A bundle can be used wherever a checkpoint can, and nothing in it is "
        "pickled. Average checkpoints first.",
        example="fairseq-ext bundle checkpoints/average.pt --numbers int8 -o my-model",
    )
    option = parser.add_argument
    option(
        "model",
        type=Path,
        metavar="CHECKPOINT",
        help="checkpoint, folder of a run, published model, or bundle; a bundle is copied with its "
        "card, and options change the copy",
    )
    option("--data", type=Path, metavar="DIR", help=DATA_HELP)
    option("--src", metavar="LANG", help="source language, if the model has many")
    option("--tgt", metavar="LANG", help="target language, if the model has many")
    option(
        "--numbers",
        choices=(*NUMBERS, "bits", "bits-int8"),
        help="number format of the weights; bits: one bit for each binary weight, 1.6 for each "
        "ternary weight, fp32 for all others; bits-int8: like bits, but embeddings and output "
        "projection in int8 (default: fp32, or the format of the bundle)",
    )
    option(
        "--shortlist",
        type=Path,
        metavar="FILE",
        help="file of `fairseq-ext shortlist` to include (default: the bundle's own)",
    )
    option("--about", metavar="TEXT", help="text about model and data for the model card")
    option(
        "--licence",
        metavar="NAME",
        help="licence of the model (default: unknown, or the bundle's licence)",
    )
    option(
        "--scores",
        type=Path,
        metavar="FILE",
        help="JSON of `fairseq-ext score` or `fairseq-ext compare`, for the model card",
    )
    option("--system", metavar="NAME", help="system in the file of --scores, if it has several")
    group = parser.add_argument_group("default search options")
    add_options(group, SearchOptions, MODEL_DEFAULTS)
    options.add_output(parser, "OUT", OUTPUT)
    parser.set_defaults(run=_bundle, makes_folder=True)


def _bundle(args: argparse.Namespace) -> None:
    from fairseq_ext import register
    from fairseq_ext.checkpoints import bundle, layout, storage
    from fairseq_ext.decoding.loading import data_of, model_of

    bundle.require_kind(args.output)
    register()
    from fairseq_ext.evaluation.score import read_scores
    from fairseq_ext.model import write
    from fairseq_ext.model.card import Card, score_table
    from fairseq_ext.text.cleaning import one_spaced

    if args.system is not None and args.scores is None:
        raise ConfigError("`--system` goes with `--scores`, which is missing.")
    scores = read_scores(args.scores, args.system) if args.scores else []
    checkpoint = model_of(args.model, args.src, args.tgt)
    search = specified(args, MODEL_DEFAULTS)
    Search(**search)  # refuses wrong values
    source_bundle = bundle.read(checkpoint) if bundle.is_bundle(checkpoint) else None
    task = layout.options(storage.peek(checkpoint), "task")
    for flag, asked, side in (("--src", args.src, "source"), ("--tgt", args.tgt, "target")):
        trained = task.get(f"{side}_lang")
        if asked not in (None, trained):
            raise wrong_value(flag, f"{trained} for {args.model}", asked)
    changes = (args.data, args.numbers, args.shortlist, args.about, args.licence, scores, search)
    if source_bundle and not any(changes):
        written = write.copy(source_bundle, args.output)
    else:
        numbers = args.numbers or (source_bundle.numbers if source_bundle else "fp32")
        card = write.card_of(source_bundle) if source_bundle else Card()
        if scores:
            card = replace(card, table=score_table(scores))
        elif source_bundle and source_bundle.numbers != numbers:
            card = replace(card, table="")  # its scores are those of other weights
        about, licence = args.about or card.about, one_spaced(args.licence or card.licence)
        written = write.write(
            checkpoint,
            args.data or data_of(checkpoint),
            args.output,
            numbers=numbers,
            shortlist=args.shortlist,
            search={**(source_bundle.search if source_bundle else {}), **search},
            card=replace(card, about=about, licence=licence),
        )
    parts = args.output.iterdir() if args.output.is_dir() else [args.output]
    size = sum(path.stat().st_size for path in parts)
    print(
        f"{args.output}: {written.architecture}, {written.src} to {written.tgt}, "
        f"{written.numbers}, {size:,} bytes"
    )


def _add_model(parser: argparse.ArgumentParser, more: str = "") -> None:
    parser.add_argument(
        "model",
        type=Path,
        metavar="BUNDLE",
        help="bundle: a folder, an archive, the name of a model that comes with the plugin, or "
        f"ORG/NAME[@REVISION] on the Hugging Face Hub{more}",
    )


def add_trim(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "trim",
        help="remove the symbols of a bundle that your texts do not need",
        description="Write a smaller bundle, with only the symbols that your texts need: their "
        "tokens, single characters, language tokens and fairseq's special symbols. The rows of all "
        "other symbols are removed from embeddings and output projection. The logits of the "
        "remaining tokens do not change.",
        example="fairseq-ext trim en-de --for train.en train.de -o en-de-small",
    )
    _add_model(parser, "; `fairseq-ext bundle` makes one from another model")
    parser.add_argument(
        "--for",
        dest="texts",
        type=Path,
        action="extend",
        nargs="+",
        required=True,
        metavar="TEXT",
        help="raw text in both languages, in files whose names end in the code of their language "
        "(train.es, train.en.gz)",
    )
    options.add_output(parser, "OUT", OUTPUT)
    parser.set_defaults(run=_trim, makes_folder=True)


def _trim(args: argparse.Namespace) -> None:
    from fairseq_ext import register
    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.model import find_model

    bundle.require_kind(args.output)
    source = bundle.read(find_model.existing_bundle(args.model, "trimmed"))
    register()
    from fairseq_ext.model.trim import trim

    print(f"{args.output}: {trim(source, args.texts, args.output)}")


def add_describe(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "describe",
        help="check a bundle, and list its parts and their sizes",
        description="Read and check a bundle; print its architecture, languages, text steps and "
        "operations, and the bytes of each kind of data.",
        example="fairseq-ext describe tatoeba-es-en",
    )
    _add_model(parser)
    options.add_json(parser, "the sizes")
    parser.set_defaults(run=_describe)


def _describe(args: argparse.Namespace) -> None:
    from fairseq_ext.model import find_model
    from fairseq_ext.model.describe import as_table, describe

    path = find_model.existing_bundle(args.model, "described")
    report = describe(path)
    options.write_json(args.json, report)
    print(as_table(report))


def add_export(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "export",
        help="turn a bundle into a checkpoint, or into a model for another tool",
        description="Write a checkpoint that fairseq can train further, generate with and average. "
        "It has the bundle's weights: fp32 and bf16 exactly, int8 and bits as they were rounded. "
        "With --to, write a model of fairseq's Transformer for CTranslate2 or "
        "for Hugging Face's transformers instead, with its dictionaries as tokenizer. That model "
        "reads tokens, which fairseq_ext.text.pipeline makes from text by the text.json in OUT.",
        example="fairseq-ext export tatoeba-es-en -o model.pt",
    )
    _add_model(parser, "; with --to also a checkpoint, the folder of a run or a published model")
    output = "checkpoint to write, without optimizer state; with --to a new folder"
    options.add_output(parser, "OUT", output)
    tools = ("ctranslate2", "huggingface")
    parser.add_argument("--to", choices=tools, help="tool that will run the model")
    parser.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> None:
    if args.to is None:
        from fairseq_ext.checkpoints import bundle, storage
        from fairseq_ext.model import find_model

        path = find_model.existing_bundle(args.model, "exported")
        if not is_special(args.output):
            require_new(args.output)
        checkpoint = storage.load(path)
        storage.save(checkpoint, args.output)
        numbers = bundle.read(path).numbers
        print(f"{len(checkpoint['model'])} tensors in {args.output}, as stored in {numbers}")
        return
    from fairseq_ext.decoding.loading import data_of, model_of

    path = model_of(args.model)
    data = data_of(path)
    from fairseq_ext import register

    register()
    from fairseq_ext.model.other_tools import export_to

    architecture = export_to(args.to, path, data, args.output)
    print(f"{args.output}: the {architecture} of {path} for {args.to}")


def add_push(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "push",
        help="put a bundle onto the Hugging Face Hub",
        description="Put a bundle onto the Hugging Face Hub in one commit, which also deletes "
        "files that only the previous bundle has. Log in first, with `hf auth login` or HF_TOKEN. "
        "Then `fairseq-ext translate --path ORG/NAME@COMMIT` translates with it anywhere.",
        example="fairseq-ext push my-model my-name/my-model",
    )
    option = parser.add_argument
    option("bundle", type=Path, metavar="BUNDLE", help="output of `fairseq-ext bundle`")
    option("name", metavar="ORG/NAME", help="name on the Hub; created if it does not exist")
    option("--private", action="store_true", help="hide a new repository from others")
    option("--message", metavar="TEXT", help="commit message (default: languages and architecture)")
    parser.set_defaults(run=_push)


def _push(args: argparse.Namespace) -> None:
    from fairseq_ext.model import find_model

    commit = find_model.push(args.bundle, args.name, private=args.private, message=args.message)
    print(f"{args.name}@{commit}")


def add_models(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "models",
        help="list the trained models that come with the plugin",
        description="List the trained models that come with the plugin: languages, architecture "
        "and size. `translate --model`, `serve` and `demo` take their names.",
        example="fairseq-ext models",
    )
    options.add_json(parser, "the list")
    parser.set_defaults(run=_models)


def _models(args: argparse.Namespace) -> None:
    from fairseq_ext.checkpoints import bundle
    from fairseq_ext.evaluation import tables
    from fairseq_ext.model import find_model

    rows, cells = [], []
    for name in find_model.shipped():
        model = bundle.read(find_model.SHIPPED / name)
        size = sum(path.stat().st_size for path in model.folder.iterdir() if path.is_file())
        about = {"src": model.src, "tgt": model.tgt, "architecture": model.architecture}
        rows.append({"name": name, **about, "bytes": size})
        languages, megabytes = f"{model.src} → {model.tgt}", f"{size / 1e6:.1f} MB"
        cells.append([name, languages, f"{megabytes:>8}", model.architecture])
    options.write_json(args.json, rows)
    none = "none: this installation was built without models (FAIRSEQ_EXT_WITHOUT_MODELS)"
    print(tables.aligned(cells) or none)
