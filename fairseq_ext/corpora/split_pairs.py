"""Split sentence pairs into train, valid and test so that no sentence leaks between them.

A corpus often has several translations of one sentence; a random split then puts some into train
and others into test. Here a hash of the sentence, not of the pair, decides:

- The distinct sentences of one side, normalized, are put in the order of their SHA-256 hashes; the
  first go into the test set, the next into the validation set, all others into train. If several
  pairs have the same sentence, valid and test keep one of them, so their sizes are exact.
- If a pair is repeated, only its first occurrence is kept.
- ``--key groups`` holds out whole groups of near-duplicates instead
  (:mod:`fairseq_ext.corpora.near_duplicates`), so that no test sentence is one word away from a
  training sentence.
- ``--strict`` also drops training pairs whose other side is in valid or test.

This module handles the options and output; :mod:`fairseq_ext.corpora.splitting` does the work.
"""

import contextlib
import itertools
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_ext.corpora import SPLITS, pair_texts, rules, splitting
from fairseq_ext.corpora.command_lines import SIDES, PairOptions
from fairseq_ext.corpora.pair_texts import Text
from fairseq_ext.corpora.splitting import GROUPS, SplitJob, leak, text_pipeline
from fairseq_ext.text import pipeline
from fairseq_ext.text.bleu_tokenizers import suggest_pieces
from fairseq_ext.text.cleaning import plain
from fairseq_ext.text.reading import LOOKED_AT, QUOTED, refuse_document, suggest_format
from fairseq_ext.utils import files, locks
from fairseq_ext.utils.errors import ConfigError, DataError, wrong_value
from fairseq_ext.utils.files import require_file, sha256, writers

# Options without influence on the result.
ELSEWHERE = {"out", "overwrite", "workers", "parts", "part_lines"}
LOCK = ".preparing.lock"
HEADER_WORDS = ("source", "target", "src", "tgt", "text", "sentence", "translation", "id")
IDENTIFIER = re.compile(r"#?\d+")


def summary(report: dict[str, Any], langs: tuple[str, str]) -> str:
    """Return a table of the splits, and counts of dropped and leaked pairs."""
    key, dropped, leaks, splits = (report[name] for name in ("key", "dropped", "leaks", "splits"))
    rows = [f"{'split':6} {'pairs':>8} {'side':>6} {'words':>9} {'words/line':>11}"]
    for name, pairs in splits.items():
        for lang, words in zip(langs, report["words"][name], strict=True):
            rows.append(f"{name:6} {pairs:8} {lang:>6} {words:9} {words / max(1, pairs):11.1f}")
    held = sum(count for name, count in splits.items() if name != "train")
    if 4 * held > splits.get("train", 4 * held):
        rows.append(f"{held} pairs are not for training; with --valid and --test fewer")
    rows.append(f"pairs read: {report['read']}")
    rows += [f"dropped, {reason}: {count}" for reason, count in dropped.items()]
    if key == GROUPS:
        rows.append(
            f"split by {leaks['groups']} groups of near-duplicates, the largest of "
            f"{leaks['largest']} pairs; none of them is in two splits"
        )
    elif key:
        other = SIDES[1 - SIDES.index(key)]
        rows += [
            f"split by the {key} sentence; none of them is in two splits",
            f"kept in train, {leak(other)}: {leaks['train'] - dropped.get(leak(other), 0)}",
            f"{other} sentences in both valid and test: {leaks['valid and test']}",
        ]
    return "\n".join(rows)


def _texts(options: PairOptions) -> tuple[Text, ...]:
    """Return the texts that the options name."""
    origins = (options.pairs, options.source, options.corpora)
    if origins.count(None) != 2 or (options.source is None) != (options.target is None):
        raise ConfigError("give either PAIRS, or both --source and --target, or --corpora.")
    _require_used(options)
    if options.corpora is not None:
        return pair_texts.read_list(options.corpora)
    inputs = (options.pairs, options.source, options.target)
    paths = tuple(require_file(path, "text file") for path in inputs if path is not None)
    for path in paths:
        refuse_document(path)
    if options.pairs is None:
        if paths[0].samefile(paths[1]):
            raise ConfigError(f"`--source` and `--target` are the same file, {paths[0]}.")
        return (Text("", paths),)
    table = options.csv or pair_texts.is_csv(options.member or options.pairs.name)
    text = Text("", paths, table=table, header=options.header, member=options.member)
    top = list(itertools.islice(pair_texts.rows(text), LOOKED_AT))
    text = replace(text, columns=_column_numbers(options, top[0] if top else []))
    _warn_of_columns(text, top, (options.src_lang, options.tgt_lang))
    return (text,)


