"""Quest and SnapKV as their authors have them: a choice for every layer and head. Too costly to build an engine on.

They are here to compare with, by masks over the whole context, and save nothing.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from fastspec.sparse.context import attend_rows, over_all
from fastspec.sparse.session import Selector, Session
from fastspec.sparse.signals import Budget, masses, page_bounds, page_scores
from fastspec.train.target import Attend

DENSE_LAYERS = 2  # leading layers that Quest leaves alone (arXiv 2406.10774, section 4)
WINDOW, KERNEL = 32, 7  # of SnapKV: rows of the prompt that vote, and pooling of their votes (arXiv 2404.14469)


class PublishedQuest(Selector):
    """Every row of every head takes its own pages in every layer, by its own query; the first layers are dense."""

    def __init__(self, budget: Budget, page: int) -> None:
        """`budget`: as many pages as fit; the last one is always taken."""
        self._pages, self._page = max(1, budget.slots // page), page

    def attend(self, session: Session, rows: torch.Tensor) -> Attend:
        """See Selector."""
        dense = over_all(session.context, session.lengths())
        length = session.root

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            if layer < DENSE_LAYERS:
                return dense(layer, query, key, value)
            keys, values = (part[layer, None, :, :length] for part in (session.context.keys, session.context.values))
            scores = page_scores(query[0], page_bounds(keys[0], self._page))
            scores[..., -1] = float("inf")  # where the sequence grows
            chosen = torch.zeros_like(scores, dtype=torch.bool)
            chosen.scatter_(-1, scores.topk(min(self._pages, scores.shape[-1]), dim=-1).indices, True)
            seen = chosen.repeat_interleave(self._page, dim=-1)[None, ..., :length]
            return attend_rows(query, keys, values, seen, key, value)

        return attend


class PublishedSnapKv(Selector):
    """Each K/V head of each layer keeps what the prompt's last rows attended to, once; all that is generated stays."""

    def __init__(self, budget: Budget) -> None:
        """`budget`: of the prompt's tokens, the voting rows included."""
        self._slots = budget.slots
        self._kept: torch.Tensor | None = None  # bool [layers, heads, prompt]

    def attend(self, session: Session, rows: torch.Tensor) -> Attend:
        """See Selector."""
        if self._kept is None:
            self._kept = self._vote(session)
        kept = self._kept
        length = session.root

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            keys, values = (part[layer, None, :, :length] for part in (session.context.keys, session.context.values))
            seen = functional.pad(kept[layer], (0, length - kept.shape[-1]), value=True)[None, :, None]
            return attend_rows(query, keys, values, seen, key, value)

        return attend

    def _vote(self, session: Session) -> torch.Tensor:
        """By the session's last queries, which are the prompt's: bool [layers, heads, L]."""
        length, window = session.root, session.queries.shape[2]
        kept = []
        for layer in range(session.queries.shape[0]):
            places = torch.arange(length - window, length, device=session.tokens.device) + 1
            votes = masses(session.queries[layer], session.context.keys[layer], places).sum(dim=1)
            group = votes.shape[0] // session.context.keys.shape[1]
            pooled = functional.max_pool1d(votes.unflatten(0, (-1, group)).mean(dim=1), KERNEL, 1, KERNEL // 2)
            pooled[:, length - window :] = float("inf")
            chosen = torch.zeros_like(pooled, dtype=torch.bool)
            chosen.scatter_(-1, pooled.topk(min(self._slots, length), dim=-1).indices, True)
            kept.append(chosen.repeat_interleave(group, dim=0))
        return torch.stack(kept)
