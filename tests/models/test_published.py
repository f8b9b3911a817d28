"""Published models: raw text in, text out, whatever layout they come in."""

import runpy
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import MODEL_REGISTRY, BaseFairseqModel
from fairseq.sequence_generator import SequenceGenerator

import fairseq_ext
from fairseq_ext.checkpoints import published, storage
from fairseq_ext.decoding.loading import model_of, models_of
from fairseq_ext.model import write
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.text.subwords import load as load_subwords
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError
from tests.support.harness import REPO, command, write_lines
from tests.support.published import (
    CODES,
    LINES,
    MERGES,
    SIDES,
    SIZES,
    Layout,
    publish,
    publish_many,
    write_tokens,
)
from tests.support.published import model_of as build

pytestmark = pytest.mark.usefixtures("cache")
TEXT = "Hello, the old house!"
LENGTH = 20
"""Longest translation: models with random weights hardly end by themselves."""
SHAPE = {"conv_dim": 16, "kernel_size_list": [3, 7], "conv_type": "lightweight"}
CONVOLUTIONS = {f"{side}_{name}": value for side in SIDES for name, value in SHAPE.items()}
DYNAMIC = {**CONVOLUTIONS, "encoder_conv_type": "dynamic", "decoder_conv_type": "dynamic"}
NO_GATES = {"encoder_glu": False, "decoder_glu": False}
JOINED = {"share_all_embeddings": True}
PUBLISHED = "as published"  # in its widths and with its dictionaries, but one layer on each side
WIDTHS = {"embed_dim": 1024, "ffn_embed_dim": 4096, "attention_heads": 16, "layers": 1}
BIG = {f"{side}_{name}": size for side in SIDES for name, size in WIDTHS.items()}
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
    "pruned by LayerDrop": (
        "transformer",
        {"legacy": False,
         "options": {"encoder_layers_to_keep": "1", "decoder_layers_to_keep": "0"}},
    ),
    "relu_squared": ("transformer", {"activation_fn": "relu_squared"}),
    f"wmt16 {PUBLISHED}": ("transformer_wmt_en_de_big", {**BIG, **JOINED, "vocabulary": 32_768}),
    f"wmt19 {PUBLISHED}": (
        "transformer_wmt_en_de_big",
        {**BIG, **JOINED, "vocabulary": 42_024, "encoder_ffn_embed_dim": 8192,
         "decoder_ffn_embed_dim": 8192},
    ),
}  # fmt: skip
IN_FAIRSEQ = ("conv", "adaptive softmax", "relu_squared")


def each(families: Iterable[str]) -> list:
    """Parameters of a test; those in published sizes take minutes."""
    long = {True: pytest.mark.long, False: ()}
    return [pytest.param(name, marks=long[PUBLISHED in name]) for name in families]


@pytest.mark.parametrize(
    ("kind", "steps", "old"),
    [
        ("fastbpe", "tokenize, escape, aggressive, fastbpe", True),
        ("subword-nmt", "tokenize, escape, aggressive, subword-nmt", False),
        ("sentencepiece", "sentencepiece", True),
        ("byte-level", "byte-level", False),
    ],
)
def test_each_layout(kind: str, steps: str, old: bool, tmp_path: Path, caplog):
    """The steps are those of the files beside the checkpoint, of whatever age it is."""
    folder = publish(tmp_path / "model", kind=kind, legacy=old)
    before = sorted(path.name for path in folder.iterdir())
    model = fairseq_ext.load(folder)
    assert f"taken from its files, are {steps}; options" in caplog.text
    assert (model.src, model.tgt) == ("en", "de")
    assert model.translate(TEXT).text
    expected = fairseq_ext.load(folder, engine="fairseq").translate(TEXT)
    assert model.translate(TEXT).text == expected.text
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize("family", each(FAMILIES))
def test_each_family(family: str, tmp_path: Path, caplog):
    """In the engine, in fairseq's generator and as a bundle."""
    arch, options = FAMILIES[family]
    folder = publish(tmp_path / "model", arch, **options)
    path = model_of(folder)
    write.write(path, path.parent, tmp_path / "bundle")
    assert ("no program" in caplog.text) == (family in IN_FAIRSEQ)
    bundle, checkpoint = fairseq_ext.load(tmp_path / "bundle"), fairseq_ext.load(folder)
    in_fairseq = fairseq_ext.load(folder, engine="fairseq")
    expected = in_fairseq.translate(LINES, max_len_b=LENGTH)
    for beam in (1, 3) if family in IN_FAIRSEQ else ():  # another beam than before
        together = in_fairseq.translate(LINES, max_len_b=LENGTH, beam=beam)
        for line, translation in zip(LINES, together, strict=True):
            single = in_fairseq.translate(line, max_len_b=LENGTH, beam=beam)
            assert translation.text == single.text
    for model in (bundle, checkpoint):
        translations = model.translate(LINES, max_len_b=LENGTH)
        for translation, reference in zip(translations, expected, strict=True):
            assert translation.text == reference.text
            score, of_reference = (t.candidates[0].score for t in (translation, reference))
            assert score == pytest.approx(of_reference, abs=1e-4)


