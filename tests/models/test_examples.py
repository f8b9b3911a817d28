"""The examples of the documentation run as they stand, with a model that knows two sentences."""

import doctest
import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationTask

from fairseq_ext.decoding import text_model
from fairseq_ext.model import write
from fairseq_ext.text.pipeline import Pipeline
from tests.support import models
from tests.support.bundles import save_run
from tests.support.forking import programs
from tests.support.harness import BIN, REPO, run

PAIRS = {"Ein Mann schläft .": "A man sleeps .", "Zwei Hunde spielen .": "Two dogs play ."}
FLAGS = ["--arch", "gru_tiny", "--dropout", "0"]


def encoded(words: Dictionary, lines: list[str]) -> torch.Tensor:
    """``[B, T]``; all lines have as many words."""
    return torch.stack([words.encode_line(line, append_eos=True).long() for line in lines])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the bundle `de-en` of a model that has learnt :data:`PAIRS` by heart."""
    home = tmp_path_factory.mktemp("examples")
    source, target = Dictionary(), Dictionary()
    tokens = encoded(source, [*PAIRS]), encoded(target, [*PAIRS.values()])
    for words in (source, target):  # a beam of 5 needs a dozen symbols
        for number in range(12):
            words.add_symbol(f"filler{number}")
    cfg = models.configuration(FLAGS)
    torch.manual_seed(1)
    task = TranslationTask(cfg.task, source, target)
    model = task.build_model(cfg.model)
    assert [*models.learning(model, *tokens, 0.02)][-1] < 0.1
    run = save_run(home / "run", FLAGS, model, task, Pipeline("de", "en", tokenize=True))
    write.write(run / "checkpoint_best.pt", run, home / "de-en")
    return home


EXAMPLES = {
    "docs/howto/ship.md": "\n".join(
        re.findall(r"```pycon\n(.*?)```", (REPO / "docs/howto/ship.md").read_text("utf-8"), re.S)
    ),
    "fairseq_ext/decoding/text_model.py": text_model.__doc__,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], {}, name, name, 0)
    assert test.examples
    messages: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(test, out=messages.append).failed == 0, "".join(messages)


def test_the_notebook(tmp_path: Path):
    """All cells in their order, in one process and an empty folder, as Jupyter would run them."""
    notebook = json.loads((REPO / "docs/first_model.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell.get("outputs", []) == [] for cell in notebook["cells"])
    (tmp_path / "cells.py").write_text("\n".join(cells), encoding="utf-8")
    paths = {"PATH": f"{programs(os.getpid())}:{BIN}:{os.environ['PATH']}", "MPLBACKEND": "agg"}
    done = run(sys.executable, "cells.py", cwd=tmp_path, **paths)
    right = re.search(r"(\d+) of 10 sentences, none of them seen", done.stdout)
    assert int(right[1]) >= 5
    assert (tmp_path / "attention.png").stat().st_size > 1000
