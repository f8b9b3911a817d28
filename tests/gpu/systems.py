"""Flags of the models that are timed, of the sizes of published systems or tiny."""

from __future__ import annotations

GRU = "--arch gru_attention --encoder-embed-dim {0} --decoder-embed-dim {0} "
GRU += "--encoder-hidden-size {0} --decoder-hidden-size {0}"


def sized(arch: str, *, layers: int, width: int, inner: int, heads: int) -> list[str]:
    """Flags of a model with the shape of a Transformer."""
    flags = ["--arch", arch]
    for side in ("encoder", "decoder"):
        flags += [f"--{side}-layers", str(layers), f"--{side}-embed-dim", str(width)]
        flags += [f"--{side}-ffn-embed-dim", str(inner), f"--{side}-attention-heads", str(heads)]
    return flags


def base(tiny: bool) -> dict[str, list[str]]:
    """Models 512 wide with six layers on both sides, and a GRU of 512."""
    shape = {"layers": 6, "width": 512, "inner": 2048, "heads": 8}
    if tiny:
        shape = {"layers": 1, "width": 32, "inner": 48, "heads": 2}
    small = {**shape, "inner": shape["inner"] // 2, "heads": shape["heads"] // 2}
    models = {
        "transformer": sized("transformer", **small),
        "transformer-base": sized("transformer", **shape),
        "gru": GRU.format(32 if tiny else 512).split(),
        "linformer": [*sized("linformer", **small), "--linformer-k", "32"],
        "muse": sized("muse_base", **{**shape, "inner": shape["inner"] // 2}),
        "muse-simple-fused": [
            *sized("muse_base", **{**shape, "inner": shape["inner"] // 2}),
            *("--muse-kernels", "none", "--muse-fused"),
        ],
        "bmt-1": sized("bmt", **small),
    }
    return {name: [*flags, "--share-all-embeddings"] for name, flags in models.items()}
