"""similarity(..., store=path): the same question, answered block by block into a store, here or on other machines."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from local_elasticity.api.labels import Coordinates, about, as_array, circumstances, own_values
from local_elasticity.api.plan import LARGEST_SIDE, Plan
from local_elasticity.engine.causes import MOSTLY
from local_elasticity.engine.choose import name_of
from local_elasticity.engine.progress import ProgressOption
from local_elasticity.engine.versions import versions
from local_elasticity.measurement import Measured, Measurement
from local_elasticity.measures.measure import Measure
from local_elasticity.measures.registry import is_ours
from local_elasticity.scale.workers import threads_set
from local_elasticity.store import provenance
from local_elasticity.store.blocks import At, Grid
from local_elasticity.store.fingerprint import fingerprint
from local_elasticity.store.result import as_stored, attrs_as_stored, read
from local_elasticity.store.resume import Block, fill

TRIED = 2
"""Rows and columns that are computed before a store is begun."""

FEW = 6
"""Sources and targets that a user's measure is tried on, together and in parts, and that show why nothing moved."""


def similarity_in_store(
    path: Path,
    measurement: Measurement,
    coords: Coordinates,
    *,
    side: int | None,
    progress: ProgressOption,
) -> xr.DataArray:
    """Begin or resume a store, and read it back."""
    if side is not None and (not isinstance(side, int) or side < 1):
        raise ValueError(f"block: expected a whole number from 1 on, got {side!r}")
    problem = measurement.problem.promoted()
    grid = Grid(
        measurement.n,
        measurement.m,
        side or LARGEST_SIDE,
        measurement.square,
        measurement.square and measurement.measures[0].symmetric,
    )
    work = BlockWork(replace(measurement, problem=problem), grid, began=time.perf_counter())
    fill(
        path,
        work,
        _provenance(work.measurement, coords),
        as_stored(xr.Dataset(coords=coords)),
        side=side,
        versions=versions(),
        progress=progress,
    )
    return read(path)


