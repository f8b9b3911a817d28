"""The catalogue of corpora from the literature: their sources, and the steps to prepare each.

Addresses and protocols come from the scripts of the papers and the pages of the publishers:

- fairseq's ``examples/translation/prepare-iwslt14.sh`` and ``prepare-wmt14en2fr.sh``, and
  ``examples/scaling_nmt/README.md``. The archive of IWSLT 2014 is fairseq's copy, because
  wit3.fbk.eu removed it;
- the MUSE authors' ``prepare-envi.sh`` (lancopku/Prime), for Stanford's files of IWSLT 2015;
- statmt.org's pages of the shared tasks of 2013, 2014 and 2017. The BMT paper trains on WMT 2017
  and tests on newstest2014 but names no files, so we take the files of fairseq's
  ``prepare-wmt14en2de.sh``, which leaves out WMT 2017's corpus ``rapid2016``;
- github.com/multi30k/dataset, task 1: image descriptions as written (``raw``), or lower-cased,
  normalized and tokenized by the authors (``tok``). We learn 10,000 joint byte-pair merges, like
  the text-only baselines in papers on image-guided translation.

The publishers give no checksums, so :func:`~fairseq_ext.corpora.downloads.fetch` compares later
downloads with the first.
"""

from dataclasses import dataclass, field
from typing import Any

STATMT = "https://www.statmt.org"
MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1"
WMT17 = "https://data.statmt.org/wmt17/translation-task"
WMT_LICENCE = (
    "WMT's organizers: free for research, with a citation of the task's overview paper; for other "
    "uses ask the owners of each part. The makers of Europarl know of no copyright on it; Common "
    "Crawl, the UN and the giga corpus are texts of the web and of institutions, without a licence"
)
TED_LICENCE = "TED talks: CC BY-NC-ND 4.0, with TED named as the source"
MULTI30K_LICENCE = (
    "none in its repository; the English side is Flickr30K's captions, for non-commercial research "
    "and education"
)
NEWS_2014 = ("v9", f"{STATMT}/wmt14/training-parallel-nc-v9.tgz")
STANFORD = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi"


@dataclass(frozen=True)
class Source:
    """A parallel text: its two files, where they come from, and their format."""

    name: str  # unique within the corpus
    # Name of both files, with {language} or {side} (src or ref) where they differ: a member of
    # `archive`, or an address if there is no archive.
    pattern: str
    archive: str | None = None  # the archive's address
    # File format: `lines`, plain text (also `.gz`); `tagged`, IWSLT's training files, in which tags
    # mark lines about the talk; `segments`, IWSLT's and WMT's `<seg>` elements.
    form: str = "lines"

    def files(self, src: str, tgt: str) -> tuple[str, str]:
        """Return the names of the source file and the target file."""
        return (
            self.pattern.format(side="src", language=src),
            self.pattern.format(side="ref", language=tgt),
        )


@dataclass(frozen=True)
class Corpus:
    """A corpus: its parallel texts, and the protocol by which papers prepare them."""

    src: str  # language, which is also the ending of its files
    tgt: str
    # The texts of each split, in order. If `valid` is a number n, valid is every n-th training
    # pair that is left after cleaning.
    train: tuple[Source, ...]
    valid: tuple[Source, ...] | int
    test: tuple[Source, ...]
    normalize: bool = False  # normalize punctuation like Moses, and remove non-printing characters
    tokenize: bool = True  # tokenize like Moses, with XML escapes
    aggressive: bool = False  # make hyphens within words tokens, written `@-@`
    lowercase: bool = False  # lower-case the tokens
    # Rules for words, applied before valid is split off; see :mod:`fairseq_ext.corpora.rules`.
    rules: tuple[str, ...] = ()
    piece_rules: tuple[str, ...] = ()  # rules for subwords, for train and valid
    merges: int = 0  # number of joint byte-pair merges learnt from the training text; 0 keeps words
    dictionary: tuple[str, ...] = ()  # flags of fairseq-preprocess
    word_dictionary: tuple[str, ...] = ()  # flags of fairseq-preprocess where `merges` is 0
    # If the files are published as tokens: the Pipeline's steps that their authors applied to the
    # text.
    author_steps: dict[str, Any] = field(default_factory=dict)
    # Known numbers of pairs: `exact` ones, and `expected` ones, which vary with the tokenizer.
    exact: dict[str, int] = field(default_factory=dict)
    expected: dict[str, int] = field(default_factory=dict)
    licence: str = ""  # what the owners of the text allow, as far as they say
    # Further test sets, each a split with its own name. A set whose files cannot be downloaded is
    # left out.
    more_tests: tuple[Source, ...] = ()


def _newstest(year: int) -> Source:
    """Return the news test set of WMT ``year``, which is a development set of WMT 2014."""
    pattern = f"dev/newstest{year}-{{side}}.{{language}}.sgm"
    return Source(f"newstest{year}", pattern, f"{STATMT}/wmt14/dev.tgz", "segments")


def _newstest2014(code: str) -> Source:
    """Return WMT 2014's complete test set; its files call the language pair ``code`` (``deen``)."""
    pattern = f"test-full/newstest2014-{code}-{{side}}.{{language}}.sgm"
    return Source("newstest2014", pattern, f"{STATMT}/wmt14/test-full.tgz", "segments")


