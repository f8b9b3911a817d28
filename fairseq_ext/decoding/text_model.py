"""Translate text in Python: text in, text out.

>>> import fairseq_ext
>>> model = fairseq_ext.load("de-en")
>>> model
<fairseq_ext model: gru_tiny, de → en>
>>> model.translate("Ein Mann schläft.").text
'A man sleeps.'
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, overload

from fairseq_ext.decoding import stream
from fairseq_ext.decoding.loading import Translates, models_of, open_model
from fairseq_ext.decoding.search import BUFFER, Search, require_compatible
from fairseq_ext.decoding.stream import TextCodec, Translation
from fairseq_ext.engine import DEFAULT, ENGINES, FAIRSEQ
from fairseq_ext.engine.engine_model import SearchDefaults
from fairseq_ext.text import placeholders
from fairseq_ext.text.sentences import UNSPLIT, SentenceSplitter, sentence_splitter
from fairseq_ext.utils.errors import ConfigError, DataError, wrong_value

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Options(TypedDict, total=False):
    """The optional arguments of :meth:`Model.translate`, which describes them."""

    beam: int | None
    nbest: int
    lenpen: float | None
    max_len_a: float | None
    max_len_b: int | None
    alignments: bool
    split_sentences: bool
    keep: Sequence[str]
    keep_addresses: bool
    markup: bool


class Model:
    """A trained model that translates lines of text. Several threads may call its methods.

    ``codec`` turns text into tokens and back; ``target`` turns target text into tokens.

    Attributes:
        src, tgt: languages.
        name: fairseq's name of the architecture.
        limit: the most source tokens in a line, ``</s>`` included.
    """

    def __init__(self, translator: Translates, codec: TextCodec, target: stream.Step) -> None:
        self._translator, self._codec, self._target = translator, codec, target
        self.src, self.tgt, self.name = translator.src, translator.tgt, translator.name
        self.limit = translator.limit

    def __reduce__(self) -> NoReturn:
        raise ConfigError("A model cannot be copied or pickled; load it anew in each process.")

    def __repr__(self) -> str:
        return f"<fairseq_ext model: {self.name}, {self.src} → {self.tgt}>"

    # A string is a sequence of strings, too.
    @overload
    def translate(self, texts: str, **options: "Unpack[Options]") -> Translation: ...  # type: ignore[overload-overlap]

    @overload
    def translate(
        self, texts: Sequence[str], **options: "Unpack[Options]"
    ) -> list[Translation]: ...

    def translate(
        self, texts: str | Sequence[str], **options: "Unpack[Options]"
    ) -> Translation | list[Translation]:
        """Translate one line or several lines.

        Options are given by name, such as ``beam=4``; :meth:`stream` shows their defaults.

        Args:
            texts: a line or a list of lines; an empty line has an empty translation.
            beam: beam size; here and below, None stands for the model's default.
            nbest: number of translations for each line, at most ``beam``.
            lenpen: scores are divided by length to this power.
            max_len_a, max_len_b: a translation has at most ``a × source tokens + b`` tokens.
            alignments: whether to return attention weights, if the model has them.
            split_sentences: whether to translate each sentence of a line alone.
            keep: regular expressions of text to keep as it is, such as ``"%[sd]"``.
            keep_addresses: whether URLs, e-mail addresses and emoji are kept as they are.
            markup: whether lines are XML or HTML, whose tags are kept.

        Returns:
            A list with the result for each line, in order; for a single string, just its result.

        Raises:
            ConfigError: the search is not possible, or options exclude each other.
            DataError: a line is not a string or is longer than :attr:`limit`; the message gives
                the number of the line.
        """
        lines = [texts] if isinstance(texts, str) else [*_strings(texts, "texts")]
        translations = list(self.stream(lines, buffer=max(len(lines), 1), **options))
        return translations[0] if isinstance(texts, str) else translations

    def stream(
        self,
        lines: Iterable[str],
        *,
        buffer: int = BUFFER,
        skip_long: bool = False,
        beam: int | None = None,
        nbest: int = 1,
        lenpen: float | None = None,
        max_len_a: float | None = None,
        max_len_b: int | None = None,
        alignments: bool = False,
        split_sentences: bool = False,
        keep: Sequence[str] = (),
        keep_addresses: bool = False,
        markup: bool = False,
    ) -> Iterator[Translation]:
        """Translate lines as they come, even an endless stream.

        Args:
            lines: lines of text, without line ends.
            buffer: lines to read before translating them; no more are kept in memory.
            skip_long: whether lines that are too long get empty translations and a warning.
            beam, nbest, lenpen, max_len_a, max_len_b, alignments: see :meth:`translate`.
            split_sentences, keep, keep_addresses, markup: see :meth:`translate`.

        Raises:
            ConfigError, DataError: see :meth:`translate`.
        """
        overrides: dict[str, Any] = {"beam": beam, "lenpen": lenpen}
        overrides |= {"max_len_a": max_len_a, "max_len_b": max_len_b}
        search = dataclasses.replace(
            self._translator.search,
            **{name: value for name, value in overrides.items() if value is not None},
            nbest=nbest,
            attention=alignments,
        )
        keep = [*_strings(keep, "keep")]
        require_compatible(
            self._translator.search.constraints,
            keep=keep,
            keep_addresses=keep_addresses,
            markup=markup,
            split_sentences=split_sentences,
        )
        return stream.translations(
            _strings(lines, "lines"),
            self._translator,
            self._codec,
            search=search,
            name="the text",
            buffer=buffer,
            skip_long=skip_long,
            splitter=self._splitter if split_sentences else UNSPLIT,
            keeper=placeholders.keeper(keep, markup, keep_addresses),
        )

    @functools.cached_property
    def _splitter(self) -> SentenceSplitter:
        return sentence_splitter(self.src, self.tgt)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Compute the log-probability of each target as a translation of its source.

        The logarithms are to base e, and summed over a target's tokens and ``</s>``.

        Raises:
            ConfigError: an argument is a string instead of a list of strings.
            DataError: the numbers of sources and targets differ, a source is empty, or a line is
                too long or not a string.
        """
        sources, targets = [*_strings(sources, "sources")], [*_strings(targets, "targets")]
        if len(sources) != len(targets):
            raise DataError(f"{len(sources):,} sources cannot have {len(targets):,} targets.")
        read = [self._codec.encode(source) for source in sources]
        for number, length in enumerate(self._translator.lengths(read), start=1):
            if not read[number - 1] or length > self._translator.limit:
                raise DataError(
                    f"source {number} has {length:,} tokens, but must have 2 to "
                    f"{self._translator.limit:,}, `</s>` included."
                )
        token_scores = self._translator.score(read, [self._target(target) for target in targets])
        return [float(sum(map(float, scores))) for scores in token_scores]


