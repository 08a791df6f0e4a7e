"""Which context tokens a sparse pass reads: scores from attention, and the selection. As the engine defines them.

A score is attention of some heads and rows, softmax over the whole cached context, averaged over heads and layers. So
it sums to 1, and what of it lies inside a selection is recovered mass. New rows of a pass are not part of it. The list
of a pass: the first `sinks` tokens, the last `recent`, the `lookahead_slots` best by lookahead outside these, and the
best by history of what is left. Among equals the lower position wins.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fastspec.errors import InvalidArgumentError


@dataclass(frozen=True)
class Budget:
    """Context tokens that a pass reads: `slots` of them, the first `sinks` and the last `recent` always."""

    slots: int = 512
    sinks: int = 4
    recent: int = 16

    @property
    def free(self) -> int:
        """Slots that scores decide about."""
        return self.slots - self.sinks - self.recent

    def validate(self) -> None:
        """Raises InvalidArgumentError where nothing is left to choose."""
        if self.sinks < 0 or self.recent < 0 or self.free < 1:
            raise InvalidArgumentError(
                f"a budget of {self.slots} with {self.sinks} sinks and {self.recent} recent leaves nothing to choose"
            )


def masses(query: torch.Tensor, keys: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Softmax of every head and row over its context.

    Args:
        query: [heads, N, head_dim].
        keys: [kv_heads, L, head_dim].
        lengths: int64 [N]; row n sees keys 0..lengths[n]-1.

    Returns:
        float32 [heads, N, longest], longest = max(lengths); 0 behind a row's own length.
    """
    longest = int(lengths.max())
    heads, rows, head_dim = query.shape
    # A group's heads lie together. Products are summed in float32, whatever the type, as the engine's are.
    grouped = query.reshape(keys.shape[0], -1, head_dim).float()
    scores = torch.matmul(grouped, keys[:, :longest].float().transpose(1, 2)).view(heads, rows, longest)
    unseen = torch.arange(longest, device=lengths.device) >= lengths[:, None]
    return torch.softmax((scores * head_dim**-0.5).masked_fill(unseen, float("-inf")), dim=-1)


def pool_rows(each: torch.Tensor, weights: torch.Tensor, pooling: str) -> torch.Tensor:
    """Several rows' masses as one score.

    Args:
        each: [..., rows, L].
        weights: [rows], or [N, rows] where `each` is [..., N, rows, L]; at least 0, some above 0.
        pooling: "mean", weighted; or "max", the largest of weight times mass.

    Returns:
        [..., L].
    """
    weighted = each * weights[..., None]
    if pooling == "max":
        return weighted.amax(dim=-2)
    return weighted.sum(dim=-2) / weights.sum(dim=-1, keepdim=True)


def best(scores: torch.Tensor, allowed: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The best allowed places of each row, as a mask; among equals the lowest place.

    Args:
        scores: float [N, L]; what is not above 0 counts as 0.
        allowed: bool [N, L].
        counts: int64 [N], at most the allowed places of a row.
    """
    most = int(counts.max())
    if most == 0:
        return torch.zeros_like(allowed)
    ranked = scores.nan_to_num(nan=0.0).clamp(min=0).masked_fill(~allowed, -1.0)
    last = ranked.topk(most, dim=-1).values.gather(1, (counts - 1).clamp(min=0)[:, None])
    above, equal = ranked > last, (ranked == last) & allowed
    chosen = above | (equal & (equal.cumsum(dim=-1) <= counts[:, None] - above.sum(dim=-1, keepdim=True)))
    return chosen & (counts > 0)[:, None]


def select(
    history: torch.Tensor,
    lookahead: torch.Tensor | None,
    lengths: torch.Tensor,
    budget: Budget,
    lookahead_slots: int,
) -> torch.Tensor:
    """The list of each of N passes.

    Args:
        history, lookahead: float [N, L] scores of context tokens; no lookahead is lookahead_slots = 0.
        lengths: int64 [N], tokens of each context, more than the budget.
        budget: of the passes.
        lookahead_slots: taken by lookahead where it is above 0; at most budget.free.

    Returns:
        int64 [N, budget.slots], ascending.
    """
    if int(lengths.min()) <= budget.slots:
        raise InvalidArgumentError(
            f"a context of {int(lengths.min())} tokens fits a budget of {budget.slots}: nothing to select"
        )
    places = torch.arange(history.shape[1], device=history.device)
    inside = places < lengths[:, None]
    chosen = inside & ((places < budget.sinks) | (places >= lengths[:, None] - budget.recent))
    if lookahead is not None:
        wanted = torch.full_like(lengths, lookahead_slots)
        chosen = chosen | (best(lookahead, inside & ~chosen, wanted) & (lookahead > 0))
    chosen = chosen | best(history, inside & ~chosen, budget.slots - chosen.sum(dim=-1))
    return chosen.nonzero()[:, 1].view(len(lengths), budget.slots)


def streaming(lengths: torch.Tensor, budget: Budget) -> torch.Tensor:
    """StreamingLLM's lists: sinks, and the most recent tokens that fit. int64 [N, slots]."""
    window = torch.arange(budget.slots - budget.sinks, device=lengths.device)
    sinks = torch.arange(budget.sinks, device=lengths.device).expand(len(lengths), -1)
    return torch.cat([sinks, lengths[:, None] - len(window) + window], dim=1)


def page_bounds(keys: torch.Tensor, page_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Least and greatest value of every channel in every page of [..., L, head_dim] keys: [..., pages, head_dim]."""
    length = keys.shape[-2]
    pad = -length % page_size
    least = torch.nn.functional.pad(keys, (0, 0, 0, pad), value=float("inf"))
    greatest = torch.nn.functional.pad(keys, (0, 0, 0, pad), value=float("-inf"))
    return (
        least.unflatten(-2, (-1, page_size)).amin(dim=-2),
        greatest.unflatten(-2, (-1, page_size)).amax(dim=-2),
    )


def page_scores(query: torch.Tensor, bounds: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Quest's upper bound of q . k in every page.

    Args:
        query: [heads, N, head_dim].
        bounds: of page_bounds(), [kv_heads, pages, head_dim].

    Returns:
        float32 [heads, N, pages].
    """
    least, greatest = (bound.float() for bound in bounds)
    heads, rows, head_dim = query.shape
    grouped = query.reshape(least.shape[0], -1, head_dim).float()
    # sum_d max(q_d min_d, q_d max_d): the greatest where q is positive, the least where it is negative.
    bound = grouped.clamp(min=0) @ greatest.transpose(1, 2) + grouped.clamp(max=0) @ least.transpose(1, 2)
    return bound.view(heads, rows, -1)


def recovered(mass: torch.Tensor, lists: torch.Tensor) -> torch.Tensor:
    """What of [N, L] mass lies inside [N, slots] lists: [N], 0 to 1."""
    return mass.gather(1, lists).sum(dim=1).clamp(max=1.0)