def test_a_model_of_2017(tmp_path: Path):
    """Its checkpoint has other names, and no task."""
    folder = publish(tmp_path / "model", "fconv", **FAMILIES["conv"][1])
    expected = fairseq_ext.load(folder, engine="fairseq").translate(TEXT).text
    state = storage.load(folder / "model.pt")
    for name in ("optimizer_history", "extra_state", "last_optimizer_state"):
        del state[name]
    state |= {"epoch": 3, "batch_offset": 0, "val_loss": 1.0, "best_loss": 1.0, "optimizer": None}
    vars(state["args"])["max_positions"] = state["args"].max_source_positions
    for option in ("task", "max_source_positions", "max_target_positions"):
        delattr(state["args"], option)
    torch.save(state, folder / "model.pt", _use_new_zipfile_serialization=False)
    assert fairseq_ext.load(folder, engine="fairseq").translate(TEXT).text == expected


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
        assert f"from the name {name}, are tokenize, escape, aggressive, fastbpe" in caplog.text
        caplog.clear()


def test_every_name_is_looked_up():
    assert {name.partition(".")[0] for name in published.hub_models()} == {*published.KINDS}


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("transformer.wmt99.en-de", "transformer.wmt19.en-de, transformer.wmt18.en-de"),
        ("conv.x", "conv.wmt14.en-de, conv.wmt14.en-fr, conv.wmt17.en-de"),
    ],
)
def test_a_name_that_is_not_published_is_refused(name, names):
    with pytest.raises(
        CheckpointError, match=rf"no model of this name. Names like it are {names}\.$"
    ):
        published.downloaded(Path(name))
    for path in (f"runs/{name}", f"{name}.pt", f"{name}.tar.gz"):
        assert published.downloaded(Path(path)) == Path(path)


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("bpecodes", None, "has no subwords of the kind fastbpe, which"),
        ("dict.de.txt", None, r"dict\.de\.txt, but has dict\.en\.txt"),
        ("dict.de.txt", "more 1\n", "size mismatch for "),
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
DROPPED = {"encoder_layerdrop": 0.05, "decoder_layerdrop": 0.05, "checkpoint_activations": True}
LISTED = {**M2M, **DROPPED, "lang_pairs": "/private/pairs.txt"}  # whose list is beside the model
FIFTY = {**M2M, "lang_pairs": "cs-en", "lang_tok_style": "mbart"}
OF_MANY_LANGUAGES = {
    "M2M-100": (
        *(EPOCHS, "transformer", "multilingual", LISTED),
        Layout("418M_last_checkpoint.pt", "spm.128k.model", "model_dict.128k.txt", True,
               "language_pairs_small_models.txt", others=["1.2B_last_checkpoint.pt"]),
    ),
    "Flores-101": (
        *(EPOCHS, "transformer", "multilingual", LISTED),
        Layout(lists="language_pairs.txt", cfg=True),
    ),
    "one to many": (
        *(EPOCHS, "transformer", "multilingual"),
        {**M2M, "encoder_langtok": "tgt", "decoder_langtok": False, "langtoks": None},
        Layout(),
    ),
    "NLLB-200": (
        *(EPOCHS, "transformer", "multilingual"),
        {**M2M, "langs": CODES, "add_data_source_prefix_tags": True, "new_option": None},
        Layout("checkpoint.pt", "flores200_sacrebleu_tokenizer_spm.model", "dictionary.txt",
               cfg=True),
    ),
    "WMT21": (
        *(EPOCHS, "transformer", "multilingual", {**M2M, "langs": ["en", "de", "cs", "fr"]}),
        Layout("checkpoint.pt", "sentencepiece.model", "dict.{}.txt", cfg=True),
    ),
    "mBART-50": (
        *(EPOCHS, "mbart_base", "mbart", {**FIFTY, "lang_dict": "/private/ML50_langs.txt"}),
        Layout("model.pt", "sentence.bpe.model", "dict.{}.txt", lists="ML50_langs.txt"),
    ),
    "CRISS": (
        *(EPOCHS, "mbart_base", "mbart", {**FIFTY, "encoder_langtok": None}),
        Layout("criss.3rd.pt", "sentence.bpe.model", "dict.txt", lists="lang_dict.txt",
               others=["criss.1st.pt", "criss.2nd.pt"]),
    ),
    "mBART": (
        *(MBART, "mbart_base", "mbart", {"langs": ",".join(CODES)}),
        Layout("model.pt", "sentence.bpe.model"),
    ),
}  # fmt: skip
BEFORE = {**BIG, "encoder_normalize_before": True, "decoder_normalize_before": True}
for family, arch, vocabulary in (
    ("M2M-100", "transformer_wmt_en_de_big", 128_112),
    ("NLLB-200", "transformer", 256_206),
    ("mBART-50", "mbart_large", 250_054),
):
    task, _, style, options, layout = OF_MANY_LANGUAGES[family]
    options = {**options, "vocabulary": vocabulary, "sizes": BEFORE}
    OF_MANY_LANGUAGES[f"{family} {PUBLISHED}"] = (task, arch, style, options, layout)


