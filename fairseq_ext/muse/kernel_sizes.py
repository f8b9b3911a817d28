"""Parse ``--muse-kernels``, the kernel sizes of each layer (without torch and fairseq)."""

from __future__ import annotations

from fairseq_ext.utils.errors import ConfigError


def kernels_of_layers(text: str, layers: int, *, ordinary: bool = False) -> list[tuple[int, ...]]:
    """Parse the kernel sizes of each layer, from the lowest up.

    Args:
        text: ``none``, or groups of sizes, ``3,15`` or ``3/7/15/31``.
        layers: the number of layers.
        ordinary: whether the convolution is the ordinary one, which has one size.

    Raises:
        ConfigError: a size is below 1 or not a number, there are more groups than layers, or the
            ordinary convolution has several sizes.
    """
    if text == "none":
        return [()] * layers
    try:
        groups = [tuple(int(size) for size in group.split(",")) for group in text.split("/")]
    except ValueError:
        groups = [(0,)]
    if min(min(group) for group in groups) < 1:
        raise ConfigError(
            "`--muse-kernels` must be `none`, or sizes like 3,15 or 3/7/15/31, but is "
            f"`{text}` instead."
        )
    if ordinary and any(len(group) > 1 for group in groups):
        raise ConfigError(
            "`--muse-kernels` must have one size for each layer with `--muse-convolution "
            f"ordinary`, but is `{text}` instead."
        )
    if len(groups) > layers:
        raise ConfigError(
            f"`--muse-kernels` must have at most one group for each of {layers} layers, but has "
            f"{len(groups)} (`{text}`) instead."
        )
    return [groups[layer * len(groups) // layers] for layer in range(layers)]
