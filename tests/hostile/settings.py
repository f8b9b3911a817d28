"""Checkpoints and bundles of plain data whose settings are hostile."""

import functools
import hashlib
import io
import json
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.hostile import bases
from tests.hostile.pickles import saved

# Options that stock fairseq evaluates, as they are found in its sources, each behind the base whose
# options are changed; and what is changed besides.
CARRIERS: dict[str, dict[str, Any]] = {
    "lstm decoder_attention": {},
    "lstm adaptive_softmax_cutoff": {"criterion": "adaptive_loss"},
    "transformer encoder_xformers_att_config": {},
    "transformer decoder_xformers_att_config": {},
    "transformer adaptive_softmax_cutoff": {},
    "transformer encoder_layers_to_keep": {"adaptive_softmax_cutoff": "EVIL"},
    "muse adaptive_softmax_cutoff": {"_name": "muse_base", "arch": "muse_base"},
    "bmt adaptive_softmax_cutoff": {"_name": "bmt_base", "arch": "bmt_base"},
    "linformer adaptive_softmax_cutoff": {"_name": "linformer_tiny", "arch": "linformer_tiny"},
    "fconv encoder_layers": {},
    "fconv decoder_layers": {},
    "fconv decoder_attention": {},
    "lightconv encoder_kernel_size_list": {"_name": "fconv", "arch": "fconv"},
}
# The same for other architectures, none of whose other options are there.
OTHERS: dict[str, dict[str, Any]] = {
    "fconv_self_att encoder_layers": {},
    "fconv_self_att pretrained": {},
    "fconv_lm decoder_layers": {},
    "lightconv_lm character_filters": {"character_embeddings": True},
    "transformer_lm character_filters": {"character_embeddings": True},
    "transformer_lm adaptive_input_cutoff": {"adaptive_input": True},
    "wav2vec conv_feature_layers": {},
    "wav2vec2 conv_feature_layers": {},
    "hubert conv_feature_layers": {},
    "s2t_wav_transformer conv_feature_layers": {},
}
CRITERIONS: dict[str, dict[str, Any]] = {
    "criterion ctc wer_args": {"_name": "ctc", "wer_args": "EVIL"},
    "criterion unknown": {"_name": "evil_loss"},
    "criterion missing": {},
}
TASKS: dict[str, dict[str, Any]] = {
    "task multilingual_translation left_pad_source": {
        "_name": "multilingual_translation",
        "task": "multilingual_translation",
        "lang_pairs": "src-tgt",
        "left_pad_source": "EVIL",
        "left_pad_target": "EVIL",
    },
    "task translation_multi_simple_epoch": {
        "_name": "translation_multi_simple_epoch",
        "task": "translation_multi_simple_epoch",
        "sampling_weights": "EVIL",
    },
    "task audio_pretraining": {"_name": "audio_pretraining", "post_save_script": "EVIL"},
    "task unknown": {"_name": "evil_task"},
    "task of a list": {"_name": ["translation"]},
}
SIZES: dict[str, Any] = {
    "decoder_layers": 10**9,
    "encoder_embed_dim": 10**9,
    "decoder_hidden_size": 10**6,
    "encoder_layers": "1" * 5000,
    "max_target_positions": 10**12,
}


def evil(canary: Path) -> str:
    """An expression that makes the file ``canary``."""
    return f"__import__('os').system('touch {canary}') or []"


def with_text(value: Any, text: str) -> Any:
    """Settings in which every ``EVIL`` is ``text``."""
    if isinstance(value, dict):
        return {name: with_text(part, text) for name, part in value.items()}
    return text if value == "EVIL" else value


