"""One sequence under a selector, as the engine runs it: a dense prompt, then passes of a few rows over a selection.

What a pass computes stays in the cache, so that errors can grow as they do in the engine. A session can also put the
dense keys and values in their place, which shows the selector's own error without that growth.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch

from fastspec.sparse.context import Context, Reading, Rows, over, over_all, pass_rows
from fastspec.sparse.lookahead import Lookahead
from fastspec.sparse.signals import (
    Budget,
    masses,
    page_bounds,
    page_scores,
    recovered,
    select,
    streaming,
)
from fastspec.train.target import Attend, Target


class Session:
    """A sequence that grows.

    Attributes:
        target: the model.
        tokens: int64, the whole sequence; its last token is the root of the next pass.
        context: what has been read: all tokens but the root.
        queries: [layers, heads, window, head_dim] of the last rows that were read, the newest last.
        mass: recovered share of the true attention of each sparse pass, where record_mass is set.
    """

    def __init__(
        self, target: Target, tokens: torch.Tensor, context: Context, queries: torch.Tensor, record_mass: bool = False
    ) -> None:
        """`context` becomes the session's own; `queries` are those of the prompt's last rows."""
        self.target, self.tokens, self.context, self.queries = target, tokens, context, queries
        self.mass: list[float] = []
        self._record_mass = record_mass

    @property
    def root(self) -> int:
        """Place of the next root, which is the length of the context."""
        return self.context.length

    def step(self, selector: Selector, behind: Sequence[int], dense: Reading | None = None) -> torch.Tensor:
        """One pass over the root and the tokens behind it, all of which are committed but the last one's successor.

        Args:
            selector: what the rows see.
            behind: tokens behind the root; they and the root are in the cache afterwards.
            dense: a dense reading of the same tokens, whose keys, values and queries are kept instead.

        Returns:
            Logits of the rows, [1 + len(behind), vocabulary].
        """
        more = torch.tensor(list(behind), dtype=torch.int64, device=self.tokens.device)
        rows = torch.cat([self.tokens[self.root :], more])
        found = self._pass(rows, selector.attend(self, rows))
        keys, values, queries = found.keys[:, 0], found.values[:, 0], found.queries[:, 0]
        if dense is not None:
            places = slice(self.root, self.root + len(rows))
            keys, values = dense.context.keys[:, :, places], dense.context.values[:, :, places]
            queries = dense.queries[:, :, places.start - dense.first : places.stop - dense.first]
        self.context.append(keys, values)
        self.tokens = torch.cat([self.tokens, more])
        self.queries = torch.cat([self.queries, queries], dim=2)[:, :, -self.queries.shape[2] :]
        return found.logits[0]

    def advance(self, token: int) -> None:
        """Makes a token the next root, behind rows that are all read."""
        self.tokens = torch.cat([self.tokens, torch.tensor([token], device=self.tokens.device)])

    def lengths(self, rows: int = 1) -> torch.Tensor:
        """The length of the context, `rows` times."""
        return torch.full((rows,), self.root, dtype=torch.int64, device=self.tokens.device)

    def true_mass(self, rows: torch.Tensor) -> torch.Tensor:
        """Attention of the rows over the context when they see all of it: mean over layers, heads, rows. [1, L]."""
        found = self._pass(rows, over_all(self.context, self.lengths()))
        layers = range(found.queries.shape[0])
        each = [
            masses(found.queries[layer, 0], self.context.keys[layer], self.lengths(len(rows))).mean(dim=(0, 1))
            for layer in layers
        ]
        return torch.stack(each).mean(dim=0)[None]

    def note(self, rows: torch.Tensor, lists: torch.Tensor) -> None:
        """Keeps what of the rows' true attention lies in a selection."""
        if self._record_mass:
            self.mass.append(float(recovered(self.true_mass(rows), lists)))

    def _pass(self, rows: torch.Tensor, attend: Attend) -> Rows:
        return pass_rows(self.target, rows[None], self.lengths(), attend)


class Selector(ABC):
    """What the rows of a pass see of a session's context. Made for one session: it may remember.

    Attributes:
        known_mass: share of attention inside the last list, by the scores that chose it, as the engine reports it; None
            where nothing was scored.
    """

    known_mass: float | None = None

    @abstractmethod
    def attend(self, session: Session, rows: torch.Tensor) -> Attend:
        """For int64 [R] rows, the root and tokens behind it."""


