"""Programs in bundles: the same translations, and nothing in them is trusted."""

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fairseq.models import BaseFairseqModel
from safetensors.torch import load_file, save_file

import fairseq_ext
from fairseq_ext.checkpoints import bundle
from fairseq_ext.decoding.engine_translator import EngineTranslator
from fairseq_ext.decoding.search import Search
from fairseq_ext.engine import NUMBERS, recipes
from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.engine_model import EngineModel, ensemble
from fairseq_ext.engine.library import Machine
from fairseq_ext.engine.program import (
    NOTHING,
    Code,
    Columns,
    Matrix,
    Operation,
    Phase,
    Program,
    Shape,
)
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.engine.verify import verify
from fairseq_ext.engine.weights import PLAIN, Packed, pack
from fairseq_ext.model import program_file, write
from fairseq_ext.model.describe import as_table, describe
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError
from tests.support import damages, fuzz_engine, models
from tests.support.bundles import bundled, edit, engine_model, saved, sign_again
from tests.support.engine import ALL, LENGTHS, program_of, sharpened

RUN = (
    *("transformer-learned", "gru-luong", "linformer", "muse", "muse-ordinary", "bmt-6"),
    *("lightconv", "lstm"),
)
FUZZED = 24  # mutated copies of each of these; tests/sanitizers.sh makes more


def compiled(name: str, numbers: str = "fp32") -> tuple[EngineModel, BaseFairseqModel]:
    """A small model for the engine, and what it is made of."""
    model, task = sharpened(name)
    task.cfg.source_lang, task.cfg.target_lang = "de", "en"
    return engine_model(model, task, numbers, name), model


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a small Transformer with text."""
    folder = tmp_path_factory.mktemp("small")
    run = saved(folder / "run", "transformer")
    (folder / "codes").write_text("#version: 0.2\nw 1</w>\n")
    codes = (folder / "codes",)
    Pipeline("de", "en", lowercase=True, subwords="subword-nmt", files=codes).save(run)
    write.write(run / "checkpoint_best.pt", run, folder / "bundle", numbers="int8")
    return folder / "bundle"


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "copy"))


def assert_equal_weights(model: EngineModel, other: EngineModel) -> None:
    for weight, expected in zip(model.weights, other.weights, strict=True):
        for part, of_expected in zip(weight, expected, strict=True):
            np.testing.assert_array_equal(part, of_expected)


def formats(model: EngineModel) -> set[str]:
    """The number formats of a model's matrices."""
    return {NUMBERS[weight.kind] for weight in model.weights if weight.kind != PLAIN}


@pytest.mark.parametrize("name", ALL)
def test_a_bundle_translates_as_its_model(name: str, tmp_path: Path):
    """To the last bit: the arrays that recipes make are those that the compiler had."""
    model, _ = compiled(name)
    sentences = models.random_sentences(LENGTHS, size=40)
    machine = Machine(model.program, packed=model.weights)
    rules = Rules(beam=3, max_len_b=20, attention=True)
    translations = machine.worker().translate(sentences, rules)
    search = Search(beam=3, nbest=3, max_len_b=20, attention=True)
    read = program_file.read(bundled(tmp_path, name))
    assert_equal_weights(read, model)
    translator = EngineTranslator(read, search)
    lines = [" ".join(model.source[token] for token in sentence[:-1]) for sentence in sentences]
    for ours, theirs in zip(translator.translate(lines), translations, strict=True):
        for candidate, found in zip(ours, theirs, strict=True):
            assert candidate.score == found.score / math.log(2)
            assert candidate.tokens == " ".join(model.target[t] for t in found.tokens[:-1] if t)
            attention = () if found.attention is None else found.attention.tolist()
            assert [list(row) for row in candidate.attention] == list(attention)
    assert translator.counts.source == sum(LENGTHS) - len(LENGTHS)


@pytest.mark.parametrize("numbers", ["bf16", "int8"])
def test_rounded_weights_are_laid_out_as_the_compiler_would(numbers: str, tmp_path: Path):
    """Also in other numbers than the bundle's own."""
    path = bundled(tmp_path, "gru", numbers)
    bundled_model, compiled_model = program_file.read(path), compiled("gru", numbers)[0]
    assert formats(bundled_model) == {numbers}
    for weight, other in zip(bundled_model.weights, compiled_model.weights, strict=True):
        # Integers that a recipe puts together from rows of several scales are rounded twice.
        near = 0.01 if weight.kind == PLAIN else int(numbers == "int8")
        np.testing.assert_allclose(weight.values, other.values, atol=near)
    assert formats(program_file.read(path, "fp32")) == {"fp32"}


