"""Several processes (torch.distributed): each measures its share of the sources, and the parts are put together.

Rank 0 decides when a probe is taken and broadcasts it, so that no rank waits for another because their clocks differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from local_elasticity.engine.memory import is_out_of_memory
from local_elasticity.engine.response import OF_SOURCES, Response

T = TypeVar("T")


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

    def __init__(self, *, out_of_memory: bool) -> None:
        super().__init__("another process could not measure its share; its own message says why")
        self.out_of_memory = out_of_memory


FINE, OUT_OF_MEMORY, FAILED = 0, 1, 2
"""How a rank did its share."""


def for_want_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, here or in another process."""
    return error.out_of_memory if isinstance(error, OthersFailedError) else is_out_of_memory(error)


def together(work: Callable[[], T]) -> T:
    """Do this rank's share of the work; raise on every rank where it fails on one, so that none waits for another."""
    if alone():
        return work()
    error = None
    try:
        result = work()
    except Exception as raised:
        error = raised
    own = FINE if error is None else OUT_OF_MEMORY if is_out_of_memory(error) else FAILED
    told = torch.tensor([own], dtype=torch.int32, device=_device())
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    if error is not None:
        raise error
    if told.item() != FINE:
        raise OthersFailedError(out_of_memory=told.item() == OUT_OF_MEMORY)
    return result


def shared(n: int) -> bool:
    """Whether n sources are divided among processes; fewer sources than processes are measured by each of them."""
    return not alone() and n >= dist.get_world_size()


def share(n: int) -> slice:
    """Which of n shared sources this rank measures."""
    rows = torch.arange(n).tensor_split(dist.get_world_size())[dist.get_rank()].tolist()
    return slice(rows[0], rows[-1] + 1)


def gathered_response(mine: Response, n: int, *, square: bool) -> Response:
    """The response of all n sources from the shares of the ranks; `square` where the targets are all sources. It is in
    float64 if that of any rank is, which rounding decides from the predictions for its sources."""
    if not shared(n):
        return mine
    mine = mine.double() if _anywhere(mine.target_change.dtype == torch.float64) else mine
    names = ("target_change", *OF_SOURCES)
    whole = dict(zip(names, gathered_rows([getattr(mine, name) for name in names], n), strict=True))
    return replace(mine, **whole, targets_are_sources=square)  # type: ignore[arg-type]


def _anywhere(mine: bool) -> bool:
    """Whether something holds on any rank."""
    told = torch.tensor([mine], dtype=torch.int32, device=_device())
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return bool(told.item())


def gathered_rows(mine: Sequence[Tensor], n: int) -> list[Tensor]:
    """Of each tensor the rows of all ranks, one after another; blocks of unequal length are padded and trimmed.

    Memory may run out on one rank alone, so it is taken before the ranks exchange anything, and released after.
    """
    if not shared(n):
        return list(mine)
    sizes = [len(rows) for rows in torch.arange(n).tensor_split(dist.get_world_size())]
    padded = together(lambda: [_padded(one, max(sizes)) for one in mine])
    for block, parts in padded:
        dist.all_gather(parts, block)
    return together(
        lambda: [
            torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]).to(one.device)
            for one, (_, parts) in zip(mine, padded, strict=True)
        ]
    )


def _padded(mine: Tensor, size: int) -> tuple[Tensor, list[Tensor]]:
    """A block of `size` rows that begins with this rank's rows, and memory for the blocks of all ranks."""
    block = torch.zeros(size, *mine.shape[1:], dtype=mine.dtype, device=_device())
    block[: len(mine)] = mine.detach()
    return block, [torch.empty_like(block) for _ in range(dist.get_world_size())]


def _device() -> torch.device:
    """The device on which collectives need their tensors."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
