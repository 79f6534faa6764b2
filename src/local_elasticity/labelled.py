"""similarity: respond, measure and label in one call; what most users meet first."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch.utils.data import DataLoader, Dataset

from local_elasticity.engine.guard import untouched
from local_elasticity.engine.inputs import check_sources, given_twice, read_sources
from local_elasticity.engine.job import Engine
from local_elasticity.engine.problem import Problem, check_problem
from local_elasticity.engine.progress import ProgressOption
from local_elasticity.engine.respond import respond
from local_elasticity.engine.response import OfResponse
from local_elasticity.engine.update import SGD, Update, check_update
from local_elasticity.measures.named import (
    OF_PROBLEM,
    OF_RESPONSE,
    OWN_CHANGE,
    OWN_FLOOR,
    check_name,
    unresolved_share,
)
from local_elasticity.measures.summary import class_pairs
from local_elasticity.store.result import read, save
from local_elasticity.stored import (
    Asked,
    check_examples,
    circumstances,
    coordinates,
    example_coordinates,
    similarity_in_store,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from local_elasticity.report.card import Card


@untouched
def similarity(
    problem: Problem,
    sources: Any,
    targets: Any = None,
    *,
    measure: str | OfResponse = "relative",
    update: Update = SGD(1e-3),  # noqa: B008 (frozen)
    source_labels: Any = None,
    target_labels: Any = None,
    engine: str | Engine = "auto",
    approximate: bool = False,
    source_batch_size: int | None = None,
    memory: int | None = None,
    progress: ProgressOption = None,
    store: str | Path | None = None,
    block: int | None = None,
    examples: Any = None,
) -> xr.DataArray:
    """The similarity of every source with every target, labelled: rows are sources, columns targets.

    Args:
        problem, sources, targets, update, engine, approximate, source_batch_size, memory, progress: as for `respond`.
        measure: `"relative"`, `"relative_l1"`, `"kl"`, `"kernel"`, `"normalized_kernel"`, `"stiffness_cos"`,
            `"stiffness_sign"`, `"activation"`, or a function of a `Response`. The stiffness measures need the targets'
            labels too: targets=(inputs, labels).
        source_labels, target_labels: classes for summaries and plots. They default to the sources' own labels where
            the loss is cross-entropy and the targets are the sources.
        store: a path where the result is computed block by block, into one labelled zarr store, so that it may be
            larger than memory. The same call goes on after an interruption, to the same bytes; a store of another
            model, other data or other settings is refused. `le.load(path)` reads it back.
        block: rows and columns of a block; by default as many as are done in half a minute, at most 2048.
        examples: what reports show of each source: images, texts or vectors, one for each; (of the sources, of the
            targets) where the targets are others. A small copy travels with the result, and the Euclidean distances
            between them as `S["distance"]` where they are numbers.

    Returns:
        A DataArray [source, target] that knows how it was made (`.attrs`) and has the accessor `.le`: `.le.classes()`,
        `.le.frame()`, `.le.nearest(source, top)`, `.le.plot()`, `.le.html()`, `.le.save(path)`.

    >>> import torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(2, 3), "cross_entropy")
    >>> S = le.similarity(problem, (torch.eye(2), torch.tensor([0, 1])), measure="kl", update=le.SGD(0.1))
    >>> S.dims, S.attrs["measure"], S.attrs["unresolved"]
    (('source', 'target'), 'kl', 0.0)
    """
    check_problem(problem)
    check_sources(sources)
    check_update(update)
    began = time.perf_counter()
    name = measure if isinstance(measure, str) else getattr(measure, "__name__", type(measure).__name__)
    if isinstance(measure, str):
        check_name(measure)
    if given_twice(sources, targets, labelled=name.startswith("stiffness")):
        targets = None
    sources = _read_once(problem, sources)
    if examples is not None and hasattr(sources[1], "__len__"):
        check_examples(examples, len(sources[1]) // (source_batch_size or 1))
    if source_labels is None and source_batch_size is None:
        source_labels = _class_labels(problem, sources[1])
    if store is not None:
        asked = Asked(
            problem, sources, targets, measure, update, engine, approximate, source_batch_size, memory, progress
        )
        return similarity_in_store(Path(store), asked, source_labels, target_labels, side=block, examples=examples)
    if block is not None:
        raise ValueError("block: only a store is written in blocks; give store= as well, or leave block out")
    if name in OF_PROBLEM:
        S = OF_PROBLEM[name](problem, sources, targets, memory=memory, progress=progress)
        own = floor = None
        how: dict[str, Any] = {"targets_are_sources": targets is None}
    else:
        response = respond(
            problem,
            sources,
            targets,
            update=update,
            engine=engine,
            approximate=approximate,
            source_batch_size=source_batch_size,
            memory=memory,
            progress=progress,
        )
        S = (OF_RESPONSE[measure] if isinstance(measure, str) else measure)(response)
        own = OWN_CHANGE[name](response) if name in OWN_CHANGE else None
        floor = OWN_FLOOR[name](response) if name in OWN_FLOOR else None
        how = {
            "engine": response.engine,
            "update": repr(update),
            "step_size": update.step_size,
            "targets_are_sources": response.targets_are_sources,
            "notes": list(response.notes),
        }
    coords = coordinates(S.shape, source_labels, target_labels, bool(how["targets_are_sources"]), examples)
    for coord, values in (("source_change", own), ("source_floor", floor)):
        if values is not None:
            coords[coord] = ("source", values.detach().cpu().numpy())
    result = xr.DataArray(S.detach().cpu().numpy(), coords=coords, dims=("source", "target"), name="similarity")
    result.attrs = {
        "measure": name,
        "reading": "as_defined",
        "unresolved": unresolved_share(S),
        **how,
        **circumstances(problem, S.dtype, S.device, began),
    }
    return result


def as_similarity(
    S: Any,
    *,
    source_labels: Any = None,
    target_labels: Any = None,
    clusters: Any = None,
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

    >>> import local_elasticity as le
    >>> from sklearn.datasets import make_blobs
    >>> X, kinds = make_blobs(40, centers=2, n_features=3, random_state=0)
    >>> model = le.LocalElasticityClustering(n_clusters=2, random_state=0).fit(X)
    >>> S = le.as_similarity(model.similarity_, source_labels=kinds, clusters=model.labels_, examples=X)
    >>> sorted(S.coords)[-4:]
    ['target', 'target_class', 'target_cluster', 'target_example']
    """
    values = torch.as_tensor(S)
    if values.ndim != 2:
        raise ValueError(f"S: a matrix [sources, targets] is wanted, not shape {tuple(values.shape)}")
    square = values.shape[0] == values.shape[1] and target_labels is None if square is None else square
    coords = coordinates(values.shape, source_labels, target_labels, square, examples)
    result = xr.DataArray(values.detach().cpu().numpy(), coords=coords, dims=("source", "target"), name="similarity")
    result.attrs = {
        "measure": "similarity",
        "unresolved": unresolved_share(values.double()),
        "targets_are_sources": square,
        **about,
    }
    if clusters is not None:
        result = result.le.with_clusters(clusters)
    return result


