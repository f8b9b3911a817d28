"""Apply the steps that made a corpus to new text, and undo them on translations.

The steps are clean → Moses' punctuation → Moses' tokens → case → subwords, each optional. The file
``text.json`` beside the data lists them, and the files of the subwords lie there too.
fairseq-preprocess copies all these files into the folder that it writes, and fairseq-train into the
run's folder, so ``translate``, ``demo``, ``hypotheses`` and ``score`` need no options for them.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fairseq_ext.text import cleaning, subwords
from fairseq_ext.text.subwords import Step, Subwords
from fairseq_ext.utils import files
from fairseq_ext.utils.errors import ConfigError, DataError
from fairseq_ext.utils.json_files import read_json, write_json

FILE = "text.json"
FORMAT = 1
LARGEST = 1 << 20  # most bytes of a text.json


@dataclass(frozen=True)
class Pipeline:
    """The steps that turn a line of text into a line of tokens.

    The steps are done in the order of the attributes; only ``lowercase_first`` comes earlier,
    before ``normalize``.

    Attributes:
        src, tgt: languages, for Moses' rules.
        clean: normalize to NFC and remove invisible characters; done again before ``subwords``.
        straight: replace typographic apostrophes with '.
        normalize: normalize punctuation like Moses, and replace controls with spaces.
        tokenize: tokenize like Moses; translations are detokenized.
        escape: write ``&``, ``<``, quotes and brackets as XML entities in the tokens.
        aggressive: make each hyphen within a word a separate token, written ``@-@``.
        lowercase: lower-case the text after tokenization.
        lowercase_first: lower-case before Moses' rules instead of after them. The rules for full
            stops depend on capitals, so some tokens differ.
        subwords: a kind of :data:`fairseq_ext.text.subwords.KINDS`.
        files: the files of the subwords.
    """

    src: str
    tgt: str
    clean: bool = False
    straight: bool = False
    normalize: bool = False
    tokenize: bool = False
    escape: bool = False
    aggressive: bool = False
    lowercase: bool = False
    lowercase_first: bool = False
    subwords: str = "none"
    files: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        for option in ("escape", "aggressive"):
            if getattr(self, option) and not self.tokenize:
                raise ConfigError(f"`--{option}` goes with `--tokenize`, which is missing.")

    def words(self, language: str | None = None) -> Step:
        """Return a function that turns text in ``language`` (default: ``src``) into words."""
        language = language or self.src
        steps: list[Step] = []
        if self.clean:
            steps.append(cleaning.plain)
        if self.straight:
            steps.append(lambda line: line.replace("’", "'"))
        if self.lowercase_first:
            steps.append(cleaning.lower_case(language))
        if self.normalize or self.tokenize:
            from fairseq_ext.text import moses  # only here, because it takes time
        if self.normalize:
            steps += [moses.normalizer(language), cleaning.printable]
        if self.tokenize:
            tokenize = moses.tokenizer(language).tokenize
            steps.append(partial(tokenize, aggressive=self.aggressive, escape=self.escape))
        else:
            steps.append(cleaning.one_spaced)
        if self.lowercase:
            steps.append(cleaning.lower_case(language))
        if self.clean:
            steps.append(cleaning.plain)  # NFC again: a small letter may combine with its mark

        def do(line: str) -> str:
            for step in steps:
                line = step(line)
            return line

        return do

    def encoder(self, language: str | None = None) -> Step:
        """Return a function from a line of text in ``language`` (default: ``src``) to its tokens.

        Raise DataError for unusable files of subwords, EnvironmentProblem for a missing library.
        """
        words, split = self.words(language), self.pieces.encode
        return lambda line: split(words(line))

    @cached_property
    def pieces(self) -> Subwords:
        """The functions that split and join subwords, loaded from ``files`` at the first use."""
        return subwords.load(self.subwords, self.files)

    def decoder(self, language: str | None = None) -> Step:
        """Return a function from a line of tokens to text in ``language`` (default: ``tgt``)."""
        join, detokenize = self.pieces.decode, self.detokenizer(language)
        return lambda line: detokenize(join(line))

    def detokenizer(self, language: str | None = None) -> Step:
        """Return a function from a line of words to text in ``language`` (default: ``tgt``)."""
        if not self.tokenize:
            return str
        from fairseq_ext.text import moses

        return moses.detokenizer(language or self.tgt)

    def towards(self, src: str, tgt: str) -> "Pipeline | None":
        """Return this pipeline, or its reverse, for ``src`` → ``tgt``; None for other languages."""
        if {src, tgt} != {self.src, self.tgt}:
            return None
        return dataclasses.replace(self, src=src, tgt=tgt)

    def describe(self) -> str:
        """Describe the languages and the steps in one line, for messages."""
        named = [
            option.name.replace("_", " ")
            for option in dataclasses.fields(self)
            if getattr(self, option.name) is True
        ]
        if self.subwords != "none":
            named.append(self.subwords)
        return f"{self.src} → {self.tgt}: {', '.join(named) or 'text as it is'}"

    def save(self, folder: Path) -> None:
        """Write the files of the subwords, then ``text.json``, into a folder."""
        entries = []
        for path in self.files:
            if path.resolve() != (folder / path.name).resolve():
                with files.atomic_write(folder / path.name, "wb") as copy:
                    copy.write(path.read_bytes())
            entries.append({"name": path.name, "sha256": files.sha256(path)})
        content = {"format": FORMAT, **dataclasses.asdict(self), "files": entries}
        write_json(folder / FILE, content)


def load_towards(folder: Path, src: str, tgt: str) -> Pipeline | None:
    """Load a folder's pipeline for the direction ``src`` → ``tgt`` (:meth:`Pipeline.towards`).

    Return None without a ``text.json``. Raise DataError if the pipeline is for other languages, or
    :func:`load` refuses it, and ConfigError if the two languages are equal.
    """
    if src == tgt:
        raise ConfigError(f"`--src` and `--tgt` are both `{src}`; their files would be the same.")
    saved = load(folder)
    if saved is None:
        return None
    if turned := saved.towards(src, tgt):
        return turned
    raise DataError(
        f"{folder / FILE} is for {saved.src} and {saved.tgt}, not {src} and {tgt}; give its "
        "languages as `--src` and `--tgt`."
    )


def load(folder: str | Path) -> Pipeline | None:
    """Load the pipeline in a folder; return None if the folder has no ``text.json``.

    Raise DataError if ``text.json`` is damaged or of a later version, or a file that it names is
    missing or has changed.
    """
    path = Path(folder, FILE)
    if not path.exists():
        return None
    content = read_json(path, largest=LARGEST)
    if not isinstance(content, dict):
        raise _wrong(path, "it is not a JSON object")
    if (file_format := content.pop("format", None)) != FORMAT:
        raise DataError(
            f"{path} has the format {file_format!r:.20}, but this version reads {FORMAT}; "
            "update fairseq-ext."
        )
    options = {option.name: option for option in dataclasses.fields(Pipeline)}
    for name, option in options.items():
        kind = option.type if option.type in (bool, str) else list
        if name in content and not isinstance(content[name], kind):
            raise _wrong(path, f"`{name}` is {content[name]!r:.40}")
    kind = content.get("subwords", "none")
    if kind not in subwords.KINDS:
        raise _wrong(path, f"`subwords` is {kind!r:.40}")
    content["files"] = tuple(_verified(path, entry) for entry in content.get("files", []))
    named, needed = len(content["files"]), subwords.number_of_files(kind)
    if named != needed:
        raise _wrong(path, f"`files` names {named}, but `{kind}` has {needed}")
    try:
        return Pipeline(**content)
    except (ConfigError, TypeError) as error:  # contradictory, unknown or missing entries
        raise _wrong(path, str(error).removesuffix(".")) from None


def _verified(path: Path, entry: Any) -> Path:
    """Return the path that ``entry`` of ``text.json`` names; refuse a missing or changed file."""
    name = entry.get("name") if isinstance(entry, dict) else None
    if not files.is_name(name):
        raise _wrong(path, f"`files` has {entry!r:.60}")
    file = files.require_file(path.parent / name, f"file of {path}")
    if files.sha256(file) != entry.get("sha256"):
        raise DataError(
            f"{file} is not the file that {path} was written with (its checksum differs). "
            "Restore it, or prepare the corpus again."
        )
    return file


def _wrong(path: Path, reason: str) -> DataError:
    return DataError(f"{path} cannot be used: {reason}. Restore it, or prepare the corpus again.")


def find_towards(folders: Iterable[str | Path], src: str, tgt: str) -> Pipeline | None:
    """Load the pipeline in the first folder that has a ``text.json``, for ``src`` → ``tgt``.

    Return None if no folder has a ``text.json``, or the pipeline is for other languages.
    """
    saved = next(filter(None, map(load, folders)), None)
    return saved and saved.towards(src, tgt)


def copy(folder: str | Path, target: str | Path) -> None:
    """Copy ``text.json``, if any, and the files that it names from ``folder`` to ``target``.

    Raise DataError if ``target`` has the ``text.json`` of a different pipeline.
    """
    pipeline = load(folder)
    if pipeline is None or Path(folder).resolve() == Path(target).resolve():
        return
    require_same(target, pipeline)
    pipeline.save(Path(target))


def require_same(folder: str | Path, pipeline: Pipeline) -> None:
    """Raise :class:`DataError` if the ``text.json`` in a folder is of a different pipeline."""
    former = load(folder)
    if former is not None and not same(former, pipeline):
        raise DataError(
            f"{Path(folder, FILE)} says that its text was made by other steps "
            f"({former.describe()}) than this text ({pipeline.describe()}). Choose another folder."
        )


def same(first: Pipeline, second: Pipeline) -> bool:
    """Return whether two pipelines have equal steps and files with equal contents."""
    sums = [[files.sha256(path) for path in pipeline.files] for pipeline in (first, second)]
    return sums[0] == sums[1] and dataclasses.replace(first, files=()) == dataclasses.replace(
        second, files=()
    )
