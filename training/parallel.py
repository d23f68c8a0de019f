"""Data parallelism by explicit reduction: every process holds the whole model and reduces after the last backward.

No wrapper with gradient hooks is used: the shared block runs r times in one backward and is compiled.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Team:
    """The processes of one run: this one's rank, how many there are, and this one's device."""

    rank: int
    world: int
    device: torch.device

    @classmethod
    def join(cls, device: str) -> Team:
        """Read torchrun's environment and connect; without it, a team of one.

        Parameters
        ----------
        device : {"auto", "cpu", "cuda"}
            `auto` is cuda where there is one.
        """
        kind = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        world = int(os.environ.get("WORLD_SIZE", "1"))
        index = int(os.environ.get("LOCAL_RANK", "0"))
        place = torch.device(kind, index) if kind == "cuda" else torch.device("cpu")
        if kind == "cuda":
            torch.cuda.set_device(place)
        if world > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timedelta(minutes=30))
        return cls(int(os.environ.get("RANK", "0")), world, place)

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def sum(self, *tensors: Tensor) -> None:
        """Replace every tensor by its sum over the team."""
        if self.world > 1:
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

    def average(self, tensors: list[Tensor]) -> None:
        """Replace every tensor by its mean over the team."""
        if self.world > 1:
            self.sum(*tensors)
            torch._foreach_div_(tensors, self.world)

    def any(self, flag: bool) -> bool:
        """Whether any process of the team says so."""
        if self.world == 1:
            return flag
        count = torch.tensor(int(flag), device=self.device)
        self.sum(count)
        return bool(count.item())

    def leave(self) -> None:
        """Disconnect."""
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()
