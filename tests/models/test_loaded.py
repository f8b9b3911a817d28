"""``fairseq_ext.load``: text in, text out, from a checkpoint and from a model for the engine."""

import contextlib
import copy
import dataclasses
import itertools
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.sequence_scorer import SequenceScorer

import fairseq_ext
from fairseq_ext.decoding.search import Search
from fairseq_ext.decoding.text_model import Model
from fairseq_ext.decoding.translator import Translator
from fairseq_ext.model import write
from fairseq_ext.utils import locks
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError
from tests.support import models
from tests.support.bundles import edit, saved
from tests.support.engine import sharpened
from tests.support.harness import in_a_fork

LINES = ["W1 w2 w3", "", "w7", "w30 W5 w5 w9 w11 w2", "w4 unknown"]
TARGETS = ["w3 w3", "w8", "", "w1 w2 w3 w4 w5 w6 unknown", "w9"]
KINDS = ("native", "fairseq", "bundle")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = saved(tmp_path_factory.mktemp("loaded") / "run", "transformer")
    write.write(folder / "checkpoint_best.pt", folder, folder / "bundle")
    return folder


@pytest.fixture(scope="module")
def loaded(run: Path) -> dict[str, Model]:
    """The same weights in three ways."""
    return {
        "native": fairseq_ext.load(run),
        "fairseq": fairseq_ext.load(run / "checkpoint_best.pt", run, engine="fairseq", cpu=True),
        "bundle": fairseq_ext.load(run / "bundle", threads=2),
    }


@pytest.mark.parametrize(
    ("search", "fault"),
    [
        ({"lenpen": 1e9}, " has defaults for a search that is not possible: `--lenpen`"),
        ({"beam": 2000}, "/bundle.json asks for a beam of 2,000 by default, but may ask for 100"),
    ],
)
def test_an_impossible_default_names_its_file(run: Path, tmp_path: Path, search: dict, fault: str):
    path = Path(shutil.copytree(run / "bundle", tmp_path / "bundle"))
    edit(path, "bundle.json", lambda content: content.update(search=search))
    with pytest.raises(CheckpointError, match=re.escape(f"{path}{fault}")):
        fairseq_ext.load(path)


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, loaded: dict[str, Model]) -> Model:
    return loaded[request.param]


def test_a_model_knows_itself(model: Model):
    assert (model.src, model.tgt, model.name) == ("de", "en", "transformer")
    assert "transformer, de → en" in repr(model)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam": 3, "nbest": 3, "max_len_b": 9, "alignments": True},
        {"beam": 2, "lenpen": 0.0, "max_len_b": 7},
    ],
)
def test_all_ways_translate_alike(loaded: dict[str, Model], options: dict):
    """Whatever was asked of them before."""
    translations = [loaded[kind].translate(LINES, **options) for kind in KINDS]
    for ways in zip(*translations, strict=True):
        for other in ways[1:]:
            assert ways[0].texts == other.texts
            for mine, its in zip(ways[0].candidates, other.candidates, strict=True):
                assert mine.score == pytest.approx(its.score, abs=1e-4)
                np.testing.assert_allclose(mine.attention, its.attention, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"engine": "fairseq", "sampling": True}], ids=str)
def test_the_random_numbers_of_the_caller_go_on(run: Path, options: dict):
    def drawn(work: Callable[[], object]) -> tuple[float, float]:
        torch.manual_seed(7)
        np.random.seed(7)
        work()
        return torch.rand(()).item(), np.random.rand()

    def translate() -> None:
        model = Translator(run, [run / "checkpoint_best.pt"], search=Search(**options))
        model.translate(LINES[:1])
        model.translate(LINES[:1], search=Search(**options, beam=3))
        model.score(LINES[:1], TARGETS[:1])

    assert drawn(translate) == drawn(lambda: None)


def test_results(model: Model):
    translations = model.translate(LINES, nbest=2, alignments=True, max_len_b=6)
    assert [translation.source for translation in translations] == LINES
    assert [translation.line for translation in translations] == [1, 2, 3, 4, 5]
    assert (translations[1].text, translations[1].candidates) == ("", [])
    first = translations[0]
    assert first.text == first.texts[0]
    assert len(first.texts) == len(first.candidates) == 2
    best = first.candidates[0]
    assert len(best.attention) == len(best.tokens.split()) + 1
    assert all(len(row) == 4 for row in best.attention)
    single = model.translate(LINES[0], max_len_b=6)
    assert single.texts == [first.text]
    assert not single.candidates[0].attention
    assert model.translate([]) == []


