"""Compare translation by the engine, fairseq's generator and CTranslate2 on the same sentences.

``python benchmarks/engine.py --model NAME=CHECKPOINT --data BIN --json docs/results/engine.json``

All systems translate the same batches of test sentences, sorted by length, with beam 5. Only
translating is timed, without loading and printing. CTranslate2 has no GRU attention, Linformer,
MUSE or BMT, so it runs only transformers. Ratios are another system's time divided by the engine's
in the same round. `equal` is the fraction of tokens that are equal in the translations of the
engine and of fairseq.

With --dynamic-int8, fairseq's generator also runs transformers whose linear layers torch quantizes
to int8. --shortlist names a file of the target words that each source word allows, written by
`fairseq-ext shortlist`. The engine then runs without the file and with it, and BLEU of the complete
test set is computed for both.
"""

import copy
import functools
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bench
import pictures
import sacrebleu
import torch
from bench import Cells
from fairseq import checkpoint_utils
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModel
from fairseq.modules import MultiheadAttention
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.translation import TranslationTask
from torch import nn
from torch.ao.quantization import quantize_dynamic

from fairseq_ext import register
from fairseq_ext.engine import shortlist
from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.library import Machine, Team
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.engine.weights import NUMBERS

BEAM = 5
FAIRSEQ = "fairseq's generator"
DYNAMIC = "torch dynamic int8"
PEERS = {"fp32": "float32", "int8": "int8"}  # number formats: our names and CTranslate2's
SENTENCES = {1: 24, 8: 48, 32: 128, 128: 256}  # sentences to translate, by size of a batch

Limits = tuple[int, int]
"""The fewest and the most tokens of a translation, without </s>."""
Translate = Callable[[list[list[int]], Limits], Any]


def engine_name(numbers: str) -> str:
    return f"engine {numbers}"


def shortlist_name(numbers: str) -> str:
    return f"{engine_name(numbers)}, shortlist"


def ctranslate2_name(numbers: str) -> str:
    return f"CTranslate2 {numbers}"


def load(path: Path, data: Path) -> tuple[BaseFairseqModel, TranslationTask]:
    overrides = {"data": str(data)}
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides)
    task.load_dataset("test")
    return models[0].eval(), task


def by_fairseq(model: BaseFairseqModel, task: TranslationTask) -> Translate:
    pad = task.source_dictionary.pad()

    @functools.cache
    def generator(limits: Limits) -> SequenceGenerator:
        how = {"beam_size": BEAM, "min_len": limits[0], "max_len_b": limits[1]}
        return SequenceGenerator([model], task.target_dictionary, **how)

    def translate(batch: list[list[int]], limits: Limits) -> list[list[int]]:
        longest = max(map(len, batch))
        tokens = torch.tensor([[pad] * (longest - len(sentence)) + sentence for sentence in batch])
        lengths = torch.tensor([len(sentence) for sentence in batch])
        net_input = {"src_tokens": tokens, "src_lengths": lengths}
        with torch.no_grad():
            nbest_lists = generator(limits).generate([model], {"net_input": net_input})
        return [nbest[0]["tokens"].tolist() for nbest in nbest_lists]

    return translate


def quantized_copy(model: TransformerModel) -> TransformerModel:
    """Return a copy of a model with torch's dynamically quantized int8 linear layers."""
    copied = copy.deepcopy(model)
    for module in copied.modules():
        if isinstance(module, MultiheadAttention):  # else it would read the layers' float weights
            module._set_skip_embed_dim_check()
    return quantize_dynamic(copied, {nn.Linear}, torch.qint8, inplace=True)


def by_engine(
    model: BaseFairseqModel, task: TranslationTask, numbers: str, lists: Path | None = None
) -> Translate:
    source, target = task.source_dictionary, task.target_dictionary
    word_lists = lists and shortlist.read(lists, source.symbols, target.symbols)
    machine = Machine(compile_model(model, target), numbers, shortlist=word_lists)
    team = Team(machine, torch.get_num_threads())

    def translate(batch: list[list[int]], limits: Limits) -> list[list[int]]:
        rules = Rules(beam=BEAM, min_len=limits[0], max_len_b=limits[1])
        return [nbest[0].tokens.tolist() for nbest in team.translate(batch, rules)]

    return translate


