"""Compare the time and memory of training updates: fairseq with the plugin, and without it.

``python benchmarks/updates.py --data BIN --threads 1 --json docs/results/updates_1_thread.json``

For each model, several *sides* train it, each in a process of its own, on the same batches in the
same order. An update is loss, gradients, clipping, Adam and logging. In a round, the sides take
turns to make ``--updates`` updates each. The sides are:

- `plugin`: fairseq-train with the plugin.
- `stock`: fairseq-train without the plugin, for fairseq's own architectures only.
- `before`: the plugin without its changes for speed (`fairseq_ext/plugin/features/speed.py`). It
  is not run with ``--toolkits``.
- `rival`: a comparable architecture of fairseq, trained with the plugin; for GRU attention and MUSE
  only.
- `more`: the plugin with the further flags of fairseq-train that ``--more=FLAG`` names, such as
  ``--more=--bf16``.
- other toolkits (updates_toolkits.py), for the Transformer only: ``--toolkits joeynmt=FOLDER …``
  names folders in which ``pip install --target FOLDER`` has installed them.

Ratios are another side's time divided by the plugin's. There are two figures of memory: resident
memory before the first update, and its peak at the end. Both include Python and torch.

Without ``--data``, the corpus is random, with ``--vocabulary`` words and 25 words in a sentence.
``--memory --vocabulary 8000 32000 --tokens 1000 4000`` measures only the memory of ``--updates``
updates, on random corpora: in stock fairseq, with the plugin, and with the plugin and
``--checkpoint-activations``.
"""

import argparse
import itertools
import random
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import bench
import pictures
from bench import Cells

WORKER = Path(__file__).with_name("updates_worker.py")
TOOLKITS = Path(__file__).with_name("updates_toolkits.py")
USER_DIR = Path(__file__).parent.parent / "user_dir"
OURS, BEFORE, STOCK, RIVAL, MORE = "plugin", "before", "stock", "rival", "more"
PEERS = {
    BEFORE: "the plugin without speed.py",
    STOCK: "stock fairseq",
    RIVAL: "fairseq's rival, with the plugin",
}
WITHOUT_SPEED = """
from fairseq_ext.plugin import patches, patching
from fairseq_ext.plugin.features import speed
ours = patching.patches_of(speed)
patches.PATCHES = tuple(patch for patch in patches.PATCHES if patch not in ours)
import fairseq_ext
fairseq_ext.register()
"""


def sizes(layers: int, embed_dim: int, ffn_embed_dim: int, heads: int) -> list[str]:
    """Return the flags that set the sizes of a transformer."""
    flags = ["--share-all-embeddings"]
    for side in ("encoder", "decoder"):
        flags += [f"--{side}-layers", str(layers), f"--{side}-embed-dim", str(embed_dim)]
        flags += [f"--{side}-ffn-embed-dim", str(ffn_embed_dim)]
        flags += [f"--{side}-attention-heads", str(heads)]
    return flags


def gru(embed_dim: int, hidden_size: int) -> str:
    """Return the flags that set the sizes of a recurrent model, ours or fairseq's ``lstm``."""
    return " ".join(
        f"--{side}-embed-dim {embed_dim} --{side}-hidden-size {hidden_size}"
        for side in ("encoder", "decoder")
    )


KERNELS = "--encoder-kernel-size-list 3,7,15,31 --decoder-kernel-size-list 3,7,15,31"
LIGHTCONV = f"--arch lightconv {KERNELS} --encoder-conv-type"
MODELS = {
    name: words.split() + (sizes(*shape) if shape else ["--share-all-embeddings"])
    for name, words, shape in (
        ("transformer 128", "--arch transformer", (4, 128, 256, 4)),
        ("transformer 512", "--arch transformer", (6, 512, 1024, 4)),
        ("gru", f"--arch gru_attention {gru(128, 216)}", None),
        ("gru 512", f"--arch gru_attention {gru(512, 512)}", None),
        ("linformer", "--arch linformer_tiny", None),
        ("linformer 512", "--arch linformer_iwslt_de_en", None),
        ("muse", "--arch muse_tiny", (4, 128, 160, 4)),
        ("muse 512", "--arch muse_iwslt_de_en", None),
        ("muse-simple", "--arch muse_tiny --muse-kernels none", None),
        ("lightconv", f"{LIGHTCONV} lightweight --decoder-conv-type lightweight", (4, 128, 320, 4)),
        ("dynamicconv", f"{LIGHTCONV} dynamic --decoder-conv-type dynamic", (4, 128, 288, 4)),
        ("bmt", "--arch bmt_tiny", (4, 128, 256, 4)),
        ("bmt base", "--arch bmt_base", None),
    )
}
LSTM = "--arch lstm --share-all-embeddings --encoder-bidirectional --decoder-out-embed-dim"
RIVALS = {
    "gru": [*LSTM.split(), "128", *gru(128, 216).split()],
    "gru 512": [*LSTM.split(), "512", *gru(512, 512).split()],
    "muse": MODELS["transformer 128"],
    "muse 512": MODELS["transformer 512"],
}
RECOMPUTED = "--checkpoint-activations"
TRANSFORMERS = ("transformer 128", "transformer 512")
WITHOUT_PLUGIN = (*TRANSFORMERS, "lightconv", "dynamicconv")


