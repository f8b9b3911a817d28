"""``fairseq-ext scaling-fit``: fit and plot scaling laws, with confidence intervals."""

import argparse
from pathlib import Path

from fairseq_ext.commands import options
from fairseq_ext.utils import extras
from fairseq_ext.utils.option_fields import require_at_least


def add(commands: options.Subparsers) -> None:
    parser = commands.add_parser(
        "scaling-fit",
        help="fit a scaling law to the losses of models of many sizes",
        description="Fit L = alpha (base_e/Ne)^p_e (base_d/Nd)^p_d + L_inf to models with growing "
        "encoders and models with growing decoders together, one law for each family and dataset, "
        "with 95 % confidence intervals.",
        example="fairseq-ext scaling-fit losses.json -o law.png",
    )
    parser.add_argument(
        "table",
        type=Path,
        metavar="TABLE",
        help="file .json, .csv or .tsv with name, encoder_parameters, decoder_parameters (without "
        "embeddings) and loss; optional are family, dataset and train_loss",
    )
    parser.add_argument(
        "--base",
        metavar="NAME",
        help="baseline model, whose sizes are base_e and base_d (default: the most frequent "
        "encoder size and the most frequent decoder size)",
    )
    parser.add_argument(
        "--bootstrap",
        type=int,
        default=500,
        metavar="N",
        help="refits for the bootstrap intervals, at least 100 (default: 500)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of the bootstrap (1)"
    )
    options.add_json(parser, "the fits")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FIG.png",
        help="picture of losses and fitted laws against parameters; FIG.json is written beside it "
        "and, with train_loss, FIG-training.png and .json",
    )
    training = (f"-training{ending}" for ending in options.PICTURE)
    parser.set_defaults(run=_run, endings=(*options.PICTURE, *training))


def _run(args: argparse.Namespace) -> None:
    require_at_least(args, bootstrap=100, seed=0)
    extras.need("scipy", *(["matplotlib"] if args.output is not None else []))
    from fairseq_ext.binary import scaling_law, scaling_plot
    from fairseq_ext.evaluation import plots

    models = scaling_law.read_table(args.table)
    base = scaling_law.baseline(models, args.base)
    fits = scaling_law.fit_laws(models, base, resamples=args.bootstrap, seed=args.seed)
    settings = {"bootstrap": args.bootstrap, "seed": args.seed}
    options.write_json(args.json, {**scaling_law.as_dict(fits, base), **settings})
    if args.output is not None:
        beside = plots.with_ending(args.output, "-training.png")
        written = scaling_plot.plot_scaling(fits, base, args.output)
        print(*written, *scaling_plot.plot_training(fits, beside), sep="\n")
    print(scaling_law.as_table(fits))
