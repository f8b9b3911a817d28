"""MUSE as a whole: generation (the paper's Table 4) and training steps, against the transformer."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np
import torch
from cells import Cells, Stopwatch
from fairseq.data import data_utils
from fairseq.dataclass.configs import GenerationConfig
from peers import DTYPES, Side, Size, pair_lengths, sample_of
from torch import Tensor

BEAM = 5
LONGEST = 256
# Multi30k's training pairs, English to German, in words with </s>: means, deviations of the
# logarithms and their correlation.
MEANS, SIGMAS, CORRELATION = (14.0, 13.4), (0.27, 0.30), 0.85
POOL = 4096  # sentences that batches are made of, sorted by length as fairseq sorts them

TRANSFORMER, PACKED = "transformer", "transformer packed"
SIMPLE, SIMPLE_FUSED = "MUSE-simple", "MUSE-simple fused"
MUSE, MUSE_FUSED = "MUSE", "MUSE fused"
TABLE_4 = 1.31  # MUSE-simple's speed over the transformer's there, on a GPU
IWSLT, IWSLT_MUSE = "transformer_iwslt_de_en", "muse_iwslt_de_en"
SIMPLE_BASE, SAME_SHAPE = "muse_simple_base", "MUSE-simple, transformer's shape"
TRAINING_TARGETS = {IWSLT_MUSE: 0.8, SIMPLE_BASE: 0.8, SAME_SHAPE: 1.15}
BASE = Size(384, 768, 4, 12, 12)  # of the paper's MUSE-base


def muse(*, kernels: bool, fused: bool = False) -> list[str]:
    """Options of ``fairseq-train`` for a MUSE of any size."""
    flags = ["--arch", "muse" if kernels else "muse_simple_base"]
    return [*flags, *["--muse-fused"] * fused]


def translators(size: Size, **where: object) -> dict[str, Side]:
    """All models of the generation question; fused and packed ones have their twins' weights."""
    flags = {
        TRANSFORMER: ["--arch", "transformer"],
        SIMPLE: muse(kernels=False),
        SIMPLE_FUSED: muse(kernels=False, fused=True),
        MUSE: muse(kernels=True),
        MUSE_FUSED: muse(kernels=True, fused=True),
    }
    sides = {name: Side(words, size, positions=LONGEST, **where) for name, words in flags.items()}
    for separate, fused in ((SIMPLE, SIMPLE_FUSED), (MUSE, MUSE_FUSED)):
        sides[fused].model.load_state_dict(sides[separate].model.state_dict())
    return {TRANSFORMER: sides[TRANSFORMER], PACKED: sides[TRANSFORMER].on_packed_weights()} | sides


def generate(side: Side, samples: list[dict], words: int) -> Callable[[], list]:
    """Return ``fairseq-generate``'s search of a batch, each call with the next of ``samples``."""
    side.model.prepare_for_inference_(side.cfg)
    settings = GenerationConfig(beam=BEAM, max_len_a=0, max_len_b=words, min_len=words)
    settings.engine = "fairseq"
    generator = side.task.build_generator([side.model], settings)
    batches: Iterator[dict] = cycle(samples)
    return lambda: side.task.inference_step(generator, [side.model], {**next(batches)})


def source_batches(options: Namespace, sentences: int) -> list[dict]:
    """Make a batch for each round from sources sorted by length, evenly from short to long."""
    count = options.repeats
    means = (options.source_words + 1.0, options.words + 1.0)
    pool = pair_lengths(
        max(POOL, 2 * sentences), means, SIGMAS, CORRELATION, longest=LONGEST, seed=1
    )[0]
    lengths = pool.sort().values.split(sentences)
    if len(lengths[-1]) < sentences:
        lengths = lengths[:-1]
    order = np.random.default_rng(1).permutation(count)
    places = np.linspace(0, len(lengths) - 1, count).round().astype(int)[order]
    size = Size.of(options)
    return [sample_of(lengths[i], lengths[i], size, options.device) for i in places]


def check_generation(options: Namespace) -> None:
    """Fused and packed models find translations of the same scores as their twins do."""
    size = Size(options.embed_dim, options.ffn_embed_dim, options.heads, 2, 2, 100)
    lengths = torch.tensor([3, 7, 6])
    sample = sample_of(lengths, lengths, size, options.device)
    scores = {
        name: [float(best["score"]) for best, *_ in generate(side, [sample], 6)()]
        for name, side in translators(size, device=options.device).items()
    }
    for name, twin in ((PACKED, TRANSFORMER), (SIMPLE_FUSED, SIMPLE), (MUSE_FUSED, MUSE)):
        np.testing.assert_allclose(scores[name], scores[twin], rtol=1e-4, err_msg=name)


