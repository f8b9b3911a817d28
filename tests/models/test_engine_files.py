"""Models for the engine as files: the same translations, and nothing in them is trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from fairseq.models import BaseFairseqModel
from safetensors.numpy import load_file

import fairseq_ext
from fairseq_ext.decoding.engine_translator import EngineTranslator
from fairseq_ext.decoding.packing import engine_model
from fairseq_ext.decoding.search import Search
from fairseq_ext.engine import files, sizes
from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.ensemble import merged
from fairseq_ext.engine.files import EngineModel
from fairseq_ext.engine.library import Machine
from fairseq_ext.engine.program import NOTHING, Code, Columns, Operation, Phase, Shape
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.engine.verify import verify
from fairseq_ext.engine.weights import PLAIN
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError
from tests.models.test_engine import ALL, LENGTHS, sharpened
from tests.support import fuzz_engine, fuzz_packed, models

RUN = ("transformer-learned", "gru-luong", "linformer", "muse", "muse-ordinary", "bmt-6")
FUZZED = 80  # mutated copies of each of these


def made(name: str, numbers: str = "fp32") -> tuple[EngineModel, BaseFairseqModel]:
    """A small model for the engine, and what it is made of."""
    model, task = sharpened(name)
    task.cfg.source_lang, task.cfg.target_lang = "de", "en"
    return engine_model(model, task, numbers, name), model


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a small Transformer with text."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "codes").write_text("#version: 0.2\nw 1</w>\n")
    lower = Pipeline("de", "en", lowercase=True, subwords="subword-nmt", files=(folder / "codes",))
    lower.save(folder)
    text = {name: (folder / name).read_bytes() for name in ("codes", "text.json")}
    files.write(replace(made("transformer", "int8")[0], text=text), folder / "m.safetensors")
    return folder / "m.safetensors"


@pytest.mark.parametrize("name", ALL)
def test_a_file_translates_as_its_model(name: str, tmp_path: Path):
    """To the last bit."""
    for numbers in ("fp32", "int8"):
        model, _ = made(name, numbers)
        sentences = models.random_sentences(LENGTHS, size=40)
        machine = Machine(model.program, packed=model.weights)
        found = machine.worker().translate(sentences, Rules(beam=3, max_len_b=20, attention=True))
        path = tmp_path / f"{numbers}.safetensors"
        files.write(model, path)
        search = Search(beam=3, nbest=3, max_len_b=20, attention=True)
        translator = EngineTranslator(files.read(path), search)
        lines = [" ".join(model.source[token] for token in one[:-1]) for one in sentences]
        for ours, theirs in zip(translator.translate(lines), found, strict=True):
            assert [one.score for one in ours] == [one.score / math.log(2) for one in theirs]
            words = [
                " ".join(model.target[t] for t in one.tokens[:-1] if t) for one in theirs
            ]  # no <s>
            assert [one.tokens for one in ours] == words
            for one, other in zip(ours, theirs, strict=True):
                wanted = () if other.attention is None else other.attention.tolist()
                assert [list(row) for row in one.attention] == list(wanted)
        assert translator.counts.source == sum(LENGTHS) - len(LENGTHS)


def test_files_vote():
    """As their models do, in the numbers of each."""
    (first, one), (second, other) = made("transformer"), made("gru", "int8")
    sentences = models.random_sentences([6, 2, 9], size=40)
    rules = Rules(beam=3, max_len_b=12)
    whole = files.voting([first, second])
    found = Machine(whole.program, packed=whole.weights).worker().translate(sentences, rules)
    task = models.build(ALL["transformer"], size=40)[1]
    program = merged([compile_model(model, task.target_dictionary) for model in (one, other)])
    exact = Machine(program).worker().translate(sentences, rules)
    near = [abs(a[0].score - b[0].score) < 0.05 for a, b in zip(found, exact, strict=True)]
    assert sum(near) >= 2
    both = files.voting([first, replace(second, weights=made("gru")[0].weights)])
    same = Machine(both.program, packed=both.weights).worker().translate(sentences, rules)
    assert [one[0].score for one in same] == [one[0].score for one in exact]
    assert files.voting([first]).program is first.program
    for spoiled in (
        replace(second, target=[*second.target[:-1], "x"]),
        replace(second, settings=replace(second.settings, cut=5)),
    ):
        with pytest.raises(ConfigError, match="cannot vote"):
            files.voting([first, spoiled])


def test_weights_lie_in_the_file_as_the_machine_reads_them(small: Path):
    """Nothing is copied: pages of the file are shared by all processes."""
    model = files.read(small)
    for weight in model.weights:
        assert not weight.values.flags.writeable
        assert not weight.values.flags.owndata
        if weight.kind != PLAIN:
            assert weight.values.ctypes.data % 64 == 0
    known = load_file(small)  # by the library of the format
    for number, weight in enumerate(model.weights):
        np.testing.assert_array_equal(known[f"weights.{number}.values"], weight.values)


def test_a_packed_model_can_be_the_source(tmp_path: Path):
    """From bits to bits: the same translations as of the model it was packed from."""
    from fairseq_ext.binary.packed import model_file, pack
    from fairseq_ext.decoding.packing import pack_file

    flags = [*ALL["bmt-1"], "--source-lang", "de", "--target-lang", "en"]
    model, task = models.build(flags, size=40)
    model_file.write(pack.pack(model, models.configuration(flags), task), tmp_path / "bits")
    for language, words in (("de", task.source_dictionary), ("en", task.target_dictionary)):
        words.save(str(tmp_path / f"dict.{language}.txt"))
    translated = [
        EngineTranslator(one, Search(max_len_b=9)).translate(["w1 w2", "w7"])
        for one in (
            pack_file(tmp_path / "bits", tmp_path, "int8"),
            engine_model(model, task, "int8", "bmt"),
        )
    ]
    assert translated[0] == translated[1]


def test_text_is_part_of_it(small: Path):
    """Also after its own files are gone."""
    text = fairseq_ext.load(small)
    assert text._codec.encode("W1 w2") == "w1 w@@ 2"
    assert text._codec.decode("w@@ 2") == "w2"
    assert text.translate(["w1", "", "W1 w1"], max_len_b=5)[1].text == ""
    report = sizes.count(small)
    assert report["text"] == "de → en: lowercase, subword-nmt"
    assert report["bytes"]["all"] == small.stat().st_size
    assert sum(report["bytes"].values()) == 2 * small.stat().st_size
    assert report["operations"]["decoder"]["ATTEND_PAST"] == 2
    assert report["values"] == sum(one.outputs * one.inputs for one in files.read(small).weights)
    assert "lowercase" in sizes.as_table(report)


def test_sources_are_cut_and_begun_as_by_the_task(tmp_path: Path):
    flags = ["--task", "translation_ext", "--source-bos", "--truncate-source"]
    flags += ["--max-source-positions", "7", *ALL["gru"]]
    from fairseq_ext.generation.translation_ext import TranslationExtTask

    cfg = models.configuration(flags)
    cfg.task.source_lang, cfg.task.target_lang = "de", "en"
    task = TranslationExtTask(cfg.task, models.dictionary(40), models.dictionary(40))
    model = engine_model(task.build_model(cfg.model).eval(), task, "fp32", "gru")
    translator = EngineTranslator(model)
    for count in range(1, 10):
        line = " ".join(f"w{number}" for number in range(count))
        tokens, lengths = task.get_interactive_tokens_and_lengths([line], lambda line: line)
        (wanted,) = [one["source"] for one in task.build_dataset_for_inference(tokens, lengths)]
        assert translator._encode(line) == wanted.tolist()
    assert translator.limit == 7


def test_layers_that_a_training_left_out_at_random_are_there():
    """LayerDrop: a model comes from its checkpoint in the state of training."""
    flags = [*ALL["transformer"], "--encoder-layerdrop", "0.9", "--decoder-layerdrop", "0.9"]
    model, task = models.build(flags)
    counts = set()
    for state in (False, True, True, True):
        program = compile_model(model.train(state), task.target_dictionary)
        assert model.training is state
        counts.add((len(program.encoder), len(program.decoder)))
    assert len(counts) == 1


def test_the_likeliest_token_alone_may_be_drawn(small: Path):
    """``top_k`` 1 is greedy search, whatever the seed."""
    lines, model = ["w1 w2 w3", "w7"], files.read(small)
    greedy = EngineTranslator(model, Search(beam=1, nbest=1, max_len_b=8, lenpen=0.0))
    drawn = EngineTranslator(
        model, Search(beam=3, nbest=3, max_len_b=8, lenpen=0.0, sampling=True, top_k=1, seed=7)
    )
    for one, several in zip(greedy.translate(lines), drawn.translate(lines), strict=True):
        assert {candidate.tokens for candidate in several} == {one[0].tokens}


def test_special_symbols_in_text(small: Path):
    """``<pad>`` is none of the source's tokens, and ``</s>`` ends a target."""
    translator = EngineTranslator(files.read(small))
    assert translator._encode("w1 <pad> w2") == translator._encode("w1 w2")
    with pytest.raises(DataError, match="target 2 holds `</s>`"):
        translator.score(["w1"] * 2, ["w1 w2", "w1 </s> w2"])


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (Search(max_len_a=math.nan), "`--max-len-a` must be a number from 0 on, but is nan"),
        (Search(max_len_a=-1.0), "`--max-len-a` must be"),
        (Search(lenpen=math.inf), "`--lenpen` must be a number from -100 to 100, but is inf"),
        (Search(lenpen=-1e308), "`--lenpen` must be a number from -100 to 100, but is -1e\\+308"),
        (Search(beam=3.5), "`--beam` must be a whole number, but is 3.5"),
        (Search(lenpen="1"), "`--lenpen` must be a number from -100 to 100, but is 1"),
        (Search(sampling=True, seed=-1), "`--seed` must be at least 0, but is -1"),
        (Search(sampling=True, seed=2**32), "`--seed` must be at most 4294967295"),
        (Search(beam=20), "`--beam` is 20, but must be at most 19"),
        (Search(beam=2, nbest=3), "`--nbest` must be at most `--beam`"),
        (Search(fp16=True), "`--fp16` does not go with"),
        (Search(gnmt_lenpen=-1.0), "`--gnmt-lenpen` must be"),
        (Search(gnmt_lenpen=101.0), "`--gnmt-lenpen` must be a number from 0 to 100"),
        (Search(sampling=True, epsilon=1.0), "`--epsilon-sampling` must be"),
    ],
)
def test_searches_that_cannot_be(small: Path, search: Search, message: str):
    with pytest.raises(ConfigError, match=message):
        EngineTranslator(files.read(small), search)