def as_fairseq_translates(
    style: str, words: Dictionary, model: BaseFairseqModel, options: dict, line: str, max_len_b: int
) -> str:
    """The translation from English to German by fairseq's generator, with symbols put by hand."""

    def number(code: str) -> int:
        return words.index(f"__{code}__" if style == "multilingual" else f"[{code}]")

    tokens = words.encode_line(line, add_if_not_exist=False).long()
    end, prefix = None, None
    if "encoder_langtok" not in options:
        tokens, end = torch.cat([tokens, torch.tensor([number("en")])]), number("de")
    else:
        first = {"src": ["en"], "tgt": ["de"], None: []}[options["encoder_langtok"]]
        tokens = torch.cat([torch.tensor([*map(number, first)], dtype=torch.long), tokens])
        if options["decoder_langtok"]:
            prefix = torch.tensor([[number("de")]])
    generator = SequenceGenerator([model], words, beam_size=5, max_len_b=max_len_b, eos=end)
    net_input = {"src_tokens": tokens[None], "src_lengths": torch.tensor([len(tokens)])}
    best = generator.generate([model], {"net_input": net_input}, prefix_tokens=prefix)[0][0]
    left_out = {number("de")} if end or options["decoder_langtok"] else set()
    return words.string(best["tokens"], extra_symbols_to_ignore=left_out)


