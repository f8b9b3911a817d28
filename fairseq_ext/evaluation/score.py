"""Compute BLEU and chrF with sacrebleu, with the signatures that make them comparable.

Comparable scores need detokenized text, which sacrebleu tokenizes itself (Post 2018, "A
Call for Clarity in Reporting BLEU Scores"). Papers of 2014 to 2020 mostly report BLEU on their
own tokens (``multi-bleu.perl``); this figure is offered, too, under a name that says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fairseq_ext import text
from fairseq_ext.evaluation.outputs import best_hypotheses, read_generated, read_lines
from fairseq_ext.text.generated import Undoing, require_text
from fairseq_ext.utils.errors import DataError, EnvironmentProblem

TOKENIZED_BLEU = "BLEU-tok (multi-bleu style, not comparable)"
COMPOUND_BLEU = "BLEU-tok, compounds split (multi-bleu style, WMT14 En-De only)"
HYPHEN = re.compile(r"(\S)-(\S)")
TEXT_METRICS = {"chrf++": "chrF++", "ter": "TER", "spbleu": "spBLEU"}
"""Further metrics of sacrebleu, by the values of ``--metric``, with their names in tables."""
PLACES = {"COMET": 4}
"""Decimals by the first word of a score's name, if not 2; these scores are about 1 in size."""


@dataclass(frozen=True)
class Score:
    """A score: ``name``, ``value`` (BLEU and chrF 0 to 100), ``signature`` and a long form."""

    name: str
    value: float
    signature: str
    detail: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def shown(name: str, value: float) -> str:
    """Format a value with the usual decimals of the score with this name or signature."""
    return f"{value:.{PLACES.get(re.split('[ |]', name)[0], 2)}f}"


def build_metrics(
    references: Sequence[str], tokenizer: str = "13a", extra_metrics: Sequence[str] = ()
) -> dict[str, Any]:
    """Build sacrebleu's BLEU (mixed case), chrF2 and others, by the names that tables show.

    Args:
        references: detokenized text.
        tokenizer: of sacrebleu, for BLEU; see :mod:`fairseq_ext.evaluation.tokenizers`.
        extra_metrics: keys of :data:`TEXT_METRICS`.

    Raises:
        EnvironmentProblem: sacrebleu is missing or too old, or a tokenizer cannot be used.
    """
    from fairseq_ext.evaluation.tokenizers import build_bleu

    sacrebleu, prepared = load_sacrebleu(), [list(references)]
    metrics = {
        "BLEU": build_bleu(tokenizer, references=prepared),
        "chrF": sacrebleu.CHRF(references=prepared),
    }
    for name in extra_metrics:
        if name == "chrf++":
            metric = sacrebleu.CHRF(word_order=2, references=prepared)
        elif name == "ter":
            metric = sacrebleu.TER(references=prepared)
        else:
            metric = build_bleu("flores200", references=prepared)
        metrics[TEXT_METRICS[name]] = metric
    return metrics


def text_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenizer: str = "13a",
    extra_metrics: Sequence[str] = (),
) -> list[Score]:
    """Score detokenized text by the metrics of :func:`build_metrics`.

    Raises:
        DataError: unequal numbers of lines, or none.
        EnvironmentProblem: the tokenizer cannot be used.
    """
    _check_counts(hypotheses, references)
    scores = []
    for name, metric in build_metrics(references, tokenizer, extra_metrics).items():
        result = metric.corpus_score(list(hypotheses), None)
        signature = str(metric.get_signature())
        scores.append(Score(name, result.score, signature, str(result)))
    return scores


def tokenized_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Compute BLEU on tokens as they are and without smoothing, like ``multi-bleu.perl``.

    Raises:
        DataError: unequal numbers of lines, or none.
    """
    sacrebleu = load_sacrebleu()
    _check_counts(hypotheses, references)
    metric = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(TOKENIZED_BLEU, result.score, str(metric.get_signature()), str(result))


def split_compounds(tokens: str) -> str:
    """Make each hyphen between two characters of a line a token of its own.

    The literature on WMT14 English–German (Vaswani et al. 2017, and later papers that compare)
    splits hyphenated words of translation and reference before counting: ``Rad-Tour`` becomes
    ``Rad ##AT##-##AT## Tour``. This raises BLEU by about half a point, so the figure is comparable
    only to others of its kind.

    Matches do not overlap, as in the scripts of the literature: in ``a-b-c``, with a single letter
    between two hyphens, only the first hyphen is split.
    """
    return HYPHEN.sub(r"\1 ##AT##-##AT## \2", tokens)


def compound_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Compute BLEU like ``multi-bleu.perl``, after :func:`split_compounds` on both sides.

    Raises:
        DataError: unequal numbers of lines, or none.
    """
    sides = ([split_compounds(line) for line in lines] for lines in (hypotheses, references))
    return replace(tokenized_bleu(*sides), name=COMPOUND_BLEU)


