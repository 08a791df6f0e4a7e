"""The processes of one training run, one a GPU, as torchrun starts them; a run without torchrun is rank 0 of 1."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from fastspec.errors import InvalidArgumentError


@dataclass(frozen=True)
class Ranks:
    """This process among all.

    Attributes:
        rank: 0 <= rank < world; rank 0 writes files and the log.
        world: number of processes.
        device: that this process computes on.
    """

    rank: int
    world: int
    device: torch.device

    @staticmethod
    def join(device: str) -> Ranks:
        """Joins the run. `device` is "auto", "cpu" or "cuda" (this process's own GPU), or "cuda:N" without torchrun.

        Raises:
            InvalidArgumentError: there is no such device.
        """
        world, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            chosen = torch.device(f"cuda:{local}" if device == "cuda" else device)
        except RuntimeError:
            raise InvalidArgumentError(f"device {device!r}: expected auto, cpu, cuda or cuda:N") from None
        if chosen.type not in ("cpu", "cuda"):
            raise InvalidArgumentError(f"device {device!r}: expected auto, cpu, cuda or cuda:N")
        if chosen.type == "cuda":
            if not torch.cuda.is_available() or (chosen.index or 0) >= torch.cuda.device_count():
                raise InvalidArgumentError(f"device {device!r}: torch sees {torch.cuda.device_count()} GPUs")
            torch.cuda.set_device(chosen)
        if world > 1 and not distributed.is_initialized():
            distributed.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
        return Ranks(int(os.environ.get("RANK", "0")), world, chosen)

    @property
    def first(self) -> bool:
        """True on rank 0."""
        return self.rank == 0

    def wrap(self, module: torch.nn.Module) -> Any:
        """The module, with gradients averaged over ranks where there are several."""
        if self.world == 1:
            return module
        ids = [self.device.index] if self.device.type == "cuda" else None
        return torch.nn.parallel.DistributedDataParallel(module, device_ids=ids)

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """Sum over ranks."""
        if self.world > 1:
            distributed.all_reduce(value)
        return value

    def of_first(self, value: float) -> float:
        """Rank 0's value, on every rank."""
        if self.world == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=self.device)
        distributed.broadcast(shared, 0)
        return float(shared.item())

    def wait(self) -> None:
        """Returns when every rank has come here."""
        if self.world > 1:
            distributed.barrier()

    def leave(self) -> None:
        """Ends the group."""
        if self.world > 1 and distributed.is_initialized():
            distributed.destroy_process_group()