def carriers(make: Callable[[str, str], dict[str, Any]], text: str) -> Iterator[tuple[str, bytes]]:
    """Every place where fairseq evaluates, in both forms of a configuration."""
    for name, settings in CARRIERS.items():
        base, option = name.split()
        change = with_text({option: "EVIL", **settings}, text)
        for form in ("cfg", "args"):
            yield f"{name} ({form})", saved(amended(make(base, form), "model", change))
    lstm = make("lstm", "cfg")
    for name, settings in OTHERS.items():
        arch, option = name.split()
        named = {"_name": arch, "arch": arch, option: text, **settings}
        yield f"{name} (cfg)", saved({**lstm, "cfg": {**lstm["cfg"], "model": named}})
        yield f"{name} (args)", saved(amended(make("lstm", "args"), "model", named))
    for name, criterion in CRITERIONS.items():
        changed = with_text(criterion, text)
        yield name, saved({**lstm, "cfg": {**lstm["cfg"], "criterion": changed}})
    for name, task in TASKS.items():
        changed = {**lstm["cfg"]["task"], **with_text(task, text)}
        yield f"{name} (cfg)", saved({**lstm, "cfg": {**lstm["cfg"], "task": changed}})
        named = {"task": task["_name"], **with_text(task, text)}
        yield f"{name} (args)", saved(amended(make("lstm", "args"), "task", named))