def _strings(texts: Iterable[str], name: str) -> Iterator[str]:
    """Return an iterator over texts, which raises DataError at the first that is not a string.

    Raise ConfigError for a string, which is an iterable of letters, and for any non-iterable.
    """
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise ConfigError(
            f"`{name}` must be a list of strings, but is of the type {type(texts).__name__}."
        )

    def checked(number: int, text: str) -> str:
        if not isinstance(text, str):
            raise DataError(
                f"`{name}`, line {number}: not a string, but of the type {type(text).__name__}."
            )
        return text

    return map(checked, itertools.count(1), texts)


def load(
    path: str | Path,
    data: str | Path | None = None,
    *,
    src: str | None = None,
    tgt: str | None = None,
    engine: str = DEFAULT,
    threads: int | None = None,
    max_tokens: int = Search.max_tokens,
    cpu: bool = False,
    constraints: str | None = None,
) -> Model:
    """Load a trained model that translates text, and the text steps (subwords …) of its training.

    Args:
        path: the model, in any of these forms:

            - a checkpoint;
            - the folder of a training: the first of ``average.pt``, ``checkpoint_best.pt`` and
              ``checkpoint_last.pt`` that exists is loaded;
            - a bundle: a folder or archive of ``fairseq-ext bundle`` with all that the model needs.
              Most bundles need neither torch nor fairseq;
            - the name of a bundle that comes with the package, such as ``de-en``;
            - a name on the Hugging Face Hub, ``org/name`` or ``org/name@revision``.
        data: folder of fairseq-preprocess with the dictionaries; None for the model's own
            dictionaries or, if it has none, those that it was trained with.
        src, tgt: languages; None for the languages of the training.
        engine: the translator on a CPU: ``native``, ``native-bf16``, ``native-int8``,
            ``torch``, or ``fairseq``.
        threads: number of threads; None for ``OMP_NUM_THREADS``, or else the number of
            processors. With a checkpoint, torch uses this number in the whole process.
        max_tokens: most source tokens in a batch.
        cpu: whether to use the CPU even if there is a GPU.
        constraints: if not None, a line may have constraints after tabs: texts that its translation
            must have. ``ordered``: in the order of the line; ``unordered``: in any order.

    Raises:
        CheckpointError: a file cannot be used.
        ConfigError: arguments exclude each other, or the engine was not compiled.
        DataError: there are no dictionaries, or ``text.json`` cannot be used.
    """
    if engine not in (FAIRSEQ, *ENGINES):
        raise wrong_value("engine", f"one of {', '.join((FAIRSEQ, *ENGINES))}", engine)
    if threads is not None and not (isinstance(threads, Integral) and threads >= 1):
        raise wrong_value("threads", "a whole number of at least 1", threads)
    fixed: dict[str, Any] = {"engine": engine, "max_tokens": max_tokens, "cpu": cpu}

    def search(saved_options: SearchDefaults) -> Search:
        return Search(**saved_options, **fixed, constraints=constraints, attention=True)

    folder = None if data is None else Path(data)
    models = models_of(Path(path), src, tgt)
    model = open_model(models, folder, (src, tgt), search, threads)
    text = model.text()
    codec = TextCodec(text.encoder(), text.decoder())
    target = text.encoder(text.tgt)
    if constraints is not None:
        codec = codec.with_constraints(target)
    model.versions.require_unchanged()
    return Model(model.translator, codec, target)