def start_sides(name: str, options: Namespace, before: Path) -> dict[str, bench.Worker]:
    """Start the processes of all sides of the model ``name``; return them by the sides' names.

    ``before`` is the folder that the side `before` gets as ``--user-dir``.
    """
    common = [options.data, *training(options)]
    flags = [*common, *MODELS[name]]
    ours = ["--user-dir", str(USER_DIR)]
    commands = {OURS: [str(WORKER), *flags, *ours]}
    if not options.toolkits:
        commands[BEFORE] = [str(WORKER), *flags, "--user-dir", str(before)]
    if options.more:
        commands[MORE] = [str(WORKER), *flags, *ours, *options.more]
    if name in RIVALS:
        commands[RIVAL] = [str(WORKER), *common, *RIVALS[name], *ours]
    paths = {}
    if name in WITHOUT_PLUGIN:
        commands[STOCK] = [str(WORKER), *flags]
    if name in TRANSFORMERS:
        paths = dict(words.split("=", 1) for words in options.toolkits)
        commands |= {toolkit: [str(TOOLKITS), toolkit, *flags] for toolkit in paths}
    return {
        side: worker(command, options, paths.get(side, "")) for side, command in commands.items()
    }


def worker(command: list[str], options: Namespace, path: str = "") -> bench.Worker:
    """Start a process that makes updates; ``path`` is a further folder of Python modules."""
    return bench.Worker(command, threads=options.threads, path=path, quiet=True)


def training(options: Namespace) -> list[str]:
    """Return the flags of fairseq-train that all sides share."""
    return [
        *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", "1.0"),
        *("--lr", "0.001", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "1000"),
        *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
        *("--dropout", str(options.dropout), "--max-tokens", str(options.tokens)),
        *("--num-workers", "0", "--seed", "1", "--no-save", "--disable-validation"),
        *(["--cpu"] if options.device == "cpu" else []),
        *("--max-update", "1000000", "--log-interval", "100", "--no-progress-bar"),
    ]


def compare(name: str, options: Namespace, before: Path, cells: Cells) -> None:
    """Time updates of the model ``name`` by all sides; ``before`` is as in :func:`start_sides`."""
    sides = start_sides(name, options, before)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    losses = {name: [] for name in sides}
    start = {name: side.ask("0")["mebibytes"] for name, side in sides.items()}
    for side_name, side in sides.items():
        losses[side_name] += side.ask(str(options.warmup))["losses"]
    for number in range(options.repeats):
        for side_name in list(sides) if number % 2 else list(sides)[::-1]:
            answer = sides[side_name].ask(str(options.updates))
            seconds[side_name].append(answer["seconds"] / options.updates)
            losses[side_name] += answer["losses"]
    tokens = answer["tokens"] / options.updates
    last = {name: side.ask("0") for name, side in sides.items()}
    memory = {name: answer["mebibytes"] for name, answer in last.items()}
    for side in sides.values():
        side.end()
    peers = [name for name in sides if name != OURS]
    differences = {  # only without dropout, for which the sides draw different random numbers
        peer: max(abs(a - b) / abs(b) for a, b in zip(losses[OURS], losses[peer], strict=True))
        for peer in (BEFORE, STOCK)
        if options.dropout == 0 and peer in seconds
    }
    cells.add(
        name,
        None,
        seconds,
        [(OURS, peer) for peer in peers] + [(MORE, STOCK)],
        tokens=tokens,
        mebibytes=memory,
        mebibytes_before_first_update=start,
        parameters={side: answer["parameters"] for side, answer in last.items()},
        largest_relative_difference_of_losses=differences,
    )
    print(f"  resident MiB: {memory}, before training: {start}", flush=True)
    if differences:
        print(f"  largest differences of losses: {differences}", flush=True)


