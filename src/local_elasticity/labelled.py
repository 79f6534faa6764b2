"""similarity: respond, measure and label in one call; what most users meet first."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from local_elasticity.engine.inputs import read_sources
from local_elasticity.engine.job import Engine
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.progress import ProgressOption
from local_elasticity.engine.respond import respond
from local_elasticity.engine.update import SGD, Update
from local_elasticity.engine.versions import versions
from local_elasticity.measures.named import (
    OF_PROBLEM,
    OF_RESPONSE,
    OWN_CHANGE,
    OWN_FLOOR,
    OfResponse,
    check_name,
    unresolved_share,
)
from local_elasticity.measures.summary import class_pairs
from local_elasticity.store.result import read, save

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from local_elasticity.report.card import Card


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
        store: a path to save the result to, as one zarr store; `le.load(path)` reads it back.
        examples: what reports show of each source: images, texts or vectors, one for each; (of the sources, of the
            targets) where the targets are others. A small copy travels with the result.

    Returns:
        A DataArray [source, target] that knows how it was made (`.attrs`) and has the accessor `.le`: `.le.classes()`,
        `.le.frame()`, `.le.nearest(source, top)`, `.le.plot()`, `.le.html()`, `.le.save(path)`.

    >>> import torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(2, 3), "cross_entropy")
    >>> S = le.similarity(problem, (torch.eye(2), torch.tensor([0, 1])), measure="kl", update=le.SGD(0.1))
    >>> S.dims, S.attrs["measure"], S.attrs["unresolved"]
    (('source', 'target'), 'kl', 0.0)
    """
    if not isinstance(problem, Problem):
        raise TypeError(
            f"problem: le.Problem.of(model, loss) is wanted, not {type(problem).__name__}; a step needs a loss"
        )
    began = time.perf_counter()
    name = measure if isinstance(measure, str) else getattr(measure, "__name__", type(measure).__name__)
    if isinstance(measure, str):
        check_name(measure)
    if store is not None and Path(store).exists():
        raise FileExistsError(f"store: {store} is there already; choose another path or remove it")
    sources = _read_once(problem, sources)
    if name in OF_PROBLEM:
        S, own, floor = OF_PROBLEM[name](problem, sources, targets), None, None
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
        floor = OWN_FLOOR[name](response).amax(1) if name in OWN_FLOOR else None
        how = {
            "engine": response.engine,
            "update": repr(update),
            "step_size": update.step_size,
            "targets_are_sources": response.targets_are_sources,
            "notes": list(response.notes),
        }
    if source_labels is None and source_batch_size is None:
        source_labels = _class_labels(problem, sources[1])
    result = _labelled(S, source_labels, target_labels, bool(how["targets_are_sources"]))
    for coord, values in (("source_change", own), ("source_floor", floor)):
        if values is not None:
            result = result.assign_coords({coord: ("source", values.detach().cpu().numpy())})
    result.attrs = {
        "measure": name,
        "reading": "as_defined",
        "unresolved": unresolved_share(S),
        **how,
        "loss": problem.loss_name,
        "outputs": problem.kind,
        "policy": problem.policy,
        "dtype": str(S.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(S.device) if S.is_cuda else S.device.type,
        "seconds": round(time.perf_counter() - began, 3),
        "versions": versions(),
    }
    if examples is not None:
        result = result.le.with_examples(*(examples if isinstance(examples, tuple) else (examples,)))
    if store is not None:
        save(result, store)
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
    result = _labelled(values, source_labels, target_labels, square)
    result.attrs = {
        "measure": "similarity",
        "unresolved": unresolved_share(values.double()),
        "targets_are_sources": square,
        **about,
    }
    if clusters is not None:
        result = result.le.with_clusters(clusters)
    if examples is not None:
        result = result.le.with_examples(*(examples if isinstance(examples, tuple) else (examples,)))
    return result


def load(path: str | Path) -> xr.DataArray:
    """Read a similarity that `le.similarity(..., store=path)` or `S.le.save(path)` wrote.

    >>> import tempfile, torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(2, 3), "cross_entropy")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     S = le.similarity(problem, (torch.eye(2), torch.tensor([0, 1])), store=f"{folder}/run.zarr")
    ...     again = le.load(f"{folder}/run.zarr")
    >>> again.identical(S)
    True
    """
    return read(path)


def _read_once(problem: Problem, sources: Any) -> Any:
    """The tensors of a Dataset or DataLoader, whose order may be random; anything else as it is."""
    if not isinstance(sources, (Dataset, DataLoader)):
        return sources
    with problem.moment() as moment:
        return read_sources(sources, moment.device, moment.dtype)


def _class_labels(problem: Problem, labels: Any) -> Any:
    """The sources' own labels, where the loss says that they are classes."""
    classes = problem.loss_name == "cross_entropy" and getattr(labels, "ndim", 0) == 1
    return labels if classes else None


def _labelled(S: Tensor, source_labels: Any, target_labels: Any, square: bool) -> xr.DataArray:
    n, m = S.shape
    coords: dict[str, Any] = {"source": np.arange(n), "target": np.arange(m)}
    if target_labels is None and square:
        target_labels = source_labels
    for axis, labels, size in (("source", source_labels, n), ("target", target_labels, m)):
        if labels is not None:
            values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
            if values.shape != (size,):
                raise ValueError(f"{axis}_labels: shape {values.shape} does not fit {size} {axis}s; give one for each")
            coords[f"{axis}_class"] = (axis, values)
    return xr.DataArray(S.detach().cpu().numpy(), coords=coords, dims=("source", "target"), name="similarity")


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
        row = self._S.sel(source=source)
        if self._S.attrs.get("targets_are_sources"):
            row = row.drop_sel(target=source)
        others = [name for name in row.coords if name not in ("target", "target_class")]
        frame = row.rename("value").drop_vars(others).to_dataframe()
        return frame.reset_index().sort_values("value", ascending=False).head(top).reset_index(drop=True)

    def plot(self) -> Figure:
        """The matrix as a picture, ordered by class where classes are known."""
        from local_elasticity.report.figures import similarity_figure

        return similarity_figure(self._S)

    def html(self) -> Card:
        """A small card for notebooks: the matrix, its class pairs, and whether to believe them."""
        from local_elasticity.report.card import similarity_card

        return similarity_card(self._S)

    def with_examples(self, sources: Any, targets: Any = None) -> xr.DataArray:
        """The same, with a small picture, text or vector for each example, which reports show."""
        from local_elasticity.report.examples import kept_examples

        if targets is None and self._S.attrs.get("targets_are_sources"):
            targets = sources
        kept = {
            "source_example": ("source", kept_examples(sources, self._S.sizes["source"], "examples of the sources"))
        }
        if targets is not None:
            kept["target_example"] = (
                "target",
                kept_examples(targets, self._S.sizes["target"], "examples of the targets"),
            )
        return self._S.assign_coords(kept)

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
