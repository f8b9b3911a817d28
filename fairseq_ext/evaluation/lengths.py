"""Compute BLEU by the length of the source, for several systems (Figure 3 of the MUSE paper).

A bucket is the set of test sentences whose source lengths are in one range. It is scored like a
corpus. Lengths are in words, or in characters if the source has no spaces. Subword pieces are
joined, and the end of sentence does not count, so systems with different pieces have the same
buckets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fairseq_ext.evaluation import plots
from fairseq_ext.evaluation.outputs import Sentence, best_hypotheses, read_generated
from fairseq_ext.evaluation.score import build_bleu, count_units, multi_bleu, plain_lines
from fairseq_ext.text.bleu_tokenizers import USUAL
from fairseq_ext.text.generated import Postprocessor, require_text
from fairseq_ext.utils.errors import DataError, wrong_value


@dataclass(frozen=True)
class Bucket:
    """Test sentences with sources of ``first`` to ``last`` words or characters, and their BLEU."""

    first: int  # shortest source
    last: int | None  # longest source; None if there is no limit
    sentences: int  # number of sentences
    bleu: dict[str, float]  # BLEU of each system, 0 to 100; empty without sentences

    @property
    def label(self) -> str:
        """The range of source lengths, such as ``11–20`` or ``> 30``."""
        if self.last is None:
            return f"> {self.first - 1}"
        return f"{self.first}" if self.first == self.last else f"{self.first}–{self.last}"


@dataclass(frozen=True)
class LengthScores:
    """The BLEU of each system on every bucket, from short to long, and on the whole corpus."""

    metric: str
    buckets: tuple[Bucket, ...]
    whole: dict[str, float]
    unit: str = "words"  # of lengths; `characters` if the source has no spaces

    def rows(self) -> list[list[str]]:
        """Return a table: heading, a row for each bucket (dashes if empty), one for the corpus."""
        rows = [[f"source {self.unit}", "sentences", *self.whole]]
        for bucket in self.buckets:
            scores = [f"{bucket.bleu[n]:.2f}" if bucket.bleu else "–" for n in self.whole]
            rows.append([bucket.label, f"{bucket.sentences:,}", *scores])
        count = f"{sum(bucket.sentences for bucket in self.buckets):,}"
        return [*rows, ["all", count, *(f"{score:.2f}" for score in self.whole.values())]]


def parse_bounds(text: str) -> list[int]:
    """Parse the longest length of each bucket but the last, for example ``"10,20,30"``.

    Raise ConfigError if they are not rising positive numbers.
    """
    try:
        bounds = [int(bound) for bound in text.split(",")]
    except ValueError:
        bounds = [0]
    if bounds[0] < 1 or bounds != sorted(set(bounds)):
        raise wrong_value("--buckets", "rising lengths like 10,20,30", text)
    return bounds


def score_by_length(
    systems: Mapping[str, Path],
    reference: Path,
    bounds: Sequence[int],
    *,
    tokenizer: str | None = USUAL,
    undoing: Mapping[str, Postprocessor] | None = None,
) -> LengthScores:
    """Compute BLEU by the length of the source, from each system's output of fairseq-generate.

    ``bounds`` has the longest length of each bucket but the last. If ``tokenizer`` is None, the
    reference must be tokens, and BLEU is computed like ``multi-bleu.perl``. ``undoing`` has
    converters of tokens to text, by system; if a system has none, only its subwords are joined.
    """
    references = plain_lines(reference)
    outputs = {name: read_generated(path, len(references)) for name, path in systems.items()}
    undo = dict.fromkeys(systems, Postprocessor.by_language(None)) | dict(undoing or {})
    lengths, unit = source_lengths(outputs, undo)
    hypotheses = {}
    for name, sentences in outputs.items():
        words = undo[name].words(best_hypotheses(sentences))
        hypotheses[name] = words if tokenizer is None else undo[name].text(words)
        require_text(hypotheses[name], systems[name])
    metric = multi_bleu() if tokenizer is None else build_bleu(tokenizer)

    def score(rows: Sequence[int]) -> dict[str, float]:
        row_references = [[references[row] for row in rows]]
        return {
            name: metric.corpus_score([lines[row] for row in rows], row_references).score
            for name, lines in hypotheses.items()
        }

    groups = np.digitize(lengths, bounds, right=True)
    members = [np.flatnonzero(groups == group).tolist() for group in range(len(bounds) + 1)]
    firsts = [min(1, *lengths), *(bound + 1 for bound in bounds)]
    buckets = tuple(
        Bucket(first, last, len(rows), score(rows) if rows else {})
        for first, last, rows in zip(firsts, [*bounds, None], members, strict=True)
    )
    name = "BLEU on tokens" if tokenizer is None else "BLEU"
    return LengthScores(name, buckets, score(range(len(references))), unit)


def source_lengths(
    outputs: Mapping[str, Sequence[Sentence]], undoing: Mapping[str, Postprocessor]
) -> tuple[list[int], str]:
    """Return the length of each source, and the unit of all lengths, ``words`` or ``characters``.

    Raise DataError if an output has no sources, or the sources of two outputs differ in length.
    """
    first, lengths = "", list[int]()
    for name, sentences in outputs.items():
        texts = [sentence.source for sentence in sentences if sentence.source is not None]
        if len(texts) < len(sentences):
            raise DataError(
                f"The output of `{name}` has no sources (`S-` lines), whose lengths are needed; "
                "generate with `--source-lang` and without `--quiet`."
            )
        sources = undoing[name].words(texts)
        counts, unit = count_units(sources)
        first, lengths = first or name, lengths or counts
        for row, (ours, theirs) in enumerate(zip(lengths, counts, strict=True)):
            if ours != theirs:
                raise DataError(
                    f"`{first}` and `{name}` translated different sources: sentence {row} has "
                    f"{ours} {unit} in one and {theirs} in the other."
                )
    return lengths, unit


def relative(scores: LengthScores, baseline: str) -> LengthScores:
    """Subtract the baseline's BLEU from every system's, by bucket and for the whole corpus."""

    def subtract_baseline(bleu: dict[str, float]) -> dict[str, float]:
        return {name: value - bleu[baseline] for name, value in bleu.items()}

    buckets = (replace(bucket, bleu=subtract_baseline(bucket.bleu)) for bucket in scores.buckets)
    return replace(scores, buckets=tuple(buckets), whole=subtract_baseline(scores.whole))


def plot_lengths(
    scores: LengthScores, output: str | Path, relative_to: str | None = None
) -> list[Path]:
    """Plot BLEU, or its gain over system ``relative_to``, by source length; return the files."""
    data, curves = asdict(scores), scores
    if relative_to is not None:
        curves = relative(scores, relative_to)
        data["relative"] = {"to": relative_to, **asdict(curves)}
    labels = [f"{bucket.label}\nn = {bucket.sentences:,}" for bucket in scores.buckets]
    with plots.new_figure(max(5.2, 1.1 + 0.95 * len(labels)), 4.2) as figure:
        axes = figure.subplots()
        axes.set(
            title="Translation quality by length",
            xlabel=f"source {scores.unit} (subword pieces joined), n sentences",
        )
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.4, len(labels) - 0.6)
        form = ".2f" if relative_to is None else "+.2f"
        for name, look in plots.looks(scores.whole).items():
            values = [bucket.bleu.get(name, float("nan")) for bucket in curves.buckets]
            label = f"{name} (all: {curves.whole[name]:{form}})"
            axes.plot(values, ms=5, lw=1.8, label=plots.legend_label(label), **look)
        if relative_to is None:
            axes.set_ylabel(f"{scores.metric} (0 to 100)")
            low, high = axes.get_ylim()
            axes.set_ylim(max(0.0, low), max(1.0, high))
        else:
            axes.set_ylabel(f"difference in {scores.metric}")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
        axes.grid(True, axis="y")
        legend = plots.draw_legend(axes, top=-0.19)  # below the buckets' two lines
        figure.set_figheight(4.2 + legend)
        return plots.save_picture(figure, output, data)
