"""Published models: raw text in, text out, whatever layout they come in."""

import runpy
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import MODEL_REGISTRY, BaseFairseqModel
from fairseq.sequence_generator import SequenceGenerator

import fairseq_ext
from fairseq_ext import cli
from fairseq_ext.checkpoints import published, storage
from fairseq_ext.decoding.loading import model_of, models_of
from fairseq_ext.model import write
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.subwords import load as load_subwords
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError
from tests.support.harness import REPO
from tests.support.published import (
    CODES,
    LINES,
    MERGES,
    SIDES,
    SIZES,
    Words,
    publish,
    publish_many,
    write_tokens,
)
from tests.support.published import model_of as build

TEXT = "Hello, the old house!"
SHAPE = {"conv_dim": 16, "kernel_size_list": [3, 7], "conv_type": "lightweight"}
CONVOLUTIONS = {f"{side}_{name}": value for side in SIDES for name, value in SHAPE.items()}
DYNAMIC = {**CONVOLUTIONS, "encoder_conv_type": "dynamic", "decoder_conv_type": "dynamic"}
NO_GATES = {"encoder_glu": False, "decoder_glu": False}
JOINED = {"share_all_embeddings": True}
FAMILIES = {
    "transformer": ("transformer", {}),
    "wmt16": ("transformer_wmt_en_de_big", JOINED),
    "wmt14": ("transformer_vaswani_wmt_en_fr_big", {"decoder_layers": 1, "activation_fn": "gelu"}),
    "normalization before": (
        "transformer",
        {f"{side}_{name}": True for side in ("encoder", "decoder")
         for name in ("normalize_before", "learned_pos")},
    ),
    "narrow encoder": ("transformer", {"encoder_embed_dim": 8, "layernorm_embedding": True}),
    "no scale": ("transformer", {"no_scale_embedding": True, "activation_fn": "tanh"}),
    "lightconv.glu": ("lightconv", {**CONVOLUTIONS, **JOINED}),
    "lightconv.no_glu": ("lightconv", {**CONVOLUTIONS, **NO_GATES}),
    "dynamicconv.glu": ("lightconv", {**DYNAMIC, "decoder_normalize_before": True}),
    "dynamicconv.no_glu": ("lightconv", {**DYNAMIC, **NO_GATES, **JOINED}),
    "conv": ("fconv", {f"{side}_layers": "[(16, 3)] * 2" for side in ("encoder", "decoder")}),
    "adaptive softmax": ("transformer", {"adaptive_softmax_cutoff": "10,20"}),
}  # fmt: skip
IN_FAIRSEQ = ("conv", "adaptive softmax")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("fastbpe", "tokenize, escape, aggressive, fastbpe"),
        ("subword-nmt", "tokenize, escape, aggressive, subword-nmt"),
        ("sentencepiece", "sentencepiece"),
        ("byte-level", "byte-level"),
    ],
)
@pytest.mark.parametrize("old", [True, False])
def test_each_layout(kind: str, steps: str, old: bool, tmp_path: Path, caplog):
    folder = publish(tmp_path / "model", kind=kind, legacy=old, cfg=not old)
    before = sorted(path.name for path in folder.iterdir())
    model = fairseq_ext.load(folder)
    assert f"by its files: {steps}; options" in caplog.text
    assert (model.src, model.tgt) == ("en", "de")
    assert model.translate(TEXT).text
    expected = fairseq_ext.load(folder, engine="fairseq").translate(TEXT)
    assert model.translate(TEXT).text == expected.text
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family(family: str, tmp_path: Path, caplog):
    """In the engine, in fairseq's generator and as a bundle."""
    arch, options = FAMILIES[family]
    folder = publish(tmp_path / "model", arch, **options)
    path = model_of(folder)
    write.write(path, path.parent, tmp_path / "bundle")
    assert ("no program" in caplog.text) == (family in IN_FAIRSEQ)
    bundle, checkpoint = fairseq_ext.load(tmp_path / "bundle"), fairseq_ext.load(folder)
    expected = fairseq_ext.load(folder, engine="fairseq").translate(LINES)
    for model in (bundle, checkpoint):
        for translation, reference in zip(model.translate(LINES), expected, strict=True):
            assert translation.text == reference.text
            score, of_reference = (t.candidates[0].score for t in (translation, reference))
            assert score == pytest.approx(of_reference, abs=1e-4)