def test_a_stream_without_end(model: Model):
    """No more lines are read than a buffer holds."""
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for line in itertools.cycle(LINES):
            read += 1
            yield line

    stream = model.stream(lines(), buffer=7, max_len_b=4)
    translations = list(itertools.islice(stream, 11))
    assert read == 14
    expected = model.translate(LINES, max_len_b=4)
    assert [translation.text for translation in translations] == [
        expected[i % 5].text for i in range(11)
    ]


def by_fairseq(source: str, target: str) -> float:
    """The sum of log-probabilities that fairseq's scorer gives a pair of tokens."""
    model, task = sharpened("transformer")
    read = task.source_dictionary.encode_line(source.lower(), add_if_not_exist=False).long()[None]
    tokens = task.target_dictionary.encode_line(target, add_if_not_exist=False).long()[None]
    sample = {"net_input": models.net_input(read, tokens), "target": tokens}
    ((scored,),) = SequenceScorer(task.target_dictionary).generate([model], sample)
    return float(scored["positional_scores"].sum())


def test_scores_are_fairseqs(model: Model):
    sources = [line or "w1" for line in LINES]
    expected = [by_fairseq(*pair) for pair in zip(sources, TARGETS, strict=True)]
    assert model.score(sources, TARGETS) == pytest.approx(expected, abs=1e-4)
    assert model.score([], []) == []


def opened(run: Path, kind: str, **options: object) -> Model:
    how = {} if kind == "bundle" else {"engine": kind, "cpu": True}
    return fairseq_ext.load(run / "bundle" if kind == "bundle" else run, **how, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reference_may_be_longer_than_a_batch(run: Path, kind: str):
    model = opened(run, kind, max_tokens=8)
    target = " ".join(["w1", "w3"] * 8)
    assert model.score(["w1"], [target]) == pytest.approx([by_fairseq("w1", target)], abs=1e-4)


def test_threads_share_a_model(model: Model):
    options = [{"beam": beam, "max_len_b": 6} for beam in (1, 2, 3, 4)] * 3
    expected = [model.translate(LINES, **search) for search in options]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda search: model.translate(LINES, **search), options)) == expected


def test_a_fork_waits_for_no_thread_of_its_parent(model: Model):

    def texts() -> list[str]:
        return [translation.text for translation in model.translate(LINES, max_len_b=6)]

    expected = texts()
    with contextlib.ExitStack() as busy:  # as while other threads translate
        for lock in locks._LOCKS:
            busy.enter_context(lock.held())
        assert in_a_fork(texts, busy) == expected


def test_searches_share_a_program(run: Path):
    """The matrices that it joins, and that a tensor of the model therefore has not."""
    model = fairseq_ext.load(run, cpu=True)
    for beam in (1, 2):
        model.translate(LINES, beam=beam, max_len_b=6)
    model.score(["w1"], ["w2"])
    first, *generators = model._translator._generators.values()
    assert len(generators) >= 2
    assert all(generator._program is first._program for generator in generators)
    assert all(generator._teams is first._teams for generator in generators)


def test_texts_that_cannot_be(model: Model):
    long = " ".join(["w1"] * 2000)
    with pytest.raises(DataError, match="the text, line 2: 2,001 source tokens"):
        model.translate(["w1", long])
    assert [translation.text for translation in model.stream([long], skip_long=True)] == [""]
    with pytest.raises(DataError, match="1 sources cannot have 2 targets"):
        model.score(["w1"], ["w1", "w2"])
    with pytest.raises(DataError, match="source 1 has 1 tokens"):
        model.score([""], ["w1"])
    with pytest.raises(DataError, match="target 1 has 2,001 tokens"):
        model.score(["w1"], [long])


def test_text_to_keep(model: Model):
    options = {"keep": [r"\{\w+\}"], "markup": True, "max_len_b": 6}
    text = model.translate("w1 {name} <b>w3</b> w2", **options).text
    assert re.fullmatch(r".*\{name\}.*<b>.*</b>.*", text)
    assert model.translate("{name}", **options).text == "{name}"
    text = model.translate("w1 https://w2.org/w3 😀", keep_addresses=True, max_len_b=6).text
    assert text.count("https://w2.org/w3") == text.count(" 😀") == 1
    with pytest.raises(ConfigError, match="`keep` must be a list of strings"):
        model.translate("w1", keep="w1")


