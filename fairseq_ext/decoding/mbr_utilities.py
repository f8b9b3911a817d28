"""Utilities u(h, y) of minimum Bayes risk decoding: how good h would be if y were the reference.

They are sacrebleu's sentence-level chrF and BLEU for all pairs of a sentence's candidates at once,
COMET in its own Python, and any metric of the optional library ``mbrs``. Letters: ``H`` distinct
candidates, ``n`` order of n-grams.

If the j-th occurrence of an n-gram g is called ``(g, j)``, a pair's clipped matches
``Σ_g min(count_h(g), count_y(g))`` are the size of an intersection of sets. With one row of zeros
and ones for each candidate, a single product ``S Sᵀ`` gives all pairs of one order.
"""

import ast
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol
from weakref import finalize

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fairseq_ext.evaluation import neural
from fairseq_ext.evaluation.score import build_bleu
from fairseq_ext.text.bleu_tokenizers import USUAL
from fairseq_ext.utils.errors import ConfigError

Array = NDArray[np.float64]

OUTSIDE = "mbrs:"
SOURCELESS = {"bertscore", "bleu", "bleurt", "chrf", "ter"}
"""Metrics of mbrs 0.1.8 that take a source and ignore it."""


class Utility(Protocol):
    """A utility u; it may read the source text, and its signature is the name to report."""

    reads_source: bool

    @property
    def signature(self) -> str: ...

    def matrix(self, candidates: Sequence[str], source: str | None) -> Array:
        """Compute u(candidate i, candidate j), ``[H, H]``; larger is better."""


def is_neural(name: str) -> bool:
    """Return whether a utility is a metric of :mod:`fairseq_ext.evaluation.neural`."""
    return name.partition(":")[0] == neural.KIND


def build_utility(
    name: str,
    options: Mapping[str, str] | None = None,
    tokenizer: str = USUAL,
    **process: Any,
) -> Utility:
    """Build the utility ``chrf``, ``bleu``, ``comet:MODEL`` or ``mbrs:METRIC``.

    Args:
        options: fields of the mbrs metric's configuration, as text.
        tokenizer: sacrebleu's, for BLEU.
        process: options of :class:`~fairseq_ext.evaluation.neural.NeuralMetric`.
    """
    if name.startswith(OUTSIDE):
        return MbrsUtility(name.removeprefix(OUTSIDE), options or {})
    if options:
        raise ConfigError(f"`--mbrs-option` goes with `--utility mbrs:METRIC`, not with `{name}`.")
    if is_neural(name):
        return NeuralUtility(name, **process)
    if name == "bleu":
        return BleuUtility(tokenizer)
    if name != "chrf":
        raise ConfigError(
            f"`--utility` must be chrf, bleu, comet:MODEL or mbrs:METRIC, but is `{name}` instead."
        )
    return ChrfUtility()


def pair_matches(bags: Sequence[Sequence[Any]]) -> Array:
    """Count the clipped matches of all pairs of bags of n-grams, ``[H, H]``."""
    columns: dict[Any, int] = {}
    places: list[int] = []
    for bag in bags:
        counts: dict[Any, int] = {}
        for ngram in bag:
            occurrence = counts[ngram] = counts.get(ngram, 0) + 1
            places.append(columns.setdefault((ngram, occurrence), len(columns)))
    rows = np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
    shape = (len(bags), max(1, len(columns)))
    sets = sparse.csr_array((np.ones(len(places)), (rows, places)), shape=shape)
    return (sets @ sets.T).toarray()


def _ngrams(items: Sequence[Any], order: int) -> list[Any]:
    """Return all n-grams of a sequence, as slices of it."""
    return [items[start : start + order] for start in range(len(items) - order + 1)]


class ChrfUtility:
    """The sentence-level chrF2, 0 to 100, as ``sacrebleu.sentence_chrf`` computes it."""

    reads_source = False

    def __init__(self) -> None:
        from sacrebleu.metrics import CHRF

        metric = CHRF()
        self.orders, self.beta = metric.char_order, metric.beta
        self.signature = _signature(metric, "chrF2")

    def matrix(self, candidates: Sequence[str], source: str | None = None) -> Array:
        """Compute u for all pairs, ``[H, H]``; the source is ignored."""
        texts = ["".join(text.split()) for text in candidates]
        shape = (len(texts), len(texts))
        precision, recall, used = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for order in range(1, self.orders + 1):
            bags = [_ngrams(text, order) for text in texts]
            sizes = np.array([len(bag) for bag in bags], float)
            matches = pair_matches(bags)
            # An order counts if both sides are long enough for it.
            used += (sizes[:, None] > 0) & (sizes[None, :] > 0)
            divisor = np.maximum(sizes, 1)
            precision += matches / divisor[:, None]
            recall += matches / divisor[None, :]
        used = np.maximum(used, 1)
        precision, recall, factor = precision / used, recall / used, self.beta**2
        total = factor * precision + recall
        return 100 * (1 + factor) * precision * recall / np.where(total > 0, total, 1)