def _column_numbers(options: PairOptions, first: list[str]) -> tuple[int, int]:
    """Return the numbers of the columns, which may be given by name."""
    if isinstance(options.columns[0], int):
        return options.columns
    if not options.header:
        raise ConfigError("`--columns` has names, which `--header` reads; give that too.")
    names = [plain(name) for name in first]
    for name in options.columns:
        if names.count(name) != 1:
            listed = ", ".join(names)
            raise DataError(
                f"`{options.pairs}` must have one column `{name}`; it has {listed}."
                f"{'' if options.csv else suggest_format(names)}"
            )
    return names.index(options.columns[0]) + 1, names.index(options.columns[1]) + 1


def _warn_of_columns(text: Text, top: list[list[str]], languages: tuple[str, str]) -> None:
    """Warn if the first line looks like a header, or a column has only numbers or quoted text."""
    columns = [[row[number - 1] for row in top if len(row) >= number] for number in text.columns]
    firsts = [plain(column[0]).lower() for column in columns if column]
    if not text.header and {*firsts} & {*HEADER_WORDS, *map(str.lower, languages)}:
        print(
            f"warning: line 1 of {text.files[0]} (`{' / '.join(firsts)}`) looks like a header, and "
            "becomes a pair; give --header if it is one.",
            file=sys.stderr,
        )
    for number, column in zip(text.columns, columns, strict=True):
        cells = [cell.strip() for cell in column[1:]]  # not the header
        if len(cells) < 2:
            continue
        fault = ""
        if all(IDENTIFIER.fullmatch(cell.strip('"')) for cell in cells):
            fault = f"holds numbers (`{cells[0]}` …), no sentences; choose others with --columns"
        elif not text.table and all(QUOTED.fullmatch(cell) for cell in cells):
            fault = "is in quotation marks, which become part of the text; remove them with --csv"
        if fault:
            print(f"warning: column {number} of {text.files[0]} {fault}.", file=sys.stderr)


def _require_used(options: PairOptions) -> None:
    """Raise :class:`ConfigError` for an option that does not apply to this kind of input."""
    zipped = options.pairs is not None and options.pairs.suffix.lower() == ".zip"
    for option, is_set, used, partner in (
        ("--columns", options.columns != (1, 2), options.pairs is not None, "PAIRS"),
        ("--header", options.header, options.pairs is not None, "PAIRS"),
        ("--csv", options.csv, options.pairs is not None, "PAIRS"),
        ("--member", options.member is not None, zipped, "PAIRS that are a .zip"),
    ):
        if is_set and not used:
            raise ConfigError(f"`{option}` goes with {partner}, which is missing; leave it out.")


def _checked_texts(options: PairOptions) -> tuple[Text, ...]:
    """Check that the options fit together, and return the texts that they name."""
    for option, language in (("--src", options.src_lang), ("--tgt", options.tgt_lang)):
        if not re.fullmatch(r"[\w-]+", language):  # the language is the ending of file names
            raise wrong_value(option, "a language, such as en or pt-BR", language)
    if options.src_lang == options.tgt_lang:
        raise ConfigError("`--src` and `--tgt` are the same; their files would collide.")
    langs = (options.src_lang, options.tgt_lang)
    rules.checks(tuple(options.rule), langs, options.max_words)  # refuses impossible rules
    texts = _texts(options)
    if options.as_split is not None and any(text.weight != 1 for text in texts):
        raise ConfigError("`--as` writes every pair once; leave the weights of the corpora out.")
    return texts


def run(options: PairOptions) -> str:
    """Read, clean, split and write as the options say; return the summary."""
    texts = _checked_texts(options)
    _check_folder(options, texts)
    if options.parts is not None and files.twice([options.parts, options.out]):
        raise ConfigError("`--parts` and `--output` are the same; name two folders.")
    record = _record(options, texts)
    with _folder(options) as folder:
        if not options.overwrite:  # now that no other run is writing there
            _keep_others(options, record)
        return _write(_work(options, texts, record, folder), record)


def _check_folder(options: PairOptions, texts: Sequence[Text]) -> None:
    """Refuse to overwrite the texts, or to mix splits that were made in different ways."""
    written = [
        path for lang in (options.src_lang, options.tgt_lang) for path in _files(options, lang)
    ]
    files.keep_inputs([path for text in texts for path in text.files], written)
    if options.as_split is not None:
        pipeline.require_same(options.out, text_pipeline(options))