@pytest.mark.parametrize("family", each(OF_MANY_LANGUAGES))
def test_models_of_many_languages(family: str, tmp_path: Path, caplog):
    """As checkpoint in fairseq's generator and in the engine, and as a bundle."""
    task, arch, style, options, layout = OF_MANY_LANGUAGES[family]
    folder, words, model = publish_many(
        tmp_path / "model", task, arch, style, layout=layout, **options
    )
    assert len(words) == options.get("vocabulary", len(words))
    checkpoint = folder / layout.checkpoint if layout.others else folder
    path = model_of(checkpoint, "en", "de")
    write.write(path, path.parent, tmp_path / "bundle")
    assert "no program" not in caplog.text
    ways = [
        fairseq_ext.load(checkpoint, src="en", tgt="de"),
        fairseq_ext.load(checkpoint, src="en", tgt="de", engine="fairseq"),
        fairseq_ext.load(tmp_path / "bundle"),
    ]
    pieces = load_subwords("sentencepiece", [folder / layout.subwords])
    for line in LINES[:2]:
        encoded = pieces.encode(line)
        expected = as_fairseq_translates(style, words, model, options, encoded, LENGTH)
        best = [way.translate(line, max_len_b=LENGTH).candidates[0] for way in ways]
        assert [candidate.tokens for candidate in best] == [expected] * 3
        scores = [candidate.score for candidate in best]
        assert scores == pytest.approx([scores[0]] * 3, rel=1e-4)
    scores = pytest.approx(ways[0].score(LINES, LINES[::-1]), rel=1e-4)
    for way in ways[1:]:
        assert way.score(LINES, LINES[::-1]) == scores
    assert "instead of the engine" not in caplog.text


def test_a_folder_of_several_models(tmp_path: Path):
    *_, options, layout = OF_MANY_LANGUAGES["CRISS"]
    publish_many(tmp_path / "model", EPOCHS, "mbart_base", "mbart", layout=layout, **options)
    message = r"but has criss\.1st\.pt, criss\.2nd\.pt, criss\.3rd\.pt; give one of them"
    with pytest.raises(ConfigError, match=message):
        models_of(tmp_path / "model", "en", "de")


def test_multilingual_transformer(tmp_path: Path):
    """Each pair has weights of its own."""
    folder = publish(tmp_path / "model")
    expected = fairseq_ext.load(folder).translate(TEXT).text
    shutil.copy(folder / "dict.en.txt", folder / "dict.fr.txt")
    state = storage.load(folder / "model.pt")
    words = [Dictionary.load(str(folder / f"dict.{code}.txt")) for code in ("de", "fr")]
    other, _ = build("transformer", {**SIZES, "seed": 9}, *words)
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
        (("eng", "de"), r"`--src eng` is not a language of .*; did you mean en\?"),
        (("en", "xx"), r"`--tgt xx` is not a language of .*; it has cs, de, en, fr\."),
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
        ({"langs": 5}, r"model cannot be used here \(TypeError"),
        ({"langs": "../../en,de", "source_lang": "../../en"}, "which is not a language code"),
        ({"langs": "en,de", "lang_tok_style": "${oc.env:HOME}"}, "which OmegaConf would resolve"),
        (
            {"langs": "en,de", "langtoks": {"main": ("src.x", "tgt")}},
            "tokens of an unsupported kind",
        ),
        ({"langs": "en,de", "lang_tok_replacing_bos_eos": True}, "lang-tok-replacing-bos-eos"),
        ({"task": "denoising"}, "a model of the task denoising, not of translation"),
        ({"moe_freq": 4}, "in parts for several GPUs; neither is"),  # NLLB-200 54B
        ({"arch": "transformer_wmt_en_de_big_pipeline_parallel"}, "in parts for several GPUs"),
    ],
)
def test_hostile_or_unknown_options(options: dict, message: str, tmp_path: Path, cache: Path):
    """Each is an error, and no file appears but in the cache."""
    folder, *_ = publish_many(tmp_path / "model", EPOCHS, **M2M)
    state = storage.load(folder / "model.pt")
    vars(state["args"]).update({"source_lang": "en", "target_lang": "de", **options})
    (folder / "model.pt").unlink()  # `state` is mapped
    torch.save(state, folder / "model.pt")
    before = {path for path in tmp_path.rglob("*") if cache not in path.parents} - {cache}
    with pytest.raises(CheckpointError, match=message):
        models_of(folder)
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
    for side in ("en", "de"):
        write_lines(text / f"train.{side}", [TEXT])
    Pipeline("en", "de", clean=True).save(text)  # as `corpus pairs` does
    words = ("--like", folder, "--src", "en", "--tgt", "de", "-o", tmp_path / "bpe")
    command("subwords", text, *words)
    encoder = fairseq_ext.load(folder)._codec.encode
    assert (tmp_path / "bpe" / "train.de").read_text("utf-8") == encoder(TEXT) + "\n"
    assert (tmp_path / "bpe" / "text.json").is_file()
