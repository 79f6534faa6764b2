"""similarity: respond, measure and label in one call; what most users meet first."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
import xarray as xr
from numpy.typing import ArrayLike
from torch import nn

import local_elasticity.api.accessor  # noqa: F401 (registers S.le)
from local_elasticity.api.labels import about, check_examples, circumstances, coordinates, example_coordinates, labelled
from local_elasticity.engine.causes import warn_of_unresolved
from local_elasticity.engine.guard import untouched
from local_elasticity.engine.job import Engine
from local_elasticity.engine.loss import LossFunction
from local_elasticity.engine.nonlinearity import warn_of_large_step
from local_elasticity.engine.problem import Problem, as_problem
from local_elasticity.engine.progress import ProgressOption
from local_elasticity.engine.update import DEFAULT_UPDATE, Update
from local_elasticity.measurement import Measurement, Sources, Targets, unresolved_share
from local_elasticity.measures.measure import Measure
from local_elasticity.measures.registry import AnyMeasure, as_measures
from local_elasticity.store.result import read, shared_attrs


@overload
def similarity(
    problem: Problem | nn.Module,
    sources: Sources,
    targets: Targets | None = None,
    *,
    measure: AnyMeasure = ...,
    **options: Any,
) -> xr.DataArray: ...


@overload
def similarity(
    problem: Problem | nn.Module,
    sources: Sources,
    targets: Targets | None = None,
    *,
    measure: tuple[AnyMeasure, ...],
    **options: Any,
) -> xr.Dataset: ...


@untouched  # type: ignore[misc]  # the overloads leave out what they have in common
def similarity(
    problem: Problem | nn.Module,
    sources: Sources,
    targets: Targets | None = None,
    *,
    loss: str | LossFunction | None = None,
    measure: AnyMeasure | tuple[AnyMeasure, ...] = "relative",
    update: Update = DEFAULT_UPDATE,
    labels: str = "given",
    source_labels: ArrayLike | None = None,
    target_labels: ArrayLike | None = None,
    class_names: Mapping[Any, str] | Sequence[str] | None = None,
    engine: str | Engine = "auto",
    approximate: bool = False,
    source_batch_size: int | None = None,
    memory: int | None = None,
    progress: ProgressOption = None,
    store: str | Path | None = None,
    block: int | None = None,
    examples: Any = None,
) -> xr.DataArray | xr.Dataset:
    """The similarity of every source with every target, labelled: rows are sources, columns targets.

    Args:
        problem, sources, targets, loss, engine, approximate, source_batch_size, memory, progress: as for `respond`.
            Some measures take no step; with those alone, an option about steps is an error.
        measure: `"relative"`, `"relative_l1"`, `"kl"`, `"kernel"`, `"normalized_kernel"`, `"loss"`,
            `"stiffness_cos"`, `"stiffness_sign"`, `"activation"`, a name registered by `@le.measure`, a `le.Measure`, a
            function of a `Response`, or a tuple of several, which share one response. `"loss"` and the stiffness
            measures read the labels of the targets: targets=(inputs, labels).
        update: the step: `SGD`, `Adam` or `FromOptimizer`.
        labels: `"given"`, or `"predicted"` for sources that are inputs alone: the step is then taken towards the class
            that the model predicts now, and so for targets without labels.
        source_labels, target_labels: classes for summaries and plots. They default to the labels of sources and
            targets where the loss is cross-entropy.
        class_names: what results call the classes: a list by label, or a dict from label to name.
        store: a path where the result is computed block by block, into one labelled zarr store, so that it may be
            larger than memory. Several measures share one response for each block. The same call resumes after an
            interruption, to the same bytes; a store of another model, other data or other settings is refused.
            `le.load(path)` reads it back.
        block: rows and columns of a block; by default as many as are done in half a minute, at most 2048.
        examples: what reports show of each source: images, texts or vectors, one for each; (of the sources, of the
            targets) where the targets are others. A small copy travels with the result, and the Euclidean distances
            between them as `S["distance"]` where they are numbers.

    Returns:
        A DataArray [source, target] that knows how it was made (`.attrs`; `nonlinearity` says how far the step is from
        the limit of small steps) and has the accessor `.le`: `.le.classes()`,
        `.le.frame()`, `.le.nearest(source, top)`, `.le.plot()`, `.le.html()`, `.le.save(path)`. For a tuple of
        measures, a Dataset of such arrays by name.

    Raises:
        ValueError, TypeError: what is wrong with an argument; the message begins with its name.

    Warns:
        LargeStepWarning: if changes deviate by more than 10 % from those of small steps.
        UnresolvedWarning: if more than half of the pairs have no value; the message names the cause.

    >>> import torch, local_elasticity as le
    >>> net, sources = torch.nn.Linear(2, 3), (torch.eye(2), torch.tensor([0, 1]))
    >>> S = le.similarity(net, sources, loss="cross_entropy", measure="kl", update=le.SGD(0.1))
    >>> S.dims, S.attrs["measure"], S.attrs["unresolved"]
    (('source', 'target'), 'kl', 0.0)
    >>> list(le.similarity(net, sources, loss="cross_entropy", measure=("relative", "kl")))
    ['relative', 'kl']
    """
    began = time.perf_counter()
    measures, several = as_measures(measure), isinstance(measure, (tuple, list))
    measurement = Measurement.read(
        as_problem(problem, loss),
        sources,
        targets,
        measures=measures,
        update=update,
        engine=engine,
        approximate=approximate,
        source_batch_size=source_batch_size,
        memory=memory,
        labels=labels,
    )
    shape = measurement.n, measurement.m
    if examples is not None:
        check_examples(examples, measurement.n)
    coords = coordinates(shape, *measurement.classes(source_labels, target_labels, class_names))
    coords |= example_coordinates(examples, shape, measurement.square)
    if store is not None:
        from local_elasticity.api.stored import similarity_in_store

        stored = similarity_in_store(Path(store), measurement, coords, several=several, side=block, progress=progress)
        _warn(stored, measures)
        return stored
    if block is not None:
        raise ValueError("block: only a store is written in blocks; give store= as well, or leave block out")
    found = measurement.run(progress)
    named = {}
    for one in measures:
        attrs = about(measurement, one, found.engine, found.notes, found)
        attrs |= circumstances(measurement.problem, str(measurement.dtype).removeprefix("torch."), began)
        named[one.name] = labelled(one, found.scores[one.name], coords, attrs, several=several)
    S: xr.DataArray | xr.Dataset = xr.Dataset(named) if several else named[measures[0].name]
    if isinstance(S, xr.Dataset):
        S.attrs = shared_attrs(S)
    _warn(S, measures)
    return S


def _warn(S: xr.DataArray | xr.Dataset, measures: Sequence[Measure]) -> None:
    """Warn of a step that is large, and of pairs without a value."""
    found = [S if isinstance(S, xr.DataArray) else S[measure.name] for measure in measures]
    warn_of_large_step(
        next((float(one.attrs["nonlinearity"]) for one in found if "nonlinearity" in one.attrs), math.nan)
    )
    for one, measure in zip(found, measures, strict=True):
        share, cause = one.attrs["unresolved"], one.attrs.get("cause")
        warn_of_unresolved(measure.name, share, cause, takes_steps=measure.takes_steps)


def as_similarity(
    S: ArrayLike,
    *,
    source_labels: ArrayLike | None = None,
    target_labels: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    examples: Any = None,
    square: bool | None = None,
    **about: Any,
) -> xr.DataArray:
    """A matrix of your own, or a clustering's, as a labelled similarity: it is drawn, saved and reported as others are.

    Args:
        S: [n, m], rows are sources.
        source_labels, target_labels: classes; those of the targets default to those of the sources where S is square.
        clusters: a cluster for each example of a square S, such as `model.labels_`.
        examples: as for `le.similarity`.
        square: whether the targets are the sources; by default, where n is m and no target_labels are given.
        about: what else is known of it, such as `measure="kernel"`; plain values only.

    Returns:
        A DataArray [source, target] with the accessor `.le`, as `le.similarity` returns it.

    Raises:
        ValueError: if S is not a matrix, or labels, clusters or examples do not fit it.

    >>> import local_elasticity as le
    >>> from sklearn.datasets import make_blobs
    >>> X, kinds = make_blobs(40, centers=2, n_features=3, random_state=0)
    >>> model = le.LocalElasticityClustering(n_clusters=2, random_state=0).fit(X)
    >>> S = le.as_similarity(model.similarity_, source_labels=kinds, clusters=model.labels_, examples=X)
    >>> sorted(S.coords)[-4:]
    ['target', 'target_class', 'target_cluster', 'target_example']
    """
    values = np.asarray(S.detach().cpu() if isinstance(S, torch.Tensor) else S)
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        raise ValueError(
            f"S: expected a matrix [sources, targets] of numbers, got shape {values.shape} of {values.dtype}"
        )
    values = values.astype(np.float32) if values.dtype.kind == "b" else values
    square = values.shape[0] == values.shape[1] and target_labels is None if square is None else square
    coords = coordinates(
        values.shape, source_labels, source_labels if square and target_labels is None else target_labels
    )
    coords |= example_coordinates(examples, values.shape, square)
    result = xr.DataArray(values, coords=coords, dims=("source", "target"), name="similarity")
    result.attrs = {
        "measure": "similarity",
        "unresolved": unresolved_share(values),
        "targets_are_sources": square,
        **about,
    }
    return result if clusters is None else result.le.with_clusters(clusters)


def load(path: str | Path, *, lazy: bool | None = None) -> xr.DataArray | xr.Dataset:
    """Read a similarity that `le.similarity(..., store=path)` or `S.le.save(path)` wrote.

    Args:
        path: of the store.
        lazy: leave the values on disk and read them where they are used. By default those that would take more than a
            quarter of the free memory.

    Returns:
        A DataArray [source, target] with the accessor `.le`; where several measures were stored, a Dataset of those.

    Raises:
        FileNotFoundError, ValueError: if there is no similarity at this path, or it is unfinished or damaged.

    >>> import tempfile, torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(2, 3), "cross_entropy")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     S = le.similarity(problem, (torch.eye(2), torch.tensor([0, 1])), store=f"{folder}/run.zarr")
    ...     again = le.load(f"{folder}/run.zarr")
    >>> again.identical(S)
    True
    """
    return read(path, lazy)
