"""Selectors by name, for a pair of models and a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastspec._fastspec import DrafterConfig
from fastspec.errors import InvalidArgumentError
from fastspec.sparse.lookahead import Lookahead
from fastspec.sparse.manifest import DRAFTERS, Manifest
from fastspec.sparse.options import SELECTORS
from fastspec.sparse.published import PublishedQuest, PublishedSnapKv
from fastspec.sparse.session import Dense, HeadsOf, Oracle, Quest, Scored, Selector, Streaming
from fastspec.sparse.signals import Budget
from fastspec.train.target import Target

UNPROFILED_LAYERS = 4  # of the target, that score without a manifest


def check_names(names: Sequence[str], manifest: Manifest | None, drafter: DrafterConfig | None) -> None:
    """Raises InvalidArgumentError for a selector that is unknown or lacks what it needs."""
    looks_ahead = drafter is not None and drafter.kind in DRAFTERS
    for name in names:
        if name not in SELECTORS:
            raise InvalidArgumentError(f"selector {name!r}: expected {', '.join(SELECTORS)}")
        if name == "dustin" and manifest is None:
            raise InvalidArgumentError("selector 'dustin' needs --manifest")
        profiled = name == "dustin" and manifest is not None and manifest.lookahead_slots > 0
        if (profiled or name in ("lookahead", "hybrid")) and not looks_ahead:
            raise InvalidArgumentError(f"selector {name!r} needs --drafter longspec:DIR or standalone:DIR")
    if not names:
        raise InvalidArgumentError(f"no selector is named: expected some of {', '.join(SELECTORS)}")


@dataclass(frozen=True)
class Selectors:
    """What there is to choose from.

    `dustin` and `history` are the engine's: with the manifest's heads, the division scaled to the budget; without one
    all heads of a few layers. `lookahead` and `hybrid` (half of the budget each) score with the same heads. Quest knows
    no manifest. `history-all` takes all heads of all layers.

    Attributes:
        target: the model.
        lookahead: of its drafter, or None.
        manifest: of the pair, or None.
        page: tokens of a page, for Quest.
    """

    target: Target
    lookahead: Lookahead | None
    manifest: Manifest | None
    page: int

    def make(self, name: str, budget: Budget) -> Selector:
        """A new one, for one session. The name has passed check_names()."""
        if name == "dense":
            return Dense()
        if name == "streaming":
            return Streaming(budget)
        if name == "oracle":
            return Oracle(budget)
        if name == "quest":
            return Quest(budget, self._unprofiled(UNPROFILED_LAYERS), self.page)
        if name == "quest-published":
            return PublishedQuest(budget, self.page)
        if name == "snapkv-published":
            return PublishedSnapKv(budget)
        return self._scored(name, budget)

    def _scored(self, name: str, budget: Budget) -> Selector:
        manifest = self.manifest
        if name == "history-all":
            return Scored(budget, self._unprofiled(self._layers))
        heads = self._unprofiled(UNPROFILED_LAYERS) if manifest is None else dict(manifest.target.layers)
        if name == "history":
            return Scored(budget, heads)
        slots = {"lookahead": budget.free, "hybrid": min(budget.free, budget.slots // 2)}.get(name)
        if slots is None:
            assert manifest is not None
            slots = manifest.slots_at(budget)
        pooling = "mean" if manifest is None else manifest.pooling
        return Scored(budget, heads, self.lookahead, self._draft_heads(), slots, pooling)

    @property
    def _layers(self) -> int:
        return len(self.target.model.model.layers)

    def _unprofiled(self, count: int) -> HeadsOf:
        """All heads of `count` layers, in the middle of equal parts of the model."""
        heads = tuple(range(self.target.block_shape(False, 1, None).num_heads))
        count = min(count, self._layers)
        return {(2 * part + 1) * self._layers // (2 * count): heads for part in range(count)}

    def _draft_heads(self) -> HeadsOf:
        if self.manifest is not None and self.manifest.drafter is not None:
            return dict(self.manifest.drafter.layers)
        if self.lookahead is None:
            return {}
        return dict.fromkeys(range(self.lookahead.layers), tuple(range(self.lookahead.heads)))