# ---- a program is proven before it runs ----------------------------------------------------------


def changed(code: Code, **parts: object) -> Callable[[EngineModel], None]:
    """Change the first operation of a kind; a function is called with what was there."""

    def change(model: EngineModel) -> None:
        for operations in (model.program.encoder, model.program.decoder):
            for place, one in enumerate(operations):
                if one.code is code:
                    new = {k: v(getattr(one, k)) if callable(v) else v for k, v in parts.items()}
                    operations[place] = one._replace(**new)
                    return
        raise AssertionError("no such operation")

    return change


def edge(name: str, value: object) -> Callable[[EngineModel], None]:
    return lambda model: setattr(model.program, name, value)


def moved(columns: Columns) -> Columns:
    return columns._replace(offset=columns.offset + 1)


def resized(model: EngineModel) -> None:
    model.weights[0] = model.weights[0]._replace(outputs=model.weights[0].outputs + 64)


def of_other_kind(model: EngineModel) -> None:
    product = next(one for one in model.program.encoder if one.code is Code.LINEAR)
    weight = model.weights[product.weights[0]]
    shape = (weight.outputs, weight.inputs)
    model.weights[product.weights[0]] = weight._replace(
        kind=PLAIN, values=np.zeros(shape, np.float32), scales=None, sums=None
    )