def load(path: str | Path, *, lazy: bool | None = None) -> xr.DataArray:
    """Read a similarity that `le.similarity(..., store=path)` or `S.le.save(path)` wrote.

    Args:
        lazy: leave the values on disk and read them where they are used. By default those that would take more than a
            quarter of the free memory.

    >>> import tempfile, torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(2, 3), "cross_entropy")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     S = le.similarity(problem, (torch.eye(2), torch.tensor([0, 1])), store=f"{folder}/run.zarr")
    ...     again = le.load(f"{folder}/run.zarr")
    >>> again.identical(S)
    True
    """
    return read(path, lazy)


def _read_once(problem: Problem, sources: Any) -> Any:
    """The tensors of a Dataset or DataLoader, whose order may be random; anything else as it is."""
    if not isinstance(sources, (Dataset, DataLoader)):
        return sources
    with problem.moment() as moment:
        return read_sources(sources, moment.device, moment.dtype)


def _class_labels(problem: Problem, labels: Any) -> Any:
    """The sources' own labels, where the loss says that they are classes."""
    return labels if problem.classifies and getattr(labels, "ndim", 0) == 1 else None


@xr.register_dataarray_accessor("le")
class SimilarityAccessor:
    """What a similarity can do: `S.le.classes()`, `.frame()`, `.nearest()`, `.plot()`, `.html()`, `.save()`"""

    def __init__(self, S: xr.DataArray) -> None:
        self._S = S

    def frame(self) -> pd.DataFrame:
        """One row for each pair: source, target, their classes, value."""
        named = [name for name in ("source_class", "target_class") if name in self._S.coords]
        others = [name for name in self._S.coords if name not in ("source", "target", *named)]
        frame = self._S.rename("value").drop_vars(others).to_dataframe().reset_index()
        return frame[["source", "target", *named, "value"]]

    def classes(self, **options: Any) -> pd.DataFrame:
        """One row for each pair of classes; options as for `le.class_pairs`."""
        if "source_class" not in self._S.coords or "target_class" not in self._S.coords:
            raise ValueError(
                "source_labels, target_labels: this similarity carries no classes; give them to similarity()"
            )
        return class_pairs(self._S, **options)

    def nearest(self, source: int, top: int = 10) -> pd.DataFrame:
        """The targets that a step on `source` moves most, itself left out."""
        there = self._S["source"].values
        if source not in there:
            raise ValueError(f"source: {source!r} is not one of the {len(there)} sources; S.source lists them")
        row = self._S.sel(source=source)
        if self._S.attrs.get("targets_are_sources"):
            row = row.drop_sel(target=source)
        others = [name for name in row.coords if name not in ("target", "target_class")]
        frame = row.rename("value").drop_vars(others).to_dataframe()
        return frame.reset_index().sort_values("value", ascending=False).head(top).reset_index(drop=True)

    def plot(self, columns: int = 1) -> Figure:
        """The matrix as a picture, ordered by class where classes are known, as wide as one column of print or two."""
        from local_elasticity.report.figures import similarity_figure

        return similarity_figure(self._S, columns)

    def html(self) -> Card:
        """A small card for notebooks: the matrix, its class pairs, and whether to believe them."""
        from local_elasticity.report.card import similarity_card

        return similarity_card(self._S)

    def with_examples(self, sources: Any, targets: Any = None) -> xr.DataArray:
        """The same, with a small picture, text or vector for each example, which reports show."""
        square = bool(self._S.attrs.get("targets_are_sources"))
        examples = sources if targets is None else (sources, targets)
        return self._S.assign_coords(example_coordinates(examples, self._S.shape, square))

    def with_clusters(self, clusters: Any) -> xr.DataArray:
        """The same, with the cluster of each example, where the targets are the sources."""
        if not self._S.attrs.get("targets_are_sources"):
            raise ValueError("clusters: the targets are not the sources here, so that clusters have no matrix")
        values = np.asarray(clusters)
        if values.shape != (self._S.sizes["source"],):
            raise ValueError(f"clusters: shape {values.shape} does not fit {self._S.sizes['source']} examples")
        return self._S.assign_coords(source_cluster=("source", values), target_cluster=("target", values))

    def save(self, path: str | Path) -> Path:
        """Write to one zarr store; `le.load(path)` reads it back."""
        return save(self._S, path)
