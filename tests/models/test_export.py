"""Models for other tools: the same numbers and translations there, or refused in a line."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fairseq_ext
from fairseq_ext.checkpoints import storage
from fairseq_ext.model.other_tools import export_to
from fairseq_ext.text.pipeline import Pipeline
from fairseq_ext.utils.errors import ConfigError
from tests.support import models
from tests.support.bundles import save_run
from tests.support.engine import ALL

SHARED = "--share-all-embeddings"
LEARNED = ("--encoder-learned-pos", "--decoder-learned-pos")
NORM = "--layernorm-embedding"
TIED = "--share-decoder-input-output-embed"
STOCK = ["--arch", "transformer_tiny", *models.SMALL]
FSMT, PRE, BOTH = "FSMT", models.PRE_NORM, (*LEARNED, NORM, SHARED)
CLASSES = {
    "post-norm": (FSMT, ()),
    "post-norm-tied": (FSMT, (TIED,)),
    "post-norm-shared": (FSMT, (SHARED, "--activation-fn", "gelu")),
    "pre-norm-shared": ("M2M100", (*PRE, SHARED)),
    "pre-norm-no-scale": ("M2M100", (*PRE, SHARED, "--no-scale-embedding")),
    "pre-norm-learned": ("Blenderbot", (*PRE, *LEARNED, SHARED)),
    "post-norm-learned-normalized": ("Bart", BOTH),
    "pre-norm-learned-normalized": ("MBart", (*PRE, *BOTH)),
}
CASES = {name: flags for name, (_, flags) in CLASSES.items()}
CLASSES = {name: f"{kind}ForConditionalGeneration" for name, (kind, _) in CLASSES.items()}
ONLY_CTRANSLATE2 = {
    "widths": ["--decoder-embed-dim", "16"],
    "pre-norm": models.PRE_NORM,
    "post-norm-learned": [*LEARNED, SHARED],
}
SOURCES = ["w1 w2 w3 w4", "w7", "w5 w9 w11 w2 w2 w8 w30 w14 w3", "w21 w20"]
LONGEST = 12  # tokens of a translation
TARGETS = ["w4 w3", "w8 w8 w9", "w1 w2 w3 w4 w5 w6", "w13"]


def saved(folder: Path, flags: list[str]) -> Path:
    """A random model's checkpoint with its dictionaries, which differ unless tables are shared."""
    target_size = None if SHARED in flags else 45
    model, task = models.build(flags, size=40, target_size=target_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5) if parameter.dim() > 1 else parameter.add_(0.1)
    return save_run(folder, flags, model, task, Pipeline("de", "en"))


def exported(tmp_path: Path, tool: str, flags: list[str]) -> tuple[Path, Path]:
    run, out = saved(tmp_path / "run", flags), tmp_path / "out"
    export_to(tool, run / "checkpoint_best.pt", run, out)
    return run, out


def numbers(line: str) -> list[int]:
    """Numbers of tokens `wN` and the end, as the dictionaries of `models` have them."""
    return [*(int(word[1:]) + 4 for word in line.split()), 2]


@pytest.mark.parametrize("name", CASES)
def test_hugging_face_model_has_the_weights_of_its_class(name: str, tmp_path: Path):
    run, out = exported(tmp_path, "huggingface", [*STOCK, *CASES[name]])
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == [CLASSES[name]]
    weights = load_file(out / "model.safetensors")
    state = storage.load(run / "checkpoint_best.pt")["model"]
    for layer in ("encoder.layers.1.fc1.weight", "decoder.layers.0.encoder_attn.k_proj.bias"):
        assert torch.equal(weights[f"model.{layer}"], state[layer])
    tokenizer = json.loads((out / "tokenizer.json").read_text())
    assert tokenizer["model"]["vocab"]["w3"] == numbers("w3")[0]
    assert (out / "target" / "tokenizer.json").exists() == (SHARED not in CASES[name])
    assert (out / "text.json").exists()


