"""How much memory there is, how much one example takes, and what to do when it runs out."""

from __future__ import annotations

import math
import os
import weakref
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from local_elasticity.engine.guard import DispatchMode, FunctionMode, interruption, raise_interruption
from local_elasticity.engine.inputs import count
from local_elasticity.engine.object_parts import storage_of
from local_elasticity.engine.problem import BoundProblem, Inputs
from local_elasticity.engine.replica import flatten_tree

UNLIMITED = 1 << 62
"""Bytes where nothing limits them."""

SHARE_OF_FREE = 0.5
"""Of the memory that is free, how much a measurement may use unless `memory=` says otherwise."""

MAPPED = (32 << 20) - (64 << 10)
"""Bytes: just below 32 MiB, from where on glibc maps every block anew."""

LIVE_AT_ONCE = 4
"""How many tensors of the largest size a forward pass holds at a time, workspaces included."""


@dataclass(frozen=True)
class Footprint:
    """Bytes: of the stepped parameters, of the largest activation of one example, of all its activations."""

    parameters: int
    largest: int
    activations: int

    def forward(self, examples: int = 1) -> int:
        return LIVE_AT_ONCE * self.largest * examples

    def backward(self, examples: int = 1) -> int:
        return 2 * self.activations * examples


def footprint(bound: BoundProblem, one: Inputs) -> tuple[Tensor, Footprint]:
    """The outputs of one example, and what its forward pass took."""
    with torch.no_grad(), _Allocations() as seen:
        outputs = bound.replica.watch_again(lambda: bound.outputs(bound.params, one)).detach()
    parameters = sum(p.numel() * p.element_size() for p in bound.params.values())
    return outputs, Footprint(parameters, max(seen.sizes, default=1), max(sum(seen.sizes), 1))


def keep_freed_memory(device: torch.device) -> None:
    """On a CPU, let activations of up to 32 MiB reuse the memory of those before them.

    By default, glibc gives freed memory back to the system, and a loop of forward passes waits a quarter of its time
    for pages that it had before. It keeps twice as much as the largest block that was freed, so one such block is
    freed here. Other allocators are not changed by that, and no memory is touched.
    """
    if device.type == "cpu":
        torch.empty(MAPPED, dtype=torch.uint8, device="cpu")


def examples_at_once(
    bound: BoundProblem, inputs: Inputs, size: Footprint, memory: int | None, *, gradients: int = 0, columns: int = 0
) -> int:
    """How many examples of this size half the memory holds, with their passes and `gradients` vectors of `columns`."""
    keep_freed_memory(bound.device)
    vectors = 3 * gradients * columns * torch.finfo(bound.dtype).bits // 8
    budget = budget_of(memory, bound.device) // 2
    return max(1, min(count(inputs), budget // (vectors + 2 * size.backward(max(1, gradients)))))


def budget_of(memory: int | None, device: torch.device) -> int:
    """The bytes a measurement may use: what was asked for, or a share of what is free."""
    if memory is None:
        return int(SHARE_OF_FREE * available(device))
    if isinstance(memory, bool) or not isinstance(memory, Real) or not 0 < memory < math.inf:
        raise ValueError(f"memory: expected a positive number of bytes, got {memory!r}")
    return int(memory)


def available(device: torch.device) -> int:
    """Bytes free on the device now."""
    if device.type == "cuda":
        now = torch.cuda.memory_stats(device)
        unused = now.get("reserved_bytes.all.current", 0) - now.get("allocated_bytes.all.current", 0)
        return int(torch.cuda.mem_get_info(device)[0] + unused)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    return min(_free_in_machine(), _free_in_container())


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA, MPS and the CPU allocator each say it their own way."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("not enough memory", "out of memory", "can't allocate memory")
    )


def may_be_passed_over(error: BaseException) -> bool:
    """Whether another engine may be tried after this error: it was neither a lack of memory nor an interrupt."""
    return not is_out_of_memory(error) and interruption(error) is None


class Live(DispatchMode):
    """Counts the bytes of the tensors that are made inside and still alive; `most` is the largest count there was.

    >>> with Live() as live:
    ...     for _ in range(3):
    ...         two = torch.ones(256) + torch.ones(256)  # three tensors of 1024 bytes, and the one of the turn before
    >>> live.most
    4096
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in flatten_tree(result):
            if isinstance(leaf, Tensor):
                self._note(storage_of(leaf))
        return result

    def _note(self, storage: Any) -> None:
        if storage not in self._known:
            self._known.add(storage)
            weakref.finalize(storage, self._gone, storage.nbytes())
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)

    def _gone(self, size: int) -> None:
        self.now -= size


class _Allocations(FunctionMode):
    """Collects the sizes of all tensors that functions return."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.sizes += [t.numel() * t.element_size() for t in flatten_tree(result) if isinstance(t, Tensor)]
        return result


def _free_in_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration) as error:
        raise_interruption(error)
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _free_in_container() -> int:
    """What the control group of a container leaves; unlimited where there is none."""
    group = Path("/sys/fs/cgroup")
    try:
        if not (group / "memory.max").is_file():
            return UNLIMITED
        limit = (group / "memory.max").read_text().strip()
        return UNLIMITED if limit == "max" else int(limit) - int((group / "memory.current").read_text())
    except (OSError, ValueError) as error:
        raise_interruption(error)
        return UNLIMITED