@dataclass(frozen=True)
class BlockWork:
    """Everything that a block is computed from, to the same bits wherever that is done.

    The plan's memory and threads are fixed numbers, since chunk sizes, and with them the last bits, follow from them.
    `diagonal` are the sources' own values of a normalised measure, once they are known.
    """

    measurement: Measurement
    grid: Grid
    plan: Plan | None = None
    diagonal: np.ndarray | None = None
    began: float = 0.0

    @property
    def measure(self) -> Measure:
        return self.measurement.measures[0]

    @property
    def dtype(self) -> str:
        """What similarities are kept in."""
        return str(self.measurement.dtype).removeprefix("torch.")

    @property
    def own(self) -> tuple[str, ...]:
        """What the sources' own values are called, where the measure has some."""
        if self.measure.normalize is not None:
            return (self.measure.own_name,)
        return (self.measure.own_name, "source_floor") if self.measure.ratio else ()

    @property
    def diagonal_first(self) -> bool:
        """Whether blocks on the diagonal must be there before the others."""
        return self.measure.normalize is not None

    @property
    def threads(self) -> int:
        return 1 if self.plan is None else self.plan.threads

    @property
    def gpus(self) -> int:
        return int(self.measurement.sources[1].is_cuda)

    def planned(self, side: int | None) -> BlockWork:
        """With everything decided that the bits of a block depend on."""
        plan = Plan.make(self.measurement, side)
        work = self.resumed(plan.as_record(), plan.side)
        if self.measure.takes_steps:
            work.corner((0, 0), TRIED)  # says what is wrong before anything is written
        work._check_pairwise()
        return work

    def resumed(self, record: dict[str, Any], side: int) -> BlockWork:
        """By a plan that was written down; a ValueError where its numbers cannot be."""
        plan = Plan.read(record, side)
        return replace(self, measurement=plan.applied(self.measurement), grid=replace(self.grid, side=side), plan=plan)

    def record(self) -> dict[str, Any]:
        """The plan as it is written down."""
        assert self.plan is not None
        return self.plan.as_record()

    def with_diagonal(self, diagonal: np.ndarray) -> BlockWork:
        return replace(self, diagonal=diagonal)

    def block(self, at: At) -> Block:
        """The values of one block, and its sources' own."""
        return self._block(*self.grid.region(at))

    def corner(self, at: At, few: int) -> np.ndarray:
        """The first rows and columns of a block."""
        rows, columns = (slice(part.start, min(part.stop, part.start + few)) for part in self.grid.region(at))
        return self._block(rows, columns)[0]

    def describe(self, unresolved: float) -> dict[str, str]:
        """What the finished result says of itself."""
        measurement, plan = self.measurement, self.plan
        assert plan is not None
        engine = "" if measurement.engine is None else name_of(measurement.engine)
        notes, found = [*measurement.problem.notes(), *plan.notes], self._looked_at(unresolved)
        return attrs_as_stored(
            {
                "measure": self.measure.name,
                "words": self.measure.words,
                "reading": "as_defined",
                "unresolved": unresolved,
                **about(measurement, self.measure, engine, notes, found),
                **circumstances(measurement.problem, self.dtype, self.began),
                "block": plan.side,
                "threads": plan.threads,
            }
        )

    def _block(self, rows: slice, columns: slice) -> Block:
        part = self.measurement.part(rows, columns)
        with threads_set(self.threads):
            scores = part.run().scores[self.measure.name]
            if self.measure.normalize is not None and not part.square:
                assert self.diagonal is not None
                here, there = (torch.from_numpy(self.diagonal[at]).to(scores.values) for at in (rows, columns))
                scores = replace(scores, values=self.measure.normalize(scores.values, here, there), own=None)
            return as_array(scores.values), own_values(self.measure, scores)

    def _looked_at(self, unresolved: float) -> Measured:
        """What the first sources and targets show: the nonlinearity, and why most did not move, if they did not."""
        if not self.measure.takes_steps:
            return Measured({}, "")
        rows, columns = (slice(0, min(FEW, size)) for size in (self.measurement.n, self.measurement.m))
        with threads_set(self.threads):
            found = self.measurement.part(rows, columns).run()
        return found if unresolved > MOSTLY else replace(found, cause=None, causes={})

    def _check_pairwise(self) -> None:
        """A measure of the user's must give a pair the same value whichever pairs are in its block; try it on a few."""
        measurement = self.measurement
        if is_ours(self.measure) or measurement.source_batch_size is not None or not self.measure.takes_steps:
            return
        few, half = min(FEW, measurement.n), max(1, min(FEW, measurement.n) // 2)
        targets, labels = measurement.pair_of_targets or measurement.sources
        apart = replace(measurement, targets=targets, target_labels=labels)
        columns = min(FEW, apart.m)
        with threads_set(self.threads):
            whole = apart.part(slice(0, few), slice(0, columns)).run().scores[self.measure.name].values
            part = apart.part(slice(0, half), slice(0, (columns + 1) // 2)).run().scores[self.measure.name].values
        if not torch.allclose(whole[: len(part), : part.shape[1]], part, rtol=1e-3, equal_nan=True):
            raise ValueError(
                f"measure: {self.measure.name} gives a pair another value when other pairs are measured with it, so "
                "that it cannot be stored in blocks; leave store out, and use S.le.save(path)"
            )


def _engine(measurement: Measurement) -> str:
    """The engine that was asked for, as version 0.1 wrote it down where none was."""
    return "Auto(settled=None)" if measurement.engine is None else provenance.of_rule(measurement.engine)


def _provenance(measurement: Measurement, coords: Coordinates) -> provenance.Fingerprints:
    """What the result follows from, as fingerprints."""
    (measure,) = measurement.measures
    classes = {axis: coords[f"{axis}_class"][1] for axis in ("source", "target") if f"{axis}_class" in coords}
    return {
        "measure": provenance.of_measure(measure),
        **provenance.of_problem(measurement.problem),
        **provenance.of_examples(
            measurement.sources, measurement.targets, measurement.target_labels if measure.target_labels else None
        ),
        **{f"{axis}_labels": fingerprint(values) for axis, values in classes.items()},
        "update": provenance.of_update(measurement.update) if measure.takes_steps else "",
        **(provenance.of_optimizer(measurement.update, measurement.problem) if measure.takes_steps else {}),
        "engine": _engine(measurement) if measure.takes_steps else "",
        "source_batch_size": str(measurement.source_batch_size),
    }