class BleuUtility:
    """The sentence-level BLEU, 0 to 100, as ``sacrebleu.sentence_bleu`` computes it."""

    reads_source = False

    def __init__(self, tokenizer: str = USUAL) -> None:
        metric = build_bleu(tokenizer, effective_order=True)
        self.orders, self.tokenize = metric.max_ngram_order, metric.tokenizer
        self.signature = _signature(metric, "BLEU")

    def matrix(self, candidates: Sequence[str], source: str | None = None) -> Array:
        """Compute u for all pairs, ``[H, H]``; the source is ignored."""
        tokens = [tuple(self.tokenize(text.rstrip()).split()) for text in candidates]
        lengths = np.array([len(words) for words in tokens], float)
        shape = (len(tokens), len(tokens))
        smooth, logs, used, any_match = np.ones(shape), np.zeros(shape), np.zeros(shape), False
        for order in range(1, self.orders + 1):
            totals = np.maximum(lengths - order + 1, 0)[:, None]  # of the hypothesis
            matches = pair_matches([_ngrams(words, order) for words in tokens])
            any_match = any_match | (matches > 0)
            present = np.broadcast_to(totals > 0, shape)
            smooth[present & (matches == 0)] *= 2
            counts = np.where(matches > 0, matches, 1 / smooth)
            logs += np.where(present, np.log(100 * counts / np.maximum(totals, 1)), 0)
            used += present
        shortness = 1 - lengths[None, :] / np.maximum(lengths, 1)[:, None]
        brevity = np.exp(np.minimum(0, shortness))  # the penalty min(1, exp(1 - |y| / |h|))
        return np.where(any_match, brevity * np.exp(logs / np.maximum(used, 1)), 0.0)


def _signature(metric: Any, name: str) -> str:
    metric.sentence_score("a", ["a"])  # before that, a signature lacks the number of references
    return f"{name}|{metric.get_signature()}"


class NeuralUtility:
    """A neural metric in its own process, which ends with this object."""

    reads_source = True

    def __init__(self, name: str, **process: Any) -> None:
        self.metric = neural.NeuralMetric(name, **process)
        finalize(self, self.metric.close)

    @property
    def signature(self) -> str:
        """The metric's signature, which begins with its name."""
        return f"COMET|{self.metric.signature}"

    def matrix(self, candidates: Sequence[str], source: str) -> Array:
        """Compute u in the metric's own unit, ``[H, H]``."""
        if not self.metric.sees_references:
            raise ConfigError(
                f"`--utility {self.metric.given}` uses no reference; MBR compares candidates."
            )
        return np.array(self.metric.matrix(candidates, source))


class MbrsUtility:
    """A metric of the library ``mbrs``; it is negated if smaller values are better."""

    def __init__(self, name: str, options: Mapping[str, str]) -> None:
        try:
            from mbrs.metrics import Metric, get_metric
        except ImportError as error:
            raise ConfigError(
                f"`--utility {OUTSIDE}{name}` needs the library mbrs, which cannot be imported "
                f"({error}): `pip install 'fairseq-ext[mbr]'`, best into an environment of its own."
            ) from error
        try:
            kind = get_metric(name)
        except KeyError:
            raise ConfigError(f"`--utility {OUTSIDE}{name}`: mbrs has no such metric.") from None
        if not issubclass(kind, Metric):
            raise ConfigError(
                f"`--utility {OUTSIDE}{name}` uses no reference; MBR compares candidates."
            )
        try:
            configuration = kind.Config(**{key: _value(text) for key, text in options.items()})
        except TypeError as error:
            raise ConfigError(f"`--mbrs-option` does not fit `{name}`: {error}.") from None
        self._load = partial(kind, configuration)
        self.reads_source = name not in SOURCELESS
        self.sign = 1.0 if kind.HIGHER_IS_BETTER else -1.0
        self.signature = f"{OUTSIDE}{name}|{configuration}"

    @cached_property
    def metric(self) -> Any:
        """The metric itself, loaded when first needed, because samples are checked before."""
        return self._load()

    def matrix(self, candidates: Sequence[str], source: str | None) -> Array:
        """Compute u in the metric's own unit, ``[H, H]``."""
        texts = list(candidates)
        scores = self.metric.pairwise_scores(texts, texts, source)
        return self.sign * scores.double().cpu().numpy()


def _value(text: str) -> Any:
    """Read ``8`` as a number, ``True`` as a truth value, and everything else as text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
