"""A checkpoint that was saved before an option existed loads with that option's default."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf
from torch import Tensor

from tests.models.test_linformer_encoder import HEAD, TASK
from tests.models.test_model_options import FIRST, OF_STOCK, VARIANTS, task_of
from tests.support.models import batch, configuration

OURS = sorted(FIRST)


def configuration_of(name: str) -> Any:
    """The configuration of the first variant of a model."""
    task = [*TASK, "--num-classes", "3"] if name.endswith("_encoder") else []
    return configuration([*VARIANTS[FIRST[name]], *task])


def output(model: torch.nn.Module, name: str) -> Tensor:
    words = batch()["net_input"]
    if name.endswith("_encoder"):
        source = words["src_tokens"]
        return model(source, classification_head_name=HEAD, features_only=True)[0]
    return model(**words)[0]


def older(cfg: Any, *options: str) -> dict[str, Any]:
    """The configuration without some options of its model, in plain Python as it is saved."""
    plain = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    plain["model"] = {key: value for key, value in plain["model"].items() if key not in options}
    return plain


def loaded(path: Path, task: FairseqTask, **state: Any) -> torch.nn.Module:
    torch.save(state, path)
    ((model,), _, _) = load_model_ensemble_and_task([str(path)], task=task)
    return model.eval()


@pytest.mark.parametrize("name", OURS)
def test_a_missing_option_has_its_default(name: str, tmp_path: Path):
    """Each option of ours in turn, then all of them at once, also fairseq's."""
    cfg, task = configuration_of(name), task_of(name)
    model = task.build_model(cfg.model).eval()
    expected = output(model, name)
    chosen = {word[2:].replace("-", "_") for word in VARIANTS[FIRST[name]]}
    options = [option for option in cfg.model if option not in {"_name", *chosen}]
    assert len(options) > 5
    for missing in [*([option] for option in options if option not in OF_STOCK), options]:
        cut = older(cfg, *missing)
        reloaded = loaded(tmp_path / "older.pt", task, model=model.state_dict(), cfg=cut)
        assert torch.equal(output(reloaded, name), expected), missing
        assert reloaded.max_positions() == model.max_positions(), missing


@pytest.mark.parametrize("name", OURS)
def test_every_option_has_help(name: str):
    """But for those of the task, shown there, and fairseq's own."""
    fields = MODEL_DATACLASS_REGISTRY[name].__dataclass_fields__
    missing = {option for option, field in fields.items() if not field.metadata.get("help")}
    limits = {"max_positions", "max_source_positions", "max_target_positions"}
    assert missing <= {"_name", *limits}


@pytest.mark.parametrize("form", ["cfg", "args"])
def test_a_named_architecture_has_its_own_default(form: str, tmp_path: Path):
    """Also in checkpoints of fairseq before 0.12, which hold a Namespace instead."""
    cfg, task = configuration(["--arch", "gru_tiny"]), task_of("gru_tiny")
    model = task.build_model(cfg.model).eval()
    options = {"cfg": older(cfg, "encoder_hidden_size", "decoder_order")}
    if form == "args":
        parts = older(cfg, "no_input_feeding", "decoder_order")
        values = {**parts["task"], **parts["model"], "arch": "gru_tiny", "task": "translation"}
        options = {"args": Namespace(**values, criterion="cross_entropy")}
    reloaded = loaded(tmp_path / "older.pt", task, model=model.state_dict(), **options)
    assert torch.equal(output(reloaded, "gru_tiny"), output(model, "gru_tiny"))