def score_files(
    reference: str | Path,
    hypothesis: str | Path,
    tokenized_reference: str | Path | None = None,
    tokenized_hypothesis: str | Path | None = None,
    tokenizer: str = "13a",
    compounds: bool = False,
    extra_metrics: Sequence[str] = (),
) -> list[Score]:
    """Score files of detokenized text and, if given, of tokens.

    With ``compounds``, tokens are also scored after :func:`split_compounds`.

    Raises:
        DataError: a file is unreadable, two files differ in their number of lines, or the
            hypotheses are pieces of subwords.
    """
    hypotheses, references = _paired(hypothesis, reference)
    require_text(hypotheses, hypothesis, references)
    scores = text_scores(hypotheses, references, tokenizer, extra_metrics)
    if tokenized_reference and tokenized_hypothesis:
        tokens = _paired(tokenized_hypothesis, tokenized_reference)
        scores += _token_scores(*tokens, compounds)
    return scores


def score_generated(
    generated: str | Path | Sequence[str | Path],
    reference: str | Path,
    tokenized_reference: str | Path | None = None,
    undoing: Undoing | None = None,
    tokenizer: str = "13a",
    compounds: bool = False,
    extra_metrics: Sequence[str] = (),
) -> list[Score]:
    """Score the best hypotheses of a ``fairseq-generate`` output.

    Subword pieces are joined. Tokenized BLEU compares with ``tokenized_reference`` or,
    without one, with the T lines, in which fairseq writes a word outside the target dictionary as
    ``<<unk>>``, which nothing matches.

    Args:
        generated: standard output of ``fairseq-generate``, or of all its shards.
        reference: detokenized reference text.
        tokenized_reference: the reference as tokens, without subword pieces.
        undoing: converter of the hypotheses to text; None only joins subwords.
        tokenizer: sacrebleu's tokenizer for BLEU of text.
        compounds: whether to score tokens after :func:`split_compounds`, too.
        extra_metrics: further metrics, keys of :data:`TEXT_METRICS`.

    Raises:
        DataError: files are unreadable or incomplete, or nothing joins pieces of SentencePiece.
    """
    references = plain_lines(reference)
    sentences = read_generated(generated, expected=len(references))
    undoing = undoing or Undoing.by_language(None)
    tokens = undoing.words(best_hypotheses(sentences))
    texts = undoing.text(tokens)
    require_text(texts, "the translations")
    scores = text_scores(texts, references, tokenizer, extra_metrics)
    if tokenized_reference is not None:
        token_references = plain_lines(tokenized_reference)
        _check_counts(tokens, token_references, "the translations", tokenized_reference)
    else:
        token_references = undoing.words(
            sentence.target for sentence in sentences if sentence.target is not None
        )
    if len(token_references) == len(tokens):
        scores += _token_scores(tokens, token_references, compounds)
    return scores


def _token_scores(
    hypotheses: Sequence[str], references: Sequence[str], compounds: bool
) -> list[Score]:
    scores = [tokenized_bleu(hypotheses, references)]
    return [*scores, compound_bleu(hypotheses, references)] if compounds else scores


def as_table(scores: Sequence[Score]) -> str:
    """Format a table of names, values and signatures."""
    width = max(len(score.name) for score in scores)
    return "\n".join(
        f"{score.name:<{width}}  {shown(score.name, score.value):>6}  {score.signature}"
        for score in scores
    )


def plain_lines(path: str | Path) -> list[str]:
    """Read the lines of a text; refuse one in which fairseq and sacrebleu see other sentences.

    Raises:
        DataError: the file is unreadable, or has line ends within sentences.
    """
    text.check_text(path, empty_lines=True, max_tokens=None)
    return read_lines(path)


def _paired(hypothesis: str | Path, reference: str | Path) -> tuple[list[str], list[str]]:
    hypotheses, references = plain_lines(hypothesis), plain_lines(reference)
    _check_counts(hypotheses, references, hypothesis, reference)
    return hypotheses, references


def _check_counts(
    hypotheses: Sequence[str],
    references: Sequence[str],
    hypothesis_name: str | Path = "the hypotheses",
    reference_name: str | Path = "the references",
) -> None:
    if len(hypotheses) != len(references):
        raise DataError(
            f"`{hypothesis_name}` has {len(hypotheses)} lines, but `{reference_name}` has "
            f"{len(references)}; each line must be the translation of the same sentence."
        )
    if not references:
        raise DataError(f"`{reference_name}` is empty; there is nothing to score.")


def load_sacrebleu() -> Any:
    """Import sacrebleu.

    Raises:
        EnvironmentProblem: it is missing, or too old.
    """
    try:
        import sacrebleu
        from sacrebleu.metrics import BLEU  # noqa: F401  an unrelated old release lacks it
    except ImportError as error:
        raise EnvironmentProblem(
            "Scoring needs sacrebleu 2 or later: `pip install 'sacrebleu>=2.4'`."
        ) from error
    return sacrebleu
