"""similarity(..., store=path): the same question, answered block by block into a store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from local_elasticity.engine.inputs import count, read_sources, read_targets
from local_elasticity.engine.job import Engine
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.progress import ProgressOption
from local_elasticity.engine.respond import resolve_engine
from local_elasticity.engine.response import OfResponse
from local_elasticity.engine.update import Update
from local_elasticity.engine.versions import versions
from local_elasticity.measures.named import OF_PROBLEM
from local_elasticity.store import provenance
from local_elasticity.store.blocks import Grid
from local_elasticity.store.fingerprint import fingerprint
from local_elasticity.store.plan import LARGEST_SIDE, Plan
from local_elasticity.store.result import as_stored, attrs_as_stored, read
from local_elasticity.store.resume import fill
from local_elasticity.store.work import SYMMETRIC, Work, measure_name


@dataclass(frozen=True)
class Asked:
    """What the user asked `similarity` for."""

    problem: Problem
    sources: Any
    targets: Any
    measure: str | OfResponse
    update: Update
    engine: str | Engine
    approximate: bool
    source_batch_size: int | None
    memory: int | None
    progress: ProgressOption

    def work(self, side: int | None) -> Work:
        """Read and checked, ready to be cut into blocks."""
        engine, problem = resolve_engine(self.engine, self.approximate), self.problem.lifted()
        name = measure_name(self.measure)
        with problem.moment() as moment:
            sources = read_sources(self.sources, moment.device, moment.dtype)
            targets = self.targets
            if targets is not None:
                reads = read_sources if name.startswith("stiffness") else read_targets
                targets = reads(targets, moment.device, moment.dtype)
        n = count(sources[0]) // (self.source_batch_size or 1)
        if targets is None and self.source_batch_size is not None:
            targets = sources[0]
        if name == "normalized_kernel" and targets is not None:
            raise ValueError("measure: normalized_kernel needs the targets to be the sources; leave targets out")
        square = targets is None
        m = n if square else count(targets[0] if name.startswith("stiffness") else targets)
        grid = Grid(n, m, side or LARGEST_SIDE, square, square and name in SYMMETRIC)
        return Work(problem, sources, targets, self.measure, self.update, engine, self.source_batch_size, 0, 1, grid)

    def provenance(self, work: Work, coords: dict[str, Any]) -> dict[str, str]:
        """What the result follows from, as fingerprints."""
        classes = {axis: coords[f"{axis}_class"][1] for axis in ("source", "target") if f"{axis}_class" in coords}
        measure = work.measure if isinstance(work.measure, str) else provenance.of_function(work.measure)
        of_response = work.name not in OF_PROBLEM
        return {
            "measure": measure,
            **provenance.of_problem(work.problem),
            "sources": fingerprint(work.sources[0]),
            "labels": fingerprint(work.sources[1]),
            "targets": fingerprint(work.targets),
            **{f"{axis}_labels": fingerprint(values) for axis, values in classes.items()},
            "update": provenance.of_update(self.update) if of_response else "",
            "engine": provenance.of_rule(work.engine) if of_response else "",
            "source_batch_size": str(self.source_batch_size),
        }


def similarity_in_store(
    path: Path, asked: Asked, source_labels: Any, target_labels: Any, *, side: int | None, examples: Any = None
) -> xr.DataArray:
    """Begin a store or go on with one, and read it back."""
    began = time.perf_counter()
    if side is not None and (not isinstance(side, int) or side < 1):
        raise ValueError(f"block: a whole number from 1 on is wanted, not {side!r}")
    work = asked.work(side)
    grid = work.grid
    coords = coordinates((grid.n, grid.m), source_labels, target_labels, grid.square, examples)

    def describe(plan: Plan, unresolved: float) -> dict[str, str]:
        dtype, device = getattr(torch, work.dtype), work.sources[1].device
        engine = plan.settled.engine if plan.settled else type(work.engine).__name__.lower()
        of_response = {
            "engine": engine,
            "update": repr(asked.update),
            "step_size": asked.update.step_size,
            "notes": list(plan.notes),
        }
        about = {
            "measure": work.name,
            "reading": "as_defined",
            "unresolved": unresolved,
            **({} if work.name in OF_PROBLEM else of_response),
            "targets_are_sources": grid.square,
            **circumstances(work.problem, dtype, device, began),
            "block": plan.side,
            "threads": plan.threads,
        }
        return attrs_as_stored(about)

    fill(
        path,
        work,
        asked.provenance(work, coords),
        as_stored(xr.Dataset(coords=coords)),
        side=side,
        memory=asked.memory,
        versions=versions(),
        describe=describe,
        progress=asked.progress,
    )
    return read(path)


def coordinates(
    shape: Sequence[int], source_labels: Any, target_labels: Any, square: bool, examples: Any = None
) -> dict[str, Any]:
    """Numbers, classes and examples of sources and targets; targets that are the sources have their classes."""
    n, m = shape
    coords: dict[str, Any] = {"source": np.arange(n), "target": np.arange(m)}
    if target_labels is None and square:
        target_labels = source_labels
    for axis, labels, size in (("source", source_labels, n), ("target", target_labels, m)):
        if labels is not None:
            values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
            if values.shape != (size,):
                raise ValueError(f"{axis}_labels: shape {values.shape} does not fit {size} {axis}s; give one for each")
            coords[f"{axis}_class"] = (axis, values)
    return coords if examples is None else coords | example_coordinates(examples, shape, square)


def check_examples(examples: Any, n: int) -> None:
    """Raise before anything is computed where examples cannot be shown, or there is not one for each of n sources."""
    from local_elasticity.report.examples import as_given, one_for_each

    sources, *targets = examples if isinstance(examples, tuple) else (examples,)
    one_for_each(sources, n, "examples of the sources")
    for one in targets:
        as_given(one)


def example_coordinates(examples: Any, shape: Sequence[int], square: bool) -> dict[str, Any]:
    """A small copy of each source, and of each target, for reports, and how far apart they are where they are numbers;
    examples are those of the sources, or both.
    """
    from local_elasticity.report.distance import distances
    from local_elasticity.report.examples import kept_examples

    sources, targets = examples if isinstance(examples, tuple) else (examples, examples if square else None)
    kept: dict[str, Any] = {"source_example": ("source", kept_examples(sources, shape[0], "examples of the sources"))}
    if targets is None:
        return kept
    kept["target_example"] = ("target", kept_examples(targets, shape[1], "examples of the targets"))
    apart = distances(sources, targets)
    return kept if apart is None else kept | {"distance": (("source", "target"), apart)}


def circumstances(problem: Problem, dtype: torch.dtype, device: torch.device, began: float) -> dict[str, Any]:
    """How, where and by what a similarity was computed."""
    return {
        "loss": problem.loss_name,
        "outputs": problem.kind,
        "policy": problem.policy,
        "dtype": str(dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "seconds": round(time.perf_counter() - began, 3),
        "versions": versions(),
    }
