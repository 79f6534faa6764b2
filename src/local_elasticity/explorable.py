"""write_report: one page that shows results of any kind, alone or beside each other."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from local_elasticity.labelled import as_similarity
from local_elasticity.report.examples import kept_examples
from local_elasticity.report.explorer import page
from local_elasticity.report.paper import Paper, read_paper
from local_elasticity.report.pairs import pairs_of
from local_elasticity.report.run import LARGEST_SIDE, Panel, Run, Side, Unshown, chosen_rows
from local_elasticity.store.result import read
from local_elasticity.training.history import History
from local_elasticity.training.monitor import Monitor
from local_elasticity.training.phases import half_life

logger = logging.getLogger("local_elasticity")

SIZE = "%%SIZE%%"


def write_report(
    results: Any,
    out: str | Path,
    *,
    examples: Any = None,
    title: str | None = None,
    command: str = "",
) -> Path:
    """Write one self-contained HTML page: it can be opened offline, mailed, printed, and linked to at any view.

    Args:
        results: one or several, also by name in a dict: a similarity, a `Monitor` or its history, a fitted clustering,
            or a path to a stored similarity, a stored history, or a folder of a paper's results. What cannot be read
            is told on the page.
        out: the file to write; one that is there is replaced.
        examples: pictures, texts or vectors to show, one for each source; similarities that carry their own keep them.
        title, command: for the page's head and foot.

    >>> import tempfile, torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(4, 2), "cross_entropy")
    >>> x, y = torch.randn(6, 4), torch.arange(6) % 2
    >>> S = le.similarity(problem, (x, y), measure="kl", examples=x)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = le.write_report({"a first look": S}, f"{folder}/report.html")
    ...     "a first look" in page.read_text(encoding="utf-8")
    True
    """
    runs: list[Run | Paper | Unshown] = []
    for name, one in _named(results):
        runs += _opened(name, one)
    if not runs:
        raise ValueError("results: there is nothing to report; give a similarity, a history or a path")
    runs = [_with_examples(run, examples) if isinstance(run, Run) and examples is not None else run for run in runs]
    runs = [Unshown(run.name, "it holds no measurement yet") if _is_empty(run) else run for run in runs]
    for run in runs:
        if isinstance(run, Unshown):
            logger.warning("%s is not shown: %s", run.name, run.why)
    text = page(runs, title=title or _title(runs), command=command, halves=_halves(runs))
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.unfinished")
    unfinished.write_text(text.replace(SIZE, f"{len(text.encode()) / 1e6:.1f} MB large", 1), encoding="utf-8")
    unfinished.replace(out)
    return out


def read_examples(path: Path) -> Any:
    """Pictures or vectors from an .npy file, the array x of an .npz file, or the lines of a text file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "texts.txt"
    ...     _ = file.write_text("a cat\\na dog\\n")
    ...     read_examples(file)
    ['a cat', 'a dog']
    """
    if path.suffix not in (".npy", ".npz"):
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    found = np.load(path, allow_pickle=False)
    if path.suffix == ".npy":
        return found
    with found:
        if "x" not in found:
            raise ValueError(f"--examples: {path} holds {', '.join(found.files)}, but no array x")
        return found["x"]


def _named(results: Any) -> list[tuple[str, Any]]:
    if isinstance(results, dict):
        return list(results.items())
    if isinstance(results, (str, Path, xr.DataArray, Monitor, History)) or _is_clustering(results):
        results = [results]
    if not isinstance(results, Iterable):
        raise TypeError(f"results: {type(results).__name__} cannot be reported; write_report says what can")
    return [(_name_of(one, place), one) for place, one in enumerate(results)]


def _name_of(one: Any, place: int) -> str:
    if isinstance(one, (str, Path)):
        return Path(one).name
    return f"{type(one).__name__ if not isinstance(one, xr.DataArray) else 'similarity'} {place + 1}"


def _opened(name: str, one: Any) -> list[Run | Paper | Unshown]:
    if isinstance(one, (str, Path)):
        return _read(name, Path(one))
    if isinstance(one, xr.DataArray):
        return [_of_similarity(name, one)]
    if isinstance(one, Monitor):
        return [_of_history(name, one.history)]
    if isinstance(one, History):
        return [_of_history(name, one)]
    if _is_clustering(one):
        return [_of_similarity(name, _of_clustering(one))]
    raise TypeError(f"results: {type(one).__name__} cannot be reported; write_report says what can")


def _is_clustering(one: Any) -> bool:
    return hasattr(one, "labels_") and hasattr(one, "similarity_")


def _of_clustering(model: Any) -> xr.DataArray:
    plain = {name: value for name, value in model.get_params().items() if isinstance(value, (str, int, float))}
    return as_similarity(model.similarity_, clusters=model.labels_, measure=model.similarity, **plain)


def _read(name: str, path: Path) -> list[Run | Paper | Unshown]:
    """Whatever lies under a path; a folder may hold several."""
    if not path.exists():
        raise FileNotFoundError(f"RUN: there is no {path}")
    if (path / "zarr.json").exists():
        return [_guarded(name, lambda: _read_store(name, path))]
    if path.name == "result.json":
        path = path.parent
    papers = sorted(file.parent for file in path.rglob("result.json")) if path.is_dir() else []
    stores = sorted(file.parent for file in path.glob("*/zarr.json")) if path.is_dir() and not papers else []
    found = [_guarded(one.name, lambda one=one: read_paper(one)) for one in papers]  # type: ignore[misc]
    found += [_guarded(one.name, lambda one=one: _read_store(one.name, one)) for one in stores]  # type: ignore[misc]
    return found or [Unshown(str(path), "it holds no similarity, no history and no result.json")]


def _guarded(name: str, read_one: Callable[[], Run | Paper]) -> Run | Paper | Unshown:
    try:
        return read_one()
    except (ValueError, KeyError, OSError, TypeError, RuntimeError) as error:
        return Unshown(name, f"it cannot be read ({error})")


def _read_store(name: str, path: Path) -> Run:
    attributes = json.loads((path / "zarr.json").read_text()).get("attributes", {})
    if "history" in str(attributes.get("format", "")):
        return _of_history(name, History.open(path))
    notes: list[str] = []
    return _of_similarity(name, read(path, part=lambda S: _part(S, notes)), tuple(notes))


def _part(S: xr.DataArray, notes: list[str]) -> xr.DataArray:
    """At most LARGEST_SIDE rows and columns, before a large store is read."""
    square = S.attrs.get("targets_are_sources") in (True, "true")
    chosen: dict[str, np.ndarray] = {}
    for axis in ("source", "target"):
        classes = S[f"{axis}_class"].values if f"{axis}_class" in S.coords else None
        chosen[axis] = chosen_rows(classes, S.sizes[axis], LARGEST_SIDE)
    if square:
        chosen["target"] = chosen["source"]
    if any(len(chosen[axis]) < S.sizes[axis] for axis in chosen):
        n, m = S.sizes["source"], S.sizes["target"]
        notes.append(
            f"The store holds {n:,} sources and {m:,} targets. The page shows {len(chosen['source']):,} and "
            f"{len(chosen['target']):,} of them, drawn at random (seed 0) with every class in its share; every number "
            "on this page is of those."
        )
    return S.isel(chosen)


def _of_similarity(name: str, S: xr.DataArray, notes: Sequence[str] = ()) -> Run:
    if S.ndim != 2:
        raise ValueError(f"results: {name} has the dimensions {S.dims}; a similarity [source, target] is wanted")
    read_coord = lambda key: S[key].values if key in S.coords else None
    panel = Panel(
        str(S.attrs.get("measure", S.name or "similarity")),
        np.asarray(S.values)[None],
        (),
        read_coord("source_change"),
        read_coord("source_floor"),
    )
    square = bool(S.attrs.get("targets_are_sources", False))
    sides = [
        Side(
            read_coord(axis) if axis in S.coords else np.arange(S.sizes[axis]),
            read_coord(f"{axis}_class"),
            read_coord(f"{axis}_cluster"),
            read_coord(f"{axis}_example"),
        )
        for axis in ("source", "target")
    ]
    kind = "clustering" if sides[0].clusters is not None else "similarity"
    return Run(str(name), kind, (panel,), sides[0], sides[1], square, S.attrs, tuple(notes))


def _of_history(name: str, history: History) -> Run:
    data = history.dataset()
    panels = tuple(
        Panel(measure, data[measure].values.astype(np.float32), tuple(history.steps)) for measure in history.measures
    )
    sources = Side(np.arange(len(history.source_classes)), np.array(history.source_classes))
    targets = Side(np.arange(len(history.target_classes)), np.array(history.target_classes))
    engines = sorted({probe.engine for probe in history})
    seconds = sum(probe.seconds for probe in history)
    hidden = ("format", "source_classes", "target_classes", "engine")
    about = {key: value for key, value in history.about.items() if key not in hidden}
    about |= {"engine": engines, "probes": len(history), "seconds of probing": round(seconds, 2)}
    return Run(str(name), "history", panels if len(history) else (), sources, targets, history.square, about)


def _with_examples(run: Run, examples: Any) -> Run:
    """The same with examples, where they fit and it has none of its own."""
    given = examples if isinstance(examples, tuple) else (examples, examples if run.square else None)
    sides, notes = [], []
    for side, these, word in zip((run.sources, run.targets), given, ("sources", "targets"), strict=True):
        if these is None or side.examples is not None:
            sides.append(side)
            continue
        try:
            last = int(side.places.max()) + 1 if len(side) else 0
            size = len(these) if len(these) >= last else len(side)
            kept = kept_examples(these, size)[side.places]
            sides.append(Side(side.places, side.classes, side.clusters, kept))
        except (ValueError, IndexError) as error:
            notes.append(f"The given examples are not shown for the {word} of this run: {error}.")
            sides.append(side)
    return Run(run.name, run.kind, run.panels, *sides, run.square, run.about, (*run.notes, *notes))


def _is_empty(run: Any) -> bool:
    return isinstance(run, Run) and (not run.panels or 0 in run.panels[0].values.shape)


def _halves(runs: Sequence[Any]) -> dict[tuple[int, int], float]:
    """For every panel with several times, the step by which half of the way to its late ratio was gone."""
    halves: dict[tuple[int, int], float] = {}
    for i, run in enumerate(one for one in runs if isinstance(one, Run)):
        for j, panel in enumerate(run.panels):
            pairs = pairs_of(run, panel) if len(panel.steps) > 1 else None
            if pairs is not None:
                halves[i, j] = half_life(panel.steps, pairs.ratio)
    return halves


def _title(runs: Sequence[Any]) -> str:
    names = [run.name for run in runs]
    return "Local elasticity: " + ", ".join(names[:3]) + ("" if len(names) <= 3 else f" and {len(names) - 3} more")