def _wmt(code: str, edition: str, archive: str) -> tuple[Source, ...]:
    """Return the training texts that WMT's tasks share: Europarl, Common Crawl, News Commentary.

    Their files call the language pair ``code``, such as ``de-en``. ``edition`` is the edition of
    News Commentary, such as ``v9``, and ``archive`` the address of its archive.
    """
    texts = (
        ("europarl-v7", "training/", f"{STATMT}/wmt13/training-parallel-europarl-v7.tgz"),
        ("commoncrawl", "", f"{STATMT}/wmt13/training-parallel-commoncrawl.tgz"),
        (f"news-commentary-{edition}", "training/", archive),
    )
    return tuple(
        Source(name, f"{folder}{name}.{code}.{{language}}", address)
        for name, folder, address in texts
    )


# The authors' scripts work in this order: lower case, punctuation, tokens.
LOWERCASED_FIRST = {
    "lowercase_first": True,
    "normalize": True,
    "tokenize": True,
    "escape": True,
    "lowercase": False,
}


def _multi30k(pattern: str) -> Corpus:
    """Return Multi30k, English to German.

    ``pattern`` is the address of a file, in which ``NAME`` stands for the split, such as ``train``,
    and ``{language}`` for the language. :class:`Source` replaces the latter.
    """

    def source(name: str) -> Source:
        return Source(name, pattern.replace("NAME", name))

    raw = pattern.endswith(".gz")
    return Corpus(
        "en",
        "de",
        train=(source("train"),),
        valid=(source("val"),),
        test=(source("test_2016_flickr"),),
        normalize=raw,
        tokenize=raw,
        lowercase=True,
        merges=10_000,
        dictionary=("--joined-dictionary",),
        author_steps={} if raw else LOWERCASED_FIRST,
        exact={
            **{"train read": 29_000, "valid": 1_014, "test": 1_000},
            **{"test_2017_flickr": 1_000, "test_2017_mscoco": 461},
        },
        licence=MULTI30K_LICENCE,
        more_tests=(source("test_2017_flickr"), source("test_2017_mscoco")),
    )


TED = "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
TED_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")

CORPORA = {
    "multi30k": _multi30k(MULTI30K + "/raw/NAME.{language}.gz"),
    "multi30k_tok": _multi30k(MULTI30K + "/tok/NAME.lc.norm.tok.{language}"),
    "iwslt14_de_en": Corpus(
        "de",
        "en",
        train=(Source("train", "de-en/train.tags.de-en.{language}", TED, "tagged"),),
        valid=23,
        test=tuple(
            Source(name, f"de-en/IWSLT14.{name}.de-en.{{language}}.xml", TED, "segments")
            for name in TED_TESTS
        ),
        lowercase=True,
        rules=("length=1:175", "ratio=1.5", "token=1000"),
        merges=10_000,
        exact={"train read": 174_443, "test": 6_750},
        expected={"train": 160_239, "valid": 7_283},
        licence=TED_LICENCE,
    ),
    "iwslt15_en_vi": Corpus(
        "en",
        "vi",
        train=(Source("train", f"{STANFORD}/train.{{language}}"),),
        valid=(Source("tst2012", f"{STANFORD}/tst2012.{{language}}"),),
        test=(Source("tst2013", f"{STANFORD}/tst2013.{{language}}"),),
        tokenize=False,  # the files already consist of Moses tokens
        author_steps={"tokenize": True, "escape": True},
        word_dictionary=("--thresholdsrc", "5", "--thresholdtgt", "5"),
        exact={"train read": 133_317, "valid": 1_553, "test": 1_268},
        licence=TED_LICENCE,
    ),
    "wmt14_en_de": Corpus(
        "en",
        "de",
        train=_wmt("de-en", *NEWS_2014),
        valid=(_newstest(2013),),
        test=(_newstest2014("deen"),),
        rules=("length=1:80", "ratio=9", "token=1000"),
        merges=32_000,
        dictionary=("--joined-dictionary", "--nwordssrc", "32768", "--nwordstgt", "32768"),
        exact={"valid": 3_000, "test": 3_003},
        licence=WMT_LICENCE,
    ),
    "wmt14_en_fr": Corpus(
        "en",
        "fr",
        train=(
            *_wmt("fr-en", *NEWS_2014)[:2],
            Source(
                "undoc",
                "un/undoc.2000.fr-en.{language}",
                f"{STATMT}/wmt13/training-parallel-un.tgz",
            ),
            _wmt("fr-en", *NEWS_2014)[2],
            Source(
                "giga",
                "giga-fren.release2.fixed.{language}.gz",
                f"{STATMT}/wmt10/training-giga-fren.tar",
            ),
        ),
        valid=(_newstest(2012), _newstest(2013)),
        test=(_newstest2014("fren"),),
        normalize=True,
        aggressive=True,
        piece_rules=("length=1:250", "ratio=1.5", "token=1000"),
        merges=40_000,
        dictionary=("--joined-dictionary",),
        exact={"valid": 6_003, "test": 3_003},
        licence=WMT_LICENCE,
    ),
    "wmt17_de_en": Corpus(
        "de",
        "en",
        train=_wmt("de-en", "v12", f"{WMT17}/training-parallel-nc-v12.tgz"),
        valid=(_newstest(2013),),
        test=(_newstest2014("deen"),),
        # 255 pieces and </s> fill the 256 positions of the authors' code.
        piece_rules=("length=1:255", "token=1000"),
        merges=32_000,
        dictionary=("--joined-dictionary", "--nwordssrc", "32000", "--nwordstgt", "32000"),
        exact={"valid": 3_000, "test": 3_003},
        licence=WMT_LICENCE,
    ),
}
