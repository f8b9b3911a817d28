"""The task ``translation_ext`` against plain lists, and through the real commands."""

import re
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.tasks.translation import TranslationConfig

from fairseq_ext.evaluation.outputs import read_generated
from fairseq_ext.generation.translation_ext import TranslationExtConfig, TranslationExtTask
from fairseq_ext.utils.errors import ConfigError
from tests.support.harness import binarize, digits_corpus, fairseq, refused
from tests.support.models import configuration
from tests.support.trainings import TRAINING, same_state, training_state

BOS, PAD, EOS = 0, 1, 2
LINES, LIMIT = 523, 6  # an odd size: no multiple of any batch size here

LIMITS = ("--max-source-positions", LIMIT, "--max-target-positions", LIMIT - 1)
CUT = ("--truncate-source", "--truncate-target", *LIMITS)
TASK = ("--task", "translation_ext")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits and their repetition: lengths of source and target differ."""
    folder = tmp_path_factory.mktemp("ext")
    text = digits_corpus(folder / "text", lambda words: words + words[:2], train=LINES)
    return binarize(text, folder / "bin")


def task_with(data: Path, *flags: object) -> TranslationExtTask:
    """The task as ``fairseq-train`` sets it up."""
    words = [str(flag) for flag in (*TASK, "--arch", "gru_tiny", *flags)]
    cfg = configuration(words)
    cfg.task.data = str(data)
    return TranslationExtTask.setup_task(cfg.task)


def loaded(data: Path, split: str, *flags: object):
    task = task_with(data, *flags)
    task.load_dataset(split)
    return task, task.dataset(split)


def numbers(data: Path, task: TranslationExtTask, split: str, side: str) -> list[list[int]]:
    """The corpus in symbols of the dictionary, read from the text."""
    words = task.src_dict if side == "src" else task.tgt_dict
    lines = (data.parent / "text" / f"{split}.{side}").read_text().splitlines()
    return [[*map(words.index, line.split()), EOS] for line in lines]


def naive(sentence: list[int], limit: int | None, bos: bool) -> list[int]:
    """``<s>`` + words + ``</s>``, at most ``limit`` symbols in all."""
    words = sentence[:-1]
    if limit is not None:
        words = words[: limit - 1 - bos]
    return [BOS] * bos + words + [EOS]


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize(
    ("flags", "source", "target", "bos"),
    [
        ((), None, None, False),
        (CUT, LIMIT, LIMIT - 1, False),
        ((*CUT, "--source-bos"), LIMIT, LIMIT - 1, True),
        (("--truncate-source", "--source-bos", *LIMITS), LIMIT, None, True),
        (("--truncate-target", *LIMITS), None, LIMIT - 1, False),
        (("--source-bos", "--random-batches"), None, None, True),
    ],
)
def test_sentences_and_sizes_against_lists(data, split, flags, source, target, bos) -> None:
    task, dataset = loaded(data, split, *flags)
    sources = numbers(data, task, split, "src")
    targets = numbers(data, task, split, "tgt")
    assert len(dataset) == len(sources)
    for index, pair in enumerate(zip(sources, targets, strict=True)):
        expected = naive(pair[0], source, bos), naive(pair[1], target, False)
        item = dataset[index]
        assert item["source"].tolist() == expected[0]
        assert item["target"].tolist() == expected[1]
        assert tuple(dataset.size(index)) == tuple(map(len, expected))
        assert dataset.num_tokens(index) == max(map(len, expected))
    if source:
        assert dataset.src_sizes.max() == source  # something was cut, to just the limit


def test_inference_prepares_sentences_as_training_does(data: Path) -> None:
    task, dataset = loaded(data, "test", *CUT, "--source-bos")
    sentences = [torch.tensor(s) for s in numbers(data, task, "test", "src")]
    for lengths in (list(map(len, sentences)), torch.tensor(list(map(len, sentences)))):
        inference = task.build_dataset_for_inference(sentences, lengths)
        assert inference.src_sizes.tolist() == dataset.src_sizes.tolist()
        for index in range(len(dataset)):
            assert inference[index]["source"].equal(dataset[index]["source"])


def test_without_options_it_is_the_stock_task(data: Path) -> None:
    from fairseq.tasks.translation import TranslationTask

    task, _ = loaded(data, "train")
    stock = TranslationTask(task.cfg, task.src_dict, task.tgt_dict)
    stock.load_dataset("train")
    ours, theirs = (
        list(t.get_batch_iterator(t.dataset("train"), max_tokens=60, seed=3).next_epoch_itr())
        for t in (task, stock)
    )
    assert len(ours) == len(theirs) > 20
    for a, b in zip(ours, theirs, strict=True):
        assert same_state(a, b)


def test_buckets_keep_working(data: Path) -> None:
    flags = (*CUT, "--source-bos", "--num-batch-buckets", 2, "--max-tokens", 60)
    _, dataset = loaded(data, "train", *flags)
    lengths = {len(dataset[index]["source"]) for index in range(len(dataset))}
    assert lengths == set(dataset.src.buckets)
    assert max(lengths) == LIMIT


ADDED: dict[str, tuple[object, ...]] = {
    "truncate_target": LIMITS[2:],
    **dict.fromkeys(("source_bos", "random_batches"), ()),
    **dict.fromkeys(("source_prefix", "source_suffix", "target_prefix", "target_suffix"), ("7",)),
    "epsilon_sampling": (0.05,),
    "gnmt_lenpen": (0.9,),
}
"""The value of each option that ``translation`` lacks, and what it needs."""


def test_every_option_changes_batches_or_translations(data: Path) -> None:
    added = {*TranslationExtConfig.__dataclass_fields__} - {*TranslationConfig.__dataclass_fields__}
    assert added == ADDED.keys()
    plain = {sampling: batch_and_translations(data, sampling) for sampling in (False, True)}
    for name, words in ADDED.items():
        sampling = name == "epsilon_sampling"
        run = batch_and_translations(data, sampling, f"--{name.replace('_', '-')}", *words)
        assert not same_state(run, plain[sampling]), name


def batch_and_translations(data: Path, sampling: bool, *flags: object) -> list[object]:
    """The first training batch, and what an untrained model makes of the test set."""
    task, dataset = loaded(data, "test", *flags)
    task.load_dataset("train")
    torch.manual_seed(0)
    model = task.build_model(configuration(["--arch", "gru_tiny"]).model).eval()
    search = Namespace(beam=2, sampling=sampling, temperature=0.1, max_len_b=9)
    generator = task.build_generator([model], search)
    sample = dataset.collater([dataset[index] for index in range(4)])
    beams = task.inference_step(generator, [model], sample)
    scored = [
        [(hypothesis["tokens"], hypothesis["score"]) for hypothesis in beam] for beam in beams
    ]
    return [batches_of(task, max_tokens=60)[0], scored]


def batches_of(task: TranslationExtTask, epoch: int = 1, seed: int = 1, **options) -> list[dict]:
    """The training batches of an epoch, as fairseq's trainer asks for them."""
    how = {"required_batch_size_multiple": 8, "ignore_invalid_inputs": True, **options}
    dataset = task.dataset("train")
    return list(task.get_batch_iterator(dataset, seed=seed, epoch=epoch, **how).next_epoch_itr())


