"""Labels: a matrix of similarities with its examples, classes and circumstances, as an xarray.DataArray."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from torch.utils._pytree import tree_leaves

from local_elasticity.checks import class_labels
from local_elasticity.engine.problem import Problem
from local_elasticity.measurement import Measured, Measurement, unresolved_share
from local_elasticity.measures.measure import Measure, Scores
from local_elasticity.store.provenance import versions

Coordinates = dict[str, Any]


def labelled(
    measure: Measure, scores: Scores, coords: Coordinates, attrs: dict[str, Any], *, several: bool = False
) -> xr.DataArray:
    """The scores of a measure with their coordinates."""
    found_own = own_values(measure, scores, own_suffix(measure, several))
    own = {name: ("source", values) for name, values in found_own.items()}
    values = as_array(scores.values)
    found = xr.DataArray(values, coords={**coords, **own}, dims=("source", "target"), name="similarity")
    about_it = {"measure": measure.name, "words": measure.words, "reading": "as_defined"}
    found.attrs = {**about_it, "unresolved": unresolved_share(values), **attrs}
    return found


def own_suffix(measure: Measure, several: bool) -> str:
    """What tells the own values of several measures apart."""
    return f"_{measure.name}" if several else ""


def own_values(measure: Measure, scores: Scores, suffix: str = "") -> dict[str, np.ndarray]:
    """The sources' own values and the least that are resolved, by the names that results give them."""
    found = {measure.own_name: scores.own, "source_floor": scores.floor}
    return {f"{name}{suffix}": as_array(values) for name, values in found.items() if values is not None}


def about(
    measurement: Measurement, measure: Measure, engine: str, notes: Sequence[str], found: Measured
) -> dict[str, Any]:
    """How a result was made: the engine and the step if there was one, the notes, and why sources did not move if they
    did not."""
    update = measurement.update
    step: dict[str, Any] = {"engine": engine, "update": repr(update), "step_size": update.step_size}
    rates = getattr(update, "step_sizes", [])
    step |= {"step_sizes": rates} if len(set(rates)) > 1 else {}
    cause = found.causes.get(measure.name) or found.cause
    step |= {"cause": cause} if cause else {}
    step |= {"nonlinearity": found.nonlinearity} if math.isfinite(found.nonlinearity) else {}
    return {
        **(step if measure.takes_steps else {}),
        **({"labels": measurement.labels} if measurement.labels != "given" else {}),
        "targets_are_sources": measurement.square,
        "inputs": input_sizes(measurement),
        "notes": list(notes),
    }


def input_sizes(measurement: Measurement) -> list[float]:
    """Numbers by which the inputs of two results can be told apart: of every tensor of the sources and the targets the
    norm, and a sum that depends on the order."""
    found = []
    for leaf in tree_leaves((measurement.sources[0], measurement.targets)):
        if isinstance(leaf, Tensor):
            flat = leaf.detach().flatten().to("cpu", torch.float64)
            weights = torch.linspace(1, 2, len(flat), dtype=torch.float64, device="cpu")
            found += [float(flat.norm()), float(flat @ weights)]
    return found


def circumstances(problem: Problem, dtype: str, began: float) -> dict[str, Any]:
    """How, where and by what a similarity was computed."""
    device = problem.device
    return {
        "loss": problem.loss_name,
        "outputs": problem.kind,
        "policy": problem.policy,
        "dtype": dtype,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "seconds": round(time.perf_counter() - began, 3),
        "versions": versions(),
    }


def coordinates(shape: Sequence[int], source_labels: Any, target_labels: Any) -> Coordinates:
    """Numbers and classes of sources and targets."""
    coords: Coordinates = {"source": np.arange(shape[0]), "target": np.arange(shape[1])}
    for axis, labels, size in (("source", source_labels, shape[0]), ("target", target_labels, shape[1])):
        if labels is not None:
            coords[f"{axis}_class"] = (axis, class_labels(f"{axis}_labels", labels, size))
    return coords


def check_examples(examples: Any, n: int) -> None:
    """Raise an error before anything is computed if examples cannot be shown, or if there is not one for each of n
    sources."""
    from local_elasticity.report.examples import as_given, one_for_each

    sources, *targets = examples if isinstance(examples, tuple) else (examples,)
    one_for_each(sources, n, "examples of the sources")
    for one in targets:
        as_given(one)


def example_coordinates(examples: Any, shape: Sequence[int], square: bool) -> Coordinates:
    """A small copy of each source and each target for reports, and their distances if they are numbers. `examples` are
    those of the sources, or a pair for sources and targets.
    """
    if examples is None:
        return {}
    from local_elasticity.report.distance import distances
    from local_elasticity.report.examples import kept_examples

    sources, targets = examples if isinstance(examples, tuple) else (examples, examples if square else None)
    kept: Coordinates = {"source_example": ("source", kept_examples(sources, shape[0], "examples of the sources"))}
    if targets is None:
        return kept
    kept["target_example"] = ("target", kept_examples(targets, shape[1], "examples of the targets"))
    apart = distances(sources, targets)
    return kept if apart is None else kept | {"distance": (("source", "target"), apart)}


def as_array(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().cpu().numpy())
