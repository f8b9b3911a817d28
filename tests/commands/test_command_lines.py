"""Careless command lines, through the real commands: one line each, with the cure, and no trace."""

import errno
import os
import re
import shutil
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.models import FairseqDecoder, FairseqLanguageModel

from fairseq_ext.generation import option_checks
from fairseq_ext.plugin.checks import commands, training_options
from fairseq_ext.utils import error_messages, errors, parsing
from fairseq_ext.utils.errors import ConfigError
from tests.support.harness import BIN, binarize, contents, digits_corpus, error_line, fairseq, run
from tests.support.models import build, configuration
from tests.support.trainings import load

TRAINING: tuple[object, ...] = (
    *("--arch", "gru_tiny", "--optimizer", "adam", "--lr", 0.01, "--max-tokens", 400, "--cpu"),
    *("--no-progress-bar", "--num-workers", 0, "--max-update", 2, "--no-epoch-checkpoints"),
)
NEEDED = ["--arch", "transformer", "--optimizer", "adam", "--max-tokens", "100"]


def training(data: Path, folder: Path, *options: object) -> list[object]:
    """Arguments of fairseq-train, which takes the last value of an option."""
    return [data, *TRAINING, "--save-dir", folder, *options]


def message(done) -> str:
    """The only line of error; the command has ended with status 1, or 2 as argparse does."""
    output = (done.stdout + done.stderr).splitlines()
    lines = [line.partition(": error: ")[2] for line in output if ": error: " in line]
    assert done.returncode in (1, 2), output
    assert len(lines) == 1, output
    assert not any("Traceback" in line for line in output)
    return lines[0]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--lr -1", "`--lr` must be at least 0, but is -1."),
        ("--arch gru_atention", "`gru_attention`? The folder in `--user-dir` must"),
        ("--task translaton", "is `translaton`; did you mean `translation`"),
        ("--task masked_lm", "`--task masked_lm` does not go with `--arch gru_tiny`"),
        ("--max-tokns 400", "unrecognized arguments: --max-tokns 400; did you mean"),
        (
            "--arch muse_tiny --encoder-layerdrop 0.1 --decoder-layerdrop 0.1",
            "0.1; did you mean `--encoder-layers` or `--decoder-layers`?",
        ),
        ("--output-format raw", "raw; did you mean `--dataset-impl`?"),
        ("--left-pad-source False", "arguments: False. `fairseq-train --help` lists"),
        ("--binary-weights qkv", "unrecognized arguments: --binary-weights qkv. `fairseq-train --"),
        ("--clip-norm x", "argument --clip-norm: invalid float value: 'x'"),
        ("--lr 1e-3,x", "value: '1e-3,x'"),
        ("--lr-scheduler polynomial_decay", "`--total-num-update` is missing, but"),
        ("--criterion sentence_prediction", "but sentence_prediction does not (Attrib"),
        ("--use-bmuf --no-save", "`--use-bmuf` needs several processes; leave it out."),
        ("--restore-file none.pt", "`--restore-file` names none.pt, which does not exist"),
        ("--upsample-primary 2", "`--upsample-primary` is for several parts of a text, but"),
        ("--optimizer lamb", "Please install apex to use LAMB optimizer"),  # as fairseq says it
    ],
)
def test_train(copy_data: Path, tmp_path: Path, options: str, complaint: str):
    words = training(copy_data, tmp_path / "run", *options.split())
    assert complaint in message(fairseq("train", *words, ok=False))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("--arch", "`--arch` is missing; give one that `--help` lists."),
        ("--optimizer", "`--optimizer` is missing; give for example"),
        ("--max-tokens", "Must specify batch size either with --max-tokens or --batch-size"),
    ],
)
def test_what_a_training_needs(copy_data: Path, tmp_path: Path, option: str, complaint: str):
    words = training(copy_data, tmp_path / "run")
    place = words.index(option)
    del words[place : place + 2]
    assert complaint in message(fairseq("train", *words, ok=False))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--save-interval 0", "`--save-interval` must be at least 1, but is 0."),
        ("--dropout 2", "`--dropout` must be from 0 to 1, but is 2."),
        ("--clip-norm nan", "`--clip-norm` must be at least 0, but is nan"),
        ("--optimizer-overrides {'lr':1", "must be a dictionary such as"),
        ("--zero-sharding os --optimizer composite", "does not go with `--optimizer composite`; "),
        ("--zero-sharding os --bf16", "`--zero-sharding os` must have `--fp16-no-flatten-grads`"),
        ("--ddp-backend fully_sharded", "`--ddp-backend fully_sharded` needs"),
        ("--best-checkpoint-metric los", "but is `los`; did you mean `loss`?"),
        ("--criterion adaptive_loss --best-checkpoint-metric los", "is `los`; did you mean `loss"),
        ("--best-checkpoint-metric bleu", "bleu` must have `--eval-bleu`."),
        ("--best-checkpoint-metric accuracy", "must have `--maximize-best-checkpoint-metric`"),
        ("--eval-bleu --eval-bleu-args [4]", "`--eval-bleu-args` must be JSON such as"),
        ('--eval-bleu --eval-bleu-args {"beem":4}', "but has `beem`; did you mean `beam`?"),
        ('--eval-bleu --eval-bleu-args {"max-len-b":4}', "`max-len-b`; did you mean `max_len_b`"),
        ('--eval-bleu --eval-bleu-args {"score_reference":true}', "but has `score_reference`"),
        ('--eval-bleu --eval-bleu-args {"beam":2.5}', "`beam` in `--eval-bleu-args` must not be 2"),
        ('--eval-bleu --eval-bleu-args {"beam":true}', "must not be true."),
        ('--eval-bleu --eval-bleu-args {"sampling":1}', "must not be 1."),
        ('--eval-bleu --eval-bleu-args {"lenpen":"x"}', 'must not be "x".'),
        (f"--criterion {training_options.ALIGNMENT}", "` must have `--load-alignments`"),
        (
            "--combine-valid-subsets --valid-subset valid,valid1",
            "`--combine-valid-subsets` must have `--valid-subset valid`",
        ),
        ("--valid-subset train", "`--valid-subset` must not be the training subset (`train`)"),
        ("--encoder-layers-to-keep 0,2", "train with `--encoder-layers 2`"),
        ("--decoder-layers-to-keep 1", "train with `--decoder-layers 1`"),
        ("--quant-noise-scalar 0.5 --cpu", "`--quant-noise-scalar` needs a GPU"),
        ("--quant-noise-pq 1", "`--quant-noise-pq` must be at least 0 and below 1, but is 1"),
        ("--adam-betas 1", "`--adam-betas` must be two numbers"),
        ("--adam-betas (0.9,", "below 1 such as '(0.9, 0.98)', but is (0.9,."),
        ("--adam-betas (0.9,1.5)", "below 1 such as '(0.9, 0.98)', but is (0.9,1.5)"),
        ("--lr-scheduler manual --update2lr {3:0.1}", "`--update2lr` must be such as"),
        ("--lr-scheduler manual --epoch2lr {'1-':0.1}", "`--epoch2lr` must be such as"),
        ("--lr-scheduler manual --epoch2lr {'1':'x'}", "`--epoch2lr` must be such as"),
        ("--lr-scheduler manual --epoch2lr {'1':'x'", "but is {'1':'x'."),
        ("--adaptive-softmax-cutoff 9", "must have `--criterion adaptive_loss`"),
        ("--ema-seed-model x --store-ema", "by `--finetune-from-model`"),
        ("--task language_modeling", "`--task language_modeling` does not go with"),
        ("--task multilingual_translation", "translation` does not go with `--arch transformer`"),
        ("--task sentence_prediction", "prediction` does not go with `--arch transformer`; give"),
        ("--task translation_lev", "does not go with `--arch transformer`; give another task or"),
    ],
)
def test_train_before_anything_is_loaded(options: str, complaint: str):
    search = '{"beam": 4, "lenpen": 0.6, "max_len_a": 1, "sampling": true}'
    training_options.refuse(configuration([*NEEDED, "--eval-bleu", "--eval-bleu-args", search]))
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        training_options.refuse(configuration([*NEEDED, *options.split()]))


