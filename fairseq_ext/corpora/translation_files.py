"""Read pairs from files of translations, such as TMX; count the pairs that are left out."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from fairseq_ext.corpora.command_lines import TranslationOptions
from fairseq_ext.corpora.markup import Rules
from fairseq_ext.corpora.readers import Reader, Segment, catalogues, two_files, xml_files
from fairseq_ext.text.reading import MAGIC
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.files import keep_inputs, sha256, write_all

# The reader of each format, and the endings of its files' names.
FORMATS: dict[str, tuple[Reader, tuple[str, ...]]] = {
    "po": (catalogues.po, (".po",)),
    "mo": (catalogues.mo, (".mo",)),
    "tmx": (xml_files.tmx, (".tmx",)),
    "xliff": (xml_files.xliff, (".xlf", ".xliff")),
    "wmt": (xml_files.wmt_xml, (".xml",)),
    "sgm": (two_files.sgm, (".sgm",)),
    "help": (two_files.help_pages, ()),
    "lines": (two_files.lines, ()),
}
TWO_SIDED = ("sgm", "help", "lines")  # formats with a file or folder for each language


def accepted(
    segments: Iterable[Segment], rules: Rules, counts: Counter[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield source, target and document of each segment that is kept.

    A segment is left out if it has a ``fault``, if the rules say so, or if it repeats a pair.
    ``counts`` gets the numbers of segments read, written, and left out for each reason.
    """
    pairs = set[tuple[str, str]]()
    for segment in segments:
        counts["read"] += 1
        pair, reason = rules.apply(segment.source, segment.target)
        reason = segment.fault or reason or ("repeated" if pair in pairs else "")
        if reason:
            counts[f"left out: {reason}"] += 1
            continue
        pairs.add(pair)
        counts["written"] += 1
        yield *pair, " ".join(segment.document.split())


def ending(path: Path) -> str:
    """Return a file name's ending in lower case: ``.tmx`` for ``a.tmx`` and for ``A.TMX.gz``."""
    name = Path(path.name.lower())
    return (name.with_suffix("") if name.suffix in MAGIC else name).suffix


def files(paths: Iterable[Path], name: str | None) -> Iterator[tuple[str, Path]]:
    """Yield the format and path of each file; folders are searched for files of the format.

    The format is ``name`` or, if ``name`` is None, the format of the file's ending. A path without
    files of a known format is refused.
    """
    endings = {name: key for key, (_, names) in FORMATS.items() for name in names}
    for path in paths:
        if path.is_dir():
            suffixes = FORMATS[name][1] if name else endings
            matches = [p for p in sorted(path.rglob("*")) if ending(p) in suffixes]
        else:
            matches = [path] if name or ending(path) in endings else []
        if not matches:
            listed = ", ".join(endings)
            raise ConfigError(
                f"`{path}` has no file ending in {listed}; for other endings give `--format`."
            )
        for member in matches:
            yield name or endings[ending(member)], member


def segments(args: TranslationOptions) -> Iterator[Segment]:
    """Yield all segments of the files that the options name; refuse contradictory options."""
    sides = (args.source, args.target)
    if bool(args.files) == any(sides) or any(sides) != all(sides):
        raise ConfigError("give FILE…, or `--source` and `--target`, but not both.")
    if args.source is None or args.target is None:
        for name, path in files(args.files, args.format):
            if name in TWO_SIDED:
                raise ConfigError(
                    f"`{path}`: {name} has a file of each language; use `--source` and `--target`."
                )
            yield from FORMATS[name][0]((path,), args.src, args.tgt)
        return
    by_ending = "sgm" if ending(args.source) == ".sgm" else "lines"
    name = args.format or ("help" if args.source.is_dir() else by_ending)
    if name not in TWO_SIDED:
        raise ConfigError(f"`--format {name}` has both languages in one file; give FILE instead.")
    yield from FORMATS[name][0]((args.source, args.target), args.src, args.tgt)


def run(args: TranslationOptions) -> str:
    """Write the pairs, and a record beside them; return the numbers of pairs as text."""
    read = [path for _, path in files(args.files, args.format)]
    for folder in (args.source, args.target):
        read += [] if folder is None else two_files.pages(folder)
    keep_inputs(read, [args.output])
    rules, counts = Rules(args.markup, args.placeholders, args.mnemonics), Counter[str]()
    pairs = list(accepted(segments(args), rules, counts))
    listed = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    if not pairs:
        raise DataError(f"no pair is left: {listed or 'the files have none; check them'}.")
    inputs = [path for path in (*args.files, args.source, args.target) if path is not None]
    record = {
        "languages": [args.src, args.tgt],
        "licence": args.licence,
        "domain": args.domain,
        "rules": vars(rules),
        "counts": dict(counts),
        "files": {
            str(path): sha256(path) if path.is_file() else "folder" for path in sorted(inputs)
        },
    }
    name = args.output.name
    rows = ("\t".join(pair) for pair in pairs)
    write_all(args.output.parent, {name: rows, f"{name}.json": [json.dumps(record, indent=1)]})
    return f"{args.output}: {listed}"
