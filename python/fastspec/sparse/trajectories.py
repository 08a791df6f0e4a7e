"""What the engine did on some prompts, and the signals of every step of it, computed again from the tokens.

A step is a pass of the engine: a root at a place, whose context is all before it, and the rows that were accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fastspec import LLM, RequestSpeculation, SamplingParams
from fastspec.errors import FastSpecError
from fastspec.sparse.context import Reading, read
from fastspec.sparse.lookahead import Lookahead
from fastspec.sparse.signals import masses
from fastspec.train.documents import Documents, until_repetition
from fastspec.train.target import Target

ROWS = 5  # of a step, where no drafter says how many
_STEPS_AT_ONCE = 8  # bounds the memory that all heads and rows of a layer take


@dataclass(frozen=True)
class Trajectory:
    """A prompt with the target's greedy continuation.

    Attributes:
        kind: of the text.
        tokens: both.
        prompt: tokens of the prompt.
        steps: (place of the root, rows) of each pass; row i of it gives the token behind place + i.
    """

    kind: str
    tokens: list[int]
    prompt: int
    steps: list[tuple[int, int]]


def steps_of(prompt: int, end: int, committed: Sequence[int]) -> list[tuple[int, int]]:
    """Steps of a continuation whose tokens came `committed` at a time, the first by the prompt's own pass.

    Args:
        prompt: tokens of the prompt.
        end: tokens of prompt and continuation that count; a step that goes beyond is left out.
        committed: tokens of each pass.
    """
    steps = []
    root = prompt + committed[0] - 1
    for rows in committed[1:]:
        if root + rows >= end:
            break
        steps.append((root, rows))
        root += rows
    return steps


def decode(llm: LLM, prompts: Documents, max_tokens: int, rows: int) -> Iterator[Trajectory]:
    """Continues prompts greedily with the engine, several at once.

    Args:
        llm: the target, with the drafter whose accepted tokens make up the steps.
        prompts: as they are.
        max_tokens: of a continuation; it counts up to where it repeats itself.
        rows: of every step; 0 = the engine's own steps.
    """
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    speculation = RequestSpeculation(enabled=rows == 0)  # with rows of its own a step needs no drafts
    streams = [llm.stream(prompts.prompt(index), params, speculation=speculation) for index in range(len(prompts))]
    for index, stream in enumerate(streams):
        committed = [len(delta.token_ids) for delta in stream if delta.token_ids]
        completion = stream.output.outputs[0]
        if completion.error:
            raise FastSpecError(completion.error)
        prompt = prompts.prompt(index)
        tokens = [*prompt, *completion.token_ids]
        end = until_repetition(tokens, len(prompt))
        if rows:
            committed = [1] + [rows] * ((len(completion.token_ids) - 1) // rows)
        if steps := steps_of(len(prompt), end, committed):
            yield Trajectory(prompts.kind_name(index), tokens[:end], len(prompt), steps)


@dataclass(frozen=True)
class Recording:
    """The signals of N steps whose contexts have at most L tokens.

    Attributes:
        trajectory: with the N steps.
        reading: the target's dense pass, from the row before the first root on.
        roots: int64 [N], places of roots, which is the lengths of contexts.
        rows: int64 [N, R] tokens of the rows, padded.
        counted: bool [N, R], which are rows.
        mass: [N, L], the rows' true attention: mean over layers, heads, rows.
        history: [layers, N, L], scores of the named heads of each layer.
        everywhere: [N, L], of all heads of all layers.
        lookahead: [draft layers, N, L] as well, or None.
    """

    trajectory: Trajectory
    reading: Reading
    roots: torch.Tensor
    rows: torch.Tensor
    counted: torch.Tensor
    mass: torch.Tensor
    history: torch.Tensor
    everywhere: torch.Tensor
    lookahead: torch.Tensor | None

    @property
    def dense(self) -> torch.Tensor:
        """Dense logits of the rows, [N, R, vocabulary]; those of padding mean nothing."""
        places = self.roots[:, None] + torch.arange(self.rows.shape[1], device=self.rows.device)
        return self.reading.logits[(places - self.reading.first).clamp(max=self.reading.logits.shape[0] - 1)]


def history_scores(reading: Reading, layer: int, roots: torch.Tensor) -> torch.Tensor:
    """Attention of the last confirmed row, the one whose logits gave the root: [heads, N, L]."""
    return masses(reading.queries[layer][:, roots - 1 - reading.first], reading.context.keys[layer], roots)


def true_mass(reading: Reading, roots: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Attention of the rows themselves over the context before their root: mean over layers, heads, rows. [N, L]."""
    layers, length = reading.queries.shape[0], int(roots.max())
    total = torch.zeros(len(roots), length, device=roots.device)
    for begin in range(0, len(roots), _STEPS_AT_ONCE):
        step, row = counted[begin : begin + _STEPS_AT_ONCE].nonzero().unbind(dim=1)
        step += begin
        share = 1.0 / (layers * counted.sum(dim=1)[step].float())
        for layer in range(layers):
            query = reading.queries[layer][:, roots[step] + row - reading.first]
            each = masses(query, reading.context.keys[layer], roots[step]).mean(dim=0)
            total[:, : each.shape[1]].index_add_(0, step, each * share[:, None])
    return total


def read_steps(
    target: Target, trajectory: Trajectory, room: int = 0
) -> tuple[Reading, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The dense pass over a trajectory with its roots, rows and which rows count, as in Recording."""
    tokens = torch.tensor(trajectory.tokens, device=target.device)
    reading = read(target, tokens, trajectory.steps[0][0] - 1, room)
    roots = torch.tensor([root for root, _ in trajectory.steps], device=target.device)
    sizes = torch.tensor([rows for _, rows in trajectory.steps], device=target.device)
    offsets = torch.arange(int(sizes.max()), device=target.device)
    counted = offsets < sizes[:, None]
    rows = tokens[(roots[:, None] + offsets).clamp(max=len(tokens) - 1)]
    return reading, roots, rows, counted


def record(
    target: Target,
    lookahead: Lookahead | None,
    trajectory: Trajectory,
    heads: Sequence[Sequence[int]],
    draft_heads: Sequence[Sequence[int]],
    pooling: str,
) -> Recording:
    """Computes the signals of a trajectory.

    Args:
        target, lookahead: the models.
        trajectory: its steps' contexts are longer than the budget.
        heads, draft_heads: of each layer.
        pooling: of the drafted rows.
    """
    reading, roots, rows, counted = read_steps(target, trajectory)
    layers = reading.queries.shape[0]
    history, whole = [], []
    for layer in range(layers):
        each = history_scores(reading, layer, roots)
        history.append(each[list(heads[layer])].mean(dim=0))
        whole.append(each.mean(dim=0) / layers)
    ahead = None
    if lookahead is not None:
        tokens = torch.tensor(trajectory.tokens, device=target.device)
        scores = lookahead.scores(tokens, reading.context, roots, pooling)
        ahead = torch.stack([each[list(draft_heads[layer])].mean(dim=0) for layer, each in scores])
    mass = true_mass(reading, roots, counted)
    everywhere = torch.stack(whole).sum(dim=0)
    return Recording(trajectory, reading, roots, rows, counted, mass, torch.stack(history), everywhere, ahead)