def test_checkpoints_of_a_folder_vote(tmp_path: Path):
    folder = publish(tmp_path / "model", models=3)
    assert [path.name for path in models_of(folder)] == ["model1.pt", "model2.pt", "model3.pt"]
    both = [fairseq_ext.load(path).translate(TEXT) for path in (folder, folder / "model2.pt")]
    assert both[0] != both[1]
    with pytest.raises(ConfigError, match=r"has 3 models in an ensemble.*model1\.pt"):
        model_of(folder)


def test_an_archive_and_its_published_name(tmp_path: Path, monkeypatch, caplog):
    name = "transformer.wmt19.en-de.single_model"
    archive = tmp_path / "server" / "wmt19.en-de.joined-dict.single_model.tar.gz"
    publish(tmp_path / "model")
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "model", archive.name.removesuffix(".tar.gz"))
    monkeypatch.setenv(published.MIRROR, str(archive.parent))
    expected = fairseq_ext.load(tmp_path / "model").translate(TEXT).text
    for path in (archive, name):
        assert fairseq_ext.load(path).translate(TEXT).text == expected
        assert f"by the name {name}: tokenize, escape, aggressive, fastbpe" in caplog.text
        caplog.clear()


def test_every_name_is_looked_up():
    assert len(published.hub_models()) > 30
    assert all(name.startswith(published.HUB) for name in published.hub_models())


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("bpecodes", None, "has no subwords of the kind fastbpe, which"),
        ("dict.de.txt", None, r"dict\.de\.txt, but has dict\.en\.txt"),
        ("dict.de.txt", "more 1\n", "other sizes"),
        ("bpecodes", "a b\n", r"bpecodes, line \d+: `a b` is not a merge of two pieces"),
    ],
)
def test_files_that_are_missing_or_of_another_model(name, line, message, tmp_path):
    path = publish(tmp_path / "wmt19.en-de.joined-dict.ensemble") / name
    path.unlink() if line is None else path.write_text(path.read_text("utf-8") + line, "utf-8")
    with pytest.raises((CheckpointError, ConfigError, DataError), match=message):
        fairseq_ext.load(path.parent)


def test_a_run_is_no_published_model(tmp_path: Path):
    folder = publish(tmp_path / "model")
    shutil.copy(folder / "model.pt", folder / "checkpoint_best.pt")
    (folder / "model.pt").unlink()
    assert models_of(folder) == [folder / "checkpoint_best.pt"]


def test_fastbpe_merges_as_subword_nmt(tmp_path: Path):
    """The merges of both are applied in the same order; only the files differ."""
    for kind in ("fastbpe", "subword-nmt"):
        write_tokens(tmp_path / kind, kind)
    both = [load_subwords(k, [tmp_path / k / "bpecodes"]) for k in ("fastbpe", "subword-nmt")]
    for line in LINES:
        assert both[0].encode(line) == both[1].encode(line)
        assert both[0].decode(both[0].encode(line)) == line
    assert both[0].encode("the dog thou") == "the dog th@@ o@@ u"
    assert len(MERGES) < 20


EPOCHS, MBART = "translation_multi_simple_epoch", "translation_from_pretrained_bart"
PAIR_LIST = [f"{src}-{tgt}" for src in CODES for tgt in CODES if src != tgt]
M2M = {"lang_pairs": PAIR_LIST, "encoder_langtok": "src", "decoder_langtok": True}
OF_MANY_LANGUAGES = {
    "M2M-100": (EPOCHS, "transformer", "multilingual", M2M),
    "one to many": (
        *(EPOCHS, "transformer", "multilingual"),
        {**M2M, "encoder_langtok": "tgt", "decoder_langtok": False, "langtoks": None},
    ),
    "NLLB-200": (
        *(EPOCHS, "transformer", "multilingual"),
        {**M2M, "langs": CODES, "add_data_source_prefix_tags": True},
    ),
    "mBART-50": (EPOCHS, "mbart_base", "mbart", {**M2M, "lang_tok_style": "mbart"}),
    "mBART": (MBART, "mbart_base", "mbart", {"langs": ",".join(CODES)}),
}