def write_corpus(folder: Path, vocabulary: int) -> str:
    """Binarize a corpus of random words; return the folder of the data.

    ``vocabulary`` is the number of entries of the dictionary.
    """
    folder.mkdir(exist_ok=True)
    words = [f"w{number}" for number in range(vocabulary - 4)]  # fairseq adds four
    draw = random.Random(1)
    sentences = [draw.choices(words, k=25) for _ in range(4_000)]
    sentences += [words[start : start + 25] for start in range(0, len(words), 25)]
    lines = "".join(" ".join(sentence) + "\n" for sentence in sentences)
    for side in ("src", "tgt"):
        Path(folder, f"train.{side}").write_text(lines)
    command = ["--source-lang", "src", "--target-lang", "tgt", "--joined-dictionary"]
    command += ["--trainpref", str(folder / "train"), "--destdir", str(folder / "bin")]
    subprocess.run(
        [sys.executable, "-m", "fairseq_cli.preprocess", *command], check=True, capture_output=True
    )
    return str(folder / "bin")


def memory(options: Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure memory; return a row for each vocabulary, model, batch size and side."""
    sides = {STOCK: [], OURS: ["--user-dir", str(USER_DIR)]}
    sides[f"{OURS}, {RECOMPUTED}"] = [*sides[OURS], RECOMPUTED]
    rows = []
    for vocabulary in options.vocabulary:
        data = write_corpus(folder / str(vocabulary), vocabulary)
        for name, tokens in itertools.product(options.models, options.tokens):
            one_size = Namespace(**{**vars(options), "tokens": tokens})
            for side, flags in sides.items():
                command = [str(WORKER), data, *training(one_size), *MODELS[name], *flags]
                process = worker(command, options)
                start, last = process.ask("0"), process.ask(str(options.updates))
                process.end()
                rows.append({"model": name, "vocabulary": vocabulary, "tokens": tokens})
                rows[-1] |= {"side": side, "mebibytes": last["mebibytes"]}
                rows[-1] |= {"mebibytes_before_first_update": start["mebibytes"]}
                rows[-1] |= {"tokens_of_an_update": last["tokens"] / options.updates}
                rows[-1] |= {"parameters": last["parameters"]}
                print(rows[-1], flush=True)
    return rows


def draw(ratios: list[dict[str, Any]], output: Path) -> None:
    """Draw the sides' times as multiples of the plugin's, beside the JSON file ``output``."""
    panels: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in ratios:
        if row["candidate"] == OURS:
            figures = row["ratio"], row["ratio_low"], row["ratio_high"]
            panels.setdefault(PEERS.get(row["peer"], row["peer"]), {})[row["what"]] = figures
    pictures.bars(panels, "time over the plugin's", output)


def arguments() -> argparse.ArgumentParser:
    parser = bench.parser_with(
        __doc__,
        **{"threads": 1, "device": "cpu", "repeats": 9, "warmup": 5, "dropout": 0.1},
        **{"tokens": [1000], "vocabulary": [32_000]},
    )
    add = parser.add_argument
    add("--data", help="a binarized corpus with a joint dictionary")
    add("--memory", action="store_true", help="measure nothing but memory")
    add("--more", action="append", default=[], metavar="FLAG", help="flag of the side `more`")
    add("--toolkits", nargs="*", default=[], metavar="NAME=FOLDER", help="other toolkits to time")
    add("--updates", type=int, default=5, help="updates of each side in a round")
    add("--models", nargs="+", default=list(MODELS), choices=MODELS, help="models to train")
    return parser


def main() -> None:
    parser = arguments()
    options = parser.parse_args()
    foreign = [name for name in options.models if name not in WITHOUT_PLUGIN]
    if options.memory and foreign:
        parser.error(
            f"--memory compares with stock fairseq, which lacks {', '.join(foreign)}: name "
            "others with --models"
        )
    bench.begin(options)
    if options.memory:
        with tempfile.TemporaryDirectory() as name:
            rows = memory(options, Path(name))
        settings = bench.settings(options, ("json", "data"))
        return bench.save(options.json, title="Memory of training", settings=settings, rows=rows)
    (options.tokens,), (options.vocabulary,) = options.tokens, options.vocabulary
    cells = Cells(f"Whole updates of fairseq-train, {options.threads} thread(s)")
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder, "before")
        before.mkdir()
        (before / "__init__.py").write_text(WITHOUT_SPEED)
        if options.data is None:
            options.data = write_corpus(Path(folder), options.vocabulary)
        for name in options.models:
            compare(name, options, before, cells)
    cells.save(options.json, bench.settings(options, ("json", "data")))
    if options.json is not None:
        draw(cells.ratios, options.json)


if __name__ == "__main__":
    main()