@pytest.mark.parametrize("kind", KINDS)
def test_constraints(run: Path, kind: str):
    model = opened(run, kind, constraints="ordered")
    text, free = (each.text for each in model.translate(["w1 w2\tw9 w9\tw5", "w1 w2"], max_len_b=9))
    assert re.search(r"\bw9 w9\b.*\bw5\b", text)
    assert not re.search(r"\bw9 w9\b.*\bw5\b", free)
    with pytest.raises(ConfigError, match="`--markup` does not go with `--constraints`"):
        model.translate("w1", markup=True)
    with pytest.raises(ConfigError, match="`--keep-addresses` does not go with `--constraints`"):
        model.translate("w1", keep_addresses=True)
    with pytest.raises(ConfigError, match="`--constraints` must be ordered or unordered"):
        opened(run, kind, constraints="sorted")


def test_texts_of_other_types(model: Model):
    for text, type_ in ((b"w1", "bytes"), (None, "NoneType"), (5, "int")):
        with pytest.raises(ConfigError, match=f"`texts` must be a list .* of the type {type_}"):
            model.translate(text)
        with pytest.raises(DataError, match=f"`texts`, line 2: not a string, .* type {type_}"):
            model.translate(["w1", text])
        with pytest.raises(DataError, match=f"`targets`, line 1: not a string, .* type {type_}"):
            model.score(["w1"], [text])
    with pytest.raises(ConfigError, match=r"`sources` must be a list .* of the type str"):
        model.score("w1 ", ["w1", "w2", "w3"])
    with pytest.raises(ConfigError, match=r"`targets` must be a list .* of the type str"):
        model.score(["w1", "w2"], "w1")
    with pytest.raises(ConfigError, match=r"`lines` must be a list .* of the type str"):
        model.stream("w1 w2")
    with pytest.raises(DataError, match="`keep`, line 1: not a string, but of the type int"):
        model.translate("w1", keep=[5])
    assert model.score(iter(["w1"]), iter(["w2"])) == model.score(["w1"], ["w2"])


def test_a_model_is_not_copied(model: Model):
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ConfigError, match="load it anew in each process"):
            copied(model)


def test_models_that_cannot_be_loaded(run: Path, tmp_path: Path):
    empty, lonely = tmp_path / "empty", tmp_path / "lonely.pt"
    compared = tmp_path / "compared" / "models" / "muse"  # as recipes/compare.sh has them
    for folder in (empty, compared):
        folder.mkdir(parents=True)
    (compared / "checkpoint_last.pt").touch()
    shutil.copy(run / "checkpoint_best.pt", lonely)
    for path, options, message in (
        (run, {"engine": "fast"}, "`engine` must be one of"),
        (run, {"threads": 0}, "`threads` must be a whole number of at least 1, but is 0"),
        (run, {"threads": "2"}, "`threads` must be a whole number of at least 1, but is `2`"),
        (empty, {}, "is a folder without a model: it has no average"),
        (run.parent, {}, f"but its .*{run.name}.* have a model; give one of them"),
        (compared.parents[1], {}, r", but its models/muse have a model; give one of them"),
        (run, {"src": "en", "tgt": "de"}, r"must be de and en for .*, but are en and de"),
        ("tatoeba-es-en", {"src": 3}, r"must be es and en for .*, but are 3 and en"),
        (lonely, {}, "`--data` must be the folder of fairseq-preprocess"),
        (run / "bundle", {"data": run}, "has no effect on bundles, which have dictionaries"),
    ):
        with pytest.raises(ConfigError, match=message):
            fairseq_ext.load(path, **options)
    (tmp_path / "a:b").symlink_to(run)
    with pytest.raises(
        DataError, match="a:b has a colon, at which fairseq ends the name of a fold"
    ):
        fairseq_ext.load(run / "checkpoint_best.pt", tmp_path / "a:b")
    with pytest.raises(CheckpointError, match=r"nothing\.pt does not exist"):
        fairseq_ext.load(tmp_path / "nothing.pt")
    with pytest.raises(CheckpointError, match="separate models by spaces, not colons"):
        fairseq_ext.load(f"{lonely}:{lonely}")  # as fairseq names an ensemble


@pytest.mark.parametrize("name", ["transformer", "gru", "muse", "bmt-6", "linformer"])
def test_a_later_search_of_fairseqs_generator_may_want_attention(name: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "run", name)
    plain = Search(engine="fairseq", cpu=True, max_len_b=6)
    translator = Translator(folder, [folder / "checkpoint_best.pt"], search=plain)
    ((best, *_),) = translator.translate(["w1 w2"])
    search = dataclasses.replace(plain, attention=True)
    ((translations, *_),) = translator.translate(["w1 w2"], search=search)
    assert translations.tokens == best.tokens
    assert len(translations.attention) == (
        0 if name == "linformer" else len(translations.tokens.split()) + 1
    )