def as_fairseq_translates(
    style: str, words: Dictionary, model: BaseFairseqModel, options: dict, line: str
) -> str:
    """The translation from English to German by fairseq's generator, with symbols put by hand."""

    def number(code: str) -> int:
        return words.index(f"__{code}__" if style == "multilingual" else f"[{code}]")

    tokens = words.encode_line(line, add_if_not_exist=False).long()
    end, prefix = None, None
    if "encoder_langtok" not in options:
        tokens, end = torch.cat([tokens, torch.tensor([number("en")])]), number("de")
    else:
        first = {"src": "en", "tgt": "de"}[options["encoder_langtok"]]
        tokens = torch.cat([torch.tensor([number(first)]), tokens])
        if options["decoder_langtok"]:
            prefix = torch.tensor([[number("de")]])
    generator = SequenceGenerator([model], words, beam_size=5, max_len_b=200, eos=end)
    net_input = {"src_tokens": tokens[None], "src_lengths": torch.tensor([len(tokens)])}
    best = generator.generate([model], {"net_input": net_input}, prefix_tokens=prefix)[0][0]
    left_out = {number("de")} if end or options["decoder_langtok"] else set()
    return words.string(best["tokens"], extra_symbols_to_ignore=left_out)


@pytest.mark.parametrize("family", OF_MANY_LANGUAGES)
def test_models_of_many_languages(family: str, tmp_path: Path, caplog):
    """As checkpoint in fairseq's generator and in the engine, and as a bundle."""
    task, arch, style, options = OF_MANY_LANGUAGES[family]
    folder, words, model = publish_many(tmp_path / "model", task, arch, style, **options)
    path = model_of(folder, "en", "de")
    write.write(path, path.parent, tmp_path / "bundle")
    assert "no program" not in caplog.text
    ways = [
        fairseq_ext.load(folder, src="en", tgt="de"),
        fairseq_ext.load(folder, src="en", tgt="de", engine="fairseq"),
        fairseq_ext.load(tmp_path / "bundle"),
    ]
    pieces = load_subwords("sentencepiece", [folder / "sentencepiece.bpe.model"])
    for line in LINES:
        expected = as_fairseq_translates(style, words, model, options, pieces.encode(line))
        for way in ways:
            assert way.translate(line).candidates[0].tokens == expected
    scores = [way.score(LINES, LINES[::-1]) for way in ways]
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)
    assert scores[2] == pytest.approx(scores[1], rel=1e-4)
    assert "instead of the engine" not in caplog.text