def generation(options: Namespace) -> Cells:
    """Time table 4: beam 5, every hypothesis exactly ``--words`` words long."""
    check_generation(options)
    cells = Cells(
        f"Beam-5 generation, {options.layers} + {options.layers} layers of "
        f"{options.embed_dim} / {options.ffn_embed_dim}, {options.dtype}",
        axis="batch",
        unit="tokens_per_second",
    )
    cells.note(
        f"sources of {options.source_words} words on average (log-normal, sigma {SIGMAS[0]}), "
        f"sorted by length into batches; {options.words} words and </s> generated for each; "
        f"tokens are those of the best hypotheses; vocabulary {options.vocabulary:,}"
    )
    cells.note(f"{PACKED}: its linear layers on weights packed as those of fused MUSE models")
    cells.note("scores of fused and packed models agreed with their twins' before timing")
    size = Size.of(options)
    sides = translators(size, device=options.device, dtype=DTYPES[options.dtype])
    pairs = [(name, TRANSFORMER) for name in sides if name != TRANSFORMER]
    pairs += [(SIMPLE_FUSED, PACKED), (MUSE_FUSED, PACKED)]
    watch = Stopwatch(options)
    measurement = "generation"
    for batch in options.batches:
        samples = source_batches(options, batch)
        candidates = {name: generate(side, samples, options.words) for name, side in sides.items()}
        seconds = watch.time(measurement, candidates)
        tokens = batch * (options.words + 1)
        cells.add(measurement, batch, seconds, pairs, tokens=tokens, peers=sides)
    for batch in options.batches:
        target = TABLE_4 if batch == 1 else None
        cells.find_ratio(measurement, SIMPLE_FUSED, TRANSFORMER, batch, target)
        cells.find_ratio(measurement, MUSE_FUSED, TRANSFORMER, batch)
    return cells


def training(options: Namespace) -> Cells:
    """Forward, loss, backward and Adam on batches as fairseq makes them of Multi30k."""
    cells = Cells(f"Training step, {options.dtype}", unit="tokens_per_second")
    samples = pair_batches(options)
    widths = [sample["net_input"]["src_tokens"].shape for sample in samples]
    tokens = sum(sample["ntokens"] for sample in samples) / len(samples)
    cells.note(
        f"{len(samples)} batches of at most {options.tokens:,} tokens on a side, drawn like "
        f"Multi30k's (log-normal, means {MEANS}, sigmas {SIGMAS}, correlation {CORRELATION}), "
        f"sorted by length: {tokens:,.0f} target tokens, "
        f"{np.mean([shape[0] for shape in widths]):.0f} pairs, sources padded to "
        f"{np.mean([shape[1] for shape in widths]):.1f} on average; another in each round"
    )
    cells.note(
        f"dropout {options.dropout}, vocabulary {options.vocabulary:,}, all embeddings shared; "
        "tokens are target tokens"
    )
    sides = learners(options)
    candidates = {name: side.train_steps(samples) for name, side in sides.items()}
    for name, side in sides.items():
        count = sum(parameter.numel() for parameter in side.model.parameters())
        cells.note(f"{name}: {count:,} parameters")
    seconds = Stopwatch(options).time("training step", candidates)
    pairs = [(name, IWSLT) for name in sides if name != IWSLT]
    cells.add("training step", None, seconds, pairs, tokens=tokens)
    for name, target in TRAINING_TARGETS.items():
        cells.find_ratio("training step", name, IWSLT, None, target)
    return cells


def learners(options: Namespace) -> dict[str, Side]:
    """The models of the training question: named architectures, the first and last of --layers."""
    shape = Size.of(options)
    base = Size(*(*vars(BASE).values(),)[:-1], options.vocabulary)
    flags = {
        IWSLT: (["--arch", IWSLT], shape),
        IWSLT_MUSE: (["--arch", IWSLT_MUSE], base),
        SIMPLE_BASE: (["--arch", SIMPLE_BASE], base),
        SAME_SHAPE: (muse(kernels=False), shape),
    }
    where = {"device": options.device, "dtype": DTYPES[options.dtype], "dropout": options.dropout}
    return {
        name: Side(words, size, positions=LONGEST, **where) for name, (words, size) in flags.items()
    }


def pair_batches(options: Namespace) -> list[dict]:
    """Let fairseq make a batch for each round from pairs sorted by length, in random order."""
    source, target = pair_lengths(
        options.sentences, MEANS, SIGMAS, CORRELATION, longest=LONGEST, seed=1
    )
    order = np.lexsort((target.numpy(), source.numpy()))  # by source, then by target
    tokens = torch.maximum(source, target).numpy()
    batches = data_utils.batch_by_size(
        order,
        lambda index: int(tokens[index]),
        num_tokens_vec=tokens[order],
        max_tokens=options.tokens,
        required_batch_size_multiple=8,
    )
    batch_numbers = np.random.default_rng(1).permutation(len(batches))[: options.repeats]
    size = Size.of(options)

    def sample(rows: np.ndarray) -> dict:
        index: Tensor = torch.as_tensor(rows)
        return sample_of(source[index], target[index], size, options.device)

    return [sample(batches[i]) for i in batch_numbers]
