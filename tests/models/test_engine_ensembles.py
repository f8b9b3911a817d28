"""Several models that vote: what is theirs alone, and programs of them that cannot be.

That they translate as fairseq's ensembles do, stands in ``test_engine.py``.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fairseq_ext.engine import shortlist
from fairseq_ext.engine.compilers import compile_model
from fairseq_ext.engine.devices.executor import Executor
from fairseq_ext.engine.library import Machine
from fairseq_ext.engine.program import Code, Output, Program, merged
from fairseq_ext.engine.search_options import Rules
from fairseq_ext.utils.errors import ConfigError
from tests.support import models
from tests.support.engine import (
    END,
    SENTENCE,
    SIZE,
    assert_same,
    bits,
    next_token,
    program_of,
    sharpened,
    together,
    worker_of,
)

MIXED = "transformer+gru"
SENTENCES = models.random_sentences([6, 1, 9, 4], size=SIZE)


@pytest.mark.parametrize("names", ["transformer+gru+muse-growing", "linformer+bmt-1"])
def test_in_torch(names: str):
    """What runs on GPUs does the same."""
    program = program_of(*together(names))
    rules = Rules(beam=3, max_len_b=10, temperature=1.4, attention=True)
    ours = Executor(program, torch.device("cpu")).translate(SENTENCES, rules)
    expected = Machine(program).worker().translate(SENTENCES, rules)
    assert_same(ours, expected, attention=True)


@pytest.mark.parametrize("name", ["transformer", "gru", "bmt-1"])
@pytest.mark.parametrize("count", [2, 3])
def test_a_model_agrees_with_itself(name: str, count: int):
    model, task = sharpened(name)
    rules = Rules(beam=4, max_len_b=25, attention=True)
    single, several = (
        worker_of(voters, task).translate(SENTENCES, rules) for voters in (model, [model] * count)
    )
    assert_same(several, single, attention=True, atol=1e-5)


def test_shortlists():
    """Each model's probabilities are shares among the listed tokens; of all of them the same."""
    voters, task = together(MIXED)
    program, rules = program_of(voters, task), Rules(beam=3, max_len_b=15)
    all_tokens = shortlist.Shortlist(range(SIZE), [[]] * SIZE)
    listing_all = Machine(program, shortlist=all_tokens).worker()
    expected = bits(Machine(program).worker().translate(SENTENCES, rules))
    assert bits(listing_all.translate(SENTENCES, rules)) == expected
    tokens = [END, *range(5, 31, 2)]
    lists = shortlist.Shortlist(tokens, [[]] * SIZE)
    worker = Machine(program, shortlist=lists).worker()
    ((best,),) = worker.translate([SENTENCE], Rules(beam=1, max_len_b=1))
    shares = next_token(voters, SENTENCE, [END], tokens=tokens)[1:]  # at least one word
    assert best.tokens[0] == tokens[1 + int(shares.argmax())]
    assert best.scores[0] == pytest.approx(float(shares.max()), abs=1e-5)


def test_probabilities_near_nothing():
    """A token that is e^-200 for all models has a score all the same; one of e^-9 in one, too."""
    voters, task = together("transformer+transformer")
    for sign, model in zip((1, -1), voters, strict=True):
        layer = model.decoder.output_projection
        layer.bias = torch.nn.Parameter(torch.zeros(SIZE))
        layer.bias.data[[7, 8]] = torch.tensor([-200.0, -100.0 - sign * 90])
    sentence, forced = [5, 9, 2], [7, 8, 6, 2]
    rules = Rules(beam=1, max_len_b=5)
    ((hypothesis,),) = worker_of(voters, task).translate([sentence], rules, [forced])
    fed = torch.tensor([[2, *forced[:-1]]])
    with torch.no_grad():
        logits = [model(torch.tensor([sentence]), torch.tensor([3]), fed)[0] for model in voters]
    scores = torch.stack([row.double().log_softmax(-1) for row in logits]).logsumexp(0)
    expected = [float(scores[0, step, token]) - math.log(2) for step, token in enumerate(forced)]
    assert expected[0] < -190
    np.testing.assert_allclose(hypothesis.scores, expected, rtol=1e-5, atol=1e-4)


def test_models_of_other_targets():
    voters, task = together("transformer+transformer")
    first, second = (compile_model(model, task.target_dictionary) for model in voters)
    assert merged([first]) is first
    second.symbols = second.symbols._replace(begin=0)
    with pytest.raises(ConfigError, match="different target tokens"):
        merged([first, second])


def without_its_weights(program: Program) -> None:
    program.outputs[1] = Output(program.outputs[1].result, len(program.matrices))


def of_the_other_model(program: Program) -> None:
    program.outputs[1] = program.outputs[1]._replace(result=program.outputs[0].result)


def with_one_cache(program: Program) -> None:
    for place, operation in enumerate(program.decoder):
        if operation.code is Code.ATTEND_PAST:
            ints = (operation.ints[0], 0, operation.ints[2])
            program.decoder[place] = operation._replace(ints=ints)


@pytest.mark.parametrize(
    "spoil",
    [
        without_its_weights,
        of_the_other_model,
        with_one_cache,
        lambda program: program.decoder.pop(),
        lambda program: program.encoder.pop(),
    ],
)
def test_a_program_with_a_fault_does_not_run(spoil: Callable[[Program], object]):
    program = program_of(*together(MIXED))
    spoil(program)
    with pytest.raises(ConfigError):
        Machine(program)
