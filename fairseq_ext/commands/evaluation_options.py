"""Options of the commands that read and measure translations.

The options name the reference, metrics, BLEU's tokenizer, and the steps that turn translations into
text. ``score``, ``compare``, ``plot lengths``, ``hypotheses`` and ``mbr`` each take some of them.
If no option names the steps, they come from the ``text.json`` of the run that made the
translations. This file records how the run's text became tokens.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.utils.errors import ConfigError, printable, wrong_value
from fairseq_ext.utils.option_fields import Once, add_options, flag, option, specified

if TYPE_CHECKING:
    from fairseq_ext.text.generated import Postprocessor
    from fairseq_ext.text.pipeline import Pipeline


@dataclass(frozen=True)
class ReferenceOptions:
    """The options that name the reference text."""

    ref: Path = option(
        help="reference as detokenized text, or the name of a test set of sacrebleu, such as "
        "wmt14/full, which is downloaded once",
        action=Once,
    )
    language_pair: str | None = option(
        None,
        "languages, such as en-de, for a test set of sacrebleu or to choose BLEU's tokenizer",
        *("-l", "--language-pair"),
        metavar="SRC-TGT",
    )

    def path(self) -> Path:
        """Return the file that ``--ref`` names; download a test set of sacrebleu if necessary.

        Raise ConfigError if ``--language-pair`` is malformed, or not a pair of the test set.
        """
        from fairseq_ext.evaluation.score import test_set_reference

        if self.language_pair is not None and not all(self.language_pair.partition("-")):
            raise wrong_value("--language-pair", "SRC-TGT, such as en-de", self.language_pair)
        return test_set_reference(self.ref, self.language_pair)


@dataclass(frozen=True)
class TokenizerOptions:
    """The option ``--tokenize`` for BLEU's tokenizer, and options that tell the target language.

    Without ``--tokenize``, the tokenizer depends on the target language.
    """

    tokenize: str | None = option(
        None,
        "sacrebleu's tokenizer for BLEU: 13a, zh, char, ja-mecab, spm, flores200 ... (default: by "
        "the target language, taken from the run, from --detokenize or, where the command has "
        "them, from -l SRC-TGT or the ending of the reference's name)",
        metavar="NAME",
    )
    detokenize: str | None = None
    language_pair: str | None = None

    def choose(
        self, undoing: Iterable[Postprocessor], references: Sequence[str], path: Path | None = None
    ) -> str:
        """Return the name of sacrebleu's tokenizer: ``--tokenize``, or the target language's.

        The first of these that names a target language counts: ``-l``, ``--detokenize``,
        ``undoing`` (the objects that turn the systems' translations into text), and the ending of
        the reference file ``path``. If the language has no tokenizer of its own, the ``references``
        decide, as in :func:`~fairseq_ext.evaluation.score.choose_tokenizer`.
        """
        from fairseq_ext.evaluation.score import choose_tokenizer

        languages = [self.language_pair and self.language_pair.partition("-")[2], self.detokenize]
        languages += [undo.pipeline.tgt for undo in undoing]
        languages.append(None if path is None else path.suffix.removeprefix("."))
        return choose_tokenizer(self.tokenize, languages, references)


@dataclass(frozen=True)
class ProcessOptions:
    """The options for the process in which a neural metric runs."""

    metric_python: str | None = option(
        None,
        "Python that has the metric's library, such as comet_env/bin/python (default: the variable "
        "FAIRSEQ_EXT_METRIC_PYTHON, or else this Python)",
        metavar="PYTHON",
    )
    metric_batch_size: int | None = option(None, "sentences in a batch of the metric (16)")

    def settings(self) -> dict[str, Any]:
        """Return the options that are set, as arguments of ``neural.NeuralMetric``."""
        settings = {"python": self.metric_python, "batch_size": self.metric_batch_size}
        return {name: value for name, value in settings.items() if value is not None}

    def require_unset(self, partner: str) -> None:
        """Raise ConfigError if an option for the process of a neural metric is set.

        Call this if ``partner``, such as ``--metric comet:MODEL``, is missing. The message says
        that the option needs it.
        """
        for name in specified(self, ("metric_python", "metric_batch_size")):
            raise ConfigError(f"`{flag(name)}` goes with `{partner}`, which is missing.")


@dataclass(frozen=True)
class MetricOptions:
    """The options for further metrics, and for the source text that neural metrics read."""

    metric: Sequence[str] = option(
        [],
        "further metric: chrf++, ter or spbleu of sacrebleu, or comet:MODEL, where MODEL is a "
        "folder, a checkpoint, or a name on the Hugging Face Hub such as Unbabel/wmt22-comet-da; "
        "repeat for more",
        action="append",
        metavar="NAME",
    )
    source: Path | None = option(
        None,
        "source text for the metric, and for `compare --latency` (default: the source of "
        "sacrebleu's test set or, for the metric, the S lines of fairseq-generate)",
    )
    process: ProcessOptions = dataclasses.field(default_factory=ProcessOptions)

    @property
    def text_metrics(self) -> list[str]:
        """The values of ``--metric`` that name a metric of sacrebleu, each once."""
        return [name for name in dict.fromkeys(self.metric) if ":" not in name]

    @property
    def neural(self) -> list[str]:
        """The values of ``--metric`` that name a neural model, such as ``comet:MODEL``."""
        return [name for name in self.metric if ":" in name]

    def source_path(self, reference: ReferenceOptions, latency: bool = False) -> Path | None:
        """Return the file with the source sentences: ``--source``, or the source of the test set.

        Only neural metrics and a measurement of ``latency`` need this file; without them, return
        None. Also return None if ``--source`` is missing and the reference is a file of the user.
        Raise ConfigError for an unknown metric, or for options of neural metrics without such a
        metric.
        """
        from fairseq_ext.evaluation.score import TEXT_METRICS

        if unknown := [name for name in self.text_metrics if name not in TEXT_METRICS]:
            raise wrong_value("--metric", f"{', '.join(TEXT_METRICS)} or comet:MODEL", unknown[0])
        if not self.neural:
            self.process.require_unset("--metric comet:MODEL")
            if self.source is not None and not latency:
                raise ConfigError("`--source` goes with `--metric comet:MODEL`, which is missing.")
            if not latency:
                return None
        if self.source or reference.path() == reference.ref:
            return self.source
        from sacrebleu.utils import get_source_file

        return Path(get_source_file(reference.ref.as_posix(), reference.language_pair or ""))


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """Add the options of further metrics as a group."""
    group = parser.add_argument_group(
        "further metrics",
        "COMET runs in a separate Python that has COMET's library. Load only models that you "
        "trust: they are pickles, which may run any code there.",
    )
    add_options(group, MetricOptions)
    add_options(group, ProcessOptions)


@dataclass(frozen=True)
class UndoingOptions:
    """The options for turning translations, which are tokens, into text.

    The first rule that applies decides whether subword pieces are joined:

    - ``--remove-bpe`` and ``--detokenize`` join them, ``--no-remove-bpe`` leaves them.
    - A ``text.json`` names the kind of pieces to join, if any.
    - Otherwise, ``hypotheses`` and ``mbr`` leave them; all other commands join pieces of
      subword-nmt (``@@``).
    """

    detokenize: str | None = option(
        None, "undo Moses tokenization by the rules of this language, such as de", metavar="LANG"
    )
    keep_tokens: bool = option(False, "leave the translations as tokens")
    remove_bpe: bool | None = option(None, "join subword pieces (`@@ `)")

    @property
    def is_default(self) -> bool:
        """Whether no option for turning translations into text is set."""
        return self == UndoingOptions()

    def undoing(self, generated: Sequence[Path], subwords: str = "joined") -> Postprocessor:
        """Return the object that turns one system's translations into text.

        ``generated`` has the system's outputs of fairseq-generate; if one output has a
        ``text.json``, this file counts for all. Without ``text.json`` and options, ``subwords``
        decides: ``joined`` joins subword-nmt's pieces, ``none`` leaves all tokens as they are.
        Raise ConfigError if two outputs have different ``text.json``, or options contradict each
        other.
        """
        from fairseq_ext.text.generated import Postprocessor, find
        from fairseq_ext.text.pipeline import Pipeline

        runs = {path: run for path in generated if (run := find(path))}
        if runs:
            first, (folder, saved) = next(iter(runs.items()))
            for path, (_, other) in runs.items():
                if other.describe() != saved.describe():
                    raise ConfigError(
                        f"{path} becomes text in another way ({other.describe()}) than "
                        f"{first} ({saved.describe()}); give one of them at a time."
                    )
            steps, path = self._override(saved), folder / "text.json"
            message = f"becomes text as {path} says ({steps.describe()})"
            if steps != saved:
                former, now = saved.describe(), steps.describe()
                message = f"options replace steps of {path} ({former}): {now}"
            print(printable(f"{generated[0]}: {message}"), file=sys.stderr)
            return Postprocessor(steps)
        return Postprocessor(self._override(Pipeline("", "", subwords=subwords)))

    def _override(self, steps: Pipeline) -> Pipeline:
        overrides: dict[str, Any] = {}
        join = self.remove_bpe
        if join is False or (join and steps.subwords not in ("subword-nmt", "fastbpe")):
            overrides |= {"subwords": "joined" if join else "none", "files": ()}
        if self.detokenize is not None:
            if join is False:
                raise ConfigError(
                    "`--detokenize` needs words, but `--no-remove-bpe` keeps pieces; leave one out."
                )
            overrides |= {"tokenize": True, "tgt": self.detokenize}
            if join is None and steps.subwords == "none":  # pieces cannot be detokenized
                overrides["subwords"] = "joined"
        if self.keep_tokens or join is False:
            overrides |= {"tokenize": False, "escape": False, "aggressive": False}
        return dataclasses.replace(steps, **overrides)


def add_undoing(parser: argparse.ArgumentParser, *, pieces: bool = False) -> None:
    """Add the options for turning translations into text.

    ``pieces`` says whether to add ``--remove-bpe``, for commands that can leave subwords apart.
    """
    group = parser.add_argument_group(
        "how the training corpus was prepared",
        "Needed only where the run of the translations has no text.json, or to override it.",
    )
    if pieces:
        add_options(group, UndoingOptions, ("remove_bpe",))
    exclusive = group.add_mutually_exclusive_group()
    add_options(exclusive, UndoingOptions, ("detokenize", "keep_tokens"))