def amended(state: dict[str, Any], part: str, change: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint with other options; in the old form all parts are one."""
    if state["args"] is not None:
        return {**state, "args": Namespace(**{**vars(state["args"]), **change})}
    cfg = state["cfg"]
    return {**state, "cfg": {**cfg, part: {**cfg[part], **change}}}


def names(make: Callable[[str, str], dict[str, Any]], canary: Path) -> Iterator[tuple[str, bytes]]:
    """What a file names: code to import, files to read, texts to resolve, sizes to build."""
    folder = canary.with_name("evil_user_dir")
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text(f"open({str(canary)!r}, 'w')\n")
    target = {"_target_": "os.system", "_args_": [f"touch {canary}"]}
    options: dict[str, tuple[str, dict[str, Any]]] = {
        "saved user_dir": ("common", {"user_dir": str(folder)}),
        "saved data": ("task", {"data": str(folder)}),
        "hydra target": ("model", target),
        "hydra target below": ("common", {"x": {"y": [target]}}),
        "environment": ("model", {"decoder_attention": "${oc.env:HOME}"}),
        "environment in the task": ("task", {"source_lang": "${oc.env:HOME}"}),
        "doubling": ("common", {f"x{n}": f"${{common.x{n + 1}}}" * 2 for n in range(60)}),
        "doubling sections": (
            "common",
            {f"x{n}": dict.fromkeys("ab", f"${{common.x{n + 1}}}") for n in range(60)},
        ),
        "no architecture": ("model", {"_name": None, "arch": None}),
        "unknown architecture": ("model", {"_name": "evil", "arch": "evil"}),
        "language model": ("model", {"_name": "transformer_lm", "arch": "transformer_lm"}),
        "number as architecture": ("model", {"_name": 5, "arch": 5}),
        "teacher": ("criterion", {"_name": "distillation", "teacher": str(canary.parent)}),
    }
    for name, (part, change) in options.items():
        yield f"{name} (cfg)", saved(amended(make("lstm", "cfg"), part, change))
        if part in ("model", "task") or "user_dir" in change:
            yield f"{name} (args)", saved(amended(make("lstm", "args"), part, change))
    for name, value in SIZES.items():
        yield f"huge {name}", saved(amended(make("lstm", "cfg"), "model", {name: value}))
    for kind in ("tokenizer", "bpe", "scoring", "optimizer"):
        change = {kind: "../../../etc/passwd"}
        yield f"path as {kind}", saved(amended(make("lstm", "args"), "model", change))
    quote = {"decoder_attention": "x\\', +hydra.searchpath=[file:///tmp], y='"}
    yield "quotes for hydra", saved(amended(make("lstm", "args"), "model", quote))
    codes = {"_name": "subword_nmt", "bpe_codes": str(canary.parent)}
    lstm = make("lstm", "cfg")
    yield "saved bpe_codes", saved({**lstm, "cfg": {**lstm["cfg"], "bpe": codes}})
    meters = [(0, "x", "exec", {}), (0, "y", "TimeMeter", {})]
    extra = {**lstm["extra_state"], "metrics": {"default": meters}}
    yield "meter", saved({**lstm, "extra_state": extra, "last_optimizer_state": {}})


def bundles(source: Path, text: str) -> Iterator[tuple[str, bytes]]:
    """Archives of a bundle with other settings and another program, with valid checksums."""
    config = json.loads((source / "config.json").read_text())
    cfg = config["cfg"]
    model, task = cfg["model"], cfg["task"]
    lstm = {"_name": "lstm", "arch": "lstm", "decoder_attention": text}
    tasks = with_text(TASKS["task multilingual_translation left_pad_source"], text)
    changes = {
        "lstm": {"model": lstm},
        "lstm among binary settings": {"model": {**model, **lstm}},
        "adaptive_softmax_cutoff": {"model": {**model, "adaptive_softmax_cutoff": text}},
        "xformers": {"model": {**model, "encoder_xformers_att_config": text}},
        "wav2vec2": {"model": {"_name": "wav2vec2", "conv_feature_layers": text}},
        "task": {"task": {**task, **tasks}},
        "unknown task": {"task": {"_name": "evil"}},
        "list as name": {"model": {**model, "_name": ["bmt"], "arch": []}},
        "hydra target": {"model": {**model, "_target_": "os.system"}},
        "environment": {"model": {**model, "activation_fn": "${oc.env:HOME}"}},
        "doubling": {"model": {**model, **{f"x{n}": f"${{.x{n + 1}}}" * 2 for n in range(60)}}},
        "doubling sections": {f"x{n}": dict.fromkeys("ab", f"${{x{n + 1}}}") for n in range(60)},
        "layers": {"model": {**model, "encoder_layers": 10**9}},
        "positions": {"model": {**model, "max_source_positions": 10**12}},
        "deep": {"model": {**model, "x": _deep()}},
    }
    for name, change in changes.items():
        content = {**config, "cfg": {**cfg, **change}}
        yield f"bundle {name}", _archive(source, "config.json", content)
    program = json.loads((source / "program.json").read_text())
    recipes = {
        "evaluated": [text, "encoder.embed_tokens.weight"],
        "path": "../../../../etc/passwd",
        "deep": _deep(),
        "positions": ["sinusoids", "encoder.layer_norm.bias", 1 << 20, 1 << 20, 1],
    }
    for name, recipe in recipes.items():
        weights = [{"recipe": recipe, "plain": False}, *program["weights"][1:]]
        yield f"recipe {name}", _archive(source, "program.json", {**program, "weights": weights})
    for name, value in {"caches": 1 << 30, "longest_source": 1 << 30, "encoder": []}.items():
        changed = {**program, "program": {**program["program"], name: value}}
        yield f"program {name}", _archive(source, "program.json", changed)


def _archive(source: Path, changed: str, content: dict[str, Any]) -> bytes:
    """A bundle as a zip file, with one JSON file changed and the checksums right."""
    members = {path.name: path.read_bytes() for path in source.iterdir()}
    members[changed] = json.dumps(content).encode()
    manifest = json.loads(members["bundle.json"])
    for name in manifest["files"]:
        manifest["files"][name] = hashlib.sha256(members[name]).hexdigest()
    members["bundle.json"] = json.dumps(manifest).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"bundle/{name}", data)
    return out.getvalue()


def _deep() -> list:
    value: list = []
    for _ in range(300):
        value = [value]
    return value


def make(data: Path) -> Callable[[str, str], dict[str, Any]]:
    """Bases by name and form, each built once."""
    return functools.cache(lambda name, form: bases.checkpoint(name, data, form))
