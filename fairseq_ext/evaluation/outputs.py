"""Read the output of ``fairseq-generate`` and ``fairseq-interactive``, in corpus order.

Both commands print sentences sorted by length, in tab-separated lines. A line begins with a letter
for its content and the number of its sentence::

    S-7  source      T-7  target        H-7  score  hypothesis
    P-7  score of each target token     A-7  alignment (--print-alignment)

With ``--nbest``, the lines H, P and A repeat for each hypothesis, best first. A soft alignment has
a row for each target token; spaces separate the rows. A row has the weight of each source token
with six decimals; commas separate the weights. The last row and the last column are for the end of
sentence, which S and H lines leave out. A hard alignment is a list of ``source-target`` positions
without the end of sentence.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from fairseq_ext.text.reading import lines
from fairseq_ext.utils.errors import DataError

_LINE = re.compile(r"([STHPA])-([0-9]{1,15})\t(.*)", re.DOTALL)
_FLOAT = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?|inf|nan)"
_SCORED = re.compile(rf"({_FLOAT})\t(.*)", re.DOTALL)
_SHOWN = 5  # missing sentence numbers named in a message


@dataclass
class Hypothesis:
    """A translation of a sentence, with the scores and the alignment that the output has."""

    text: str  # the tokens as the model wrote them, separated by spaces
    score: float  # log-probability in base 2, normalized by length as the generator's options say
    token_scores: tuple[float, ...] = ()  # one per token, in base 2; the last is for </s>
    soft: tuple[tuple[float, ...], ...] = ()  # attention [target tokens + 1][source tokens + 1]
    hard: tuple[str, ...] = ()  # pairs `source-target` of positions


@dataclass
class Sentence:
    """A sentence of the corpus and its translations, best first."""

    index: int
    source: str | None = None
    target: str | None = None
    hypotheses: list[Hypothesis] = field(default_factory=list)

    @property
    def best(self) -> Hypothesis:
        """The first hypothesis, which has the best score."""
        return self.hypotheses[0]


def read_lines(path: str | Path) -> list[str]:
    """Read the lines of a UTF-8 text file, plain or compressed, split at line feeds only."""
    return [line for _, line in lines(Path(path))]


def read_generated(
    generated: str | Path | Sequence[str | Path], expected: int | None = None
) -> list[Sentence]:
    """Read every sentence of an output of ``fairseq-generate``, sorted by sentence number.

    ``generated`` is a file with the standard output, a file ``generate-SUBSET.txt``, or the list of
    such files of all shards (``--num-shards``). ``expected`` is the number of sentences. If it is
    None, sentences that are missing at the end are not noticed.

    Raise DataError if a line is malformed, a sentence occurs twice, or sentences are missing.
    """
    paths = [generated] if isinstance(generated, str | Path) else generated
    sentences: dict[int, Sentence] = {}
    for path in paths:
        kinds = []
        for number, line in lines(Path(path)):
            match = _LINE.fullmatch(line)
            if match:
                kinds.append(match[1])
                try:
                    _take(sentences, match[1], int(match[2]), match[3])
                except ValueError as error:
                    raise DataError(f"`{path}`, line {number}: {error}") from error
        if "P" in kinds and kinds[-1] == "H":  # fairseq writes `P-` after each hypothesis
            raise DataError(f"`{path}` ends inside a sentence. Generate again, and let it finish.")
    _check_complete(names_of(generated), sentences, expected)
    return [sentences[index] for index in sorted(sentences)]


def names_of(generated: str | Path | Sequence[str | Path]) -> str:
    """Join paths by "`, `", for a message that puts a backtick before and after the result."""
    paths = [generated] if isinstance(generated, str | Path) else generated
    return "`, `".join(map(str, paths))


def _take(sentences: dict[int, Sentence], kind: str, index: int, rest: str) -> None:
    sentence = sentences.setdefault(index, Sentence(index))
    repeated = sentence.source if kind == "S" else sentence.target if kind == "T" else None
    if repeated is not None and (kind == "S" or sentence.source is None):
        raise ValueError(
            f"sentence {index} occurs twice; give the output of one run, each shard of it once."
        )
    if kind == "S":
        sentence.source = rest
    elif kind == "T":
        sentence.target = rest
    elif kind == "H":
        match = _SCORED.fullmatch(rest)
        if not match:
            raise ValueError(f"expected a score, a tab and text, but found {rest[:60]!r}.")
        sentence.hypotheses.append(Hypothesis(match[2], float(match[1])))
    elif not sentence.hypotheses:
        raise ValueError(f"`{kind}-{index}` comes before its hypothesis `H-{index}`.")
    elif kind == "P":
        sentence.hypotheses[-1].token_scores = _floats(rest.split())
    elif "," in rest or "." in rest:
        rows = tuple(_floats(row.split(",")) for row in rest.split())
        if len({len(row) for row in rows}) > 1:
            raise ValueError("the rows of the soft alignment differ in length.")
        sentence.hypotheses[-1].soft = rows
    else:
        sentence.hypotheses[-1].hard = tuple(rest.split())


def _floats(texts: Iterable[str]) -> tuple[float, ...]:
    try:
        return tuple(map(float, texts))
    except ValueError as error:
        raise ValueError(f"expected numbers, but {error!s:.80}.") from None


def _check_complete(path: str, sentences: dict[int, Sentence], expected: int | None) -> None:
    translated = {index for index, sentence in sentences.items() if sentence.hypotheses}
    if not translated:
        raise DataError(
            f"`{path}` holds no hypotheses (`H-` lines); give the standard output of "
            "`fairseq-generate` without `--quiet`. If the file is plain text, give it to `score` "
            "as `--hyp`, to `compare` as `--system NAME=text:FILE`."
        )
    count = max(sentences) + 1 if expected is None else expected
    missing = count - sum(index < count for index in translated)
    if missing:  # counted, not listed, because a damaged number may be huge
        first = islice((index for index in range(count) if index not in translated), _SHOWN)
        named = ", ".join(map(str, first)) + (", …" if missing > _SHOWN else "")
        raise DataError(
            f"`{path}` lacks {missing} of {count} sentences: number {named}. Generate again "
            "without `--skip-invalid-size-inputs-valid-test`, and let it finish."
        )
    if max(translated) >= count:
        raise DataError(
            f"`{path}` translates {max(translated) + 1} sentences, but {count} were expected; it "
            "belongs to another corpus."
        )


def best_hypotheses(sentences: Iterable[Sentence]) -> list[str]:
    """Return the tokens of each sentence's best hypothesis, in the order of ``sentences``."""
    return [sentence.best.text for sentence in sentences]
