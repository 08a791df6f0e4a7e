"""Which weights of a run become its drafter: those, or their average, with which validation goes best."""

from __future__ import annotations

import copy

import torch
from torch import nn


class Candidates:
    """The block that is trained, its running average, and the best of what was evaluated so far."""

    def __init__(self, block: nn.Module, decay: float) -> None:
        """`decay`: of the average, a step; 0 = the block itself is what is evaluated and written."""
        self.block, self._decay = block, decay
        self.average = copy.deepcopy(block).requires_grad_(False) if decay > 0 else block
        self.best = copy.deepcopy(block).requires_grad_(False)
        self.best_score: float | None = None

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Moves the average towards the block after step 0, 1, ...; faster at first, so that the start is forgotten."""
        if self._decay > 0:
            share = 1.0 - min(self._decay, (1.0 + step) / (10.0 + step))
            torch._foreach_lerp_(list(self.average.parameters()), list(self.block.parameters()), share)

    def consider(self, score: float) -> bool:
        """Takes what is evaluated, with its score, for the best if it is; says whether."""
        if self.best_score is not None and score <= self.best_score:
            return False
        self.best_score = score
        self.best.load_state_dict(self.average.state_dict())
        return True

    @property
    def drafter(self) -> nn.Module:
        """The best of what was evaluated, or the present one where nothing was."""
        return self.average if self.best_score is None else self.best

    def modules(self) -> dict[str, nn.Module]:
        """All weights that a resumed run needs."""
        found = {"model": self.block}
        if self.average is not self.block:
            found["average"] = self.average
        if self.best_score is not None:
            found["best"] = self.best
        return found
