#!/usr/bin/env python
"""Load a neural metric's model, so that a recipe notices a wrong name before it trains anything.

    python recipes/try_metric.py comet:Unbabel/wmt22-comet-da

The metric's signature is printed. A model on the Hub is downloaded once.
"""

import argparse
import sys

from fairseq_ext.evaluation import neural
from fairseq_ext.utils.errors import FairseqExtError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("metric", metavar="comet:MODEL")
    args = parser.parse_args()
    try:
        print(f"COMET: {neural.NeuralMetric(args.metric).signature}")
    except FairseqExtError as error:
        sys.exit(f"try_metric: error: {error}")


if __name__ == "__main__":
    main()
