"""One step of beam search for a batch of sentences, without synchronization with the device."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_ext.engine.program import Symbols
from fairseq_ext.engine.search_options import Rules

NEVER = -torch.inf


def advance(
    rules: Rules, symbols: Symbols, state: dict[str, Tensor], logits: Sequence[Tensor]
) -> None:
    """Take one step of beam search in place, by the equations of ``native/search.c``.

    ``logits`` are each model's logits for the next tokens, ``[B, W, V]``. Sampling is not possible.
    """
    step, beam, line = state["step"], rules.beam, state["line"]
    totals = state["totals"].index_select(1, step).squeeze(1)
    totals = totals.masked_fill(state["open"].logical_not().unsqueeze(1), NEVER)
    values, tokens = ranked(rules, symbols, state, voted(rules, logits))
    sums = (values + totals.unsqueeze(2)).flatten(1)
    best, places = sums.masked_fill(sums.isnan(), NEVER).topk(2 * beam)
    parents, tokens = places // (2 * beam), tokens.flatten(1).gather(1, places)

    ends = tokens.eq(symbols.end)
    ended = (candidates.narrow(1, 0, beam) for candidates in (ends & best.gt(NEVER), best, parents))
    finish(state, *ended)
    best, places = best.masked_fill(ends, NEVER).topk(beam)
    parents, tokens = parents.gather(1, places), tokens.gather(1, places)
    state["open"] &= state["count"].lt(beam) & step.lt(state["limit"]) & best.select(1, 0).gt(NEVER)

    line.copy_(lines_of(line, parents))
    step += 1
    begin(state, tokens, best)


def begin(state: dict[str, Tensor], tokens: Tensor, totals: Tensor) -> None:
    """Store the newest tokens and total scores ``[B, W]`` of all hypotheses before a step."""
    step, line = state["step"], state["line"]
    rows = torch.arange(line.size(1), device=line.device).view(1, -1, 1)
    line.index_copy_(2, step, rows.expand(len(line), -1, 1))
    state["tokens"].index_copy_(1, step, tokens.unsqueeze(1))
    state["totals"].index_copy_(1, step, totals.unsqueeze(1))


def lines_of(line: Tensor, rows: Tensor) -> Tensor:
    """Return the ancestors ``[B, n, T]`` at all steps of some rows ``[B, n]`` of each sentence."""
    return line.gather(1, rows.unsqueeze(2).expand(-1, -1, line.size(2)))


def voted(rules: Rules, logits: Sequence[Tensor]) -> Tensor:
    """Return the logits of one model, or the log of several models' mean probabilities."""
    if rules.temperature != 1:
        logits = [model_logits / rules.temperature for model_logits in logits]
    if len(logits) == 1:
        return logits[0]
    log_probabilities = torch.stack([model_logits.log_softmax(2) for model_logits in logits])
    return log_probabilities.logsumexp(0) - math.log(len(logits))


def ranked(
    rules: Rules, symbols: Symbols, state: dict[str, Tensor], logits: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the best next tokens: their log-probabilities and ids, both ``[B, W, 2 W]``."""
    step = state["step"]
    normalizers = logits.logsumexp(2, keepdim=True)
    logits.select(2, symbols.unknown).sub_(rules.unkpen)
    last = step.ge(state["limit"]).unsqueeze(1)
    forced = state["forced"].index_select(1, step) - 1
    forced = forced.masked_fill(last, symbols.end).unsqueeze(2).expand(-1, rules.beam, -1)
    only = logits.gather(2, forced.clamp(min=0)) - normalizers
    if rules.match_source_len:
        only = only.masked_fill(last.unsqueeze(2), 0)
        logits.select(2, symbols.end).fill_(NEVER)
    elif rules.min_len:
        logits.select(2, symbols.end).masked_fill_(step.lt(rules.min_len), NEVER)
    logits.select(2, symbols.pad).fill_(NEVER)
    if rules.no_repeat_ngram_size:
        bar_repetitions(rules.no_repeat_ngram_size, symbols.pad, state, logits)
    values, tokens = logits.topk(2 * rules.beam)
    values, free = values - normalizers, forced.lt(0)
    never = only.new_full((), NEVER).expand(*values.shape[:2], values.size(2) - 1)
    values = torch.where(free, values, torch.cat([only, never], 2))
    return values, torch.where(free, tokens, forced)


def bar_repetitions(size: int, pad: int, state: dict[str, Tensor], logits: Tensor) -> None:
    """Forbid tokens that would repeat an n-gram of ``size`` tokens; ignore the start symbol."""
    step, line = state["step"], state["line"]
    words = state["tokens"].transpose(1, 2).gather(1, line)  # each hypothesis's words [B, W, T]
    ends = torch.arange(words.size(2), device=words.device)
    repeats = (ends.ge(size) & ends.le(step)).expand_as(words)
    for back in range(1, size):
        newest = words.index_select(2, (step + 1 - back).clamp(min=0))
        repeats = repeats & words.roll(back, 2).eq(newest)
    logits.scatter_(2, torch.where(repeats, words, pad), NEVER)


def finish(state: dict[str, Tensor], ends: Tensor, totals: Tensor, parents: Tensor) -> None:
    """Store the hypotheses ``[B, W]`` that end, best first, until a sentence has W of them."""
    beam = ends.size(1)
    places = state["count"].unsqueeze(1) + ends.cumsum(1) - 1
    ends = ends & places.lt(beam)
    places = places.masked_fill(ends.logical_not(), beam)
    lines = lines_of(state["line"], parents)
    state["ended lines"].scatter_(1, places.unsqueeze(2).expand_as(lines), lines)
    state["ended totals"].scatter_(1, places, totals)
    state["ended steps"].scatter_(1, places, state["step"].expand_as(places))
    state["count"] += ends.sum(1)
