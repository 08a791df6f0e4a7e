"""What a kind of drafter brings to the training loop that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastspec.train.documents import Documents
from fastspec.train.offline import Tally
from fastspec.train.rows import RowGroup


@dataclass
class Loss:
    """Of some rows: the sum (differentiable), hits and places that were counted, and the rows' tokens."""

    total: torch.Tensor
    hits: torch.Tensor
    count: int
    tokens: int


class Recipe(ABC):
    """A drafter in training.

    Attributes:
        module: what is trained, on the target's device.
        rows_multiple: each process has a multiple of so many rows in a batch.
        shapes: names of the ways of drafting that acceptance() counts.
    """

    module: nn.Module
    rows_multiple: int = 1
    shapes: Sequence[str] = ()

    @abstractmethod
    def bind(self, groups: Sequence[RowGroup]) -> None:
        """Takes the rows of the run, on the target's device."""

    @abstractmethod
    def prepare(self, log: Callable[[str], None]) -> None:
        """What is done once, before the first step."""

    @abstractmethod
    def loss(self, model: Any, group_index: int, rows: torch.Tensor, step: int) -> Loss:
        """Of some rows of a group in a step; `model` is the module, or what wraps it."""

    @abstractmethod
    def acceptance(self, module: Any, documents: Documents) -> dict[str, dict[str, Tally]]:
        """Of a module like the trained one: kind -> name of shape -> Tally; see offline.tally_acceptance()."""

    @abstractmethod
    def save(self, module: Any, directory: Path) -> None:
        """Writes a module like the trained one as a drafter."""
