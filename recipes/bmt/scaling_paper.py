#!/usr/bin/env python
"""Simulate losses with the exponents of the BMT paper's Table 3, for ``fairseq-ext scaling-fit``.

    python recipes/bmt/scaling_paper.py -o table.json
    fairseq-ext scaling-fit table.json --json fits.json -o scaling.png

The table has a row for each data set, each family (float and binary) and each of the 24 sizes of
section 4.2: 12 depths of the encoder with 6 decoder layers, and 12 depths of the decoder with 6
encoder layers. The losses follow the paper's exponents. Their noise is as large as the differences
between trainings of the same model. α and L∞ of the scaling law are invented, because the paper
gives neither.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from fairseq_ext.binary.scaling_law import Law
from fairseq_ext.utils import files

DEPTHS = (6, 8, 10, 12, 14, 18, 22, 26, 30, 36, 42, 48)
DESIGN = [(depth, 6) for depth in DEPTHS] + [(6, depth) for depth in DEPTHS]
ENCODER_LAYER, DECODER_LAYER = 3_152_384, 4_204_032  # parameters, with 512 and 2048 channels
BASE = (6 * ENCODER_LAYER, 6 * DECODER_LAYER)
# Table 3: (p_e, p_d) of the float models, then of the binary ones.
TABLE_3 = {
    "Train Subset": ((0.18, 0.31), (0.16, 0.28)),
    "Patents": ((0.20, 0.30), (0.19, 0.32)),
    "Web Domain 1": ((0.14, 0.25), (0.14, 0.27)),
    "Web Domain 2": ((0.19, 0.37), (0.16, 0.30)),
    "Web Domain 3": ((0.12, 0.18), (0.14, 0.23)),
    "Wikipedia": ((0.13, 0.25), (0.12, 0.25)),
    "wmt-high-quality": ((0.20, 0.31), (0.18, 0.30)),
    "wmt-refC": ((0.24, 0.34), (0.17, 0.27)),
    "wmt-paraphrased": ((0.14, 0.36), (0.12, 0.31)),
    "wmt-src-orig": ((0.22, 0.37), (0.23, 0.36)),
    "wmt-tgt-orig": ((0.15, 0.22), (0.12, 0.20)),
}
LAWS = {
    (dataset, family): Law(0.35 + 0.02 * i + 0.05 * j, *slopes, 0.5 + 0.03 * i, BASE)
    for i, (dataset, by_family) in enumerate(TABLE_3.items())
    for j, (family, slopes) in enumerate(zip(("float", "binary"), by_family, strict=True))
}


def rows(noise: float, seed: int = 1) -> list[dict[str, str | int | float]]:
    """Return a row for each data set, family and size.

    ``noise`` is the standard deviation of the noise on the losses.
    """
    generator = np.random.default_rng(seed)
    return [
        {
            "name": f"{encoder}L{decoder}L",
            "encoder_parameters": encoder * ENCODER_LAYER,
            "decoder_parameters": decoder * DECODER_LAYER,
            "loss": float(law(encoder * ENCODER_LAYER, decoder * DECODER_LAYER))
            + noise * generator.normal(),
            "family": family,
            "dataset": dataset,
        }
        for (dataset, family), law in LAWS.items()
        for encoder, decoder in DESIGN
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--noise", type=float, default=0.003, help="its standard deviation (0.003)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the noise (1)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="TABLE.json")
    args = parser.parse_args()
    with files.atomic_write(args.output) as file:
        file.write(json.dumps(rows(args.noise, args.seed), indent=1) + "\n")


if __name__ == "__main__":
    main()