def test_files_vote():
    """As their models do, in the numbers of each."""
    first, first_trained = compiled("transformer")
    second, second_trained = compiled("gru", "int8")
    sentences = models.random_sentences([6, 2, 9], size=40)

    def scores(program: Program, packed: list[Packed] | None) -> list[float]:
        worker = Machine(program, packed=packed).worker()
        translations = worker.translate(sentences, Rules(beam=3, max_len_b=12))
        return [hypotheses[0].score for hypotheses in translations]

    joined = ensemble([first, second])
    task = models.build(ALL["transformer"], size=40)[1]
    exact = scores(program_of([first_trained, second_trained], task), None)
    rounded = scores(joined.program, joined.weights)
    assert sum(abs(a - b) < 0.05 for a, b in zip(rounded, exact, strict=True)) >= 2
    unrounded = ensemble([first, replace(second, weights=compiled("gru")[0].weights)])
    assert scores(unrounded.program, unrounded.weights) == exact
    assert ensemble([first]).program is first.program
    for spoiled in (replace(second, target=[*second.target[:-1], "x"]), replace(second, cut=5)):
        with pytest.raises(ConfigError, match="cannot form an ensemble"):
            ensemble([first, spoiled])


def test_bits_are_the_bits_of_the_checkpoint(tmp_path: Path):
    """The same translations as of the model that was binarized, with inputs in int8."""
    model, _ = compiled("bmt-1", "int8")
    read = program_file.read(bundled(tmp_path, "bmt-1", "bits"), "int8")
    assert_equal_weights(read, model)


