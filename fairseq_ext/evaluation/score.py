"""Compute BLEU and chrF with sacrebleu, with the signatures that make them comparable.

Comparable scores need detokenized text, which sacrebleu tokenizes itself (Post 2018, "A Call for
Clarity in Reporting BLEU Scores"). Papers of 2014 to 2020 mostly report BLEU on their own tokens
(``multi-bleu.perl``). This module computes that BLEU, too, under another name.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairseq_ext.evaluation import outputs, tables
from fairseq_ext.evaluation.neural import NeuralMetric
from fairseq_ext.text import bleu_tokenizers, checks
from fairseq_ext.text.bleu_tokenizers import USUAL
from fairseq_ext.text.generated import Postprocessor, check_reference, require_text
from fairseq_ext.utils.errors import ConfigError, DataError, EnvironmentProblem, wrong_value
from fairseq_ext.utils.json_files import read_json
from fairseq_ext.utils.parsing import nearest

TOKENIZED_BLEU = "BLEU-tok (multi-bleu style, not comparable)"
COMPOUND_BLEU = "BLEU-tok, compounds split (multi-bleu style, WMT14 En-De only)"
HYPHEN = re.compile(r"(\S)-(\S)")
TEXT_METRICS = {"chrf++": "chrF++", "ter": "TER", "spbleu": "spBLEU"}
"""Further metrics of sacrebleu: their names in tables, by the values of ``--metric``."""
UNKNOWN = "<unk>"
SOURCE_CURE = "Give the source text with `--source`."
LARGEST_REPORT = 1 << 30  # bytes of a report; it has some 20 for each segment of a neural metric


@dataclass(frozen=True)
class Score:
    """A text's score by one metric, with the metric's signature."""

    name: str  # name of the metric
    value: float  # BLEU and chrF from 0 to 100, others in their own unit
    signature: str  # signature of the metric
    detail: str  # a longer text: BLEU with its precisions, or the 95% interval from `compare`
    segments: Sequence[float] = ()  # scores of the single segments, of neural metrics only

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON: all fields but ``segments``."""
        names = ("name", "value", "signature", "detail")
        return {name: getattr(self, name) for name in names}


def format_score(name: str, value: float) -> str:
    """Format a score of the metric ``name``: four decimals for COMET, two for others."""
    return f"{value:.4f}" if name.startswith("COMET") else f"{value:.2f}"  # COMET: about 1


def choose_tokenizer(
    requested: str | None, languages: Iterable[str | None], references: Sequence[str]
) -> str:
    """Return the name of BLEU's tokenizer: ``requested``, or the tokenizer of the language.

    The language is the first in ``languages`` that is not None or empty. Without a language, and
    for most languages, the tokenizer is ``13a``. If the references have the Ethiopic word separator
    between words, ``char`` replaces ``13a``.

    Raises:
        ConfigError: sacrebleu has no tokenizer ``requested``.
        DataError: ``13a`` would be used, but the references are written without spaces.
    """
    if requested is not None:
        from sacrebleu.metrics import BLEU

        if requested not in BLEU.TOKENIZERS:
            names = ", ".join(BLEU.TOKENIZERS)
            raise wrong_value("--tokenize", f"one of {names}", requested)
        return requested
    tokenizer = bleu_tokenizers.tokenizer_for(next(filter(None, languages), None))
    if tokenizer != USUAL or not bleu_tokenizers.is_spaceless(references):
        return tokenizer
    if bleu_tokenizers.has_wordspaces("\n".join(references[: bleu_tokenizers.READ])):
        return bleu_tokenizers.BY_CHARACTERS
    raise DataError(
        "The reference is written without spaces, so that BLEU would take each sentence for one "
        "word; name its language (`-l en-zh`) or a tokenizer (`--tokenize zh` or `char`)."
    )


