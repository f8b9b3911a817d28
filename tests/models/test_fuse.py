"""``fairseq-ext fuse``: the same numbers, the same translations, and back to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_ext.muse import fusing
from fairseq_ext.muse.projections import FusedProjections
from fairseq_ext.utils.errors import CheckpointError
from tests.support.harness import fairseq, hypotheses, run
from tests.support.models import ARCHITECTURES, UNDER_LAW, build, padded, previous, random_sentences
from tests.support.trainings import load, same_state
from tests.unit.test_figures import save_checkpoint

SEPARATE = [
    name
    for name, line in UNDER_LAW.items()
    if line.wings == ("muse",) and "--muse-fused" not in line.flags
]


def with_random_biases(flags: list[str]) -> torch.nn.Module:
    """Biases start at zero, where a misplaced one would go unseen."""
    model = build(flags, seed=1)[0].double()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_(std=0.2)
    return model


@pytest.mark.parametrize("name", SEPARATE)
def test_every_kind_of_model_fuses_and_comes_back(name: str, tmp_path: Path) -> None:
    flags = ARCHITECTURES[name]
    model = with_random_biases(flags)
    path = save_checkpoint(tmp_path / "a.pt", flags, model)
    fusing.rewrite_file(path, tmp_path / "fused.pt", fused=True)
    twin = build([*flags, "--muse-fused"], seed=2)[0].double()
    result = load(tmp_path / "fused.pt")
    assert result["model"].keys() == twin.state_dict().keys()
    twin.load_state_dict(result["model"])
    source = padded(random_sentences([7, 3, 5]), left=True)
    target = previous(padded(random_sentences([4, 6, 3], seed=4), left=False))
    expected, logits = (m(source, source.ne(1).sum(1), target)[0] for m in (model, twin))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)

    fusing.rewrite_file(tmp_path / "fused.pt", tmp_path / "back.pt", fused=False)
    back = load(tmp_path / "back.pt")
    assert same_state(back["model"], load(path)["model"])
    assert back["cfg"] == load(path)["cfg"]


def test_shared_embeddings_stay_shared(tmp_path: Path) -> None:
    flags = ARCHITECTURES["muse-simple"]
    path = save_checkpoint(tmp_path / "a.pt", flags, build(flags)[0])
    model = fusing.rewrite_file(path, tmp_path / "b.pt", fused=True)["model"]
    sides = [model[f"{side}.embed_tokens.weight"].data_ptr() for side in ("encoder", "decoder")]
    assert sides[0] == sides[1]


def test_a_checkpoint_may_be_replaced_by_its_twin(tmp_path: Path) -> None:
    flags = ARCHITECTURES["muse"]
    path = save_checkpoint(tmp_path / "a.pt", flags, build(flags)[0])
    before = load(path)["model"]
    fusing.rewrite_file(path, path, fused=True)
    fusing.rewrite_file(path, path, fused=False)
    assert same_state(load(path)["model"], before)
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]


def test_what_belongs_to_the_training_is_left_out(tmp_path: Path) -> None:
    flags = ARCHITECTURES["muse"]
    path = save_checkpoint(tmp_path / "a.pt", flags, build(flags)[0])
    training = {
        "last_optimizer_state": {"exp_avg": torch.zeros(9)},
        "optimizer_history": [{"num_updates": 7}],
        "extra_state": {"epoch": 3, "ema": {"w": torch.zeros(2)}, "ema_fp32_params": {}},
    }
    result = fusing.rewrite({**load(path), **training}, path, fused=True)
    assert "last_optimizer_state" not in result
    assert result["optimizer_history"] == [{"num_updates": 7}]
    assert result["extra_state"] == {"epoch": 3}


@pytest.mark.parametrize(
    ("flags", "fused", "message"),
    [
        (ARCHITECTURES["muse"], False, "is separate already; leave out `--unfuse`"),
        (ARCHITECTURES["muse-fused"], True, "is fused already; `--unfuse` takes it apart"),
        (ARCHITECTURES["linformer"], True, "holds the architecture `linformer`; give a checkpoint"),
        (ARCHITECTURES["binary-muse"], True, "has binary weights, which do not go with fused"),
        (["--arch", "lstm"], True, "holds the architecture `lstm`"),
    ],
)
def test_others_are_refused(flags: list[str], fused: bool, message: str, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "a.pt", flags, build(flags)[0])
    with pytest.raises(CheckpointError, match=message):
        fusing.rewrite_file(path, tmp_path / "b.pt", fused=fused)
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.system
@pytest.mark.slow
def test_commands_find_the_same_translations(copy_data: Path, tmp_path: Path) -> None:
    """Trained, fused and separated again by the real commands, without a word on stderr."""
    fairseq(
        *("train", copy_data, "--arch", "muse_tiny", "--save-dir", tmp_path, "--cpu"),
        *("--optimizer", "adam", "--lr", 1e-3, "--max-tokens", 400, "--max-update", 30),
        *("--encoder-layers", 2, "--decoder-layers", 2, "--num-workers", 0, "--dropout", 0),
        "--no-epoch-checkpoints",
    )
    trained, fused, back = (tmp_path / f"{n}.pt" for n in ("checkpoint_last", "fused", "back"))
    assert "last_optimizer_state" in load(trained)
    done = [
        run("fairseq-ext", "fuse", trained, "-o", fused),
        run("fairseq-ext", "fuse", fused, "--unfuse", "-o", back),
    ]
    assert [process.stdout for process in done] == [
        f"fused 4 blocks, in {fused}\n",
        f"separated 4 blocks, in {back}\n",
    ]
    assert done[0].stderr == done[1].stderr == ""
    assert same_state(load(back)["model"], load(trained)["model"])
    left = load(fused)
    assert left["cfg"]["model"]["muse_fused"] is True
    assert "last_optimizer_state" not in left

    search = ("--beam", 5, "--cpu", "--engine", "fairseq")  # the modules, not the engine
    expected, *others = (
        hypotheses(fairseq("generate", copy_data, "--path", path, *search, *flags).stdout)
        for path, flags in (
            (trained, ()),
            (fused, ()),
            (trained, ("--model-overrides", "{'muse_fused': True}")),
        )
    )
    assert len(expected) == 50
    assert others == [expected, expected]
    models, _ = checkpoint_utils.load_model_ensemble(
        [str(trained)], arg_overrides={"muse_fused": True, "data": str(copy_data)}
    )
    assert isinstance(models[0].encoder.layers[1].projections, FusedProjections)
