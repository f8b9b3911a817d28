"""Sentence classification: the encoder-only Linformer and its twin with exact attention."""

import re
from pathlib import Path

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from torch import Tensor, nn

from fairseq_ext.corpora import SPLITS
from fairseq_ext.linformer.attention import LinformerAttention
from tests.support.harness import digits_corpus, fairseq, read_lines, write_lines
from tests.support.models import configuration, dictionary, padded, random_sentences

HEAD = "sentence_classification_head"
TASK = ["--task", "sentence_prediction", "--criterion", "sentence_prediction"]
SMALL = [
    *("--encoder-layers", "2", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "48"),
    *("--encoder-attention-heads", "2", "--dropout", "0"),
]
LINFORMER = [
    *("--arch", "linformer_encoder", *SMALL, "--linformer-k", "4", "--linformer-max-len", "22")
]
EXACT = ["--arch", "transformer_encoder", *SMALL]
MODELS = {
    "linformer": LINFORMER,
    "bos": [*LINFORMER, "--pooling", "bos"],
    "layerwise": [*LINFORMER, "--linformer-sharing", "layerwise", "--encoder-learned-pos"],
    "pre-norm": [*LINFORMER, "--encoder-normalize-before", "--linformer-k", "5,3"],
    "exact": EXACT,
    "exact-bos": [*EXACT, "--pooling", "bos"],
}
SENTENCES = random_sentences([7, 3, 1, 5])  # unsorted, one of them only </s>
CLASSES = 3

every_model = pytest.mark.parametrize("name", MODELS)


def build(flags: list[str], *, seed: int = 0, classes: int = CLASSES, size: int = 30) -> nn.Module:
    torch.manual_seed(seed)
    cfg = configuration([*flags, *TASK, "--num-classes", str(classes)])
    task = SentencePredictionTask(cfg.task, dictionary(size), dictionary(8))
    return task.build_model(cfg.model).eval()


def logits(model: nn.Module, tokens: Tensor) -> Tensor:
    return model(tokens, tokens.ne(1).sum(1), features_only=True, classification_head_name=HEAD)[0]


@every_model
def test_result_depends_on_neither_padding_nor_batch_mates(name: str) -> None:
    # fairseq's exact attention takes its softmax in fp32
    tolerance = 1e-6 if name.startswith("exact") else 1e-12
    model = build(MODELS[name]).double()
    alone = torch.cat([logits(model, torch.tensor([sentence])) for sentence in SENTENCES])
    assert alone.shape == (len(SENTENCES), CLASSES)
    assert (alone[0] - alone[3]).abs().max() > 1e-3
    for left in (True, False):
        for extra in (0, 3, 30):  # 30: more columns than the projections have
            together = logits(model, padded([*SENTENCES, [1]], left=left, extra=extra))
            torch.testing.assert_close(together[:-1], alone, rtol=0, atol=tolerance)
            assert together[-1].isfinite().all()  # only pads
    pads = torch.ones(1, 30, dtype=torch.long)
    assert logits(model, pads).isfinite().all()


@pytest.mark.parametrize("pooling", ["mean", "bos"])
def test_pooling_is_what_its_name_says(pooling: str) -> None:
    model = build([*LINFORMER, "--pooling", pooling]).double()
    pooled, encoded = model(padded(SENTENCES, left=True))
    for index, sentence in enumerate(SENTENCES):
        outputs = encoded["encoder_out"][0][: len(sentence), index]
        expected = outputs[0] if pooling == "bos" else outputs.mean(0)
        torch.testing.assert_close(pooled[index], expected, rtol=0, atol=1e-12)


def test_with_identity_projections_it_is_the_exact_twin() -> None:
    """k = N and E = F = 1: with the same weights a sentence of N tokens gets the same classes."""
    linformer = build([*LINFORMER, "--linformer-k", "22"]).double()
    exact = build(EXACT, seed=9).double()
    state = linformer.state_dict()
    exact.load_state_dict({key: state[key] for key in state if "projection" not in key})
    tokens = torch.tensor(random_sentences([22]))
    torch.testing.assert_close(logits(linformer, tokens), logits(exact, tokens), rtol=0, atol=1e-6)


@every_model
def test_gradients_flow_to_every_parameter(name: str) -> None:
    model = build(MODELS[name]).double().train()
    logits(model, padded(SENTENCES, left=False)).log_softmax(-1)[:, 1].sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        if name.startswith("exact") and parameter_name.endswith("k_proj.bias"):
            continue  # it shifts every score of a softmax alike
        assert parameter.grad.abs().max() > 1e-12, parameter_name


def test_a_head_of_other_classes_starts_anew(caplog: pytest.LogCaptureFixture) -> None:
    """The encoder is taken over, for tuning on another task."""
    trained, other = build(LINFORMER), build(LINFORMER, seed=99, classes=5)
    fresh = {k: v.clone() for k, v in other.classification_heads.state_dict().items()}
    trained.register_classification_head("second", 2)
    other.load_state_dict(trained.state_dict())
    assert "other classification heads; the model's heads start untrained" in caplog.text
    for key, value in other.classification_heads.state_dict().items():
        assert value.equal(fresh[key])
    tokens = padded(SENTENCES, left=False)
    assert other(tokens)[0].equal(trained(tokens)[0])
    assert logits(other, tokens).shape == (len(SENTENCES), 5)