@pytest.mark.parametrize("metric", ["accuracy", "bleu", "loss", "nll_loss", "ppl", "wer"])
@pytest.mark.parametrize("maximize", [False, True])
def test_the_direction_of_a_known_metric(metric: str, maximize: bool):
    """Otherwise checkpoint_best.pt would be the worst model."""
    checkpoint = CheckpointConfig(
        best_checkpoint_metric=metric, maximize_best_checkpoint_metric=maximize
    )
    directions = {"accuracy": True, "bleu": True, "loss": False, "nll_loss": False, "ppl": False}
    faults = list(training_options._metric(SimpleNamespace(checkpoint=checkpoint, criterion=None)))
    assert len(faults) == (directions.get(metric, maximize) != maximize)
    assert all(f"-metric {metric}` " in fault for fault in faults)


def test_a_metric_that_validation_does_not_measure(copy_data: Path, tmp_path: Path):
    metric = ("--best-checkpoint-metric", "accuracy", "--criterion", "cross_entropy")
    words = [*training(copy_data, tmp_path, *metric), "--maximize-best-checkpoint-metric"]
    assert "` must be one of loss, " in message(fairseq("train", *words, ok=False))


@pytest.mark.parametrize("option", ["--fp16", "--amp", "--memory-efficient-fp16"])
@pytest.mark.parametrize(
    ("place", "has_cuda"), [(["--cpu"], True), (["--cpu"], False), ([], False)]
)
def test_half_precision_on_the_cpu_is_refused_by_name(option, place, has_cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    with pytest.raises(ConfigError, match=f"`{option}` trains on a CUDA device only"):
        training_options.refuse(configuration([*NEEDED, *place, option]))


@pytest.mark.parametrize(
    ("option", "package"), [("--tensorboard-logdir", "tensorboard"), ("--wandb-project", "wandb")]
)
def test_a_package_for_losses_that_is_missing_is_named(option, package, monkeypatch):
    cfg = configuration([*NEEDED, option, "x"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    fault = f"`{option}` needs the package {package}, which is not installed: `pip install "
    with pytest.raises(ConfigError, match=f"{fault}{package}`, or leave the option out"):
        training_options.refuse(cfg)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--constraints", "`--constraints` is for fairseq-interactive; leave it out."),
        ("--tokenizer moses", "`--source-lang` is missing, but the other options"),
        ("--bpe subword_nmt", "`--bpe-codes` is missing"),
        ("--replace-unk", "`--replace-unk` does not work in this fairseq; leave it out."),
        ("--beam 0", "`--beam` and `--nbest` must be at least 1."),
        ("--diverse-beam-groups 3", "groups` must divide `--beam` (5), but is 3."),
        ("--checkpoint-shard-count 2", "`--checkpoint-shard-count` does not work with"),
        (
            "--task translation_lev",
            "`gru_tiny`, but this command needs a non-autoregressive model.",
        ),
        ("--lm-path MODEL", "must name a checkpoint of a language model."),
        (
            "--sampling --nbest 5 --sampling-topk 99",
            "`--sampling-topk` is more than the target dictionary",
        ),
        ("--model-overrides {'dropout':1", "must be a dictionary such as"),
        ("--model-overrides {'dropot':1}", "has `dropot`; did you mean `dropout`"),
        ("--max-len-b 0", "`--max-len-b` must be at least `--min-len` (1), but is 0"),
        ("--task translation_ext --gnmt-lenpen 0.6 --lenpen 0.6", "not go with `--lenpen`"),
        ("--lenpen nan", "`--lenpen` must be a number, but is nan instead."),
        ("--bean 3", "unrecognized arguments: --bean 3; did you mean `--beam`?"),
    ],
)
def test_generate(copy_data: Path, copy_model: Path, options: str, complaint: str):
    words = options.replace("MODEL", str(copy_model)).split()
    done = fairseq("generate", copy_data, "--path", copy_model, "--cpu", *words, ok=False)
    assert complaint in message(done)


@pytest.mark.parametrize(
    "options",
    [
        {"constraints": "ordered", "sampling": True},
        {"constraints": "ordered", "match_source_len": True},
        {"constraints": "unordered", "diverse_beam_groups": 5},
        {"constraints": "unordered", "diversity_rate": 0.5},
        {"max_len_a": -0.5},
    ],
)
def test_interactive(options: dict[str, Any]):
    """What fairseq would refuse in a traceback, only after it has loaded the model."""
    cfg = configuration(["--arch", "gru_tiny"])
    option_checks.refuse_broken(cfg, "fairseq_cli.interactive")
    cfg.generation.update(options)
    name = [*options][-1].replace("_", "-")
    with pytest.raises(ConfigError, match=f"`--{name}`"):
        option_checks.refuse_broken(cfg, "fairseq_cli.interactive")


def test_overrides_of_an_ensemble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An option may be that of one model; fairseq sets any option of a model saved as arguments."""
    saved = {"gru.pt": {"model": {"dropout": 0}}, "muse.pt": {"model": {"muse_fused": False}}}
    saved["old.pt"] = {"model": Namespace(arch="transformer_tiny")}
    monkeypatch.setattr(commands.storage, "peek", lambda path: {"cfg": saved[Path(path).name]})
    cfg = configuration(["--arch", "gru_tiny"])
    cfg.common_eval.model_overrides = "{'muse_fused': True}"
    for paths, is_refused in (
        ("gru.pt", True),
        ("gru.pt:muse.pt", False),
        ("gru.pt:old.pt", False),
    ):
        cfg.common_eval.path = paths
        with pytest.raises(ConfigError, match="muse_fused") if is_refused else nullcontext():
            commands._check_models(cfg)


@pytest.mark.parametrize("name", ["score_reference", "prefix_size"])
def test_targets_that_the_data_do_not_have(name: str):
    """fairseq ends in a traceback of the model, or in one of its own."""
    model, task = build(["--arch", "gru_tiny"])
    options = Namespace(**{name: 1})
    task.build_generator([model], options)
    task.datasets["test"] = SimpleNamespace(tgt=None)
    with pytest.raises(ConfigError, match=f"`--{name.replace('_', '-')}` reads target sentences"):
        task.build_generator([model], options)


def test_a_language_model_must_know_the_words_of_the_target():
    """fairseq adds log-probabilities of equal numbers, or ends in an error of torch."""
    model, task = build(["--arch", "gru_tiny"])
    other = Dictionary()
    other.add_symbol("other")
    for words, options, complaint in (
        (task.target_dictionary, {}, None),
        (task.target_dictionary, {"score_reference": True}, "`--lm-path` does not go with"),
        (other, {}, "which is not the target's: line 1 is `other`"),
    ):
        fusion = {"lm_model": FairseqLanguageModel(FairseqDecoder(words)), "lm_weight": 0.1}
        with nullcontext() if complaint is None else pytest.raises(ConfigError, match=complaint):
            task.build_generator([model], Namespace(**options), extra_gen_cls_kwargs=fusion)


@pytest.mark.parametrize("window", [-1, 9, 10])
def test_a_context_window_leaves_room_for_tokens(window: int):
    cfg = configuration(["--arch", "gru_tiny"])
    cfg.task = {"tokens_per_sample": 9}
    commands._refuse_broken(cfg, "fairseq_cli.eval_lm")
    cfg.eval_lm.context_window = window
    with pytest.raises(ConfigError, match="`--context-window` must be at least 0 and less than"):
        commands._refuse_broken(cfg, "fairseq_cli.eval_lm")


@pytest.mark.parametrize(
    ("command", "options", "complaint"),
    [
        ("generate", [], "`--path`"),
        ("generate", ["--path", "none.pt"], "none.pt does not exist"),
        ("eval-lm", [], "`--path` must name"),
        ("validate", ["--task", "translation"], "`--max-tokens` or `--batch-size` is missing."),
    ],
)
def test_what_other_commands_need(copy_data, copy_model, command, options, complaint):
    before = contents(copy_data)
    if command == "validate":
        options = [*options, "--path", copy_model]
    assert complaint in message(fairseq(command, copy_data, "--cpu", *options, ok=False))
    assert contents(copy_data) == before


def test_preprocess(tmp_path: Path):
    done = fairseq("preprocess", "--trainpre", "x", ok=False, cwd=tmp_path)
    assert message(done) == "unrecognized arguments: --trainpre x; did you mean `--trainpref`?"
    done = fairseq("preprocess", ok=False, cwd=tmp_path)
    assert "--trainpref must be set" in message(done)
    words = ("--trainpref", "x", "--only-source", "--workers", 0)
    done = fairseq("preprocess", *words, ok=False, cwd=tmp_path)
    assert message(done) == "`--workers` must be at least 1, but is 0 instead."
    assert not list(tmp_path.iterdir())


def test_commands_for_bundles_refuse_a_checkpoint(copy_model: Path, tmp_path: Path):
    for command in (("describe", copy_model), ("export", copy_model, "-o", tmp_path / "out.pt")):
        fault = f"{copy_model} is not a bundle; only bundles are {command[0].rstrip('e')}"
        assert fault in error_line(*command)


def test_names_with_control_characters_are_shown_escaped(copy_data: Path, tmp_path: Path):
    path = tmp_path / "a\x1b[31m\u202eb\n.pt"
    done = fairseq("generate", copy_data, "--path", path, "--cpu", ok=False)
    for line in (error_line("describe", path), message(done)):
        assert r"a\x1b[31m\u202eb\n.pt does not exist" in line


def test_a_pipe_in_place_of_a_checkpoint(copy_data: Path, tmp_path: Path):
    """Nothing waits for someone to write to it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = fairseq("generate", copy_data, "--path", pipe, "--cpu", ok=False, timeout=120)
    assert "pipe is not a regular file" in message(done)
    options = training(copy_data, tmp_path / "run", "--restore-file", pipe)
    done = fairseq("train", *options, ok=False, timeout=120)
    assert "`--restore-file` names" in message(done)
    assert "which is not a file" in message(done)


def test_more_open_files_are_allowed_where_they_may_be():
    code = "import resource; from fairseq_ext.plugin.checks.processes import allow_open_files; "
    code += "allow_open_files.wrapper(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    done = run("bash", "-c", 'ulimit -Sn 24 && exec "$@"', "-", BIN / "python", "-c", code)
    assert int(done.stdout) >= 64


def test_weights_alone(copy_data: Path, copy_model: Path, tmp_path: Path):
    """``{"model": …}`` is where a training can start; a translation needs the model's options."""
    weights = load(copy_model)["model"]
    alone = tmp_path / "alone.pt"
    torch.save({"model": weights}, alone)
    for option in ("--restore-file", "--finetune-from-model"):
        folder = tmp_path / option
        fairseq("train", *training(copy_data, folder, option, alone, "--lr", 0))
        state = load(folder / "checkpoint_last.pt")
        assert all(torch.equal(state["model"][name], weights[name]) for name in weights)
        assert state["optimizer_history"][-1]["num_updates"] == 2
    done = fairseq("generate", copy_data, "--path", alone, "--cpu", ok=False)
    assert "alone.pt has weights alone, without the options of its model" in message(done)
    assert "--finetune-from-model" in message(done)


def test_resuming_on_a_smaller_corpus(copy_data: Path, tmp_path: Path):
    folder = tmp_path / "run"
    options = ("--max-update", 8, "--save-interval-updates", 8)
    fairseq("train", *training(copy_data, folder, *options))
    words = ("--srcdict", copy_data / "dict.src.txt", "--joined-dictionary")
    small = binarize(digits_corpus(tmp_path / "text", train=20), tmp_path / "small", *words)
    done = fairseq("train", *training(small, folder, "--max-update", 20), ok=False)
    complaint = message(done)  # about the data, not about the checkpoint
    assert complaint.startswith("the corpus has fewer batches than the run in")
    assert "`--reset-dataloader`" in complaint
    assert "Do not use this file" not in complaint


def test_a_file_to_start_from_must_be_there_at_the_first_start(copy_data, copy_model, tmp_path):
    """Later the run goes on from its own last checkpoint."""
    folder = tmp_path / "run"
    for option in ("--continue-once", "--finetune-from-model"):
        done = fairseq("train", *training(copy_data, folder, option, tmp_path / "no.pt"), ok=False)
        fault = f"`{option}` names {tmp_path}/no.pt, which does not exist; name a checkpoint file"
        assert fault in message(done)
        assert not folder.exists()
        start = shutil.copy(copy_model, tmp_path / "start.pt")
        words = (option, start, "--max-update", 6)
        fairseq("train", *training(copy_data, folder, *words))
        start.unlink()
        words = (option, start, "--max-update", 8)
        fairseq("train", *training(copy_data, folder, *words))
        assert load(folder / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 8
        shutil.rmtree(folder)


def test_an_option_that_does_not_go_with_finetuning(copy_data, copy_model, tmp_path):
    words = training(copy_data, tmp_path / "run", "--finetune-from-model", copy_model)
    complaint = message(fairseq("train", *words, "--reset-optimizer", ok=False))
    assert "--finetune-from-model can not be set together with" in complaint
    complaint = message(fairseq("train", *words, "--restore-file", copy_model, ok=False))
    assert "--restore-file (non-default value) can not be specified together" in complaint


def test_resuming_with_another_schedule(copy_data, copy_model, tmp_path):
    """fairseq would stumble over the state of the first one."""
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(copy_model, folder / "checkpoint_last.pt")
    for scheduler in ("inverse_sqrt", "reduce_lr_on_plateau"):
        words = training(copy_data, folder, "--lr-scheduler", scheduler, "--max-update", 6)
        complaint = message(fairseq("train", *words, ok=False))
        names = f"was trained with `--lr-scheduler fixed`, but `{scheduler}` was asked for"
        assert names in complaint
        assert "`--reset-lr-scheduler`" in complaint
    fairseq("train", *words, "--reset-lr-scheduler")
    fairseq("train", *words, "--max-update", 8)
    state = load(folder / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 8
    assert state["cfg"]["lr_scheduler"]["_name"] == scheduler


def raised(function: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        function()
    return caught.value


def train_step() -> None:
    torch.nn.Dropout(7)


def test_only_refusals_of_options_are_put_into_one_line():
    """In the middle of the work, from our own code, or without words, a traceback is needed."""
    assert "dropout probability" in error_messages.final_line(raised(lambda: torch.nn.Dropout(7)))
    assert error_messages.final_line(raised(train_step)) is None
    assert error_messages.final_line(raised(lambda: parsing.advise(None, [], ""))) is None
    assert error_messages.final_line(raised(lambda: {}["a"])) is None
    assert error_messages.final_line(BrokenPipeError()) is None
    assert error_messages.final_line(KeyboardInterrupt()) == "interrupted."
    cure = "Too many open files. Allow more of them: ulimit -n 4096"
    worker = RuntimeError(
        "Too many open files. Communication with the workers is no longer possible."
    )
    assert error_messages.final_line(worker) == f"error: cannot use another file: {cure}"
    font = OSError(errno.EMFILE, "Too many open files", "a font")
    assert error_messages.final_line(font) == f"error: cannot use a font: {cure}"
    assert error_messages.final_line(errors.DataError("a\nb")) == r"error: a\nb"
