"""Prepare a corpus of the catalogue, from its archives to the input of fairseq-preprocess.

The steps are download, verify, unpack, normalize, tokenize, clean, split and byte-pair encoding.
Each is done once, and a run that was stopped can continue.
"""

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from fairseq_ext.corpora import streams
from fairseq_ext.corpora.catalogue import CORPORA, Corpus, Source
from fairseq_ext.corpora.command_lines import OfficialOptions
from fairseq_ext.corpora.downloads import Unavailable, fetch, unpack
from fairseq_ext.corpora.streams import KEPT, Encode, RawPair, Tally, raw_pairs
from fairseq_ext.text.cleaning import one_spaced
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.subwords import LEARNT, learn
from fairseq_ext.utils import locks
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.files import sha256, staged_folder, writers
from fairseq_ext.utils.json_files import read_json, write_json

TOLERANCE = 1 / 1000  # accepted relative difference of counts that depend on the tokenizer
TRAINING = ("train", "valid")  # splits; all others are test sets
Report = dict[str, Any]


def do_once(
    folder: Path, name: str, settings: Report, outputs: Iterable[Path], work: Callable[[], Report]
) -> Report:
    """Do the ``work`` of a step once, and return its report; later calls read the report.

    The report is in the record ``folder/.steps/NAME.json``. The record counts only if its
    ``settings`` (all values that the report depends on) are the same, and all ``outputs`` (the
    files that ``work`` writes) still have their recorded sizes. The record is written last, so a
    step that was killed is done again.
    """
    record = folder / ".steps" / f"{name}.json"
    settings = json.loads(json.dumps(settings))
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):  # no record
        state = read_json(record)
        sizes = {file: (folder / file).stat().st_size for file in state["files"]}
        if (state["settings"], state["files"]) == (settings, sizes):
            print(f"{name}: done before", file=sys.stderr)
            return state["report"]
    record.unlink(missing_ok=True)
    result = work()
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in outputs}
    state = {"settings": settings, "files": sizes, "report": result}
    record.parent.mkdir(parents=True, exist_ok=True)
    write_json(record, state)
    return result