def ctranslate2_systems(
    model: BaseFairseqModel, task: TranslationTask, folder: Path
) -> Iterator[tuple[str, Translate]]:
    """Write CTranslate2 models in fp32 and int8 to ``folder``.

    Yield the name of each, and a function that translates token ids with it.
    """
    import ctranslate2
    from ctranslate2_models import convert

    words = task.source_dictionary.symbols
    for numbers, kind in PEERS.items():
        path = convert(model, task, folder / numbers, kind)
        translator = ctranslate2.Translator(
            path, compute_type=kind, intra_threads=torch.get_num_threads()
        )

        def translate(batch: list[list[int]], limits: Limits, translator: Any = translator) -> Any:
            texts = [[words[token] for token in sentence[:-1]] for sentence in batch]
            return translator.translate_batch(
                texts,
                beam_size=BEAM,
                max_input_length=0,
                min_decoding_length=limits[0],
                max_decoding_length=limits[1],
            )

        yield ctranslate2_name(numbers), translate


def batches(task: TranslationTask, size: int) -> list[list[list[int]]]:
    """Return batches of ``size`` sentences, drawn evenly from the test set and sorted by length."""
    dataset = task.dataset("test")
    count = min(SENTENCES.get(size, 4 * size), len(dataset))
    step = len(dataset) / count
    sentences = [dataset[int(i * step)]["source"].tolist() for i in range(count)]
    sentences.sort(key=len)
    return [sentences[i : i + size] for i in range(0, count, size)]


def compare(name: str, path: Path, options: Namespace, cells: Cells) -> None:
    """Time one model in all systems and with all batch sizes; add the figures to ``cells``."""
    model, task = load(path, options.data)
    limits = (1, 200) if options.words is None else (options.words, options.words)
    systems = {engine_name(numbers): by_engine(model, task, numbers) for numbers in NUMBERS}
    if options.shortlist is not None:
        systems |= {
            shortlist_name(numbers): by_engine(model, task, numbers, options.shortlist)
            for numbers in NUMBERS
        }
    with tempfile.TemporaryDirectory() as folder:
        if type(model) is TransformerModel:
            systems |= dict(ctranslate2_systems(model, task, Path(folder)))
            if options.dynamic_int8:
                systems[DYNAMIC] = by_fairseq(quantized_copy(model), task)
        systems[FAIRSEQ] = by_fairseq(model, task)
        limited_systems = {
            label: functools.partial(run, limits=limits) for label, run in systems.items()
        }
        if options.shortlist is not None:
            compare_bleu(name, task, limited_systems, cells)
        for size in options.batches:
            measure(name, size, limited_systems, batches(task, size), options, cells)


def measure(
    name: str,
    size: int,
    systems: dict[str, Callable[[list[list[int]]], Any]],
    work: list[list[list[int]]],
    options: Namespace,
    cells: Cells,
) -> None:
    """Time all systems with the model ``name``, in turn; add the figures to ``cells``.

    ``systems`` maps each system's name to a function that translates a batch. In each round, every
    system translates all batches in ``work``, which have ``size`` sentences.
    """
    outputs = {
        label: [output for batch in work for output in run(batch)] for label, run in systems.items()
    }
    theirs = outputs[FAIRSEQ]
    equal = {
        label: share_of_equal_tokens(tokens, theirs)
        for label, tokens in outputs.items()
        if label.startswith("engine")
    }
    rounds = {
        label: (lambda run=run: [run(batch) for batch in work]) for label, run in systems.items()
    }
    seconds = bench.paired(
        rounds, repeats=options.repeats, warmup=options.warmup, budget=options.budget
    )
    tokens = sum(map(len, theirs))
    pairs = [(engine_name(numbers), FAIRSEQ) for numbers in NUMBERS]
    pairs += [(engine_name(numbers), ctranslate2_name(numbers)) for numbers in PEERS]
    pairs += [(engine_name("int8"), DYNAMIC)]
    pairs += [(shortlist_name(numbers), engine_name(numbers)) for numbers in NUMBERS]
    pairs += [(shortlist_name(numbers), ctranslate2_name(numbers)) for numbers in PEERS]
    cells.add(name, size, seconds, pairs, tokens=tokens, equal=equal)
    print(f"  equal tokens: {equal}", flush=True)


