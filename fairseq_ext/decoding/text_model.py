"""Translation in Python: text in, text out.

>>> import fairseq_ext
>>> model = fairseq_ext.load("de-en")
>>> model
<fairseq_ext model: gru_tiny, de → en>
>>> model.translate("Ein Mann schläft.").text
'A man sleeps.'
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

from fairseq_ext.decoding import stream
from fairseq_ext.decoding.loading import opened
from fairseq_ext.decoding.search import BUFFER, Search, Translates
from fairseq_ext.decoding.stream import TextCodec, Translation
from fairseq_ext.engine import DEFAULT, ENGINES, FAIRSEQ
from fairseq_ext.utils.errors import ConfigError, DataError


class Model:
    """A trained model between lines of text. Several threads may call its methods.

    Args:
        translator: of tokens.
        codec: between text and tokens.
        target: from a line of text in the target language to tokens.
        search: how to search where a call does not say it.
    """

    def __init__(
        self, translator: Translates, codec: TextCodec, target: stream.Step, search: Search
    ) -> None:
        self._translator, self._codec, self._target = translator, codec, target
        self._search = search

    @property
    def src(self) -> str:
        """The source language."""
        return self._translator.src

    @property
    def tgt(self) -> str:
        """The target language."""
        return self._translator.tgt

    @property
    def name(self) -> str:
        """The architecture, as fairseq knows it."""
        return self._translator.name

    @property
    def limit(self) -> int:
        """The most source tokens in a line, ``</s>`` included."""
        return self._translator.limit

    def __repr__(self) -> str:
        return f"<fairseq_ext model: {self.name}, {self.src} → {self.tgt}>"

    @overload
    def translate(
        self,
        texts: str,
        *,
        beam: int | None = None,
        nbest: int = 1,
        lenpen: float | None = None,
        max_len_a: float | None = None,
        max_len_b: int | None = None,
        alignments: bool = False,
    ) -> Translation: ...

    @overload
    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        nbest: int = 1,
        lenpen: float | None = None,
        max_len_a: float | None = None,
        max_len_b: int | None = None,
        alignments: bool = False,
    ) -> list[Translation]: ...

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        beam: int | None = None,
        nbest: int = 1,
        lenpen: float | None = None,
        max_len_a: float | None = None,
        max_len_b: int | None = None,
        alignments: bool = False,
    ) -> Translation | list[Translation]:
        """Translate one line, or each of several.

        Args:
            texts: lines; an empty one has an empty translation.
            beam: beam size; None for the model's default, as for all that follow.
            nbest: translations of a line, at most ``beam``.
            lenpen: scores are divided by length to this power.
            max_len_a, max_len_b: a translation has at most ``a × source tokens + b`` tokens.
            alignments: with attention weights, of models that have them.

        Returns:
            A result for each line, in their order; for a single string the result itself.

        Raises:
            ConfigError: a search that is not possible.
            DataError: a line that is not a string or is longer than :attr:`limit`, by number.
        """
        single = isinstance(texts, str)
        texts = [texts] if single else _listed(texts, "texts")
        overrides = {"beam": beam, "lenpen": lenpen, "max_len_a": max_len_a, "max_len_b": max_len_b}
        translations = list(
            self.stream(
                texts, buffer=max(len(texts), 1), nbest=nbest, alignments=alignments, **overrides
            )
        )
        return translations[0] if single else translations

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
    ) -> Iterator[Translation]:
        """Translate lines as they come, without end if they have none.

        Args:
            lines: without line ends.
            buffer: lines that are read before they are translated; no more are kept in memory.
            skip_long: give empty translations of lines that are too long, with a warning.
            beam, nbest, lenpen, max_len_a, max_len_b, alignments: see :meth:`translate`.

        Raises:
            ConfigError, DataError: see :meth:`translate`.
        """
        overrides = {"beam": beam, "lenpen": lenpen, "max_len_a": max_len_a, "max_len_b": max_len_b}
        search = dataclasses.replace(
            self._search,
            **{name: value for name, value in overrides.items() if value is not None},
            nbest=nbest,
            attention=alignments,
        )
        search.check()
        options = {"search": search, "name": "the text", "buffer": buffer, "skip_long": skip_long}
        return stream.translations(_strings(lines), self._translator, self._codec, **options)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Score how probable translations are.

        Args:
            sources: lines of text.
            targets: their translations.

        Returns:
            For each pair the log-probability, base e, of the target: the sum over its tokens and
            the ``</s>`` behind them.

        Raises:
            ConfigError: a string instead of a list of them.
            DataError: another number of targets, an empty source, or a line that is too long or
                is not a string.
        """
        sources, targets = _listed(sources, "sources"), _listed(targets, "targets")
        if len(sources) != len(targets):
            raise DataError(f"{len(sources):,} sources cannot have {len(targets):,} targets.")
        read = [self._codec.encode(source) for source in _strings(sources, "source")]
        for number, length in enumerate(self._translator.lengths(read), start=1):
            if not read[number - 1] or length > self._translator.limit:
                raise DataError(
                    f"source {number} has {length:,} tokens, but must have 2 to "
                    f"{self._translator.limit:,}, `</s>` included."
                )
        token_scores = self._translator.score(
            read, [self._target(target) for target in _strings(targets, "target")]
        )
        return [float(sum(map(float, scores))) for scores in token_scores]