FAULTS: dict[str, tuple[str, Callable[[EngineModel], None]]] = {
    "no such register": ("transformer", changed(Code.LINEAR, out=Columns(999, 0, 1))),
    "columns outside": ("transformer", changed(Code.LINEAR, out=moved)),
    "negative columns": ("transformer", changed(Code.LINEAR, out=lambda c: c._replace(offset=-1))),
    "weight missing": ("transformer", changed(Code.NORM, weights=(-1, -1))),
    "weight of another size": ("transformer", resized),
    "weight of another kind": ("transformer", of_other_kind),
    "another weight": ("transformer", changed(Code.LINEAR, weights=lambda w: (w[0] + 2, w[1]))),
    "heads that do not divide": ("transformer", changed(Code.ATTEND, ints=(5, 0, 0))),
    "other heads than the keys'": ("transformer", changed(Code.TRANSPOSE, ints=(4,))),
    "no heads": ("transformer", changed(Code.ATTEND_PAST, ints=lambda n: (0, *n[1:]))),
    "cache shared": ("transformer", changed(Code.ATTEND_PAST, ints=lambda n: (n[0], 1, n[2]))),
    "cache missing": ("transformer", edge("caches", 1)),
    "unknown activation": ("transformer", changed(Code.LINEAR, ints=(9,))),
    "infinite factor": ("transformer", changed(Code.EMBED, reals=(math.inf,))),
    "positions too few": ("transformer", changed(Code.EMBED, ints=(3000,))),
    "longest source": ("transformer", edge("longest_source", 1 << 20)),
    "longest target": ("transformer", edge("longest_target", 1 << 20)),
    "no output layer": ("transformer", edge("outputs", [])),
    "result not written": ("transformer", lambda m: m.program.decoder.clear()),
    "source not read": ("transformer", lambda m: m.program.encoder.clear()),
    "read before written": ("transformer", lambda m: m.program.encoder.reverse()),
    "decoder in the encoder": (
        "transformer",
        lambda m: m.program.encoder.extend(m.program.decoder),
    ),
    "symbol": ("transformer", lambda m: edge("symbols", (2, 2, 1, 40))(m)),
    "wide register": ("transformer", lambda m: m.program.shapes.append(Shape(1 << 30, Phase(0)))),
    "slots without rows": ("linformer", lambda m: m.program.shapes.append(Shape(4, Phase(3)))),
    "matrix too short": ("linformer", edge("longest_source", 23)),
    "alignment with slots": ("linformer", changed(Code.ATTEND_SOURCE, ints=lambda n: (n[0], 1, 0))),
    "groups": ("bmt-1", changed(Code.NORM, ints=(5,))),
    "unknown sum": ("bmt-8", changed(Code.ATTEND, ints=lambda n: (n[0], 0, 3))),
    "kernels": ("muse", changed(Code.CONVOLVE, ints=lambda n: (1, n[1]))),
    "taps": ("muse-ordinary", changed(Code.TAPS, ints=lambda n: (*n[:2], 5))),
    "gates": ("gru", changed(Code.RECUR, inputs=lambda i: (i[0]._replace(width=3),))),
    "recalled too late": (
        "gru",
        lambda m: m.program.decoder.append(
            next(one for one in m.program.decoder if one.code is Code.RECALL)
        ),
    ),
    "keys of another size": ("gru", changed(Code.ADDITIVE, inputs=lambda i: (i[0], i[2], i[2]))),
    "registers without end": ("gru", lambda m: m.program.shapes.extend(m.program.shapes * 5000)),
    "operands missing": ("gru", changed(Code.GRU, inputs=lambda i: i[:2])),
    "no tokens": (
        "gru",
        lambda m: m.program.encoder.append(Operation(Code.PICK, NOTHING, (NOTHING,), (), (0,))),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_program_with_a_fault_does_not_run(name: str):
    architecture, spoil = FAULTS[name]
    model, _ = made(architecture)
    verify(model.program, model.weights)
    spoil(model)
    with pytest.raises(ConfigError):
        Machine(model.program, packed=model.weights)


# ---- files that are not as they were written -----------------------------------------------------


def test_damage_is_found(small: Path, tmp_path: Path):
    path, draw, original = tmp_path / "m.safetensors", Random(2), small.read_bytes()
    for number in range(120):
        damage = fuzz_packed.DAMAGES[number % len(fuzz_packed.DAMAGES)]
        data = damage(bytearray(original), draw)
        path.write_bytes(data)
        if data == original:
            continue
        with pytest.raises(CheckpointError, match=r"m\.safetensors"):
            files.read(path)


@pytest.mark.parametrize("name", RUN)
def test_mutated_models_are_refused_or_run(name: str, tmp_path: Path):
    """With a right checksum, which anybody can compute; each that is read runs in a process."""
    files.write(made(name, "int8")[0], tmp_path / "m.safetensors")
    found = fuzz_engine.fuzz(tmp_path / "m.safetensors", FUZZED, tmp_path)
    assert found.keys() == {"refused", "run"}
    assert found.total() == FUZZED


HOSTILE: dict[str, Callable[[dict], None]] = {
    "another version": lambda m: m.update(version="2"),
    "no program": lambda m: m.pop("program"),
    "deep program": lambda m: m.update(program="[" * 100_000),
    "program of text": lambda m: m.update(program='"x"'),
    "weights missing": lambda m: m.update(weights="[]"),
    "languages": lambda m: m.update(model=json.dumps({**json.loads(m["model"]), "src": 5})),
    "begins": lambda m: m.update(model=json.dumps({**json.loads(m["model"]), "begins": 1})),
    "cut": lambda m: m.update(model=json.dumps({**json.loads(m["model"]), "cut": -1})),
    "half a cut": lambda m: m.update(model=json.dumps({**json.loads(m["model"]), "cut": 0.5})),
    "inputs no int": lambda m: m.update(
        weights=m["weights"].replace('"inputs": 32', '"inputs": 32.0')
    ),
    "search": lambda m: m.update(model=m["model"].replace('"search": {}', '"search": {"x": 1}')),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_made_up_metadata_is_refused(name: str, small: Path, tmp_path: Path):
    header, numbers = fuzz_engine.parts(small.read_bytes())
    HOSTILE[name](header["__metadata__"])
    path = tmp_path / "m.safetensors"
    path.write_bytes(fuzz_engine.whole(header, numbers))
    with pytest.raises(CheckpointError, match=r"m\.safetensors"):
        files.read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": ["<s>"] * 41}, "source dictionary is of another model"),
        ({"target": ["<s>"] * 39}, "target dictionary is of another model"),
        ({"text": {"codes": b"x"}}, "files of nothing"),
        ({"text": {"text.json": b"{}", "..": b"x"}}, "files of nothing"),
        ({"text": {"text.json": b"{}", "a/b": b"x"}}, "files of nothing"),
        ({"text": {"text.json": b"{}", "": b"x"}}, "files of nothing"),
    ],
)
def test_parts_of_another_model_are_refused(change: dict, message: str, tmp_path: Path):
    path = tmp_path / "m.safetensors"
    files.write(replace(made("gru")[0], **change), path)
    with pytest.raises(CheckpointError, match=message):
        files.read(path)


def test_text_that_cannot_be_used_is_named(tmp_path: Path):
    path = tmp_path / "m.safetensors"
    files.write(replace(made("gru")[0], text={"text.json": b'{"format": 1}'}), path)
    with pytest.raises(CheckpointError, match=r"m\.safetensors: text\.json cannot be used"):
        fairseq_ext.load(path)
