"""similarity(..., store=path): the same question, answered block by block into a store, here or on other machines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from local_elasticity.api.labels import Coordinates, about, as_array, circumstances, own_suffix, own_values
from local_elasticity.api.plan import LARGEST_SIDE, Plan
from local_elasticity.engine.causes import MOSTLY
from local_elasticity.engine.choose import name_of
from local_elasticity.engine.job import ExampleError
from local_elasticity.engine.progress import ProgressOption
from local_elasticity.measurement import Measured, Measurement
from local_elasticity.measures.measure import Measure
from local_elasticity.measures.registry import is_ours
from local_elasticity.scale.workers import threads_set
from local_elasticity.store import provenance
from local_elasticity.store.blocks import ALONE, At, Block, Grid
from local_elasticity.store.fingerprint import fingerprint
from local_elasticity.store.provenance import versions
from local_elasticity.store.result import as_stored, attrs_as_stored, read
from local_elasticity.store.resume import fill

TRIED = 2
"""Rows and columns that are computed before a store is begun."""

FEW = 6
"""Sources and targets that a user's measure is tried on, together and in parts, and that show why nothing moved."""


def similarity_in_store(
    path: Path,
    measurement: Measurement,
    coords: Coordinates,
    *,
    several: bool,
    side: int | None,
    progress: ProgressOption,
) -> xr.DataArray | xr.Dataset:
    """Begin or resume a store, and read it back; `several` measures as a Dataset."""
    if side is not None and (not isinstance(side, int) or side < 1):
        raise ValueError(f"block: expected a whole number from 1 on, got {side!r}")
    problem = measurement.problem.promoted()
    grid = Grid(
        measurement.n,
        measurement.m,
        side or LARGEST_SIDE,
        measurement.square,
        measurement.square and all(measure.symmetric for measure in measurement.measures),
    )
    work = BlockWork(replace(measurement, problem=problem), grid, several, began=time.perf_counter())
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
    `own` are the names of the sources' own values, and `divisors` those values, once they are known.
    """

    measurement: Measurement
    grid: Grid
    several: bool
    plan: Plan | None = None
    own: tuple[str, ...] = ()
    divisors: Mapping[str, np.ndarray] = field(default_factory=dict)
    began: float = 0.0

    @property
    def names(self) -> tuple[str, ...] | None:
        """What the measures are called, where there are several."""
        return tuple(measure.name for measure in self.measurement.measures) if self.several else None

    @property
    def dtype(self) -> str:
        """What similarities are kept in."""
        return str(self.measurement.dtype).removeprefix("torch.")

    @property
    def diagonal_first(self) -> bool:
        """Whether blocks on the diagonal must be there before the others."""
        return any(measure.normalize is not None for measure in self.measurement.measures)

    @property
    def threads(self) -> int:
        return 1 if self.plan is None else self.plan.threads

    @property
    def gpus(self) -> int:
        return int(self.measurement.sources[1].is_cuda)

    def planned(self, side: int | None) -> BlockWork:
        """With all decisions made that the bits of a block depend on."""
        plan = Plan.make(self.measurement, side)
        work = self.resumed(plan.as_record(), plan.side)
        _, own = work._block(*work._corner((0, 0), TRIED))  # an error is raised before anything is written
        work._check_pairwise()
        return replace(work, own=tuple(own))

    def resumed(self, record: dict[str, Any], side: int) -> BlockWork:
        """With a recorded plan; a ValueError if its numbers are not valid."""
        plan = Plan.read(record, side)
        return replace(self, measurement=plan.applied(self.measurement), grid=replace(self.grid, side=side), plan=plan)

    def record(self) -> dict[str, Any]:
        """The plan as it is written down."""
        assert self.plan is not None
        return self.plan.as_record()

    def with_own(self, own: Mapping[str, np.ndarray]) -> BlockWork:
        return replace(self, divisors=own)

    def block(self, at: At) -> Block:
        """The values of one block, and its sources' own."""
        return self._block(*self.grid.region(at))

    def corner(self, at: At, few: int) -> Mapping[str, np.ndarray]:
        """The first rows and columns of a block."""
        return self._block(*self._corner(at, few))[0]

    def describe(self, unresolved: Mapping[str, float]) -> dict[str, dict[str, str]]:
        """What each matrix of the finished result says of itself."""
        measurement, plan, found = self.measurement, self.plan, self._first_pairs()
        assert plan is not None
        engine = "" if measurement.engine is None else name_of(measurement.engine)
        notes = [*measurement.problem.notes(), *plan.notes]
        described = {}
        for measure in measurement.measures:
            share = unresolved[self._matrix(measure)]
            causes = found if share > MOSTLY else replace(found, cause=None, causes={})
            described[self._matrix(measure)] = attrs_as_stored(
                {
                    "measure": measure.name,
                    "words": measure.words,
                    "reading": "as_defined",
                    "unresolved": share,
                    **about(measurement, measure, engine if measure.takes_steps else "", notes, causes),
                    **circumstances(measurement.problem, self.dtype, self.began),
                    "block": plan.side,
                    "threads": plan.threads,
                }
            )
        return described

    def _matrix(self, measure: Measure) -> str:
        return measure.name if self.several else ALONE

    def _corner(self, at: At, few: int) -> tuple[slice, slice]:
        rows, columns = (slice(part.start, min(part.stop, part.start + few)) for part in self.grid.region(at))
        return rows, columns

    def _block(self, rows: slice, columns: slice) -> Block:
        part = self.measurement.part(rows, columns)
        values: dict[str, np.ndarray] = {}
        own: dict[str, np.ndarray] = {}
        try:
            with threads_set(self.threads):
                found = part.run()
        except ExampleError as error:
            at_targets = error.name in ("targets", "x2")
            first = columns.start if at_targets else rows.start * (part.source_batch_size or 1)
            name = "sources" if at_targets and self.measurement.square else error.name
            raise ExampleError(name, first + error.place, error.why) from error
        for measure in part.measures:
            scores, suffix = found.scores[measure.name], own_suffix(measure, self.several)
            if measure.normalize is not None and not part.square:
                divisors = self.divisors[f"{measure.own_name}{suffix}"]
                here, there = (torch.from_numpy(divisors[at]).to(scores.values) for at in (rows, columns))
                scores = replace(scores, values=measure.normalize(scores.values, here, there), own=None)
            values[self._matrix(measure)] = as_array(scores.values)
            own |= own_values(measure, scores, suffix)
        return values, own

    def _first_pairs(self) -> Measured:
        """What the first sources and targets show: the nonlinearity, and why most sources did not move, if so."""
        if not self.measurement.takes_steps:
            return Measured({}, "")
        rows, columns = (slice(0, min(FEW, size)) for size in (self.measurement.n, self.measurement.m))
        with threads_set(self.threads):
            return self.measurement.part(rows, columns).run()

    def _check_pairwise(self) -> None:
        """Measures of the user must give a pair the same value whichever pairs are in its block; try them on a few."""
        own = tuple(one for one in self.measurement.measures if one.takes_steps and not is_ours(one))
        measurement = replace(self.measurement, measures=own)
        if not own or measurement.source_batch_size is not None:
            return
        few, half = min(FEW, measurement.n), max(1, min(FEW, measurement.n) // 2)
        targets, labels = measurement.pair_of_targets or measurement.sources
        apart = replace(measurement, targets=targets, target_labels=labels)
        columns = min(FEW, apart.m)
        with threads_set(self.threads):
            whole = apart.part(slice(0, few), slice(0, columns)).run().scores
            part = apart.part(slice(0, half), slice(0, (columns + 1) // 2)).run().scores
        for name, scores in part.items():
            rows, columns = scores.values.shape
            if not torch.allclose(whole[name].values[:rows, :columns], scores.values, rtol=1e-3, equal_nan=True):
                raise ValueError(
                    f"measure: {name} gives a pair another value when other pairs are measured with it, so "
                    "that it cannot be stored in blocks; leave store out, and use S.le.save(path)"
                )


def _engine(measurement: Measurement) -> str:
    """The requested engine; if none was requested, the text that version 0.1 recorded."""
    return "Auto(settled=None)" if measurement.engine is None else provenance.of_rule(measurement.engine)


def _provenance(measurement: Measurement, coords: Coordinates) -> provenance.Fingerprints:
    """What the result follows from, as fingerprints."""
    reads_labels = any(measure.target_labels for measure in measurement.measures)
    classes = {axis: coords[f"{axis}_class"][1] for axis in ("source", "target") if f"{axis}_class" in coords}
    return {
        "measure": ", ".join(provenance.of_measure(measure) for measure in measurement.measures),
        **provenance.of_problem(measurement.problem),
        **provenance.of_examples(
            measurement.sources, measurement.targets, measurement.target_labels if reads_labels else None
        ),
        **{f"{axis}_labels": fingerprint(values) for axis, values in classes.items()},
        "update": provenance.of_update(measurement.update) if measurement.takes_steps else "",
        **(provenance.of_optimizer(measurement.update, measurement.problem) if measurement.takes_steps else {}),
        "engine": _engine(measurement) if measurement.takes_steps else "",
        "source_batch_size": str(measurement.source_batch_size),
    }