def _listed(texts: Iterable[str], argument: str) -> list[str]:
    """The texts as a list; one string would otherwise be read as a list of its letters."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise ConfigError(
            f"`{argument}` must be a list of strings, but is of the type {type(texts).__name__}."
        )
    return list(texts)


def _strings(lines: Iterable[str], name: str = "line") -> Iterator[str]:
    """Yield the lines; the first that is not a string is an error."""
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, str):
            raise DataError(
                f"{name} {number} must be a string, but is of the type {type(line).__name__}."
            )
        yield line


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
) -> Model:
    """A trained model, ready to translate text as it was prepared for training.

    Args:
        path: a bundle, which mostly needs neither torch nor fairseq; a checkpoint; the folder of a
            run, whose ``average.pt``, ``checkpoint_best.pt`` or ``checkpoint_last.pt`` is taken,
            the first that is there; or a name on the Hugging Face Hub, ``org/name`` or
            ``org/name@revision``.
        data: folder of fairseq-preprocess with the dictionaries; None for the model's own, or those
            that it was trained with, if they are still there.
        src, tgt: languages; None for those of the training.
        engine: what translates on a CPU: ``native``, ``native-bf16``, ``native-int8``,
            ``torch``, or ``fairseq``.
        threads: that share out the work; None for as many as ``OMP_NUM_THREADS`` says, or there are
            processors. A checkpoint's are torch's, of the whole process.
        max_tokens: source tokens in a batch.
        cpu: leave a GPU alone.

    Raises:
        CheckpointError: a file that cannot be used.
        ConfigError: arguments that do not go together, or the engine was not compiled.
        DataError: no dictionaries, or a ``text.json`` that cannot be used.
    """
    if engine not in (FAIRSEQ, *ENGINES):
        raise ConfigError(
            f"`engine` must be one of {', '.join((FAIRSEQ, *ENGINES))}, but is `{engine}`."
        )
    if threads is not None and threads < 1:
        raise ConfigError(f"`threads` must be at least 1, but is {threads} instead.")
    fixed = {"engine": engine, "max_tokens": max_tokens, "cpu": cpu, "attention": True}

    def search(saved_options: Mapping[str, int | float]) -> Search:
        return Search(**saved_options, **fixed)

    folder = None if data is None else Path(data)
    with opened([Path(path)], folder, (src, tgt), search, threads) as session:
        text = session.text()
        codec = TextCodec(text.encoder(), text.decoder())
        target = text.encoder(text.tgt)
        session.require_unchanged()
        return Model(session.translator, codec, target, session.search)