@pytest.mark.parametrize("name", CASES)
def test_hugging_face_computes_the_same(name: str, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    run, out = exported(tmp_path, "huggingface", [*STOCK, *CASES[name]])
    model = getattr(transformers, CLASSES[name]).from_pretrained(out).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    ours = fairseq_ext.load(run, engine="fairseq", cpu=True)
    for source, target in zip(SOURCES, TARGETS, strict=True):
        inputs = torch.tensor([tokenizer(source)["input_ids"]])
        assert inputs.tolist() == [numbers(source)]
        wanted = torch.tensor([numbers(target)])
        with torch.no_grad():
            logits = model(
                input_ids=inputs, decoder_input_ids=models.previous(wanted), use_cache=False
            ).logits  # with a cache FSMT takes a sentence for a single step
        scores = logits[0].log_softmax(-1).gather(1, wanted[0][:, None]).sum().item()
        assert scores == pytest.approx(ours.score([source], [target])[0], abs=1e-4)
        best = model.generate(inputs, num_beams=5, max_length=LONGEST + 1)[0].tolist()
        words = [number for number in best[1:] if number != 2]
        translation = ours.translate(source, beam=5, max_len_a=0.0, max_len_b=LONGEST)
        tokens = translation.candidates[0].tokens
        # At the limit of the length fairseq adds the probability of an end, the library does not.
        assert numbers(tokens)[:-1] == words or LONGEST in (len(words), len(tokens.split()))


@pytest.mark.parametrize("name", [*CASES, *ONLY_CTRANSLATE2])
def test_ctranslate2_computes_the_same(name: str, tmp_path: Path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    flags = CASES.get(name) or ONLY_CTRANSLATE2.get(name, ())
    run, out = exported(tmp_path, "ctranslate2", [*STOCK, *flags])
    translator = ctranslate2.Translator(str(out), compute_type="float32")
    ours = fairseq_ext.load(run, engine="fairseq", cpu=True)
    sources = [line.split() for line in SOURCES]
    scores = translator.score_batch(sources, [line.split() for line in TARGETS])
    for score, wanted in zip(scores, ours.score(SOURCES, TARGETS), strict=True):
        assert sum(score.log_probs) == pytest.approx(wanted, abs=1e-4)
    results = translator.translate_batch(
        sources, beam_size=5, max_decoding_length=LONGEST, return_scores=True
    )
    for result, wanted in zip(
        results, ours.translate(SOURCES, beam=5, max_len_a=0.0, max_len_b=LONGEST), strict=True
    ):
        score = pytest.approx(wanted.candidates[0].score * math.log(2), abs=1e-3)
        tokens = result.hypotheses[0]
        equal = " ".join(tokens) == wanted.candidates[0].tokens
        assert equal or len(tokens) == LONGEST or result.scores[0] == score


@pytest.mark.parametrize("tool", ["ctranslate2", "huggingface"])
@pytest.mark.parametrize("name", ["gru-shared", "linformer", "muse", "bmt-1"])
def test_what_no_tool_computes_is_refused(name: str, tool: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot be expressed in .*, which has no"):
        exported(tmp_path, tool, ALL[name])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (models.PRE_NORM, "in several tables"),
        ([*LEARNED, SHARED], "no class of"),
        (["--no-token-positional-embeddings"], "without positions"),
        (["--decoder-normalize-before"], "one side"),
        (["--cross-self-attention"], "cross-self-attention"),
        (["--decoder-embed-dim", "16"], r"of \d+ and 16 channels"),
        (["--decoder-output-dim", "16"], "no"),
        (["--task", "translation_ext", "--target-prefix", "w3"], "no `w3` at each sentence"),
    ],
)
def test_options_that_no_class_has_are_refused(flags: list[str], reason: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=reason):
        exported(tmp_path, "huggingface", [*STOCK, *flags])