def build_bleu(tokenizer: str = USUAL, metric: str | None = None, **options: Any) -> Any:
    """Build sacrebleu's BLEU with a tokenizer; ``options`` are further arguments of ``BLEU``.

    Raise EnvironmentProblem if the tokenizer's library or its files are missing. The message blames
    the option ``--metric`` with the value ``metric`` or, if this is None, ``--tokenize``.
    """
    from sacrebleu.metrics import BLEU

    try:
        return BLEU(tokenize=tokenizer, **options)
    except (ImportError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        option, cure = f"--tokenize {tokenizer}", "`--tokenize char` needs nothing else."
        if metric is not None:
            option, cure = f"--metric {metric}", "The other metrics of sacrebleu need nothing else."
        raise EnvironmentProblem(f"`{option}` cannot be used: {reason:.300} {cure}") from error


def count_units(lines: Sequence[str]) -> tuple[list[int], str]:
    """Return each line's number of words, or of characters if there are no spaces, and the unit."""
    if bleu_tokenizers.is_spaceless(lines):
        return [len("".join(line.split())) for line in lines], "characters"
    return [len(line.split()) for line in lines], "words"


def build_metrics(
    references: Sequence[str], tokenizer: str = USUAL, extra_metrics: Sequence[str] = ()
) -> dict[str, Any]:
    """Build sacrebleu's BLEU (mixed case), chrF2 and further metrics, by their names in tables.

    ``tokenizer`` is sacrebleu's tokenizer for BLEU. ``extra_metrics`` has keys of
    :data:`TEXT_METRICS`. The metrics hold the references, so call
    ``metric.corpus_score(translations, None)``.
    """
    from sacrebleu.metrics import CHRF, TER

    prepared = [list(references)]
    metrics = {
        "BLEU": build_bleu(tokenizer, references=prepared),
        "chrF": CHRF(references=prepared),
    }
    further = {
        "chrf++": lambda: CHRF(word_order=2, references=prepared),
        "ter": lambda: TER(references=prepared),
        "spbleu": lambda: build_bleu("flores200", "spbleu", references=prepared),
    }
    return metrics | {TEXT_METRICS[name]: further[name]() for name in extra_metrics}


def multi_bleu() -> Any:
    """Build sacrebleu's BLEU as in ``multi-bleu.perl``: no tokenization and no smoothing."""
    return build_bleu("none", smooth_method="none", force=True)


def tokenized_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Compute BLEU like ``multi-bleu.perl``, on lines of tokens that are separated by spaces."""
    metric = multi_bleu()
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(TOKENIZED_BLEU, result.score, str(metric.get_signature()), str(result))


def split_compounds(tokens: str) -> str:
    """Make hyphens in words tokens of their own: ``Rad-Tour`` gives ``Rad ##AT##-##AT## Tour``.

    Vaswani et al. 2017 and later papers on WMT14 English–German do so to translation and reference,
    which raises BLEU by about half a point. As in their scripts, matches do not overlap: in
    ``a-b-c``, only the first hyphen becomes a token.
    """
    return HYPHEN.sub(r"\1 ##AT##-##AT## \2", tokens)


def compound_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Compute BLEU like ``multi-bleu.perl``, after :func:`split_compounds` on both sides."""
    sides = ([split_compounds(line) for line in lines] for lines in (hypotheses, references))
    return replace(tokenized_bleu(*sides), name=COMPOUND_BLEU)


def score_files(
    reference: str | Path,
    hypothesis: str | Path,
    tokenized_reference: str | Path | None = None,
    tokenized_hypothesis: str | Path | None = None,
    *,
    source: str | Path | None = None,
    **measures: Any,
) -> list[Score]:
    """Score a file of translations by every metric, and by tokenized BLEU if tokens are given.

    Args:
        reference, hypothesis: detokenized texts with the same number of lines.
        tokenized_reference, tokenized_hypothesis: the same texts as tokens, without subword pieces.
        source: source text, for neural metrics.
        measures: further arguments of :func:`score_lines`.

    Raises:
        DataError: a file is unreadable, two files differ in their number of lines, the hypotheses
            have subword pieces, or a neural metric has no source.
    """
    texts, references = plain_lines(hypothesis), plain_lines(reference)
    check_translations(texts, hypothesis, references, reference)
    sources = read_sources(source, len(references)) if measures.get("neural") else []
    tokens, token_references = None, None
    if tokenized_reference and tokenized_hypothesis:
        tokens = plain_lines(tokenized_hypothesis)
        token_references = plain_lines(tokenized_reference)
        check_counts(tokens, token_references, tokenized_hypothesis, tokenized_reference)
    return score_lines(texts, references, tokens, token_references, sources, **measures)


def score_generated(
    generated: str | Path | Sequence[str | Path],
    reference: str | Path,
    tokenized_reference: str | Path | None = None,
    undoing: Postprocessor | None = None,
    *,
    source: str | Path | None = None,
    **measures: Any,
) -> list[Score]:
    """Score the best hypotheses in an output of ``fairseq-generate``.

    Subword pieces are joined. The reference of tokenized BLEU is ``tokenized_reference`` or else
    the T lines (targets) of the output; if both are missing, this score is left out. In T lines,
    fairseq writes a word outside the target dictionary as ``<<unk>>``, which no hypothesis matches.

    Args:
        generated: standard output of ``fairseq-generate``, or of all its shards.
        reference: detokenized reference text.
        tokenized_reference: the reference as tokens, without subword pieces.
        undoing: converter of tokens to text; if it is None, only subwords are joined.
        source: source text, for neural metrics; None for the S lines of ``generated``.
        measures: further arguments of :func:`score_lines`.

    Raises:
        DataError: files are unreadable or incomplete, the reference is empty, subword pieces are
            not joined, or a neural metric needs S lines that cannot be turned into text.
    """
    references = plain_lines(reference)
    sentences = outputs.read_generated(generated, expected=len(references))
    undoing = undoing or Postprocessor.by_language(None)
    tokens = undoing.words(outputs.best_hypotheses(sentences))
    texts = undoing.text(tokens)
    name = generated if isinstance(generated, str | Path) else generated[0]
    check_translations(texts, name, references, reference)
    sources: Sequence[str] = []
    if measures.get("neural"):
        generated_sources = [sentence.source for sentence in sentences]
        output = (generated_sources, undoing, outputs.names_of(generated))
        sources = read_sources(source, len(references), output)
    targets = [sentence.target for sentence in sentences if sentence.target is not None]
    token_references: list[str] | None = undoing.words(targets)
    if tokenized_reference is not None:
        token_references = plain_lines(tokenized_reference)
        check_counts(tokens, token_references, "the translations", tokenized_reference)
    elif len(targets) != len(tokens):
        token_references = None
    return score_lines(texts, references, tokens, token_references, sources, **measures)


def score_lines(
    texts: Sequence[str],
    references: Sequence[str],
    tokens: Sequence[str] | None = None,
    token_references: Sequence[str] | None = None,
    sources: Sequence[str] = (),
    *,
    tokenizer: str = USUAL,
    extra_metrics: Sequence[str] = (),
    compounds: bool = False,
    neural: Mapping[str, NeuralMetric] | None = None,
) -> list[Score]:
    """Score detokenized translations by every metric, and by tokenized BLEU if tokens are given.

    Args:
        texts: the translations.
        references: the references as text.
        tokens, token_references: translations and references as tokens, without subword pieces.
        sources: the sources as text, for neural metrics.
        tokenizer, extra_metrics: as for :func:`build_metrics`.
        compounds: whether to compute :func:`compound_bleu` of the tokens, too.
        neural: neural metrics, by their names in the result.
    """
    scores = []
    for name, scorer in build_metrics(references, tokenizer, extra_metrics).items():
        result = scorer.corpus_score(list(texts), None)
        scores.append(Score(name, result.score, str(scorer.get_signature()), str(result)))
    if tokens is not None and token_references is not None:
        scores.append(tokenized_bleu(tokens, token_references))
        if compounds:
            scores.append(compound_bleu(tokens, token_references))
    for label, metric in (neural or {}).items():
        segments = metric.segments(sources, texts, references)
        mean = statistics.fmean(segments)
        detail = f"{label} = {format_score(label, mean)} (mean of {len(segments):,} segments)"
        scores.append(Score(label, mean, metric.signature, detail, segments))
    return scores


def as_table(scores: Sequence[Score]) -> str:
    """Format scores as a table for the terminal: names, values and signatures."""
    return tables.aligned(
        [(s.name, f"{format_score(s.name, s.value):>6}", s.signature) for s in scores]
    )


def test_set_reference(test_set: Path, pair: str | None) -> Path:
    """Return the reference file of a test set, either the user's file or sacrebleu's.

    ``test_set`` is the path of a file, or the name of a test set of sacrebleu, such as
    ``wmt14/full``. A path that does not exist counts as a name if it has no ending and no leading
    slash. A name also needs a language ``pair``, such as ``en-de``. sacrebleu downloads to
    ``~/.sacrebleu``, or to the folder that the environment variable ``SACREBLEU`` names.

    Raises:
        ConfigError: the test set does not have the ``pair``.
        DataError: sacrebleu cannot get the test set, or has several references for it.
    """
    name = test_set.as_posix()
    if test_set.exists() or test_set.suffix or test_set.is_absolute():
        return test_set
    from sacrebleu.utils import SACREBLEU_DIR, get_available_testsets, get_langpairs_for_testset
    from sacrebleu.utils import get_reference_files as download

    set_names = get_available_testsets()
    if name not in set_names:
        hint = nearest(name, set_names)
        raise DataError(f"`{name}` is neither a file nor a test set of sacrebleu{hint}")
    pairs = get_langpairs_for_testset(name)
    if pair not in pairs:
        but = "is missing" if pair is None else f"is `{pair}`"
        raise ConfigError(
            f"`--language-pair` must be one of {', '.join(pairs)} for `--ref {name}`, but {but}."
        )
    try:
        paths = download(name, pair)
    except (Exception, SystemExit) as error:  # sacrebleu exits on a wrong checksum
        raise DataError(
            f"sacrebleu cannot get the test set `{name}` ({type(error).__name__}: {error}); try "
            f"`sacrebleu -t {name} -l {pair} --echo ref`, and delete {SACREBLEU_DIR}/{name} if it "
            "is damaged."
        ) from error
    if len(paths) > 1:
        raise DataError(
            f"`{name}` has {len(paths)} references for {pair}, but only one can be used; give one "
            f"of {', '.join(paths)}."
        )
    return Path(paths[0])


def plain_lines(path: str | Path) -> list[str]:
    """Return the lines of a text file.

    Raise DataError if the file is not plain text, or fairseq and sacrebleu would split it into
    different lines.
    """
    checks.check_text(path, empty_lines=True, max_tokens=None)
    return outputs.read_lines(path)


def read_sources(
    path: str | Path | None,
    expected: int,
    output: tuple[Sequence[str | None], Postprocessor, str | Path] | None = None,
) -> list[str]:
    """Read the source text for a neural metric.

    The text is in the file ``path`` or, if this is None, in an ``output`` of fairseq-generate: its
    S lines (None where one is missing), the converter of its tokens to text, and its name.

    Raise DataError if there is no source text, it has subword pieces or ``<unk>``, it does not have
    the ``expected`` number of lines, or the converter should detokenize, but does not know the
    source language.
    """
    if path is None and output is not None:
        return _generated_sources(*output)
    if path is None:
        raise DataError(f"A neural metric uses the source too. {SOURCE_CURE}")
    lines = plain_lines(path)
    if len(lines) != expected:
        raise DataError(
            f"`{path}` has {len(lines)} lines, but there are {expected} sentences; `--source` must "
            "be the text that was translated."
        )
    require_text(lines, path)
    return lines


def _generated_sources(
    sources: Sequence[str | None], undoing: Postprocessor, path: str | Path
) -> list[str]:
    lines = []
    for index, line in enumerate(sources):
        if line is None:
            fault = f"lacks the source of sentence {index} (`S-{index}`)"
            raise DataError(f"`{path}` {fault}. {SOURCE_CURE}")
        # Searched within words, too, because --remove-bpe joins <unk> with its neighbours.
        if UNKNOWN in line:
            raise DataError(
                f"`{path}`: the source of sentence {index} has words that the dictionary lacks "
                f"(`{UNKNOWN}`). {SOURCE_CURE}"
            )
        lines.append(line)
    if undoing.pipeline.tokenize and not undoing.pipeline.src:
        raise DataError(f"`{path}`: the language of its source tokens is not known. {SOURCE_CURE}")
    texts = undoing.sources(lines)
    require_text(texts, path)
    return texts


def check_translations(
    texts: Sequence[str], name: str | Path, references: Sequence[str], reference: str | Path
) -> None:
    """Raise DataError if lines are missing, or a file has subwords; warn if only one has tokens.

    ``texts`` are the lines of the file ``name``, and ``references`` those of ``reference``.
    """
    check_counts(texts, references, name, reference)
    require_text(texts, name, references)
    check_reference(references, reference, texts, name)


def check_counts(
    hypotheses: Sequence[str],
    references: Sequence[str],
    hypothesis_name: str | Path,
    reference_name: str | Path,
) -> None:
    """Raise DataError if the numbers of lines differ, or all references are empty."""
    if len(hypotheses) != len(references):
        raise DataError(
            f"`{hypothesis_name}` has {len(hypotheses)} lines, but `{reference_name}` has "
            f"{len(references)}; each line must be the translation of the same sentence."
        )
    if not any(line.strip() for line in references):
        raise DataError(f"`{reference_name}` has no words; give the reference translations.")


def read_scores(path: str | Path, system: str | None = None) -> list[Score]:
    """Read a system's scores from the JSON of ``score`` or ``compare``.

    ``system`` is the system's name in the JSON of ``compare``; it may be None if only one system is
    there. For the JSON of ``score``, it must be None.

    Raises:
        ConfigError: ``system`` is not in the comparison, is None though there are several systems,
            or is set for the JSON of ``score``.
        DataError: neither command wrote the file.
    """
    content = read_json(path, largest=LARGEST_REPORT)
    try:
        if "systems" in content:
            return _of_comparison(path, content, system)
        scores = [
            Score(str(row["name"]), float(row["value"]), str(row["signature"]), str(row["detail"]))
            for row in content["scores"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise DataError(
            f"{path} was written neither by `fairseq-ext score --json` nor by `compare --json`."
        ) from None
    if system is not None:
        raise ConfigError(f"`--system` does not go with {path}, which has one system only.")
    return scores


def _of_comparison(path: str | Path, content: Mapping[str, Any], system: str | None) -> list[Score]:
    rows = {row["name"]: row for row in content["systems"]}
    if system is None and len(rows) == 1:
        (system,) = rows
    if system not in rows:
        but = "is missing" if system is None else f"is `{system}`"
        raise ConfigError(f"`--system` must be one of {', '.join(rows)} of {path}, but {but}.")
    scores = []
    for name, entry in rows[system]["scores"].items():
        interval = ""  # a single sentence has none
        if entry["low"] is not None:
            interval = (
                f"{format_score(name, entry['low'])} to {format_score(name, entry['high'])} (95%)"
            )
        signature = str(content["signatures"].get(name, ""))
        scores.append(Score(name, float(entry["value"]), signature, interval))
    return scores