def _files(options: PairOptions, language: str) -> list[Path]:
    """List the files to write for a language."""
    splits = SPLITS if options.as_split is None else (options.as_split,)
    return [options.out / f"{split}.{language}" for split in splits]


def _keep_others(options: PairOptions, record: dict[str, Any]) -> None:
    """Refuse to write over a corpus that was made with other options or inputs."""
    manifest = options.out / _manifest(options)
    if not any(path.exists() for path in _files(options, options.src_lang)):
        return
    try:
        former = json.loads(manifest.read_text(encoding="utf-8"))
        former_record = {name: former.get(name) for name in record}
    except (OSError, ValueError, AttributeError):
        former_record = {}
    if former_record != record:
        raise DataError(
            f"{options.out} has a corpus already, made of other text or with other options; choose "
            "another --output, or give --overwrite."
        )


def _manifest(options: PairOptions) -> str:
    return "manifest.json" if options.as_split is None else f"manifest.{options.as_split}.json"


def _record(options: PairOptions, texts: Sequence[Text]) -> dict[str, Any]:
    """Return the manifest's record of options and inputs, without paths, which may change."""
    recorded = {
        name: value
        for name, value in vars(options).items()
        if name not in ELSEWHERE and not isinstance(value, Path)
    }
    inputs = [
        {"name": f"{text.name}/{path.name}".lstrip("/"), "sha256": sha256(path)}
        for text in texts
        for path in text.files
    ]
    return json.loads(json.dumps({"options": recorded, "inputs": inputs}))


@contextlib.contextmanager
def _folder(options: PairOptions) -> Iterator[Path]:
    """Yield the folder for the parts: ``--parts``, or a temporary one in ``--output``."""
    if options.parts is not None:
        yield options.parts
        return
    with files.no_empty_folder(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        with locks.held(options.out / LOCK, wait=True):
            for left in options.out.glob(".partial-*"):  # folders that a killed run left
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=".partial-", dir=options.out) as folder:
                yield Path(folder)


def _work(
    options: PairOptions, texts: tuple[Text, ...], record: dict[str, Any], folder: Path
) -> SplitJob:
    """Do all stages of the job, together with other workers in the folder."""
    part_lines = options.part_lines or splitting.PART_LINES
    job_record = {**record, "part_lines": part_lines}
    if options.corpora is not None:
        job_record["corpora"] = [_described(text) for text in texts]
    splitting.shared(folder).begin(job_record)
    job = splitting.prepare(options, texts, folder, part_lines)
    splitting.work(job, options.workers)
    return job


def _described(text: Text) -> dict[str, Any]:
    """Describe one text of a corpus list, for the manifest."""
    named = {"name": text.name, "licence": text.licence, "weight": text.weight}
    return {**named, "columns": list(text.columns), "header": text.header, "member": text.member}


def _write(job: SplitJob, record: dict[str, Any]) -> str:
    """Write all splits, ``text.json`` and the manifest; return the summary."""
    options, texts = job.options, job.texts
    langs = (options.src_lang, options.tgt_lang)
    splits = SPLITS if options.as_split is None else (options.as_split,)
    names = [f"{name}.{lang}" for name in splits for lang in langs]
    with files.staged_folder(options.out) as stage:
        with writers([stage / name for name in names]) as opened:
            pairs = dict(zip(splits, zip(opened[::2], opened[1::2], strict=True), strict=True))
            report = job.write([pairs.get(name, ()) for name in SPLITS])
        of_texts = report.pop("texts")
        for table in ("splits", "words"):
            report[table] = {name: report[table][name] for name in splits}
        if options.corpora is not None:
            described = zip(map(_described, texts), of_texts, strict=True)
            record = {**record, "corpora": [{**entry, **counts} for entry, counts in described]}
        sums = {name: sha256(stage / name) for name in names}
        record = {**record, "report": report, "sha256": sums}
        text = json.dumps(record, indent=2, ensure_ascii=False, sort_keys=True)
        (stage / _manifest(options)).write_text(text + "\n", encoding="utf-8")
        text_pipeline(options).save(stage)
        hints = [suggest_pieces(lang, stage / f"{splits[0]}.{lang}") for lang in langs]
    listed = [
        f"{corpus['name']}: {corpus['read']} pairs read, {corpus['train']} in train, weight "
        f"{corpus['weight']:g}; licence: {corpus['licence']}"
        for corpus in record.get("corpora", ())
    ]
    return "\n".join([summary(report, langs), *listed, *filter(None, hints)])