def compare_bleu(
    name: str,
    task: TranslationTask,
    systems: dict[str, Callable[[list[list[int]]], Any]],
    cells: Cells,
) -> None:
    """Note the engine's BLEU on the complete test set in ``cells``.

    There is a note for each number format, with the shortlist and without it.
    """
    dataset, dictionary = task.dataset("test"), task.target_dictionary
    pairs = sorted(dataset, key=lambda pair: len(pair["source"]))
    references = [dictionary.string(pair["target"], "@@ ") for pair in pairs]
    labels = [system(numbers) for numbers in NUMBERS for system in (engine_name, shortlist_name)]
    for label in labels:
        translations = []
        for first in range(0, len(pairs), 32):
            batch = [pair["source"].tolist() for pair in pairs[first : first + 32]]
            translations += systems[label](batch)
        texts = [dictionary.string(torch.tensor(tokens), "@@ ") for tokens in translations]
        bleu = sacrebleu.corpus_bleu(texts, [references], tokenize="none", force=True)
        cells.note(f"{name}, {label}: BLEU {bleu.score:.2f} of {len(pairs):,} sentences")


def share_of_equal_tokens(outputs: list[list[int]], expected: list[list[int]]) -> float:
    """Return the fraction of tokens that equal the expected token at the same position.

    If two sentences differ in length, the surplus tokens of the longer one count as different.
    """
    equal_count = sum(
        sum(a == b for a, b in zip(x, y, strict=False))
        for x, y in zip(outputs, expected, strict=True)
    )
    return equal_count / sum(max(len(x), len(y)) for x, y in zip(outputs, expected, strict=True))


def draw(cells: Cells, names: list[str], output: Path) -> None:
    """Draw time per token over batch size, with a panel for each model."""
    order = [FAIRSEQ, *map(ctranslate2_name, PEERS), *map(engine_name, ("fp32", "int8")), DYNAMIC]
    order += map(shortlist_name, ("fp32", "int8"))
    run = {(row["what"], row["candidate"]) for row in cells.figures}
    panels = {name: (name, [label for label in order if (name, label) in run]) for name in names}
    pictures.draw(cells, panels, output, order=order, xlabel="sentences in a batch")


def main() -> None:
    parser = bench.parser_with(
        __doc__, threads=1, repeats=7, warmup=1, budget=None, batches=[1, 8, 32, 128], words=None
    )
    add, model = parser.add_argument, "a model to time; repeat for more"
    add("--model", action="append", required=True, metavar="NAME=CHECKPOINT", help=model)
    add("--data", type=Path, required=True, help="a binarized corpus, whose test set is translated")
    add("--dynamic-int8", action="store_true", help="time torch's dynamic int8, too (transformers)")
    add("--shortlist", type=Path, help="also time and score the engine with this shortlist")
    options = parser.parse_args()
    bench.begin(options)
    register()
    cells = Cells("Translation, beam 5", axis="batch", unit="ms")
    for model in options.model:
        name, _, path = model.partition("=")
        compare(name, Path(path), options, cells)
    cells.save(options.json, bench.settings(options, ("json", "data", "model", "shortlist")))
    if options.json is not None:
        draw(cells, [model.partition("=")[0] for model in options.model], options.json)


if __name__ == "__main__":
    main()
