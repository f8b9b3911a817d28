"""Compare the speed of MUSE with that of fairseq's Transformer and dynamic convolution.

``python benchmarks/muse.py generation --threads 2 --json docs/results/muse_generation.json``

The first argument is the question, the part to measure:
  generation   tokens per second of beam-5 generation at batches of 1, 32 and 128 sentences (the
               paper's table 4): Transformer, MUSE-simple and MUSE of equal size. MUSE-simple and
               MUSE are also measured with --muse-fused
  training     training steps on random sentences as long as Multi30k's: the architectures
               transformer_iwslt_de_en, muse_iwslt_de_en and muse_simple_base, and MUSE-simple in
               the sizes of transformer_iwslt_de_en
  convolution  the dynamic convolution alone at each number T of tokens of a sentence, ours and
               both of fairseq's implementations
  all          all questions; --json x.json writes x_generation.json, x_training.json …

In a round, all models or convolutions run once, in turn. Ratios are the time of fairseq's model or
convolution divided by the time of ours, so above 1 ours is faster. Tables show the median and the
quartiles of the rounds' ratios. With --dtype bf16 or fp16, weights and activations are in half
precision (no autocast). `generation` begins with a check that fused models give the scores of the
others, and `convolution` with a check that all implementations agree.
"""

import argparse
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, product

import bench
import numpy as np
import torch
from bench import Cells, Stopwatch
from fairseq.data import data_utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.modules.dynamic_convolution import DynamicConv1dTBC
from peers import DTYPES, Side, Size, pair_lengths, sample_of
from torch import Tensor, nn

from fairseq_ext.muse.convolution import DynamicConvolution, taps_to_the_left

OURS = "ours"
PATHS = {"fairseq expanded": False, "fairseq unfolded": True}  # values of fairseq's `unfold`
KERNELS: dict[str, tuple[int, ...]] = {"gated 3,15": (3, 15), "3": (3,), "15": (15,)}
PASSES = ("forward", "forward + backward")


class StockConvolution(nn.Module):
    """MUSE's gated dynamic convolution, computed by fairseq's modules with our parameters.

    As in the code of the paper's authors, there is a convolution for each kernel, and the gate
    weights their outputs. Our :class:`DynamicConvolution` merges the kernels instead, and convolves
    once. With ``unfold``, fairseq copies the window of each position; otherwise it multiplies by a
    band matrix.
    """

    def __init__(self, ours: DynamicConvolution, unfold: bool) -> None:
        super().__init__()
        self.unfold = unfold
        heads, sizes = ours.heads, ours.kernel_sizes
        weight = ours.predictor.weight.detach()
        dim = weight.size(1)
        rows = weight.view(heads, sum(sizes), dim).split(sizes, dim=1)
        self.convolutions = nn.ModuleList()
        for size, of_kernel in zip(sizes, rows, strict=True):
            left = taps_to_the_left(size, ours.causal)
            stock = DynamicConv1dTBC(dim, size, left, heads, weight_softmax=True)
            stock.weight_linear.weight = nn.Parameter(of_kernel.reshape(heads * size, dim))
            self.convolutions.append(stock)
        self.gate = None if ours.gate is None else nn.Parameter(ours.gate.detach().clone())

    def forward(self, values: Tensor) -> Tensor:
        """Convolve values over time, ``[T, B, C]`` to ``[T, B, C]``.

        ``T`` is the number of tokens, ``B`` of sentences and ``C`` of channels.
        """
        outputs = [convolution(values, unfold=self.unfold) for convolution in self.convolutions]
        if self.gate is None:
            return outputs[0]
        return sum(share * out for share, out in zip(self.gate.softmax(0), outputs, strict=True))


def build(options: Namespace, kernel_sizes: tuple[int, ...]) -> dict[str, nn.Module]:
    """Build our convolution and both of fairseq's, by name, all with equal weights."""
    torch.manual_seed(1)
    ours = DynamicConvolution(options.embed_dim, options.heads, kernel_sizes, causal=False)
    if ours.gate is not None:
        nn.init.normal_(ours.gate)
    modules = {OURS: ours, **{name: StockConvolution(ours, path) for name, path in PATHS.items()}}
    return {name: module.to(options.device) for name, module in modules.items()}


def forward(module: nn.Module, values: Tensor) -> Callable[[], Tensor]:
    return torch.no_grad()(partial(module, values))


