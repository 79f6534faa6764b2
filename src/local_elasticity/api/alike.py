"""What is compared: results read, or models measured at the same examples; refused where they are not alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from local_elasticity.api.similarity import similarity
from local_elasticity.engine.problem import Problem, as_problem
from local_elasticity.engine.update import DEFAULT_UPDATE, SGD, Update
from local_elasticity.measurement import Measurement
from local_elasticity.measures.registry import as_measures

SAME_INPUTS = 1e-5
"""How far the sizes of inputs may differ that were read in two precisions."""


def measured(
    models: Sequence[Any], sources: Any, targets: Any, measure: Any, update: Update, options: dict[str, Any]
) -> list[xr.DataArray]:
    """Similarities of several models or problems at the same examples; an automatic step is the smallest of all."""
    if sources is None:
        raise ValueError("sources: models are measured at the same examples; pass sources=(inputs, labels)")
    if isinstance(measure, (tuple, list)):
        raise ValueError("measure: expected one measure; call le.compare once for each of them")
    loss = options.pop("loss", None)
    problems = [one if isinstance(one, Problem) else as_problem(one, loss) for one in models]
    if isinstance(update, SGD) and update.automatic:
        measures = as_measures(measure)
        chosen = [Measurement.read(one, sources, targets, measures=measures, update=update) for one in problems]
        update = SGD(min(one.update.step_size for one in chosen), update.weight_decay)
    steps = {} if not as_measures(measure)[0].takes_steps and update is DEFAULT_UPDATE else {"update": update}
    return [similarity(one, sources, targets, measure=measure, **steps, **options) for one in problems]


def as_one_similarity(given: Any, name: str, measure: Any) -> xr.DataArray:
    """A similarity, or the last probe of a history or monitor as one."""
    given = getattr(given, "history", given)
    if isinstance(given, xr.Dataset):
        given = given[_chosen(list(map(str, given)), name, measure)]
    if isinstance(given, xr.DataArray):
        if given.dims != ("source", "target"):
            raise TypeError(f"{name}: expected a similarity [source, target], got an array of {given.dims}")
        _chosen([str(given.attrs.get("measure", given.name))], name, measure)
        return given
    if isinstance(given, (str, Path)):
        raise TypeError(
            f"{name}: expected a similarity, a history, a monitor or a model, got the path {str(given)!r}. Read a "
            "stored similarity with le.load(path); of two files of weights, load each into a model and pass both models"
        )
    if not (hasattr(given, "measures") and hasattr(given, "dataset")):
        raise TypeError(
            f"{name}: expected a similarity, a history, a monitor or a model, got {type(given).__name__}; "
            "le.as_similarity makes one of a matrix"
        )
    if not len(given):
        raise ValueError(f"{name}: this history has no probe yet")
    chosen = _chosen(list(given.measures), name, measure)
    last = given.dataset().isel(step=-1)
    found: xr.DataArray = last[chosen].drop_vars("seconds")
    found = found.assign_coords({axis: np.arange(found.sizes[axis]) for axis in ("source", "target")})
    found.attrs = {**given.about, "measure": chosen, "step": int(last["step"]), "provenance": given.provenance}
    return found


def _chosen(names: list[str], name: str, measure: Any) -> str:
    """Which of the measures that there are is meant: the one that is named, or the only one."""
    if measure is None and len(names) > 1:
        raise ValueError(f"measure: {name} has {', '.join(names)}; say which, such as {names[0]}")
    chosen = names[0] if measure is None and names else measure
    if chosen not in names:
        raise ValueError(f"measure: {name} has no {chosen!r}; it has {', '.join(names) or 'none of pairs'}")
    return str(chosen)


def check_alike(A: xr.DataArray, B: xr.DataArray, names: str = "A, B") -> None:
    """Raise a ValueError if two similarities are not of the same examples and the same measure."""
    one, other = (S.attrs.get("measure") for S in (A, B))
    if one != other:
        raise ValueError(f"{names}: two measures, {one} and {other}, have no common unit; compare the same measure")
    there, here = (S.attrs.get("provenance") or {} for S in (A, B))
    for name in ("sources", "labels", "targets", f"measure {one}"):
        if there.get(name, "") != here.get(name, "") and name in there and name in here:
            raise ValueError(f"{names}: they are of other {name}; compare the same measure of the same examples")
    sizes = [S.attrs.get("inputs") for S in (A, B)]
    if A.shape == B.shape and all(sizes) and not _nearly_equal(*sizes):
        raise ValueError(f"{names}: they are of other inputs; compare the same measure of the same examples")
    if A.shape != B.shape:
        raise ValueError(
            f"{names}: {A.shape} and {B.shape} pairs; compare similarities of the same sources and targets"
        )
    if bool(A.attrs.get("targets_are_sources")) != bool(B.attrs.get("targets_are_sources")):
        raise ValueError(f"{names}: the targets are the sources on one side only; compare the same sources and targets")
    for name in ("source", "target", "source_class", "target_class", "source_example", "target_example"):
        if name in A.coords and name in B.coords and not np.array_equal(A[name].values, B[name].values):
            place = int(np.flatnonzero(A[name].values != B[name].values)[0])
            what = name.replace("_", " ").replace("class", "classes").replace("example", "examples")
            what = f"{what}s" if what == name else what
            raise ValueError(f"{names}: they are of other examples: {what} differ first at place {place}")


def _nearly_equal(one: Any, other: Any) -> bool:
    """Whether inputs are the same up to the precision that they were read in."""
    one, other = (np.asarray(sizes, dtype=float) for sizes in (one, other))
    scale = np.abs(one).max(initial=0.0)
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=SAME_INPUTS, atol=SAME_INPUTS * scale))


def other_circumstances(A: xr.DataArray, B: xr.DataArray) -> list[str]:
    """What else differs that a difference may come from."""
    names = [name for name in ("update", "loss", "policy") if A.attrs.get(name) != B.attrs.get(name)]
    said = [f"the two were measured with another {name}: {A.attrs.get(name)} and {B.attrs.get(name)}" for name in names]
    limits = [_is_limit(S) for S in (A, B)]
    return said + (["one is the limit for small steps, the other exact"] if limits[0] != limits[1] else [])


def _is_limit(S: xr.DataArray) -> bool:
    response = (S.attrs.get("provenance") or {}).get("response", "")
    return S.attrs.get("engine") == "linearized" or response.startswith("its limit")
