"""The work behind a stored similarity: how one block is computed, here or on another machine, to the same bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from local_elasticity.engine.inputs import count, take
from local_elasticity.engine.job import Engine
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.respond import respond
from local_elasticity.engine.response import OfResponse, Response
from local_elasticity.engine.update import Update
from local_elasticity.measures.kernel import kernel, normalized
from local_elasticity.measures.named import OF_PROBLEM, OF_RESPONSE, OWN_CHANGE
from local_elasticity.scale.workers import threads_set
from local_elasticity.store.blocks import At, Grid

SYMMETRIC = ("stiffness_cos", "stiffness_sign", "activation")
"""Measures with S(x, x′) = S(x′, x) by definition."""

Array = np.ndarray


@dataclass(frozen=True)
class Work:
    """Everything that a block is computed from. `targets` is None where they are the sources.

    `memory` and `threads` are fixed numbers, since chunk sizes, and with them the last bits, follow from them.
    `diagonal` is S_ker of every source with itself, once it is known, for the normalised kernel.
    """

    problem: Problem
    sources: tuple[Any, Tensor]
    targets: Any
    measure: str | OfResponse
    update: Update
    engine: Engine
    source_batch_size: int | None
    memory: int
    threads: int
    grid: Grid
    diagonal: Array | None = None

    @property
    def name(self) -> str:
        return self.measure if isinstance(self.measure, str) else measure_name(self.measure)

    @property
    def own(self) -> str | None:
        """What the sources' own values are called, where the measure has some."""
        return "source_change" if self.name in OWN_CHANGE else "source_kernel" if self._normalises else None

    @property
    def dtype(self) -> str:
        """What similarities are kept in."""
        dtype = self.problem.dtype or self.problem.named_parameters()[self.problem.steps[0]].dtype
        return "float64" if dtype == torch.float64 else "float32"

    @property
    def gpus(self) -> int:
        return int(self.sources[1].is_cuda)

    @property
    def _normalises(self) -> bool:
        return self.name == "normalized_kernel"

    def block(self, at: At) -> tuple[Array, Array | None]:
        """The values of one block, and its sources' own."""
        return self._values(at, *self.grid.region(at))

    def corner(self, at: At, few: int) -> Array:
        """The first rows and columns of a block."""
        rows, columns = (slice(part.start, min(part.stop, part.start + few)) for part in self.grid.region(at))
        return self._values(at, rows, columns)[0]

    def _values(self, at: At, rows: slice, columns: slice) -> tuple[Array, Array | None]:
        batch = self.source_batch_size or 1
        sources = copied(self.sources, slice(rows.start * batch, rows.stop * batch))
        targets = self._targets(at, columns)
        with threads_set(self.threads):
            if self.name in OF_PROBLEM:
                S = OF_PROBLEM[self.name](self.problem, sources, targets, memory=self.memory, progress=False)
                return _array(S), None
            response = self.respond(sources, targets)
            if self._normalises:
                return self._normalized(response, at, rows, columns)
            own = OWN_CHANGE[self.name](response) if self.name in OWN_CHANGE else None
            return _array(self.measured(response)), None if own is None else _array(own)

    def respond(self, sources: Any, targets: Any) -> Response:
        return respond(
            self.problem,
            sources,
            targets,
            update=self.update,
            engine=self.engine,
            source_batch_size=self.source_batch_size,
            memory=self.memory,
            progress=False,
        )

    def measured(self, response: Response) -> Tensor:
        return OF_RESPONSE[self.measure](response) if isinstance(self.measure, str) else self.measure(response)

    def with_diagonal(self, diagonal: Array) -> Work:
        return replace(self, diagonal=diagonal)

    def _targets(self, at: At, columns: slice) -> Any:
        if self.targets is not None:
            return copied(self.targets, columns)
        if at[0] == at[1]:
            return None
        return copied(self.sources if self.name.startswith("stiffness") else self.sources[0], columns)

    def _normalized(self, response: Response, at: At, rows: slice, columns: slice) -> tuple[Array, Array | None]:
        """K(x, x′)/√(K(x, x) K(x′, x′)); blocks on the diagonal bring the numbers to divide by."""
        K = kernel(response)
        if at[0] == at[1]:
            return _array(normalized(K)), _array(K.diagonal())
        assert self.diagonal is not None
        here, there = (torch.from_numpy(self.diagonal[part]).to(K) for part in (rows, columns))
        return _array(normalized(K, source_diagonal=here, target_diagonal=there)), None


def compute_block(work: Work, at: At) -> tuple[Array, Array | None]:
    """A task for workers."""
    return work.block(at)


def measure_name(measure: str | OfResponse) -> str:
    return measure if isinstance(measure, str) else getattr(measure, "__name__", type(measure).__name__)


def check_pairwise(work: Work) -> None:
    """A measure of one's own must give a pair the same value whichever pairs are in its block; try it on a few."""
    if isinstance(work.measure, str) or work.source_batch_size is not None:
        return
    few = min(6, count(work.sources[0]))
    sources = copied(work.sources, slice(0, few))
    targets = sources[0] if work.targets is None else copied(work.targets, slice(0, 6))
    with threads_set(work.threads):
        whole = work.measured(work.respond(sources, targets))
        half = copied(sources, slice(0, max(1, few // 2)))
        part = work.measured(work.respond(half, take(targets, slice(0, 3))))
    if not torch.allclose(whole[: len(part), : part.shape[1]], part, rtol=1e-3, equal_nan=True):
        raise ValueError(
            f"measure: {work.name} gives a pair another value when other pairs are measured with it, so that it cannot "
            "be stored in blocks; leave store out, and use S.le.save(path)"
        )


def copied(inputs: Any, rows: slice) -> Any:
    """Some examples, copied, so that they lie in memory as they would anywhere else."""
    return tree_map(lambda leaf: leaf[rows].clone(), inputs)


def _array(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().cpu().numpy())
