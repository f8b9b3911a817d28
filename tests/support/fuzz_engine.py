"""Change numbers in copies of a bundle: the engine must refuse a copy, or run it without a crash.

``python -m tests.support.fuzz_engine BUNDLE --files 10000`` tries 10000 changed copies.
"""

import argparse
import json
import multiprocessing
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from fairseq_ext.decoding.engine_translator import EngineTranslator
from fairseq_ext.decoding.search import Search
from fairseq_ext.engine.engine_model import EngineModel
from fairseq_ext.engine.library import Machine
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.model import program_file
from fairseq_ext.utils.errors import FairseqExtError
from tests.support import damages
from tests.support.bundles import sign_again

EDGES = (-(1 << 31), -2, -1, 0, 1, 2, 3, 5, 16, 64, 1023, 1 << 20, (1 << 31) - 1, 1 << 40, 0.5)
SENTENCES = ([2], [4, 5, 6, 2], [7, 4, 9, 8, 5, 6, 4, 3, 9, 2])
RULES = (
    Rules(beam=3, max_len_b=6, attention=True),
    Rules(beam=2, max_len_b=4, sampling=True, epsilon=0.1, no_repeat_ngram_size=2),
)


def mutate(folder: Path, draw: Random) -> None:
    """Change something in a bundle, and update its checksums."""
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        kind = draw.random()
        if kind < 0.15:
            path = folder / "model.safetensors"
            text, numbers = damages.parts(path.read_bytes())
            header = json.loads(text)
            if kind < 0.1:
                spoilt = bytearray(numbers)
                for _ in range(draw.choice((1, 100))):
                    spoilt[draw.randrange(len(spoilt))] = draw.choice((0, 0x7F, 0x80, 0xFF))
                numbers = bytes(spoilt)
            else:
                _change(header[draw.choice([name for name in header if name[0] != "_"])], draw)
            path.write_bytes(damages.joined(json.dumps(header).encode(), numbers))
        else:
            path = folder / "program.json"
            content = json.loads(path.read_text())
            part = draw.choice(("program",) * 4 + ("weights",) * 4 + ("all",))
            _change(content if part == "all" else content.get(part) or content, draw)
            path.write_text(json.dumps(content))
    sign_again(folder)


def _change(tree: Any, draw: Random) -> None:
    """Replace, repeat or remove one part of a JSON tree."""
    spots = [spot for spot in _spots(tree) if not isinstance(spot[0][spot[1]], dict)]
    if not spots:
        return
    leaves = [spot for spot in spots if not isinstance(spot[0][spot[1]], list)]
    holder, key = draw.choice(leaves if leaves and draw.random() < 0.8 else spots)
    old, other = holder[key], draw.choice(leaves or spots)
    choices = [draw.choice(EDGES), other[0][other[1]]]
    if type(old) is int:
        choices += [old + 1, old - 1, 2 * old, old // 2]
    if isinstance(holder, list) and draw.random() < 0.1:
        draw.choice((lambda: holder.pop(key), lambda: holder.insert(key, old)))()
    elif isinstance(old, list) and len(old) > 1 and draw.random() < 0.5:
        first, second = draw.randrange(len(old)), draw.randrange(len(old))
        old[first], old[second] = old[second], old[first]
    else:
        holder[key] = draw.choice(choices)


def _spots(tree: Any) -> list[tuple[Any, Any]]:
    """List all values in a tree, each as its container and its key in the container."""
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree))
    spots = []
    for key in keys:
        spots.append((tree, key))
        if isinstance(tree[key], dict | list):
            spots += _spots(tree[key])
    return spots


def run(model: EngineModel) -> None:
    """Translate a few sentences in a child process, which must not crash."""
    child = multiprocessing.get_context("fork").Process(target=_translate, args=(model,))
    child.start()
    child.join()
    assert child.exitcode == 0, f"a model that was read ended with status {child.exitcode}"


def _translate(model: EngineModel) -> None:
    with suppress(FairseqExtError, MemoryError):  # such as a sentence that is too long now
        machine = Machine(model.program, packed=model.weights)
        longest, vocabulary = model.program.longest_source, machine.source_vocabulary
        sentences = [[n % vocabulary for n in sentence[:longest]] for sentence in SENTENCES]
        for rules in RULES:
            machine.worker().translate(sentences, rules)
        translator = EngineTranslator(model, Search(beam=2, max_len_b=5))
        translator.translate([" ".join(model.source[:9])])


def fuzz(bundle: Path, count: int, folder: Path, seed: int = 1) -> Counter[str]:
    """Change ``count`` copies of a bundle, run the valid ones, and count run and refused copies."""
    draw, outcomes = Random(seed), Counter()
    path = folder / "mutated"
    for _ in range(count):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(bundle, path)
        mutate(path, draw)
        try:
            model = program_file.read(path)
        except FairseqExtError as error:
            outcomes["refused" if str(path) in str(error) else f"without name: {error}"] += 1
            continue
        run(model)
        outcomes["run"] += 1
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("model", type=Path)
    add("--files", type=int, default=10_000)
    add("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(dict(fuzz(args.model, args.files, Path(folder), args.seed)))


if __name__ == "__main__":
    main()