def test_sizes_and_parameters() -> None:
    """Per layer 2 k N parameters more than the twin, and otherwise the same ones."""
    for suffix, layers in (("", 6), ("_tiny", 4)):
        linformer, exact = (
            build(["--arch", f"{kind}_encoder{suffix}"]) for kind in ("linformer", "transformer")
        )
        count = [sum(p.numel() for p in model.parameters()) for model in (linformer, exact)]
        assert count[0] - count[1] == layers * 2 * 32 * 256
        names = {n for n, _ in linformer.named_parameters() if "projection" not in n}
        assert names == {n for n, _ in exact.named_parameters()}
        assert isinstance(linformer.encoder.layers[-1].self_attn, LinformerAttention)
        assert linformer.max_positions() == 256
        assert exact.max_positions() == 512


@pytest.mark.parametrize("flag", ["--decoder-layers", "--share-all-embeddings"])
def test_flags_of_a_decoder_are_refused(flag: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        configuration([*LINFORMER, *TASK, "--num-classes", "3", flag])
    assert flag in capsys.readouterr().err


def train(data: Path, save_dir: Path, arch: str, *flags: object):
    return fairseq(
        *("train", data, *TASK, "--num-classes", 2, "--arch", arch, "--save-dir", save_dir),
        *("--encoder-embed-dim", 64, "--encoder-layers", 2, "--encoder-ffn-embed-dim", 128),
        *("--max-positions", 16, "--dropout", 0, "--optimizer", "adam", "--lr", 2e-3),
        *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", 100, "--clip-norm", 1),
        *("--batch-size", 64, "--cpu", "--num-workers", 0, "--no-progress-bar"),
        *("--no-epoch-checkpoints", "--best-checkpoint-metric", "accuracy"),
        *("--maximize-best-checkpoint-metric", *flags),
    )


def validate(data: Path, checkpoint: Path, *flags: object, **how: object):
    return fairseq(
        *("validate", data, *TASK, "--path", checkpoint, "--valid-subset", "test"),
        *("--batch-size", 64, "--cpu", "--no-progress-bar", *flags),
        **how,
    )


def accuracy(output: str) -> float:
    return float(re.findall(r"accuracy (\S+)", output)[-1])


def repeats(digits: list[str]) -> list[str]:
    """The label: whether the first digit comes again."""
    return ["again" if digits[0] in digits[1:] else "once"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits with their labels, binarized; the eighth test line is long."""
    sizes = {"train": 4000, "valid": 100, "test": 400, "max_len": 12}
    folder = digits_corpus(tmp_path_factory.mktemp("digits"), repeats, **sizes)
    lines = read_lines(folder / "test.src")
    write_lines(folder / "test.src", [*lines[:7], lines[7] + " 5" * 20, *lines[8:]])
    for side, name in (("src", "input0"), ("tgt", "label")):
        prefixes = [word for x in SPLITS for word in (f"--{x}pref", folder / f"{x}.{side}")]
        out = ("--destdir", folder / "bin" / name, "--padding-factor", 1)
        fairseq("preprocess", "--only-source", *prefixes, *out)
    return folder / "bin"


def test_linformer_learns_whether_the_first_digit_comes_again(digits: Path, tmp_path: Path) -> None:
    """Trains, stops, goes on, and is as good on lines it has not seen."""
    flags = ("--linformer-k", 8, "--linformer-max-len", 16)
    train(digits, tmp_path, "linformer_encoder_tiny", *flags, "--max-epoch", 5)
    resumed = train(digits, tmp_path, "linformer_encoder_tiny", *flags, "--max-epoch", 9)
    assert "(epoch 6 @ 315 updates)" in resumed.stdout + resumed.stderr
    best = tmp_path / "checkpoint_best.pt"
    heads = torch.load(best, weights_only=True)["model"]
    assert heads[f"classification_heads.{HEAD}.out_proj.weight"].shape == (2, 64)
    shown = validate(digits, best, "--skip-invalid-size-inputs-valid-test").stdout
    assert accuracy(shown) >= 95, shown
    refused = validate(digits, best, ok=False)
    assert re.search(r"error: Size of sample #7 is invalid .*max_positions=.*16", refused.stderr)
    assert "Traceback" not in refused.stderr


@pytest.mark.long
def test_exact_twin_learns_it_from_its_first_token(digits: Path, tmp_path: Path) -> None:
    """With <s> before each sentence and long ones cut, so that all of them are labelled."""
    flags = ("--pooling", "bos", "--init-token", 0, "--shorten-method", "truncate")
    train(digits, tmp_path, "transformer_encoder_tiny", *flags, "--max-epoch", 12)
    shown = validate(digits, tmp_path / "checkpoint_best.pt").stdout
    assert accuracy(shown) >= 95, shown
    (model,), cfg, task = load_model_ensemble_and_task([str(tmp_path / "checkpoint_best.pt")])
    assert (cfg.model.pooling, cfg.task.init_token) == ("bos", 0)
    task.load_dataset("test")
    batch = task.dataset("test").collater([task.dataset("test")[index] for index in range(400)])
    classes = model.eval()(**batch["net_input"], classification_head_name=HEAD)[0].argmax(1)
    right = classes.eq(batch["target"].view(-1)).float().mean().item()
    assert 100 * right == pytest.approx(accuracy(shown), abs=0.06)