def test_text_is_part_of_it(small: Path):
    """Also after its own files are gone."""
    text = fairseq_ext.load(small)
    assert text._codec.encode("W1 w2") == "w1 w@@ 2"
    assert text._codec.decode("w@@ 2") == "w2"
    assert text.translate(["w1", "", "W1 w1"], max_len_b=5)[1].text == ""
    report = describe(small)
    assert report["text"] == "de → en: lowercase, subword-nmt"
    size = sum(path.stat().st_size for path in small.iterdir() if path.name != "README.md")
    assert report["bytes"]["all"] == size
    assert sum(report["bytes"].values()) == 2 * size
    assert report["operations"]["decoder"]["ATTEND_PAST"] == 2
    model, _ = sharpened("transformer")
    assert report["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert "lowercase" in as_table(report)
    products = {
        name: parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2 and "embed" not in name
    }
    # The source's keys and values for the decoder are made once, beside the encoder.
    of_source = [n for n in products if re.match(r"encoder|.*\.encoder_attn\.[kv]_proj", n)]
    source = sum(products[name] for name in of_source)
    target = sum(products.values()) - source
    if "decoder.output_projection.weight" not in products:  # tied
        target += model.decoder.output_projection.weight.numel()
    assert report["multiply_adds"] == {"source token": source, "target token": target}


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
        (entry,) = task.build_dataset_for_inference(tokens, lengths)
        assert translator._encode(line) == entry["source"].tolist()
    assert translator.limit == 7


def test_layers_that_a_training_left_out_at_random_are_there():
    """LayerDrop: a model comes from its checkpoint in the state of training."""
    flags = [*ALL["transformer"], "--encoder-layerdrop", "0.9", "--decoder-layerdrop", "0.9"]
    model, task = models.build(flags)
    counts = set()
    for state in (False, True, True, True):
        model.train(state)
        model.decoder.eval()  # as in a training that freezes a part
        modes = [module.training for module in model.modules()]
        program = compile_model(model, task.target_dictionary)
        assert [module.training for module in model.modules()] == modes
        counts.add((len(program.encoder), len(program.decoder)))
    assert len(counts) == 1


def test_the_likeliest_token_alone_may_be_drawn(small: Path):
    """``sampling_topk`` 1 is greedy search, whatever the seed."""
    lines, model = ["w1 w2 w3", "w7"], program_file.read(small)
    greedy = EngineTranslator(model, Search(beam=1, nbest=1, max_len_b=8, lenpen=0.0))
    drawn = EngineTranslator(
        model,
        Search(beam=3, nbest=3, max_len_b=8, lenpen=0.0, sampling=True, sampling_topk=1, seed=7),
    )
    for best, several in zip(greedy.translate(lines), drawn.translate(lines), strict=True):
        assert {candidate.tokens for candidate in several} == {best[0].tokens}


def test_special_symbols_in_text(small: Path):
    """``<pad>`` is none of the source's tokens, and ``</s>`` ends a target."""
    translator = EngineTranslator(program_file.read(small))
    assert translator._encode("w1 <pad> w2") == translator._encode("w1 w2")
    with pytest.raises(DataError, match="target 2 holds `</s>`"):
        translator.score(["w1"] * 2, ["w1 w2", "w1 </s> w2"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(max_len_a=math.nan), "`--max-len-a` must be at most 1000000, but is nan"),
        (dict(max_len_a=-1.0), "`--max-len-a` must be"),
        (dict(lenpen=math.inf), "`--lenpen` must be at most 100, but is inf"),
        (dict(lenpen=-1e308), "`--lenpen` must be at least -100, but is -1e\\+308"),
        (dict(beam=3.5), "`--beam` must be a whole number, but is 3.5"),
        (dict(lenpen="1"), "`--lenpen` must be a number, but is `1`"),
        (dict(sampling=True, seed=-1), "`--seed` must be at least 0, but is -1"),
        (dict(sampling=True, seed=2**32), "`--seed` must be at most 4294967295"),
        (dict(beam=20), "`--beam` is 20, but must be at most 19"),
        (dict(beam=2, nbest=3), "`--nbest` must be at most `--beam`"),
        (dict(fp16=True), "`--fp16` does not go with"),
        (dict(gnmt_lenpen=101.0), "`--gnmt-lenpen` must be a number from 0 to 100"),
        (dict(sampling=True, epsilon_sampling=1.0), "`--epsilon-sampling` must be"),
    ],
)
def test_searches_that_cannot_be(small: Path, options: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        EngineTranslator(program_file.read(small), Search(**options))


def changed(code: Code, **parts: object) -> Callable[[Program, list[Packed]], object]:
    """Change the first operation of a kind; a function is called with what was there."""

    def change(program: Program, _: list[Packed]) -> None:
        for operations in (program.encoder, program.decoder):
            for place, operation in enumerate(operations):
                if operation.code is code:
                    new = {
                        k: v(getattr(operation, k)) if callable(v) else v for k, v in parts.items()
                    }
                    operations[place] = operation._replace(**new)
                    return
        raise AssertionError("no such operation")

    return change


def edge(name: str, value: object) -> Callable[[Program, list[Packed]], object]:
    return lambda program, _: setattr(program, name, value)


def moved(columns: Columns) -> Columns:
    return columns._replace(offset=columns.offset + 1)


def repacked(rows: int, plain: bool) -> Callable[[Program, list[Packed]], object]:
    """Give the first product a weight with more rows, or one of another kind."""

    def change(program: Program, weights: list[Packed]) -> None:
        place = next(x for x in program.encoder if x.code is Code.LINEAR).weights[0]
        _, outputs, inputs, *_ = weights[place]
        weights[place] = pack(Matrix(np.zeros((outputs + rows, inputs), np.float32), plain))

    return change


def with_wide_weight(program: Program, weights: list[Packed]) -> None:
    weights.append(Packed(PLAIN, 1 << 23, 1, np.zeros(1 << 23, np.float32)))
    program.shapes.append(Shape(1 << 23, Phase(0)))


def recalled_late(program: Program, _: list[Packed]) -> None:
    recalling = next(x for x in program.decoder if x.code is Code.RECALL)
    program.decoder.append(recalling)


FAULTS: dict[str, tuple[str, Callable[[Program, list[Packed]], object]]] = {
    "no such register": ("transformer", changed(Code.LINEAR, out=Columns(999, 0, 1))),
    "columns outside": ("transformer", changed(Code.LINEAR, out=moved)),
    "negative columns": ("transformer", changed(Code.LINEAR, out=lambda c: c._replace(offset=-1))),
    "weight missing": ("transformer", changed(Code.NORM, weights=(-1, -1))),
    "weight of another size": ("transformer", repacked(64, plain=False)),
    "weight of another kind": ("transformer", repacked(0, plain=True)),
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
    "result not written": ("transformer", lambda p, _: p.decoder.clear()),
    "source not read": ("transformer", lambda p, _: p.encoder.clear()),
    "read before written": ("transformer", lambda p, _: p.encoder.reverse()),
    "decoder in the encoder": ("transformer", lambda p, _: p.encoder.extend(p.decoder)),
    "symbol": ("transformer", edge("symbols", (2, 2, 1, 40))),
    "wide register": ("transformer", lambda p, _: p.shapes.append(Shape(1 << 30, Phase(0)))),
    "wide for its file": ("transformer", with_wide_weight),
    "slots without end": ("linformer", lambda p, _: p.shapes.append(Shape(32, Phase(3), 1 << 21))),
    "operations without end": (
        "transformer",
        lambda p, _: p.encoder.extend(p.encoder[-1:] * 200_000),
    ),
    "slots without rows": ("linformer", lambda p, _: p.shapes.append(Shape(4, Phase(3)))),
    "matrix too short": ("linformer", edge("longest_source", 23)),
    "alignment with slots": ("linformer", changed(Code.ATTEND_SOURCE, ints=lambda n: (n[0], 1, 0))),
    "groups": ("bmt-1", changed(Code.NORM, ints=(5,))),
    "unknown sum": ("bmt-8", changed(Code.ATTEND, ints=lambda n: (n[0], 0, 3))),
    "kernels": ("muse", changed(Code.CONVOLVE, ints=lambda n: (1, n[1]))),
    "taps": ("muse-ordinary", changed(Code.TAPS, ints=lambda n: (*n[:2], 5))),
    "gates": ("gru", changed(Code.RECUR, inputs=lambda i: (i[0]._replace(width=3),))),
    "recalled too late": ("gru", recalled_late),
    "keys of another size": ("gru", changed(Code.ADDITIVE, inputs=lambda i: (i[0], i[2], i[2]))),
    "registers without end": ("gru", lambda p, _: p.shapes.extend(p.shapes * 5000)),
    "operands missing": ("gru", changed(Code.GRU, inputs=lambda i: i[:2])),
    "kernels of other heads": ("lightconv", changed(Code.FILTER, ints=lambda n: (3, *n[1:]))),
    "kernels with more taps": ("lightconv", changed(Code.FILTER, ints=lambda n: (*n[:2], 9))),
    "kernels without taps": ("lightconv", changed(Code.FILTER, ints=lambda n: (*n[:2], 0))),
    "half a gate": ("lightconv", changed(Code.GATE, inputs=lambda i: (i[0], NOTHING))),
    "a GRU of an LSTM": ("lstm", changed(Code.RECUR, ints=(0,))),
    "unknown recurrence": ("lstm", changed(Code.RECUR, ints=(4,))),
    "an odd row of states": ("lstm", changed(Code.RECUR, out=lambda c: c._replace(width=31))),
    "a state without a cell": ("lstm", changed(Code.LSTM, out=lambda c: c._replace(width=16))),
    "no tokens": (
        "gru",
        lambda p, _: p.encoder.append(Operation(Code.PICK, NOTHING, (NOTHING,), (), (0,))),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_program_with_a_fault_does_not_run(name: str):
    architecture, spoil = FAULTS[name]
    model, _ = compiled(architecture)
    verify(model.program, model.weights)
    spoil(model.program, model.weights)
    with pytest.raises(ConfigError):
        Machine(model.program, packed=model.weights)


@pytest.mark.parametrize("name", RUN)
def test_mutated_models_are_refused_or_run(name: str, tmp_path: Path):
    """With valid checksums, which anybody can compute; each that is read runs in a process."""
    numbers = "bits-int8" if name.startswith("bmt") else "int8"
    outcomes = fuzz_engine.fuzz(bundled(tmp_path, name, numbers), FUZZED, tmp_path)
    assert outcomes.keys() == {"refused", "run"}
    assert outcomes.total() == FUZZED


def weights(change: Callable[[dict], object]) -> Callable[[dict], None]:
    """Change the first weight that is made of others."""

    def changed_content(content: dict) -> None:
        change(next(weight for weight in content["weights"] if isinstance(weight["recipe"], list)))

    return changed_content


HOSTILE: dict[str, Callable[[dict], object]] = {
    "no program": lambda m: m.pop("program"),
    "deep program": lambda m: m.update(program=deep(300)),
    "program of text": lambda m: m.update(program="x"),
    "weights missing": lambda m: m.update(weights=[]),
    "weights of text": lambda m: m.update(weights="x"),
    "begins": lambda m: m.update(begins=1),
    "cut": lambda m: m.update(cut=-1),
    "half a cut": lambda m: m.update(cut=0.5),
    "no such weight": weights(lambda w: w.update(recipe="nothing")),
    "a number": weights(lambda w: w.update(recipe=1)),
    "an object": weights(lambda w: w.update(recipe={"rows": 1})),
    "nothing": weights(lambda w: w.update(recipe=None)),
    "unknown operation": weights(lambda w: w.update(recipe=["__import__", "os"])),
    "method as operation": weights(lambda w: w.update(recipe=["tofile", "x"])),
    "no operands": weights(lambda w: w.update(recipe=["rows"])),
    "columns outside": weights(
        lambda w: w.update(recipe=["columns", "encoder.layers.0.fc1.weight", 99, 100])
    ),
    "no such part": weights(
        lambda w: w.update(recipe=["part", "encoder.layers.0.fc1.weight", 999])
    ),
    "deep recipe": weights(lambda w: w.update(recipe=deep(300, "rows", w["recipe"]))),
    "recipe without end": weights(lambda w: w.update(recipe=grown(w["recipe"]))),
    "table without end": weights(
        lambda w: w.update(recipe=["sinusoids", "encoder.layer_norm.bias", 1 << 20, 1 << 20, 1])
    ),
    "plain as a number": weights(lambda w: w.update(plain=1)),
    "signs of a vector": weights(
        lambda w: w.update(signs="encoder.layer_norm.bias", inputs=32, reading=["floats", 0, 1])
    ),
}


READERS = (program_file.read, bundle.load)
"""For the engine, and for fairseq."""


def change_header(copy: Path, change: Callable[[bytes], bytes], shift: int = 0) -> None:
    """Write the weights again with another header, of a length that shifts the numbers."""
    path = copy / "model.safetensors"
    header, numbers = damages.parts(path.read_bytes())
    text = change(header.rstrip())
    text += b" " * (-len(text) % 8 + shift)
    path.write_bytes(damages.joined(text, numbers))
    sign_again(copy)


def test_numbers_that_lie_anywhere_are_read(copy: Path):
    translations = fairseq_ext.load(copy).translate(["w1 w2 w3"])
    for shift in (1, 3):
        change_header(copy, lambda text: text, shift)
        assert fairseq_ext.load(copy).translate(["w1 w2 w3"]) == translations


def test_a_name_twice_in_the_weights_is_refused(copy: Path):
    def repeat_a_name(text: bytes) -> bytes:
        name, entry = next((n, e) for n, e in json.loads(text).items() if n != "__metadata__")
        return text[:-1] + f", {json.dumps(name)}: {json.dumps(entry)}}}".encode()

    change_header(copy, repeat_a_name)
    for read in READERS:
        with pytest.raises(CheckpointError, match=r"model\.safetensors is .* twice in one object"):
            read(copy)


@pytest.mark.parametrize("value", [math.nan, math.inf, -3e38])
@pytest.mark.parametrize("read", READERS)
def test_numbers_of_no_weight_are_refused(value: float, read: Callable, copy: Path):
    path = copy / "model.safetensors"
    tensors = load_file(path)
    name = "decoder.layers.0.fc1.weight"
    name = name if name in tensors else f"{name}.scale"
    tensors[name].view(-1)[3] = value
    save_file(tensors, path)
    sign_again(copy)
    with pytest.raises(CheckpointError, match=r"`decoder\.layers\.0\.fc1\.weight` has numbers"):
        read(copy)


def test_a_sine_or_a_table_without_end_is_refused():
    for frequency in (math.nan, math.inf, 3e38):
        with pytest.raises(DataError, match="frequency out of range"):
            recipes.sinusoids(np.array([frequency], np.float32), 4, 2, 1)
    for count, width, padding in ((5, 99, 1), (5, 1, 1), (1 << 30, 2, 1), (5, 2, 5), (5, 2, -1)):
        with pytest.raises(DataError, match="a size that does not fit"):
            recipes.sinusoids(np.ones(1, np.float32), count, width, padding)


def deep(levels: int, *first: object) -> list:
    value: list = ["x"]
    for _ in range(levels):
        value = [*first[:1], value]
    return value


def grown(recipe: list) -> list:
    """Of a few kilobytes, for terabytes."""
    for _ in range(6):
        recipe = ["rows", *[recipe] * 100] if len(json.dumps(recipe)) < 10**5 else recipe
    return recipe


@pytest.mark.parametrize("name", HOSTILE)
def test_a_made_up_program_is_refused(name: str, copy: Path):
    edit(copy, "program.json", HOSTILE[name])
    with pytest.raises(CheckpointError, match=r"program\.json"):
        program_file.read(copy)


def test_an_operation_of_a_later_release_asks_for_an_update(copy: Path):
    edit(copy, "program.json", lambda m: m["program"]["encoder"][0].__setitem__(0, "LATER"))
    with pytest.raises(CheckpointError, match=r"cannot be used .*\. Update fairseq-ext, or make"):
        program_file.read(copy)