def backward(module: nn.Module, values: Tensor) -> Callable[[], Tensor]:
    """Return a function that runs forward and backward, and returns the gradient of ``values``."""
    leaf = values.clone().requires_grad_()
    gradient = torch.randn_like(values)

    def run() -> Tensor:
        leaf.grad = None
        module.zero_grad(set_to_none=True)
        module(leaf).backward(gradient)
        return leaf.grad

    return run


def check(options: Namespace) -> None:
    """Raise AssertionError if our convolution and fairseq's differ in outputs or gradients."""
    for sizes, length in product(KERNELS.values(), (5, 33, 100)):
        values = torch.randn(length, 2, options.embed_dim, device=options.device)
        expected: dict[str, Tensor] = {}
        for name, module in build(options, sizes).items():
            for pass_name, make in zip(PASSES, (forward, backward), strict=True):
                torch.manual_seed(2)  # the same gradient of the output
                actual = make(module, values)()
                expected.setdefault(pass_name, actual)
                message = f"{pass_name} of {name}, kernels {sizes}, T = {length}"
                torch.testing.assert_close(
                    actual, expected[pass_name], atol=1e-4, rtol=1e-4, msg=message
                )


def convolution(options: Namespace) -> Cells:
    """Time the convolution at each sentence length T: forward alone, and forward plus backward."""
    check(options)
    cells = Cells(
        f"Dynamic convolution over T, C = {options.embed_dim}, H = {options.heads}, "
        f"{options.dtype}",
        axis="T",
    )
    cells.note(
        f"about {options.tokens:,} tokens in a batch, no pads, no dropout, centred taps; values "
        "to output, with the predictor of the kernels and without other linear layers"
    )
    cells.note("each pair of outputs and gradients agreed to 1e-4 before timing")
    dtype = DTYPES[options.dtype]
    watch = Stopwatch(options)
    for (label, sizes), length in product(KERNELS.items(), options.lengths):
        sentences = max(1, options.tokens // length)
        modules = {name: module.to(dtype) for name, module in build(options, sizes).items()}
        values = torch.randn(length, sentences, options.embed_dim).to(options.device, dtype)
        for pass_name, make in zip(PASSES, (forward, backward), strict=True):
            series = f"{label}, {pass_name}"
            candidates = {name: make(module, values) for name, module in modules.items()}
            pairs = [(OURS, peer) for peer in PATHS]
            sizes = {"tokens": sentences * length, "sentences": sentences}
            watch.measure(cells, series, length, candidates, pairs, **sizes)
    return cells


BEAM = 5
LONGEST = 256
# Lengths of Multi30k's training pairs, English to German, in words with </s>: means, standard
# deviations of the logarithms, and the correlation of the logarithms.
MEANS, SIGMAS, CORRELATION = (14.0, 13.4), (0.27, 0.30), 0.85
POOL = 4096  # sentences from which batches are made, sorted by length as in fairseq

TRANSFORMER, PACKED = "transformer", "transformer packed"
SIMPLE, SIMPLE_FUSED = "MUSE-simple", "MUSE-simple fused"
MUSE, MUSE_FUSED = "MUSE", "MUSE fused"
IWSLT, IWSLT_MUSE = "transformer_iwslt_de_en", "muse_iwslt_de_en"
SIMPLE_BASE, SAME_SHAPE = "muse_simple_base", "MUSE-simple, transformer's shape"
BASE = Size(384, 768, 4, 12, 12)  # the paper's MUSE-base


def muse(*, kernels: bool, fused: bool = False) -> list[str]:
    """Return fairseq-train's flags, except sizes, for MUSE, or MUSE-simple if not ``kernels``.

    ``fused`` adds ``--muse-fused``.
    """
    flags = ["--arch", "muse" if kernels else "muse_simple_base"]
    return [*flags, *["--muse-fused"] * fused]


def translators(size: Size, *, device: str, dtype: torch.dtype = torch.float32) -> dict[str, Side]:
    """Build the models for generation, by name.

    A fused model (``--muse-fused``) has the weights of the same model without this flag. The packed
    Transformer has the Transformer's weights, in oneDNN's packed format.
    """
    flags = {
        TRANSFORMER: ["--arch", "transformer"],
        SIMPLE: muse(kernels=False),
        SIMPLE_FUSED: muse(kernels=False, fused=True),
        MUSE: muse(kernels=True),
        MUSE_FUSED: muse(kernels=True, fused=True),
    }
    where = {"device": device, "dtype": dtype}
    sides = {name: Side(words, size, positions=LONGEST, **where) for name, words in flags.items()}
    for separate, fused in ((SIMPLE, SIMPLE_FUSED), (MUSE, MUSE_FUSED)):
        sides[fused].model.load_state_dict(sides[separate].model.state_dict())
    return {TRANSFORMER: sides[TRANSFORMER], PACKED: sides[TRANSFORMER].on_packed_weights()} | sides


def generate(side: Side, samples: list[dict], words: int) -> Callable[[], list]:
    """Return a function that translates the next batch of ``samples``.

    Each translation is forced to have ``words`` words.
    """
    side.model.prepare_for_inference_(side.cfg)
    settings = GenerationConfig(beam=BEAM, max_len_a=0, max_len_b=words, min_len=words)
    settings.engine = "fairseq"
    generator = side.task.build_generator([side.model], settings)
    batches: Iterator[dict] = cycle(samples)
    return lambda: side.task.inference_step(generator, [side.model], {**next(batches)})


def source_batches(options: Namespace, sentences: int) -> list[dict]:
    """Return a batch for each round, of ``sentences`` random sentences of similar length.

    The batches are in random order of length.
    """
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
    """Raise AssertionError if a fused or packed model gives other scores than its original."""
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
    """Time generation with beam 5 (the paper's table 4); hypotheses have ``--words`` words."""
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
    for batch in options.batches:
        samples = source_batches(options, batch)
        candidates = {name: generate(side, samples, options.words) for name, side in sides.items()}
        tokens = batch * (options.words + 1)
        watch.measure(cells, "generation", batch, candidates, pairs, tokens=tokens)
    return cells


def training(options: Namespace) -> Cells:
    """Time training steps (forward, loss, backward, Adam) on batches with Multi30k's lengths."""
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
    pairs = [(name, IWSLT) for name in sides if name != IWSLT]
    Stopwatch(options).measure(cells, "training step", None, candidates, pairs, tokens=tokens)
    return cells


def learners(options: Namespace) -> dict[str, Side]:
    """Build the models for training, by name.

    They are the architectures transformer_iwslt_de_en, muse_iwslt_de_en and muse_simple_base, and a
    MUSE-simple in the sizes of the Transformer. These sizes are in the options. The second and the
    third model have the sizes of the paper's MUSE-base.
    """
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
    """Return a batch for each round, of random pairs with Multi30k's lengths.

    A batch has pairs of similar length, and at most ``--tokens`` tokens.
    """
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


QUESTIONS = {
    "generation": generation,
    "training": training,
    "convolution": convolution,
}
# Each question's defaults for options that are not given.
DEFAULTS = {
    "generation": {"embed_dim": 512, "repeats": 21, "warmup": 1, "budget": 30.0},
    "training": {"embed_dim": 512, "repeats": 21, "warmup": 1, "budget": 150.0, "tokens": 4000},
    "convolution": {"embed_dim": 384, "repeats": 21, "warmup": 3, "budget": 6.0, "tokens": 3200},
}


def arguments() -> argparse.ArgumentParser:
    parser = bench.parser_with(
        __doc__,
        **{"threads": 2, "device": "cpu", "dtype": "fp32"},
        **dict.fromkeys(("repeats", "warmup", "budget", "tokens", "embed_dim")),
        **{"limit": 60.0, "lengths": [25, 50, 100, 200, 400], "layers": 6},
        **{"ffn_embed_dim": 1024, "heads": 4, "vocabulary": 8848},  # IWSLT14 De-En's German side
        **{"dropout": 0.3, "sentences": 29_000, "batches": [1, 32, 128], "words": 20},
    )
    add = parser.add_argument
    add("question", choices=[*QUESTIONS, bench.ALL], help="part to measure")
    add("--source-words", type=int, default=20, help="words of a source, on average")
    return parser


def draw(question: str, cells: Cells, options: Namespace) -> None:
    """If ``question`` is ``convolution``, draw its time per token by sentence length."""
    if question != "convolution":
        return
    import pictures

    pair = next(iter(KERNELS))
    names = [*PATHS, OURS]
    series = {f"Convolution {pair}, {pass_name}": f"{pair}, {pass_name}" for pass_name in PASSES}
    panels = {title: (pass_name, names) for title, pass_name in series.items()}
    pictures.draw(cells, panels, options.json, order=names, xlabel="T (tokens in a sentence)")


if __name__ == "__main__":
    bench.ask(QUESTIONS, arguments().parse_args(), DEFAULTS, draw)