@dataclass
class Preparation:
    """The preparation of one corpus in one folder.

    A finished step is not repeated. Files are downloaded and unpacked only for unfinished steps, so
    ``raw/`` may be deleted afterwards.
    """

    name: str  # key in :data:`fairseq_ext.corpora.catalogue.CORPORA`
    corpus: Corpus
    out: Path
    download: Path  # folder for the archives
    mirror: str | None  # see :func:`fairseq_ext.corpora.downloads.fetch`
    workers: int
    subwords: str = "bpe"  # a kind of :data:`fairseq_ext.text.subwords.LEARNT`

    def __post_init__(self) -> None:
        self._learner = LEARNT[self.subwords]
        self._sides = (self.corpus.src, self.corpus.tgt)
        self._libraries = {name: version(name) for name in ("sacremoses", self._learner.library)}
        self._codes = self.out / "bpe" / self._learner.file
        self.ready = self.out / ("bpe" if self.corpus.merges else "text")

    def run(self) -> Report:
        """Download the corpus, turn it into tokens and subwords, and write its manifest.

        Return the content of the manifest: counts of pairs, checksums, and versions of libraries.
        """
        for left in self.out.glob("*/.partial-*"):  # folders that a killed run left
            shutil.rmtree(left)
        text = self._text()
        more_tests = [(source.name, (source,)) for source in self.corpus.more_tests]
        for name, sources in [("test", self.corpus.test), *more_tests]:
            try:
                test_set = self._test_set(name, sources)
            except Unavailable as error:
                if name == "test":
                    raise
                print(f"{name}: left out. {error}", file=sys.stderr)
            else:
                for kind, entries in test_set.items():
                    text[kind] |= entries
        test_names = [name for name in text["splits"] if name not in TRAINING]
        bpe = self._pieces(test_names) if self.corpus.merges else {}
        self._save_pipeline()
        manifest = describe(self.name, self.corpus, text, bpe)
        manifest |= {"libraries": self._libraries, "sha256": self._checksums(test_names)}
        if self.corpus.merges and self.subwords != "bpe":
            manifest["subwords"] = self.subwords
        write_json(self.out / "manifest.json", manifest, indent=2, sort_keys=True)
        return manifest

    # ---- from archives to text -------------------------------------------------------------------

    def _raw(self, source: Source) -> tuple[tuple[Path, Path], Report]:
        """Fetch a parallel text if needed; return its two files, with addresses and checksums."""
        files = source.files(*self._sides)
        if (archive := source.archive) is None:
            first, second = (fetch(url, self.download, self.mirror) for url in files)
            origin = {
                path.name: {"address": url, "sha256": sha256(path)}
                for path, url in zip((first, second), files, strict=True)
            }
            return (first, second), origin
        name = archive.rpartition("/")[2]
        folder = self.out / "raw" / name.partition(".")[0]

        def work() -> Report:
            path = fetch(archive, self.download, self.mirror)
            print(f"unpacking {path}", file=sys.stderr)
            unpack(path, folder)
            return {name: {"address": archive, "sha256": sha256(path)}}

        outputs = filter(Path.is_file, folder.rglob("*"))
        origin = do_once(self.out, f"unpack.{name}", {"address": archive}, outputs, work)
        return (folder / files[0], folder / files[1]), origin

    def _encoder(self, source: Source) -> Encode:
        """Return the encoder that turns the sentences of a parallel text into tokens.

        Typographic apostrophes become straight in development and test sets (files with ``<seg>``
        elements), but stay in training text, as in the papers' scripts.
        """
        corpus = self.corpus
        pipeline = Pipeline(
            *self._sides,
            straight=source.form == "segments",
            normalize=corpus.normalize,
            tokenize=corpus.tokenize,
            escape=corpus.tokenize,
            aggressive=corpus.aggressive,
            lowercase=corpus.lowercase,
        )
        if source in corpus.train:
            return Encode(pipeline, corpus.rules, words=True)
        return Encode(pipeline, words=True, must_keep=source.name)

    def _save_pipeline(self) -> None:
        """Write ``text.json``: the steps that turned the test set's text into tokens."""
        pipeline = self._encoder(self.corpus.test[0]).pipeline
        pipeline = dataclasses.replace(pipeline, **self.corpus.author_steps)
        pipeline.save(self.out / "text")
        if self.corpus.merges:
            kind, codes = self._learner.kind, (self._codes,)
            dataclasses.replace(pipeline, subwords=kind, files=codes).save(self.ready)

    def _tokens(
        self, sources: Iterable[Source], parts: Report, plain_files: Sequence[IO[str]] = ()
    ) -> Iterator[tuple[str, str]]:
        """Yield the tokens of all pairs of parallel texts; add a report on each text to ``parts``.

        ``plain_files``, one for each side, get the pairs as text.
        """
        for source in sources:
            paths, origin = self._raw(source)
            total = self.corpus.exact.get("train read") if source.name == "train" else None
            raw = raw_pairs(*paths, source.form)
            pairs = tqdm(raw, desc=source.name, unit=" pairs", total=total, disable=None)
            if plain_files:
                pairs = self._copied(pairs, plain_files)
            parts[source.name] = {"origin": origin, "fates": (tally := Tally())}
            yield from self._encoder(source).kept_pairs(pairs, self.workers, tally)

    def _copied(self, pairs: Iterable[RawPair], files: Sequence[IO[str]]) -> Iterator[RawPair]:
        """Yield the pairs, and write them as text for sacrebleu to ``files``, one for each side.

        Published tokens are detokenized. The text of a lower-cased corpus is lower-cased.
        """
        from fairseq_ext.text import moses

        detokenizers = list(map(moses.detokenizer, self._sides))
        for pair in pairs:
            for sentence, detokenize, file in zip(pair, detokenizers, files, strict=True):
                text = one_spaced(sentence or "")
                if not self.corpus.tokenize:
                    text = detokenize(text)
                file.write(f"{text.lower() if self.corpus.lowercase else text}\n")
            yield pair

    def _text(self) -> Report:
        """Write ``train`` and ``valid`` as tokens into ``text/``; return a report on them."""
        corpus, folder, names = self.corpus, self.out / "text", self._names(TRAINING)

        def make() -> Report:
            parts: Report = {}
            with staged_folder(folder) as stage, writers([stage / name for name in names]) as files:
                train, valid = files[:2], files[2:]
                pairs = self._tokens(corpus.train, parts)
                if isinstance(corpus.valid, int):
                    *dealt, last = streams.deal(pairs, [train] * (corpus.valid - 1) + [valid])
                    counts = [[sum(numbers) for numbers in zip(*dealt, strict=True)], last]
                else:
                    held_out = self._tokens(corpus.valid, parts)
                    counts = streams.deal(pairs, [train]) + streams.deal(held_out, [valid])
            return {"parts": parts, "splits": _nonempty(TRAINING, counts)}

        outputs = [folder / name for name in names]
        return do_once(self.out, "text", self._settings(pieces=False), outputs, make)

    def _test_set(self, name: str, sources: Sequence[Source]) -> Report:
        """Write a test set: tokens into ``text/``, text into ``reference/``; return a report."""
        folders, names = (self.out / "reference", self.out / "text"), self._names([name])

        def make() -> Report:
            parts: Report = {}
            with (
                staged_folder(folders[0]) as plain_stage,
                staged_folder(folders[1]) as stage,
                writers([plain_stage / name for name in names]) as plain_files,
                writers([stage / name for name in names]) as files,
            ):
                counts = streams.deal(self._tokens(sources, parts, plain_files), [files])
            return {"parts": parts, "splits": _nonempty([name], counts)}

        outputs = [folder / file_name for folder in folders for file_name in names]
        return do_once(self.out, f"text.{name}", self._settings(pieces=False), outputs, make)

    # ---- from text to subwords -------------------------------------------------------------------

    def _pieces(self, test_names: Sequence[str]) -> dict[str, Tally]:
        """Write the merges or model, and all splits as subwords, into ``bpe/``; return tallies."""
        settings, bpe = self._settings(pieces=True), self.out / "bpe"

        def make() -> Report:
            with staged_folder(bpe) as stage:
                paths = [self.out / "text" / f"train.{side}" for side in self._sides]
                learn(self.subwords, paths, self.corpus.merges, stage)
            return {}

        do_once(self.out, "merges", settings, [self._codes], make)
        fates: dict[str, Tally] = {}
        for split in (*TRAINING, *test_names):
            outputs = [bpe / name for name in self._names([split])]
            work = partial(self._split_into_pieces, split)
            # `split` tells the records of steps from older ones, whose reports had another form.
            record = {**settings, "split": split}
            fates[split] = do_once(self.out, f"subwords.{split}", record, outputs, work)
        return fates

    def _split_into_pieces(self, split: str) -> Tally:
        """Write a split as subwords; return the numbers of its kept and dropped pairs."""
        pieces = Pipeline(*self._sides, subwords=self._learner.kind, files=(self._codes,))
        work = Encode(pieces, self.corpus.piece_rules if split in TRAINING else ())
        names, tally = self._names([split]), Tally()
        pairs = streams.line_pairs(*(self.out / "text" / name for name in names))
        bar = tqdm(pairs, desc=f"subwords of {split}", unit=" pairs", disable=None)
        with (
            staged_folder(self.out / "bpe") as stage,
            writers([stage / name for name in names]) as files,
        ):
            streams.deal(work.kept_pairs(bar, self.workers, tally), [files])
        return tally

    def _checksums(self, test_names: Sequence[str]) -> dict[str, str]:
        names = self._names((*TRAINING, *test_names))
        paths = [self.out / "text" / name for name in names]
        paths += [self.out / "reference" / name for name in self._names(test_names)]
        if self.corpus.merges:
            paths += [self._codes, *(self.out / "bpe" / name for name in names)]
        return {str(path.relative_to(self.out)): sha256(path) for path in paths}

    def _names(self, splits: Iterable[str]) -> list[str]:
        return [f"{split}.{side}" for split in splits for side in self._sides]

    def _settings(self, *, pieces: bool) -> Report:
        """Return the settings that decide a corpus's tokens or, with ``pieces``, its subwords."""
        protocol = dataclasses.asdict(self.corpus)
        del protocol["more_tests"]  # further tests have their own steps
        if pieces:
            return {"corpus": protocol, "libraries": self._libraries, "subwords": self.subwords}
        del protocol["merges"], protocol["piece_rules"]
        return {"corpus": protocol, "libraries": self._libraries["sacremoses"]}


