"""Compare how fast the engine translates long sources with Linformer and with a Transformer.

``python benchmarks/engine_long.py --json docs/results/engine_long.json``

The script measures time only, not quality: weights are random, sources have n random tokens, and
each translation has exactly ``--words`` words (beam 5). The two models share all weights that both
have. For comparison, CTranslate2 translates with the Transformer, and fairseq's generator with both
models.

"decoding" is the time without the encoder: the time for ``--words`` words minus the time for one
word in the same round. This figure is left out if the difference is negative or 0 in any round.
"""

import functools
import tempfile
from argparse import Namespace
from pathlib import Path

import bench
import engine
import pictures
from bench import Cells, Stopwatch
from engine import FAIRSEQ, PEERS, ctranslate2_name, engine_name
from peers import Side, Size, linformer, source_batch, transformer

TRANSFORMER, DECODING = "transformer", "decoding"


def label(model: str, system: str, part: str = "") -> str:
    return ", ".join(filter(None, (model, system, part)))


def build(options: Namespace, folder: Path) -> dict[str, engine.Translate]:
    """Return functions that translate, by model and system, such as "k=32, engine int8"."""
    longest, size, systems = max(options.lengths), Size.of(options), {}
    flags = {TRANSFORMER: transformer()} | {f"k={k}": linformer(k, longest) for k in options.k}
    sides = {name: Side(words, size, positions=longest) for name, words in flags.items()}
    weights = sides[TRANSFORMER].model.state_dict()
    for name, side in sides.items():
        side.model.load_state_dict(weights, strict=False)
        side.model.eval()
        for numbers in PEERS:
            run = engine.by_engine(side.model, side.task, numbers)
            systems[label(name, engine_name(numbers))] = run
        systems[label(name, FAIRSEQ)] = engine.by_fairseq(side.model, side.task)
    stock = sides[TRANSFORMER]
    for system, run in engine.ctranslate2_systems(stock.model, stock.task, folder):
        systems[label(TRANSFORMER, system)] = run
    return systems


def pairs_of(options: Namespace) -> list[tuple[str, str]]:
    """List the pairs (Linformer, peer) to compare: in translation, and then in decoding alone."""
    pairs = []
    for part in ("", DECODING):
        for name in (f"k={k}" for k in options.k):
            for numbers in PEERS:
                candidate = label(name, engine_name(numbers), part)
                for system in (engine_name(numbers), ctranslate2_name(numbers)):
                    pairs.append((candidate, label(TRANSFORMER, system, part)))
                pairs.append((candidate, label(name, FAIRSEQ, part)))
        fairseqs_own = [label(f"k={k}", FAIRSEQ, part) for k in options.k]
        pairs += [(candidate, label(TRANSFORMER, FAIRSEQ, part)) for candidate in fairseqs_own]
    return pairs


def measure(options: Namespace, cells: Cells) -> None:
    """Time translation for each batch size and each number of source tokens; fill ``cells``."""
    watch, size = Stopwatch(options), Size.of(options)
    with tempfile.TemporaryDirectory() as folder:
        systems = build(options, Path(folder))
        for batch in options.batches:
            for n in options.lengths:
                measurement = f"batch {batch}"
                sources = source_batch(batch, n, size.vocabulary).tolist()
                candidates = {}
                for name, run in systems.items():
                    if watch.allows(measurement, name):
                        for words in (options.words, 1):
                            part = "" if words > 1 else "one word"
                            limits = (words, words)
                            candidates[label(name, part)] = functools.partial(run, sources, limits)
                seconds = watch.time(measurement, candidates)
                timings = {name: seconds[name] for name in systems if name in seconds}
                for name in list(timings):
                    first = seconds[label(name, "one word")]
                    rest = [a - b for a, b in zip(timings[name], first, strict=True)]
                    if min(rest) > 0:
                        timings[label(name, DECODING)] = rest
                tokens = batch * (options.words + 1)
                cells.add(measurement, n, timings, pairs_of(options), tokens=tokens, peers=systems)


def main() -> None:
    sizes = {"embed_dim": 512, "ffn_embed_dim": 2048, "heads": 8, "layers": 6}
    parser = bench.parser_with(
        __doc__,
        **{"threads": 1, "repeats": 5, "warmup": 1, "budget": 240.0, "limit": 60.0},
        **{"lengths": [512, 1024, 2048, 4096], "batches": [1], "words": 32},
        **{**sizes, "vocabulary": 32_000},
    )
    parser.add_argument("--k", type=int, nargs="+", default=[32], help="projected lengths")
    options = parser.parse_args()
    bench.begin(options)
    cells = Cells(f"Translation of long sources into {options.words} words, beam 5", unit="ms")
    cells.note("random weights; every hypothesis has the same forced number of words")
    measure(options, cells)
    cells.save(options.json, bench.settings(options))
    if options.json is not None:
        draw(cells, options)


def draw(cells: Cells, options: Namespace) -> None:
    """Draw the time of decoding alone over the length of the source."""
    names = [(name, numbers) for name in (TRANSFORMER, f"k={options.k[0]}") for numbers in PEERS]
    candidates = [label(name, engine_name(numbers), DECODING) for name, numbers in names]
    candidates += [label(TRANSFORMER, ctranslate2_name(numbers), DECODING) for numbers in PEERS]
    measurement = f"batch {options.batches[0]}"
    panels = {
        "Decoding": (
            measurement,
            [candidate for candidate in candidates if cells.curve(measurement, candidate)],
        )
    }
    pictures.draw(cells, panels, options.json, order=candidates)


if __name__ == "__main__":
    main()
