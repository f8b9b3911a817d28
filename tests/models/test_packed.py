"""Packed models against the checkpoints they were made of: numbers, tokens, files, damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    label_smoothed_nll_loss,
)
from safetensors.torch import save_file
from torch import Tensor, nn

from fairseq_ext import cli
from fairseq_ext.base.dropout import dropout
from fairseq_ext.binary import switches
from fairseq_ext.binary.binarize import Binarizer
from fairseq_ext.binary.kernels import PackedWeight
from fairseq_ext.binary.linear import BinaryLinear
from fairseq_ext.binary.packed import byte_counts, int8_product, model_file, pack, runtime, unpack
from fairseq_ext.binary.packed.int8_product import Int8Product
from fairseq_ext.binary.packed.layers import Int8Linear, PackedLinear, dequantize, quantize
from fairseq_ext.utils.errors import CheckpointError, ConfigError, DataError, FairseqExtError
from tests.support.fuzz_packed import fuzz
from tests.support.harness import fairseq, hypotheses
from tests.support.models import (
    ARCHITECTURES,
    BMT,
    MUSE,
    SMALL,
    batch,
    build,
    configuration,
    padded,
    previous,
    random_sentences,
)

# Sizes that are multiples of neither 8 nor 64.
ODD = [
    *("--encoder-embed-dim", "36", "--decoder-embed-dim", "36"),
    *("--encoder-ffn-embed-dim", "75", "--decoder-ffn-embed-dim", "75"),
]
PRESETS = [name for name in switches.PRESETS if name != "float"]
MODELS = {
    **{name: [*BMT, *ODD, "--bmt-preset", name] for name in PRESETS},
    **{n: ARCHITECTURES[n] for n in ("binary-transformer", "binary-muse", "binary-linformer")},
    "shared": [*BMT, "--share-all-embeddings", "--encoder-learned-pos"],
    "shared-output": [*BMT, "--share-decoder-input-output-embed", "--decoder-learned-pos"],
    "unsigned": ARCHITECTURES["bmt-8-unsigned"],
    "bounds": [*BMT, "--bmt-preset", "bmt-6", "--binary-weight-bound", "0.7"],
    "tensor": [
        *(*BMT, "--bmt-preset", "bmt-6", "--binary-weight-bound", "tensor"),
        *("--binary-activation-bound", "1.5"),
    ],
    "weights-of-muse": [*MUSE, "--binary-weights", "ffn"],
    "first-stage": [*BMT, "--bmt-preset", "bmt-6", "--stage-updates", "1,2,3"],
}


def trained(flags: list[str]) -> tuple[nn.Module, object, object]:
    """Model, configuration and task, with biases and norms as no initialization leaves them."""
    model, task = build(flags)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.set_num_updates(1)  # the second stage, where there are stages
    return model, configuration(flags), task


def packed_file(path: Path, flags: list[str], **options: object) -> tuple[nn.Module, object]:
    """Write a packed model; the model itself and its task."""
    model, cfg, task = trained(flags)
    model_file.write(pack.pack(model, cfg, task, **options), path)
    return model, task


def logits(model: nn.Module) -> Tensor:
    """``[3, 8, V]`` for the same three sentences."""
    source = padded(random_sentences([5, 9, 7]), left=True)
    target = padded(random_sentences([6, 4, 8], seed=5), left=False)
    with torch.no_grad():
        return model.eval()(source, torch.tensor([5, 9, 7]), previous(target))[0]


@pytest.mark.parametrize("name", MODELS)
class TestRoundTrip:
    def test_computes_what_was_trained(self, name: str, tmp_path: Path) -> None:
        model, task = packed_file(tmp_path / "m.safetensors", MODELS[name])
        loaded, _, _ = runtime.load(tmp_path / "m.safetensors", task=task)
        expected, found = logits(model), logits(loaded)
        assert (expected - found).abs().max() <= 1e-5 * expected.abs().max()
        assert found.argmax(-1).equal(expected.argmax(-1))
        names = set(pack.binary_layers(model))
        exchanged = {n for n, m in loaded.named_modules() if isinstance(m, PackedLinear)}
        assert exchanged == names != set()

    def test_unpacked_has_the_same_signs_and_levels(self, name: str, tmp_path: Path) -> None:
        model, _ = packed_file(tmp_path / "m.safetensors", MODELS[name])
        unpack.unpack_file(tmp_path / "m.safetensors", tmp_path / "m.pt")
        state = torch.load(tmp_path / "m.pt", weights_only=True)["model"]
        again, _ = build(MODELS[name], seed=9)
        again.load_state_dict(state)
        layers = pack.binary_layers(model)
        for path, layer in layers.items():
            twin = again.get_submodule(path)
            expected, found = layer.binarized_weight(), twin.binarized_weight()
            exact = layer.weight_binarizer.kind != "xnor"  # its mean is rounded
            torch.testing.assert_close(found, expected, rtol=0 if exact else 2.5e-7, atol=0)
        for key, value in model.state_dict().items():
            if key.removesuffix(".weight") not in layers:
                assert value.equal(state[key]), key


@pytest.mark.parametrize("outputs", [1, 64, 70])
@pytest.mark.parametrize("inputs", [1, 7, 8, 33, 64, 100])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"inputs": True},
        {"inputs": True, "scale": 8.0},
        {"inputs": True, "input_binarizer": Binarizer(bound=3.0)},
        {"granularity": "tensor"},
    ],
)
def test_layers_of_any_size(inputs: int, outputs: int, options: dict) -> None:
    torch.manual_seed(inputs)
    layer = BinaryLinear(inputs, outputs, **options).requires_grad_(False)
    x = torch.randn(3, 5, inputs)
    expected = layer(x)
    packed = PackedLinear(layer, packed_weight(layer))
    torch.testing.assert_close(packed(x), expected, rtol=1e-5, atol=1e-5)
    torch.manual_seed(1)
    expected = layer(x, Halved())
    torch.manual_seed(1)
    torch.testing.assert_close(packed(x, Halved()), expected, rtol=1e-5, atol=1e-5)
    x[1, 2, 0] = float("nan")
    assert packed(x).isnan().equal(layer(x).isnan())


class Halved(nn.Module):
    """An active dropout, with the random numbers of ``Bits.drop``."""

    p = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p)


def packed_weight(layer: BinaryLinear) -> PackedWeight:
    tensors: dict[str, Tensor] = {}
    pack._pack_layer(tensors, "a", layer)
    return PackedWeight(tensors["a.weight.bits"], 2 * tensors["a.weight.level"], layer.in_features)


def test_half_precision_leaves_levels_as_they_are() -> None:
    layer = BinaryLinear(70, 9, inputs=True).requires_grad_(False)
    packed = PackedLinear(layer, packed_weight(layer)).half()
    x = torch.randn(4, 70, dtype=torch.half)
    assert packed.packed.bound.dtype == torch.float32
    assert packed(x).dtype == torch.half
    torch.testing.assert_close(packed(x), layer.float()(x.float()).half(), rtol=2e-3, atol=2e-3)


class TestOtherNumbers:
    @pytest.mark.parametrize("dtype", ["fp16", "bf16"])
    def test_are_rounded_once(self, dtype: str, tmp_path: Path) -> None:
        model, task = packed_file(tmp_path / "m.safetensors", MODELS["shared"], dtype=dtype)
        loaded, _, _ = runtime.load(tmp_path / "m.safetensors", task=task)
        kept = dict(loaded.named_parameters())
        assert any(name.endswith("embed_tokens.weight") for name in kept)
        for name, value in kept.items():
            rounded = model.get_parameter(name).to(model_file.FLOATS[dtype]).float()
            assert value.dtype == torch.float32, name
            assert value.equal(rounded), name

    def test_those_that_fp16_cannot_hold_are_refused(self) -> None:
        model, cfg, task = trained(BMT)
        with torch.no_grad():
            model.encoder.layer_norm.weight[0] = 1e6
        with pytest.raises(CheckpointError, match=r"not finite in fp16; give another `--dtype`"):
            pack.pack(model, cfg, task, dtype="fp16")
        with pytest.raises(ConfigError, match="`--dtype` must be one of"):
            pack.pack(model, cfg, task, dtype="fp8")

    def test_a_table_of_int8_holds_what_fp16_cannot(self) -> None:
        model, cfg, task = trained(BMT)
        with torch.no_grad():
            model.encoder.embed_tokens.weight[5, 0] = 1e6
        packed = pack.pack(model, cfg, task, dtype="fp16", int8_embeddings=True)
        assert max(float(t.max()) for n, t in packed.tensors.items() if n.endswith(".scale")) > 7e3

    def test_int8_is_off_by_half_a_unit_at_most(self) -> None:
        table = torch.randn(50, 33)
        table[3] = 0
        rounded, scale = quantize(table)
        assert rounded.dtype == torch.int8
        error = (dequantize(rounded, scale) - table).abs()
        assert (error <= 0.5001 * scale[:, None]).all()
        assert scale.equal(table.abs().amax(1) / 127)

    def test_int8_output_is_the_product_of_rounded_numbers(self) -> None:
        table, scale = quantize(torch.randn(40, 24))
        x = torch.randn(2, 3, 24)
        rows, of_rows = quantize(x.view(-1, 24))
        expected = dequantize(rows, of_rows).double() @ dequantize(table, scale).double().t()
        found = Int8Linear(table, scale)(x)
        torch.testing.assert_close(found, expected.float().view(2, 3, 40), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("packs", [True, False])
    def test_int8_sums_are_exact(self, packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """The largest there are too, on which products without VNNI would saturate."""
        if packs and not int8_product.can_pack():
            pytest.skip("FBGEMM is not here, or not exact")
        monkeypatch.setattr(int8_product, "can_pack", lambda: packs)
        x, table = (torch.randint(-127, 128, (rows, 96)) for rows in (5, 40))
        x[0], table[0], table[1] = 127, 127, -127
        scale = torch.rand(40)
        product = Int8Product()
        for units in (scale, 2 * scale):
            exact = (x @ table.t()).float() * units
            found = product(x.float(), table.to(torch.int8), units)
            torch.testing.assert_close(found, exact, rtol=1e-6, atol=0)

    @pytest.mark.parametrize("name", ["shared", "shared-output", "bmt-1", "weights-of-muse"])
    def test_int8_tables_are_near(self, name: str, tmp_path: Path) -> None:
        model, task = packed_file(tmp_path / "m.safetensors", MODELS[name], int8_embeddings=True)
        loaded, _, _ = runtime.load(tmp_path / "m.safetensors", task=task)
        assert not any(key.endswith("embed_tokens.weight") for key in loaded.state_dict())
        expected, found = logits(model), logits(loaded)
        assert 0 < (expected - found).abs().max() < 0.05 * expected.abs().max()
        checkpoint = unpack.unpack(model_file.read(tmp_path / "m.safetensors"))
        again, _ = build(MODELS[name])
        again.load_state_dict(checkpoint["model"])
        assert (logits(again) - found).abs().max() < 0.05 * expected.abs().max()

    def test_fairseqs_loss_reads_the_int8_output(self, tmp_path: Path) -> None:
        """The output layer is the instance's own, which the loss must leave as it is."""
        _, task = packed_file(
            tmp_path / "m.safetensors", MODELS["binary-muse"], int8_embeddings=True
        )
        loaded, _, _ = runtime.load(tmp_path / "m.safetensors", task=task)
        sample, before = batch(), logits(loaded)
        criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.1).eval()
        with torch.no_grad():
            lprobs = loaded(**sample["net_input"])[0].log_softmax(-1)
            found, _, _ = criterion(loaded, sample)
        pad = task.target_dictionary.pad()
        wanted, _ = label_smoothed_nll_loss(lprobs, sample["target"], 0.1, ignore_index=pad)
        assert found.item() == pytest.approx(wanted.item(), rel=1e-5)
        assert logits(loaded).equal(before)