def ids(batches: list[dict]) -> list[list[int]]:
    return [sorted(batch["id"].tolist()) for batch in batches]


def sentences(batches: list[dict]) -> list[int]:
    return sorted(index for batch in ids(batches) for index in batch)


@pytest.mark.parametrize("size", [88, 90, 7])
def test_random_batches_have_the_size_asked_for(data: Path, size: int) -> None:
    task, _ = loaded(data, "train", "--random-batches")
    for epoch in (1, 2):
        batches = batches_of(task, epoch, max_sentences=size)
        sizes = sorted((len(batch["id"]) for batch in batches), reverse=True)
        assert sizes == [size] * (LINES // size) + [LINES % size]
        assert sentences(batches) == list(range(LINES))


def test_random_batches_are_trimmed_and_not_sorted_by_length(data: Path) -> None:
    mean_spans = []
    for flags in (("--random-batches",), ()):
        task, dataset = loaded(data, "train", *flags)
        spans = []
        for batch in batches_of(task, max_sentences=8):
            sizes = dataset.src_sizes[batch["id"].numpy()]
            assert batch["net_input"]["src_tokens"].size(1) == sizes.max()
            assert batch["target"].size(1) == dataset.tgt_sizes[batch["id"].numpy()].max()
            spans.append(sizes.max() - sizes.min())
        mean_spans.append(np.mean(spans))
    # 8 uniform lengths of 1 to 9 span some 6; sorted ones hardly anything
    assert mean_spans[0] > 5
    assert mean_spans[1] < 1


def test_random_batches_differ_by_epoch_and_follow_the_seed(data: Path) -> None:
    def drawn(seed: int = 1) -> list[list[list[int]]]:
        task, _ = loaded(data, "train", "--random-batches")
        return [ids(batches_of(task, epoch, seed, max_sentences=8)) for epoch in (1, 2)]

    first, second = drawn()
    # other batches, not the same ones in another order
    assert not set(map(frozenset, first)) & set(map(frozenset, second))
    assert drawn() == [first, second]
    assert drawn(seed=2)[0] != first


def test_random_batches_under_limits_of_tokens_and_lengths(data: Path) -> None:
    task, dataset = loaded(data, "train", "--random-batches")
    batches = batches_of(task, max_tokens=100)
    assert sentences(batches) == list(range(LINES))
    for batch in batches:
        longest = max(dataset.num_tokens(index) for index in batch["id"].tolist())
        assert len(batch["id"]) * longest <= 100
    assert len(batches) < LINES / 6
    sizes = [*zip(dataset.src_sizes, dataset.tgt_sizes, strict=True)]
    within_limit = [i for i in range(LINES) if sizes[i][0] <= 5 and sizes[i][1] <= 6]
    batches = batches_of(task, max_sentences=40, max_positions=(5, 6))
    assert sentences(batches) == within_limit
    assert sorted(map(len, ids(batches)), reverse=True)[:-1] == [40] * (len(within_limit) // 40)


def test_other_splits_keep_the_stock_order(data: Path) -> None:
    for split in ("valid", "test"):
        _, ours = loaded(data, split, "--random-batches")
        _, stock = loaded(data, split)
        assert type(ours) is type(stock)
        np.random.seed(5)
        order = ours.ordered_indices()
        np.random.seed(5)
        assert order.tolist() == stock.ordered_indices().tolist()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--load-alignments", "--source-bos"), "`--load-alignments` .* `--source-bos`"),
        (("--load-alignments", *CUT), "`--load-alignments` .* `--truncate-source`"),
        (("--random-batches", "--num-batch-buckets", 3), "`--random-batches` .*-buckets`"),
        (
            ("--truncate-source", "--source-bos", "--max-source-positions", 2),
            "`--max-source-positions` must be at least 3 .* but is 2 instead",
        ),
        (("--truncate-target", "--max-target-positions", 1), "`--max-target-positions` .* 1 inst"),
    ],
)
def test_refuses_what_cannot_work(data: Path, flags: tuple, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task_with(data, *flags)
    task_with(data, "--load-alignments", "--random-batches")  # this can


OPTIONS = (*TASK, *CUT, "--source-bos", "--random-batches")
RUN = (
    *(*TRAINING, "--arch", "gru_tiny", "--dropout", 0.1, "--batch-size", 44),
    *("--max-update", 28, "--save-interval-updates", 9),  # 12 updates per epoch
)


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 28 updates, ending in its third epoch."""
    return train(data, tmp_path_factory.mktemp("ext") / "run")


def train(data: Path, folder: Path, *flags: object) -> Path:
    done = fairseq("train", data, *OPTIONS, *RUN, *flags, "--save-dir", folder)
    folder.with_name("log").write_text(done.stdout + done.stderr)
    return folder


@pytest.mark.parametrize("moment", ["checkpoint_1_9.pt", "checkpoint_2_18.pt", "checkpoint2.pt"])
def test_resumes_exactly(data: Path, trained: Path, moment: str, tmp_path: Path) -> None:
    """In the first epoch, in the middle of a later one, and between two."""
    shutil.copy(trained / moment, tmp_path / "checkpoint_last.pt")
    fairseq("train", data, *OPTIONS, *RUN, "--save-dir", tmp_path)
    states = (training_state(folder / "checkpoint_last.pt") for folder in (tmp_path, trained))
    assert same_state(*states)


@pytest.mark.parametrize("architecture", ["gru_tiny", "linformer_tiny"])
def test_interactive_translates_as_generate_does(data, trained, architecture, tmp_path):
    """With cut sources, and with ``<s>``; without these the scores would be others."""
    if architecture != "gru_tiny":
        trained = train(data, tmp_path / "run", "--arch", architecture, "--max-update", 5)
    path = ("--path", trained / "checkpoint_last.pt", "--cpu", "--beam", 2, "--nbest", 2)
    text = (data.parent / "text" / "test.src").read_text()
    options = (*TASK, *CUT, "--source-bos")
    generated = fairseq("generate", data, *options, *path, "--batch-size", 9)
    interactive = fairseq(
        *("interactive", data, *options, *path, "--batch-size", 7, "--buffer-size", 20), stdin=text
    )
    results = []
    for done in (generated, interactive):
        (tmp_path / "output").write_text(done.stdout)
        results.append(read_generated(tmp_path / "output", expected=50))
    for first, second in zip(*results, strict=True):
        for ours, theirs in zip(first.hypotheses, second.hypotheses, strict=True):
            assert ours.text == theirs.text
            assert abs(ours.score - theirs.score) < 1e-4
    assert max(len(sentence.source.split()) for sentence in results[1]) == LIMIT - 2


def test_hub_model_cuts_and_begins_sources(data: Path, trained: Path) -> None:
    from fairseq import hub_utils

    hub_model = hub_utils.from_pretrained(str(trained), "checkpoint_last.pt", str(data))
    hub = hub_utils.GeneratorHubInterface(hub_model["args"], hub_model["task"], hub_model["models"])
    tokens = [hub.encode("1 2 3 4 5 6 7 8"), hub.encode("1 2 3 4"), hub.encode("1 2 3")]
    long, just, short = hub.generate(tokens, beam=1, skip_invalid_size_inputs=False)
    assert long[0]["score"] == just[0]["score"] != short[0]["score"]
    (batch,) = hub._build_batches(tokens[:2], skip_invalid_size_inputs=False)
    assert batch["net_input"]["src_tokens"].tolist() == [[BOS, *tokens[1].tolist()]] * 2


def test_validate_reads_the_options_from_the_checkpoint(data: Path, trained: Path) -> None:
    """The same loss as at the end of training, without one of the flags given again."""
    loss = r"subset \| loss (\S+)"
    expected = re.findall(loss, trained.with_name("log").read_text())[-1]
    options = (data, *TASK, "--path", trained / "checkpoint_last.pt", "--batch-size", 44, "--cpu")
    done = fairseq("validate", *options)
    assert re.findall(loss, done.stdout + done.stderr) == [expected]


@pytest.mark.parametrize("command", ["generate", "interactive"])
def test_a_forgotten_start_symbol_is_named(data: Path, trained: Path, command: str) -> None:
    path = ("--path", trained / "checkpoint_last.pt", "--cpu")
    done = fairseq(command, data, *path, ok=False, stdin="1 2\n")
    refused(done, "was trained with `--source-bos`", "--task translation_ext --source-bos")