def _nonempty(splits: Sequence[str], counts: list[list[int]]) -> Report:
    """Map each split to its ``counts`` (pairs, source tokens, target tokens); refuse 0 pairs."""
    for name, (pairs, *_) in zip(splits, counts, strict=True):
        if not pairs:
            raise DataError(f"no pair is left for `{name}`; check the archives.")
    return dict(zip(splits, counts, strict=True))


# ---- the report ----------------------------------------------------------------------------------


def describe(name: str, corpus: Corpus, text: Report, bpe: dict[str, Tally]) -> Report:
    """Describe a prepared corpus for its manifest: archives, dropped pairs, and what is left.

    ``text`` has the reports on the sources and the counts of the splits; ``bpe`` has the
    tally of each split as subwords, if any. Paths and times are left out, so equal settings give
    equal descriptions.
    """
    parts, splits = text["parts"], {}
    for split, counts in text["splits"].items():
        splits[split] = {"words": counts, "subwords": bpe[split][KEPT] if bpe else None}
    fates = {part: report["fates"] for part, report in parts.items()}
    fates |= {f"subwords of {split}": tally for split, tally in bpe.items() if len(tally) > 1}
    flags = corpus.dictionary if corpus.merges else corpus.word_dictionary
    flags = flags or (corpus.dictionary if "--joined-dictionary" in corpus.dictionary else ())
    pair_counts = {split: (size["subwords"] or size["words"])[0] for split, size in splits.items()}
    pair_counts["train read"] = sum(
        sum(counts[0] for counts in fates[source.name].values()) for source in corpus.train
    )
    return {
        "corpus": name,
        "protocol": dataclasses.asdict(corpus),
        "archives": {k: v for part in parts.values() for k, v in part["origin"].items()},
        "fates": fates,
        "splits": splits,
        "known counts": {
            label: {"known": expected, "found": pair_counts[label], "exact": exact}
            for exact, kind in ((True, corpus.exact), (False, corpus.expected))
            for label, expected in kind.items()
            if label in pair_counts  # further tests may be missing
        },
        "fairseq-preprocess": [*("--source-lang", corpus.src, "--target-lang", corpus.tgt), *flags],
    }