class Dense(Selector):
    """All of it."""

    def attend(self, session: Session, rows: torch.Tensor) -> Attend:
        """See Selector."""
        return over_all(session.context, session.lengths())


class Listed(Selector):
    """One list for all layers and heads; all of it while that fits the budget, as the engine bypasses."""

    def __init__(self, budget: Budget) -> None:
        """Of `budget.slots` tokens."""
        self.budget = budget

    @abstractmethod
    def lists(self, session: Session, rows: torch.Tensor) -> torch.Tensor:
        """int64 [1, slots]."""

    def attend(self, session: Session, rows: torch.Tensor) -> Attend:
        """See Selector."""
        if session.root <= self.budget.slots:
            return over_all(session.context, session.lengths())
        lists = self.lists(session, rows)
        session.note(rows, lists)
        return over(session.context, lists)


class Streaming(Listed):
    """StreamingLLM."""

    def lists(self, session: Session, rows: torch.Tensor) -> torch.Tensor:
        """See Listed."""
        return streaming(session.lengths(), self.budget)


class Oracle(Listed):
    """The best by the rows' own attention to all of the context."""

    def lists(self, session: Session, rows: torch.Tensor) -> torch.Tensor:
        """See Listed."""
        return select(session.true_mass(rows), None, session.lengths(), self.budget, 0)


HeadsOf = dict[int, tuple[int, ...]]
"""Layer -> heads that score."""


class Scored(Listed):
    """History of named heads, and lookahead of named heads of a drafter: the engine's `history` and `dustin`."""

    def __init__(
        self,
        budget: Budget,
        heads: HeadsOf,
        lookahead: Lookahead | None = None,
        draft_heads: HeadsOf | None = None,
        lookahead_slots: int = 0,
        pooling: str = "mean",
    ) -> None:
        """No lookahead slots: history alone."""
        super().__init__(budget)
        self._heads, self._lookahead, self._draft_heads = heads, lookahead, draft_heads or {}
        self._slots, self._pooling = lookahead_slots, pooling

    def lists(self, session: Session, rows: torch.Tensor) -> torch.Tensor:
        """See Listed."""
        history = _mean(
            masses(session.queries[layer, :, -1:], session.context.keys[layer], session.lengths())[list(heads)]
            for layer, heads in self._heads.items()
        )
        ahead = None
        if self._lookahead is not None and self._slots:
            roots = session.lengths()
            scores = self._lookahead.scores(session.tokens[: session.root + 1], session.context, roots, self._pooling)
            ahead = _mean(each[list(self._draft_heads[layer])] for layer, each in scores if layer in self._draft_heads)
        found = select(history, ahead, session.lengths(), self.budget, self._slots)
        known = [float(recovered(scores, found)) for scores in (history, ahead) if scores is not None]
        self.known_mass = sum(known) / len(known)
        return found


class Quest(Listed):
    """Quest in the engine's form: pages by their bounds for the last confirmed row, one list for all layers.

    A page's bound stands for every token of it, in a softmax over all of them.
    """

    def __init__(self, budget: Budget, heads: HeadsOf, page: int) -> None:
        """`page`: tokens of a page."""
        super().__init__(budget)
        self._heads, self._page = heads, page

    def lists(self, session: Session, rows: torch.Tensor) -> torch.Tensor:
        """See Listed."""
        history = _mean(self._scores(session, layer)[list(heads)] for layer, heads in self._heads.items())
        found = select(history, None, session.lengths(), self.budget, 0)
        self.known_mass = float(recovered(history, found))
        return found

    def _scores(self, session: Session, layer: int) -> torch.Tensor:
        """[heads, 1, L]."""
        keys = session.context.keys[layer, :, : session.root]
        pages = page_scores(session.queries[layer, :, -1:], page_bounds(keys, self._page)) * keys.shape[-1] ** -0.5
        return torch.softmax(pages.repeat_interleave(self._page, dim=-1)[..., : session.root], dim=-1)


def _mean(layers: Iterable[torch.Tensor]) -> torch.Tensor:
    """Mean over the heads of all layers of [heads, N, L] scores."""
    return torch.cat(list(layers)).mean(dim=0)