class TestRefusals:
    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            ([*BMT, "--stage-updates", "5,5"], "is in the float stage"),
            ([*BMT, "--bmt-preset", "float"], "has no binary weights"),
            ([*MUSE, "--muse-fused"], "fused matrices, and not binarized"),
            (["--arch", "binary_transformer", *SMALL], "has no binary weights"),
            ([*BMT, "--binary-weights", "none", "--binary-activations", "ffn"], "no binary weig"),
        ],
    )
    def test_nothing_to_pack(self, flags: list[str], message: str) -> None:
        model, task = build(flags)
        with pytest.raises(CheckpointError, match=message):
            pack.pack(model, configuration(flags), task)

    def test_weights_that_are_no_numbers(self) -> None:
        model, cfg, task = trained(BMT)
        with torch.no_grad():
            model.encoder.layers[0].fc1.weight[0, 0] = float("nan")
        with pytest.raises(CheckpointError, match=r"`encoder.layers.0.fc1` that are not finite"):
            pack.pack(model, cfg, task)

    def test_other_dictionaries(self, tmp_path: Path) -> None:
        packed_file(tmp_path / "m.safetensors", BMT)
        _, other = build(BMT, size=31)
        with pytest.raises(CheckpointError, match="packed with another source dictionary"):
            runtime.load(tmp_path / "m.safetensors", task=other)

    def test_packed_twice(self, tmp_path: Path) -> None:
        packed_file(tmp_path / "m.safetensors", BMT)
        with pytest.raises(CheckpointError, match="is packed already"):
            pack.pack_file(tmp_path / "m.safetensors", tmp_path)

    def test_no_data(self, tmp_path: Path) -> None:
        (tmp_path / "m.pt").write_bytes(b"PK")
        with pytest.raises(DataError, match="is no folder"):
            pack.pack_file(tmp_path / "m.pt", tmp_path / "none")

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"checkpoint .*none.safetensors does not exist"):
            checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "none.safetensors")])

    @pytest.mark.parametrize("content", [b"", b"{", b"PK\3\4" * 9, b"\x80" * 50, b"\0" * 50])
    def test_other_files(self, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "m.safetensors").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"m.safetensors is (empty|truncated or damaged)"):
            model_file.read(tmp_path / "m.safetensors")
        with pytest.raises(CheckpointError, match=r"none.safetensors does not exist"):
            model_file.read(tmp_path / "none.safetensors")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed model of one layer each."""
    path = tmp_path_factory.mktemp("small") / "m.safetensors"
    flags = [*BMT, "--encoder-layers", "1", "--decoder-layers", "1", "--share-all-embeddings"]
    packed_file(path, flags)
    return path


@pytest.fixture(scope="module")
def bmt_task() -> object:
    """With the dictionaries of ``small``."""
    return build(BMT)[1]


def test_damaged_files_are_refused(small: Path, tmp_path: Path) -> None:
    found = fuzz(small, 400, tmp_path)
    assert sum(found.values()) == 400
    assert found["refused"] >= 390
    assert not found["refused without its name"]


def rewrite(source: Path, target: Path, changes: dict, tensors: dict | None = None) -> None:
    """A copy with other metadata and tensors, and the right checksum."""
    metadata, held = model_file._contents(source)
    held = {n: t.clone() for n, t in {**held, **(tensors or {})}.items() if t is not None}
    metadata = {**metadata, **changes}
    metadata = {name: value for name, value in metadata.items() if value is not None}
    metadata["checksum"] = model_file.checksum(held, metadata)
    save_file(held, target, metadata)


LAYER = "decoder.layers.0.fc1"
HOSTILE: dict[str, tuple[dict, dict]] = {
    "no metadata": ({"format": None}, {}),
    "future version": ({"version": "2"}, {}),
    "no stage": ({"stage": None}, {}),
    "float stage": ({"stage": "0"}, {}),
    "stage of text": ({"stage": "two"}, {}),
    "cfg is no JSON": ({"cfg": "{"}, {}),
    "cfg is a list": ({"cfg": "[]"}, {}),
    "cfg is deep": ({"cfg": "[" * 100_000}, {}),
    "cfg without a task": ({"cfg": '{"model": {}}'}, {}),
    "no model": ({"cfg": '{"model": {}, "task": {}}'}, {}),
    "no layers": ({"layers": "{}"}, {}),
    "layers are a list": ({"layers": "[]"}, {}),
    "layer of no inputs": ({"layers": json.dumps({LAYER: 0})}, {}),
    "tied to nothing": ({"tied": '{"decoder.embed_tokens.weight": "nothing"}'}, {}),
    "tied to a list": ({"tied": '{"decoder.embed_tokens.weight": []}'}, {}),
    "no dictionary": ({}, {"dictionary.source": None}),
    "dictionary of floats": ({}, {"dictionary.source": torch.zeros(3)}),
    "dictionary of noise": ({}, {"dictionary.source": torch.full((9,), 255, dtype=torch.uint8)}),
    "level is missing": ({}, {f"{LAYER}.weight.level": None}),
    "level below zero": ({}, {f"{LAYER}.weight.level": torch.full((48,), -1.0)}),
    "level is NaN": ({}, {f"{LAYER}.weight.level": torch.full((48,), float("nan"))}),
    "too few levels": ({}, {f"{LAYER}.weight.level": torch.ones(47)}),
    "bits are missing": ({}, {f"{LAYER}.weight.bits": None}),
    "bits are floats": ({}, {f"{LAYER}.weight.bits": torch.ones(48, 8)}),
    "bits beyond the last": (
        {},
        {f"{LAYER}.weight.bits": torch.full((48, 8), 255, dtype=torch.uint8)},
    ),
    "a number too many": ({}, {"encoder.layers.9.fc1.bias": torch.ones(3)}),
    "a number is missing": ({}, {f"{LAYER}.bias": None}),
    "another shape": ({}, {f"{LAYER}.bias": torch.ones(3)}),
    "doubles": ({}, {f"{LAYER}.bias": torch.ones(48, dtype=torch.float64)}),
    "scale is missing": ({}, {"encoder.a.weight.int8": torch.ones(3, 3, dtype=torch.int8)}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_made_up_files_are_refused(
    name: str, small: Path, bmt_task: object, tmp_path: Path
) -> None:
    """With a right checksum, which anybody can compute."""
    path = tmp_path / "m.safetensors"
    rewrite(small, path, *HOSTILE[name])
    with pytest.raises(FairseqExtError, match=r"m.safetensors"):
        runtime.load(path, task=bmt_task)
    with pytest.raises(FairseqExtError, match=r"m.safetensors"):
        unpack.unpack_file(path, tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


SETTINGS = {
    "encoder_layers": [10**9, -1, "x", None],
    "decoder_layers": [10**9, 0],
    "encoder_embed_dim": [64, 0, -32, 10**12, "x"],
    "encoder_attention_heads": [3, 0],
    "max_source_positions": [2_000_000],
    "_name": ["unheard_of", "", None, "transformer", 5],
    "bmt_preset": ["bmt-2", "float", "unheard-of"],
    "binary_weights": ["none", "everything"],
    "stage_updates": ["1,x"],
}


@pytest.mark.parametrize("name", SETTINGS)
def test_made_up_settings_are_refused(
    name: str, small: Path, bmt_task: object, tmp_path: Path
) -> None:
    cfg = model_file.read(small).cfg
    for value in SETTINGS[name]:
        path = tmp_path / "m.safetensors"
        changed = {**cfg, "model": {**cfg["model"], name: value}}
        rewrite(small, path, {"cfg": json.dumps(changed)})
        with pytest.raises(FairseqExtError, match=r"m.safetensors"):
            runtime.load(path, task=bmt_task)


def test_no_table_of_positions_fills_the_memory(
    small: Path, bmt_task: object, tmp_path: Path
) -> None:
    """Each number may be, but not their product: 3.8 GiB for a file of a few KB."""
    cfg = model_file.read(small).cfg
    wide = {"max_source_positions": 10**6, "encoder_embed_dim": 1024, "decoder_embed_dim": 1024}
    path = tmp_path / "m.safetensors"
    rewrite(small, path, {"cfg": json.dumps({**cfg, "model": {**cfg["model"], **wide}})})
    for read in (
        lambda: runtime.load(path, task=bmt_task),
        lambda: unpack.unpack_file(path, tmp_path),
    ):
        with pytest.raises(FairseqExtError, match=r"m.safetensors.* table of positions"):
            read()


def test_settings_hold_nothing_of_the_machine(small: Path) -> None:
    cfg = model_file.read(small).cfg
    assert cfg["task"]["data"] is None
    assert not [v for part in cfg.values() for v in part.values() if "/" in str(v)]


class TestInspect:
    def test_sizes_are_those_of_the_formulas(self, tmp_path: Path) -> None:
        path = tmp_path / "m.safetensors"
        model, _ = packed_file(path, [*MODELS["bmt-6"], "--share-all-embeddings"], dtype="bf16")
        report = byte_counts.count(path)
        layers = pack.binary_layers(model).values()
        numbers = sum(layer.weight.numel() for layer in layers)
        assert report["binary"]["numbers"] == report["signs_alone"]["numbers"] == numbers
        sizes = report["bytes"]
        words = {36: 8, 75: 16}  # rows are padded to 64 bits
        assert sizes["bits"] == sum(m.out_features * words[m.in_features] for m in layers)
        assert sizes["level"] == sum(4 * m.out_features for m in layers)
        assert sizes["table"] == 2 * 30 * 36
        assert sizes["all"] == path.stat().st_size
        assert sum(sizes.values()) == 2 * sizes["all"]
        every = sum(p.numel() for p in model.parameters())
        assert report["whole_file"]["numbers"] - every == 2  # fairseq's version numbers
        factor = 4 * numbers / (sizes["bits"] + sizes["level"])
        assert report["binary"]["over_fp32"] == pytest.approx(factor, abs=1e-3)

    def test_bits_alone_are_32_times_smaller(self, tmp_path: Path) -> None:
        sizes = ["--encoder-embed-dim", "64", "--encoder-ffn-embed-dim", "128"]
        sizes += [word.replace("encoder", "decoder") for word in sizes]
        packed_file(tmp_path / "m.safetensors", [*BMT, *sizes])
        report = byte_counts.count(tmp_path / "m.safetensors")
        assert report["signs_alone"]["over_fp32"] == 32
        assert report["signs_alone"]["over_bf16"] == 16

    def test_command(self, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as stopped:
            cli.main(["inspect", str(small), "--json", str(tmp_path / "sizes.json")])
        assert stopped.value.code == 0
        report = json.loads((tmp_path / "sizes.json").read_text())
        assert report == byte_counts.count(small)
        out = capsys.readouterr().out
        assert f"{report['bytes']['all']:,}" in out
        assert ", binary weights, 16 packed layers" in out

    @pytest.mark.parametrize("name", MODELS)
    def test_inputs_are_binary_where_a_module_has_them(self, name: str, tmp_path: Path) -> None:
        model, _ = packed_file(tmp_path / "m.safetensors", MODELS[name])
        report = byte_counts.count(tmp_path / "m.safetensors")
        names = ("binary_inputs", "binary_qk", "binary_score_v")
        inputs = any(getattr(one, name, None) for one in model.modules() for name in names)
        assert report["binary_inputs"] == inputs
        assert ("binary weights and activations, " in byte_counts.as_table(report)) == inputs


def command(*words: object) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(word) for word in words])
    assert stopped.value.code == 0


@pytest.mark.system
@pytest.mark.slow
def test_commands_find_the_same_translations(
    copy_data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Trained, packed and unpacked again; all three translate alike."""
    fairseq(
        *("train", copy_data, "--arch", "bmt_tiny", "--bmt-preset", "bmt-6", "--cpu"),
        *("--encoder-layers", 2, "--decoder-layers", 2, "--stage-updates", "10,10,10"),
        *("--optimizer", "adam", "--lr", 2e-3, "--max-tokens", 400, "--max-update", 40),
        *("--num-workers", 0, "--no-epoch-checkpoints", "--disable-validation"),
        *("--save-dir", tmp_path),
    )
    checkpoint, model, back = (
        tmp_path / n for n in ("checkpoint_last.pt", "m.safetensors", "back.pt")
    )
    command("pack", checkpoint, "--data", copy_data, "-o", model)
    command("unpack", model, "-o", back)
    assert model.stat().st_size < checkpoint.stat().st_size / 8
    lines = [
        fairseq("generate", copy_data, "--path", path, "--beam", 4, "--cpu").stdout
        for path in (checkpoint, model, back)
    ]
    found = [hypotheses(text) for text in lines]
    assert len(found[0]) == 50
    assert found[1] == found[0]
    assert found[2] == found[0]

    source = tmp_path / "source"
    source.write_text("1 2 3\n\n4 5 6 7\n")
    texts = []
    for path in (checkpoint, model):
        out = tmp_path / "out"
        command("translate", copy_data, "--path", path, "--input", source, "-o", out, "--cpu")
        texts.append(out.read_text())
    assert texts[0] == texts[1]
    capfd.readouterr()


@pytest.mark.system
def test_training_does_not_go_on_from_bits(small: Path, copy_data: Path, tmp_path: Path) -> None:
    model = shutil.copy(small, tmp_path / "m.safetensors")
    done = fairseq(
        *("train", copy_data, "--arch", "bmt_tiny", "--cpu", "--optimizer", "adam", "--lr", 1e-3),
        *("--max-tokens", 400, "--max-update", 1, "--save-dir", tmp_path / "new"),
        *("--finetune-from-model", model),
        ok=False,
    )
    assert "fairseq-ext: error:" in done.stderr
    assert "Traceback" not in done.stderr