def wrong_counts(manifest: Report) -> list[str]:
    """Return a message for each number of pairs that differs too much from the catalogue's number.

    Numbers that depend on the tokenizer may differ by :data:`TOLERANCE`, others not at all.
    """
    return [
        f"{label}: {count['found']:,} pairs instead of {count['known']:,}"
        for label, count in manifest["known counts"].items()
        if abs(count["found"] - count["known"])
        > (0 if count["exact"] else TOLERANCE * count["known"])
    ]


def summary(manifest: Report, ready: Path) -> str:
    """Return a manifest as text, with the command to run next on the folder ``ready``."""
    protocol = manifest["protocol"]
    heading = ("pairs", f"{protocol['src']} tokens", f"{protocol['tgt']} tokens")
    lines = [_row("text", "", heading)]
    for name, counts in manifest["fates"].items():
        lines += [_row(name, fate, numbers) for fate, numbers in sorted(counts.items())]
    for name, kinds in manifest["splits"].items():
        lines += [_row(name, f"as {kind}", numbers) for kind, numbers in kinds.items() if numbers]
    for label, count in manifest["known counts"].items():
        known = (
            "as known" if count["found"] == count["known"] else f"but {count['known']:,} are known"
        )
        lines.append(f"{label}: {count['found']:,} pairs, {known}")
    tests = ",".join(str(ready / name) for name in manifest["splits"] if name not in TRAINING)
    lines.append(
        f"ready: fairseq-preprocess {' '.join(manifest['fairseq-preprocess'])} --trainpref "
        f"{ready / 'train'} --validpref {ready / 'valid'} --testpref {tests} --destdir …"
    )
    return "\n".join(lines)


def _row(name: str, fate: str, numbers: Sequence[int | str]) -> str:
    cells = (f"{number:>14}" if isinstance(number, str) else f"{number:>14,}" for number in numbers)
    return f"{name:24}{fate:32}{''.join(cells)}"


# ---- the command ---------------------------------------------------------------------------------


def run(options: OfficialOptions) -> str:
    """Prepare the corpus as the options say; return the summary."""
    corpus = CORPORA[options.corpus]
    size = 0 if options.subwords == "none" else options.bpe
    if size is not None:
        corpus = dataclasses.replace(corpus, merges=size)
        if corpus.piece_rules and not corpus.merges:  # these rules then apply to words
            corpus = dataclasses.replace(corpus, rules=corpus.piece_rules, piece_rules=())
    if options.subwords not in ("bpe", "none") and not corpus.merges:
        raise ConfigError(
            f"`--subwords {options.subwords}` needs `--bpe N`, the number of pieces: the papers "
            "leave this corpus as words."
        )
    download = options.download or options.out / "download"
    options.out.mkdir(parents=True, exist_ok=True)
    with locks.held(options.out / ".preparing.lock", wait=True):
        workers = streams.processes(options.workers)
        subwords = options.subwords if corpus.merges else "bpe"
        work = Preparation(
            *(options.corpus, corpus, options.out, download, options.mirror, workers, subwords)
        )
        manifest = work.run()
    text, wrong = summary(manifest, work.ready), wrong_counts(manifest)
    if wrong and not options.any_counts:
        print(text)
        raise DataError(
            f"{'; '.join(wrong)}. The archives are of another edition, or damaged. The corpus "
            "was written nevertheless; `--any-counts` accepts it."
        )
    return text