def test_multilingual_transformer(tmp_path: Path):
    """Each pair has weights of its own."""
    folder = publish(tmp_path / "model")
    expected = fairseq_ext.load(folder).translate(TEXT).text
    shutil.copy(folder / "dict.en.txt", folder / "dict.fr.txt")
    state = storage.load(folder / "model.pt")
    words = Dictionary.load(str(folder / "dict.en.txt"))
    other, _ = build("transformer", {**SIZES, "seed": 9}, Words(words, words))
    state["model"] = {
        f"models.{pair}.{name}": weight
        for pair, weights in (("en-de", state["model"]), ("de-fr", other.state_dict()))
        for name, weight in weights.items()
    }
    values = {"arch": "multilingual_transformer", "lang_pairs": "en-de,de-fr"}
    for name, value in {**values, "task": "multilingual_translation"}.items():
        setattr(state["args"], name, value)
    torch.save(state, folder / "model.pt")
    assert fairseq_ext.load(folder, src="en", tgt="de").translate(TEXT).text == expected
    assert fairseq_ext.load(folder, src="de", tgt="fr").translate(TEXT).text != expected


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ((None, None), r"`--src` must be one of the languages of .*: cs, de, en, fr\."),
        (("eng", "de"), r"`--src eng` is no language of .*; did you mean en\?"),
        (("en", "xx"), r"`--tgt xx` is no language of .*; it has cs, de, en, fr\."),
    ],
)
def test_languages_that_a_model_does_not_have(languages: tuple, message: str, tmp_path: Path):
    folder, *_ = publish_many(tmp_path / "model", EPOCHS, **M2M)
    with pytest.raises(ConfigError, match=message):
        models_of(folder, *languages)
    pair = publish(tmp_path / "pair")
    with pytest.raises(ConfigError, match=r"from en to de only, not from de to en; leave out"):
        models_of(pair, "de", "en")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"langs": 5}, r"language options that no model has \(TypeError\)"),
        ({"langs": "../../en,de", "source_lang": "../../en"}, "which is no language code"),
        ({"langs": "en,de", "lang_tok_style": "${oc.env:HOME}"}, "which OmegaConf would resolve"),
        (
            {"langs": "en,de", "langtoks": {"main": ("src.x", "tgt")}},
            "tokens of an unsupported kind",
        ),
        ({"langs": "en,de", "lang_tok_replacing_bos_eos": True}, "lang-tok-replacing-bos-eos"),
        ({"task": "denoising"}, "a model of the task denoising, not of translation"),
    ],
)
def test_hostile_or_unknown_options(options: dict, message: str, tmp_path: Path, cache: Path):
    """Each is an error of one line, and no file appears but in the cache."""
    values = {**M2M, "source_lang": "en", "target_lang": "de", **options}
    folder, *_ = publish_many(tmp_path / "model", values.pop("task", EPOCHS), **values)
    before = {path for path in tmp_path.rglob("*") if cache not in path.parents} - {cache}
    with pytest.raises(CheckpointError, match=message) as caught:
        models_of(folder)
    assert "\n" not in str(caught.value)
    assert {path for path in tmp_path.rglob("*") if cache not in path.parents} - {cache} == before


@pytest.mark.parametrize(
    ("legacy", "cause"), [(True, "since torch before 1.6"), (False, "for its weights in fp32")]
)
def test_a_model_larger_than_the_memory(legacy: bool, cause: str, tmp_path: Path, monkeypatch):
    folder = publish(tmp_path / "model", legacy=legacy)
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    with pytest.raises(CheckpointError, match=rf"needs 0\.0 GB of memory.*{cause}.* has 0\.0 GB"):
        fairseq_ext.load(folder)


def test_every_published_name_is_on_the_page():
    script = runpy.run_path(str(REPO / "docs" / "make_published.py"))
    page = (REPO / "docs" / "published.md").read_text(encoding="utf-8")
    assert page == script["page"](), "run `python docs/make_published.py`"
    for model in MODEL_REGISTRY.values():
        names = (model.hub_models() or {}) if hasattr(model, "hub_models") else {}
        assert all(f"`{name}`" in page for name in names)


def test_text_becomes_tokens_as_for_a_model(tmp_path: Path):
    """``subwords --like``, for training on; Moses' tokens are escaped as fairseq has them."""
    folder = publish(tmp_path / "model")
    text = tmp_path / "text"
    text.mkdir()
    for side in ("en", "de"):
        (text / f"train.{side}").write_text(f"{TEXT}\n", encoding="utf-8")
    Pipeline("en", "de", clean=True).save(text)  # as `corpus pairs` does
    words = ["subwords", text, "--like", folder, "--src", "en", "--tgt", "de"]
    with pytest.raises(SystemExit) as end:
        cli.main([*map(str, words), "-o", str(tmp_path / "bpe")])
    assert not end.value.code
    encoder = fairseq_ext.load(folder)._codec.encode
    assert (tmp_path / "bpe" / "train.de").read_text("utf-8") == encoder(TEXT) + "\n"
    assert (tmp_path / "bpe" / "text.json").is_file()
