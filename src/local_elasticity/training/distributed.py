"""Several processes (torch.distributed): each measures its share of the sources, and the parts are put together.

Rank 0 decides when a probe is taken and tells the others, so that clocks that differ cannot make one wait for another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from local_elasticity.engine.inputs import take
from local_elasticity.engine.response import Response

T = TypeVar("T")

OF_SOURCES = (
    "source_before",
    "source_change",
    "target_change",
    "loss_gradient",
    "step_size",
    "source_noise",
    "noise_scale",
)
"""What of a response has a row for every source."""


def alone() -> bool:
    """Whether there is one process only."""
    return not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def first() -> bool:
    """Whether this process decides, logs and writes."""
    return alone() or dist.get_rank() == 0


def decided(answer: bool) -> bool:
    """The answer of rank 0, on every rank."""
    if alone():
        return answer
    told = torch.tensor([answer], dtype=torch.int32, device=_device())
    dist.broadcast(told, src=0)
    return bool(told.item())


class OthersFailedError(RuntimeError):
    """Another process could not do its share; its own message says why."""


def together(work: Callable[[], T]) -> T:
    """Do this rank's share of the work; raise on every rank where it fails on one, so that none waits for another."""
    if alone():
        return work()
    error = None
    try:
        result = work()
    except Exception as raised:
        error = raised
    told = torch.tensor([error is None], dtype=torch.int32, device=_device())
    dist.all_reduce(told, op=dist.ReduceOp.MIN)
    if error is not None:
        raise error
    if not told.item():
        raise OthersFailedError("another process could not measure its share; its own message says why")
    return result


def shared(n: int) -> bool:
    """Whether n sources are divided among processes; fewer sources than processes are measured by each of them."""
    return not alone() and n >= dist.get_world_size()


def share(sources: tuple[Any, Tensor]) -> tuple[Any, Tensor]:
    """The sources of this rank."""
    inputs, labels = sources
    if not shared(len(labels)):
        return sources
    rows = torch.arange(len(labels), device=labels.device).tensor_split(dist.get_world_size())[dist.get_rank()]
    return take(inputs, rows), labels[rows]


def gathered_response(mine: Response, n: int, *, square: bool) -> Response:
    """The response of all n sources from the shares of the ranks; `square` where the targets are all sources."""
    if not shared(n):
        return mine
    whole = {name: gathered_rows(getattr(mine, name), n) for name in OF_SOURCES}
    return replace(mine, **whole, targets_are_sources=square)  # type: ignore[arg-type]


def gathered_rows(mine: Tensor, n: int) -> Tensor:
    """The rows of all ranks, one after another; blocks of unequal length are padded and trimmed."""
    if not shared(n):
        return mine
    sizes = [len(rows) for rows in torch.arange(n).tensor_split(dist.get_world_size())]
    block = torch.zeros(max(sizes), *mine.shape[1:], dtype=mine.dtype, device=_device())
    block[: len(mine)] = mine.detach()
    blocks = [torch.empty_like(block) for _ in sizes]
    dist.all_gather(blocks, block)
    return torch.cat([one[:size] for one, size in zip(blocks, sizes, strict=True)]).to(mine.device)


def _device() -> torch.device:
    """Where collectives want their tensors."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
