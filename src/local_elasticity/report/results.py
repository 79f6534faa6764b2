"""Results of every kind as runs that the page can show; what cannot be read says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from local_elasticity.engine.guard import raise_of_handler
from local_elasticity.measures.loss import LOSS
from local_elasticity.report.distance import distances
from local_elasticity.report.examples import as_given, kept_examples
from local_elasticity.report.foreseen import Foreseen, foreseen
from local_elasticity.report.listed import listed_in
from local_elasticity.report.marked import ATTRIBUTE, read_marked
from local_elasticity.report.pairs import MOST_CLASSES
from local_elasticity.report.paper import Paper, read_paper
from local_elasticity.report.run import (
    LARGEST_SIDE,
    HelpersAndHarmers,
    Panel,
    Run,
    Side,
    Unshown,
    chosen_rows,
    share_words,
)
from local_elasticity.report.tabled import Tabled, tabled
from local_elasticity.statistics.class_pairs import carried
from local_elasticity.statistics.locality import SIGNIFICANT
from local_elasticity.store.atomic import check_name
from local_elasticity.store.history import HistoryStore, StoredProbe
from local_elasticity.store.provenance import versions
from local_elasticity.store.result import read
from local_elasticity.store.sizes import read_json
from local_elasticity.words import number

LISTED_PAIRS = 100_000_000
"""Up to so many pairs of a store are read for the lists of helpers and harmers."""

COMPARED_ATTRIBUTES = ("measure", "update", "loss", "policy", "dtype", "device", "versions")
"""What both sides of a comparison have in common; where they differ, a note says so."""

NOTHING_KNOWN = "it holds no similarity, no history and no result.json"


def opened(name: str, one: Any) -> list[Run | Paper | Foreseen | Tabled | Unshown]:
    """A result, or what lies under a path, which may be several."""
    if isinstance(one, (str, Path)):
        return [*_read(name, Path(one))]
    if isinstance(one, xr.DataArray):
        return [_of_similarity(name, [one])]
    if isinstance(one, xr.Dataset):
        return [_of_similarity(name, list(one.data_vars.values()))]
    history = one if is_history(one) else getattr(one, "history", None)
    if is_history(history):
        return [_of_history(name, history)]
    if is_clustering(one):
        return [_of_clustering(name, one)]
    if is_comparison(one):
        return [_of_comparison(name, one)]
    if (told := _of_forecast(name, one) or tabled(name, one)) is not None:
        return [told]
    raise TypeError(unknown(one))


def unknown(one: Any) -> str:
    """What to give in place of something that is no result."""
    return (
        f"results: {type(one).__name__} cannot be reported; give a similarity, a Monitor or its history, what "
        "le.compare, le.forecast, le.check_step or an influence index found, a fitted clustering, or a path to what "
        "was stored"
    )


def is_clustering(one: Any) -> bool:
    """Whether this is our estimator, fitted or not, or another that kept its similarity."""
    ours = hasattr(one, "n_clusters") and hasattr(one, "approximation")
    return ours or (hasattr(one, "labels_") and hasattr(one, "similarity_"))


def is_comparison(one: Any) -> bool:
    """Whether this is what `le.compare` found."""
    return isinstance(getattr(one, "before", None), xr.DataArray) and hasattr(one, "difference")


def as_forecast(one: Any) -> tuple[Any, Any] | None:
    """A forecast and its check, where this is one of them alone or both in a tuple."""
    forecast, check = one if isinstance(one, tuple) and len(one) == 2 else (one, None)
    return (forecast, check) if hasattr(forecast, "at_risk") and hasattr(forecast, "old") else None


def _of_forecast(name: str, one: Any) -> Foreseen | None:
    """A forecast with its check, also one that is read already; None if it is of another kind."""
    forecast = as_forecast(one)
    return one if isinstance(one, Foreseen) else foreseen(name, *forecast) if forecast is not None else None


def is_history(one: Any) -> bool:
    """Whether this is the history of a monitor: probes, with the classes of their examples."""
    return hasattr(one, "source_classes") and hasattr(one, "notes")


def _read(name: str, path: Path) -> list[Run | Paper | Foreseen | Unshown]:
    """Whatever lies under a path; a folder may hold several."""
    check_name(path, "results")
    if not path.exists():
        raise FileNotFoundError(f"results: there is no {path}")
    if (path / "zarr.json").exists():
        return [_guarded(name, partial(_read_store, name), path)]
    if path.name == "result.json":
        path = path.parent
    papers = sorted(file.parent for file in path.rglob("result.json")) if path.is_dir() else []
    stores = sorted(file.parent for file in path.glob("*/zarr.json")) if path.is_dir() and not papers else []
    found: list[Run | Paper | Foreseen | Unshown] = [_guarded(one.name, read_paper, one) for one in papers]
    found += [_guarded(one.name, partial(_read_store, one.name), one) for one in stores]
    return found or [Unshown(str(path), NOTHING_KNOWN)]


def _guarded(name: str, read_one: Callable[[Path], Run | Paper], path: Path) -> Run | Paper | Unshown:
    try:
        return read_one(path)
    except (ValueError, KeyError, OSError, TypeError, AttributeError, RuntimeError) as error:
        raise_of_handler(error)
        return Unshown(name, f"it cannot be read ({error})")


def _read_store(name: str, path: Path) -> Run:
    about = read_json(path / "zarr.json")
    attributes = about.get("attributes") if isinstance(about, dict) else None
    if not isinstance(attributes, dict):
        raise ValueError("its zarr.json is not one of a store")
    if "history" in str(attributes.get("format", "")):
        return _of_stored_history(name, HistoryStore.open(path))
    notes: list[str] = []
    lists: dict[str, HelpersAndHarmers] = {}
    S = read(path, part=lambda several: _part(several, notes, lists))
    run = _of_similarity(name, [S] if isinstance(S, xr.DataArray) else list(S.data_vars.values()), notes[:1])
    panels = tuple(replace(panel, listed=lists.get(panel.measure)) for panel in run.panels)
    return replace(run, panels=panels, drawn="".join(notes[1:]))


def _part(S: xr.Dataset, notes: list[str], lists: dict[str, HelpersAndHarmers]) -> xr.Dataset:
    """At most LARGEST_SIDE rows and columns, before a large store is read; helpers and harmers are listed of all rows
    where those are not too many."""
    square = any(one.attrs.get("targets_are_sources") is True for one in S.data_vars.values())
    chosen: dict[str, np.ndarray] = {}
    for axis in ("source", "target"):
        classes = S[f"{axis}_class"].values if f"{axis}_class" in S.coords else None
        chosen[axis] = chosen_rows(classes, S.sizes[axis], LARGEST_SIDE)
    if square:
        chosen["target"] = chosen["source"]
    if any(len(chosen[axis]) < S.sizes[axis] for axis in chosen):
        n, m = S.sizes["source"], S.sizes["target"]
        if n * len(chosen["target"]) <= LISTED_PAIRS:
            lists.update(_lists(S, chosen["target"], square=square))
        notes.append(
            f"The store holds {n:,} sources and {m:,} targets. The page shows {len(chosen['source']):,} and "
            f"{len(chosen['target']):,} of them, drawn at random (seed 0) with every class in its share; every number "
            "on this page is of those" + (", but helpers and harmers are listed of all sources." if lists else ".")
        )
        notes.append(share_words(len(chosen["source"]), n, len(chosen["target"]), m))
    return S.isel(chosen)


def _lists(S: xr.Dataset, columns: np.ndarray, *, square: bool) -> dict[str, HelpersAndHarmers]:
    """The helpers and harmers of some targets, for the measures that are changes of the loss."""
    found = {}
    for one in S.data_vars.values():
        if one.attrs.get("measure") == LOSS.name:
            some = one.isel(target=columns)

            def rows(which: slice, some: xr.DataArray = some) -> np.ndarray:
                return np.asarray(some.isel(source=which).values)

            found[LOSS.name] = listed_in(rows, some.shape, _side(one, "source"), square=square, columns=columns)
    return found


def _of_similarity(name: str, several: Sequence[xr.DataArray], notes: Sequence[str] = ()) -> Run:
    """A run of one similarity, or of several with the same sources and targets."""
    for S in several:
        if S.ndim != 2:
            raise ValueError(f"results: {name} has the dimensions {S.dims}; expected a similarity [source, target]")
    S = several[0]
    sources, targets = _side(S, "source"), _side(S, "target")
    return Run(
        str(name),
        "similarity" if sources.clusters is None else "clustering",
        tuple(_panel(one) for one in several),
        sources,
        targets,
        bool(S.attrs.get("targets_are_sources", False)),
        {str(key): value for key, value in S.attrs.items() if key != ATTRIBUTE},
        tuple(notes),
        apart=carried(S, "distance"),
        marked=next((found for one in several if (found := read_marked(one.attrs))), ()),
    )


def _panel(S: xr.DataArray) -> Panel:
    measure = str(S.attrs.get("measure", S.name or "similarity"))
    own, floor = carried(S, "source_change"), carried(S, "source_floor")
    return Panel(measure, np.asarray(S.values)[None], (), own, floor, str(S.attrs.get("words", "")))


def _side(S: xr.DataArray, axis: str) -> Side:
    places = carried(S, axis)
    kept = carried(S, f"{axis}_example")
    return Side(
        np.arange(S.sizes[axis]) if places is None else places,
        carried(S, f"{axis}_class"),
        carried(S, f"{axis}_cluster"),
        None if kept is None else kept.tolist(),
        carried(S, f"{axis}_prediction"),
    )


def _of_comparison(name: str, found: Any) -> Run:
    """Both sides and their difference, as three measures of the same examples."""
    run = _of_similarity(name, [found.before, found.after, found.difference], str(found).splitlines())
    titles = (f"{found.measure} before", f"{found.measure} after", found.difference.attrs["measure"])
    before, after, change = (replace(one, title=title) for one, title in zip(run.panels, titles, strict=True))
    panels = before, after, replace(change, own=None, floor=None)
    headline, brief = _compared_words(found)
    changes = found.frame("classes") if run.classes is not None and len(run.classes) <= MOST_CLASSES else None
    about = {name: value for name, value in run.about.items() if name in COMPARED_ATTRIBUTES}
    about["measure"] = found.measure
    return replace(run, kind="comparison", panels=panels, about=about, headline=headline, brief=brief, changes=changes)


def _compared_words(found: Any) -> tuple[str, str]:
    """What changed over all pairs, with its interval; and in few words."""
    overall, known = found.overall, np.isfinite(found.difference.values)
    if not known.any():
        return "No pair has a value in both models.", "no pair in both"
    before, after = (number(float(np.median(one.values[known]))) for one in (found.before, found.after))
    change = f"{number(overall.difference)} ({number(overall.low)} to {number(overall.high)})"
    medians = f"its median over pairs is {before} before and {after} after"
    if not overall.p_value < SIGNIFICANT:
        words = f"No clear change of {found.measure} over all pairs: a pair changes by {change} in the median"
        return f"{words}; {medians}.", f"no clear change, {change}"
    size, *ends = (abs(one) for one in (overall.difference, overall.low, overall.high))
    by = f"{number(size)} ({number(min(ends))} to {number(max(ends))})"
    verb = "rises" if overall.difference > 0 else "falls"
    words = f"From before to after, {found.measure} {verb} by {by} in the median pair: {medians}."
    return words, f"change {change}"


def _of_clustering(name: str, model: Any) -> Run:
    if not hasattr(model, "labels_"):
        raise ValueError(f"results: {name} is a clustering that is not fitted; call fit(X) first")
    plain = {key: value for key, value in model.get_params().items() if isinstance(value, (str, int, float))}
    about: dict[str, Any] = {**plain, "measure": getattr(model, "similarity", "similarity"), "versions": versions()}
    if hasattr(model, "similarity_"):
        return _of_clusters(name, model.similarity_, model.labels_, np.arange(len(model.labels_)), about)
    n, error = len(model.labels_), model.approximation_error_
    rows = chosen_rows(model.labels_, n, LARGEST_SIDE)
    features = model.features_[rows]
    note = (
        f"These similarities are inner products of {features.shape[1]} features by {model.approximation}, which stand "
        f"for the matrix of {n:,} examples that was not computed"
        + (f"; {len(rows):,} of them are shown, drawn at random (seed 0)." if len(rows) < n else ".")
    )
    about["approximation_error"] = error
    return _of_clusters(name, features @ features.T, model.labels_[rows], rows, about, note)


def _of_clusters(
    name: str, values: Any, clusters: np.ndarray, places: np.ndarray, about: dict[str, Any], *notes: str
) -> Run:
    side = Side(places, None, np.asarray(clusters))
    panels = (Panel(str(about["measure"]), np.asarray(values)[None], ()),)
    unresolved = float(np.isnan(values).mean())
    return Run(str(name), "clustering", panels, side, side, True, {**about, "unresolved": unresolved}, tuple(notes))


def _of_history(name: str, history: Any) -> Run:
    unknown = np.full((2, len(history.source_classes)), np.nan)
    probes = [
        StoredProbe(
            one.step,
            list(one.similarity.values()),
            one.seconds,
            list(one.numbers.values()),
            one.facts,
            [one.denominators.get(name, unknown) for name in history.measures],
        )
        for one in history
    ]
    about = {**history.about, "engine": sorted({one.engine for one in history})}
    classes = history.source_classes, history.target_classes
    return _over_time(name, probes, history.measures, history.numbers, classes, about, history.notes)


def _of_stored_history(name: str, store: HistoryStore) -> Run:
    about = store.about
    classes = about["source_classes"], about["target_classes"]
    numbers, notes = about.get("numbers", ()), about.get("notes", {})
    about["engine"] = [about["engine"]] if "engine" in about else []
    return _over_time(name, list(store.probes()), about["measures"], numbers, classes, about, notes)


def _over_time(
    name: str,
    probes: Sequence[StoredProbe],
    measures: Sequence[str],
    numbers: Sequence[str],
    classes: tuple[Sequence[Any], Sequence[Any]],
    about: Mapping[str, Any],
    notes: Mapping[Any, str],
) -> Run:
    steps, words = tuple(probe.step for probe in probes), about.get("words", {})

    def panel(place: int, measure: str) -> Panel:
        values = np.stack([np.asarray(probe.similarity[place]) for probe in probes])
        own, floor = probes[-1].denominators[place] if len(probes[-1].denominators) else (None, None)
        return Panel(measure, values, steps, own, floor, words.get(measure, ""))

    panels = [panel(*one) for one in enumerate(measures)] if probes else []
    sources, targets = (Side(np.arange(len(one)), np.array(list(one))) for one in classes)
    hidden = ("format", "source_classes", "target_classes", "notes", "measures", "numbers", "writer", "words")
    known = {key: value for key, value in about.items() if key not in (*hidden, "provenance")}
    known |= {"probes": len(probes), "seconds of probing": round(sum(probe.seconds for probe in probes), 2)}
    return Run(
        str(name),
        "history",
        tuple(panels),
        sources,
        targets,
        bool(about.get("targets_are_sources")),
        known,
        notes=tuple(f"At step {step}: {note}." for step, note in notes.items()),
        numbers={number: np.array([probe.numbers[place] for probe in probes]) for place, number in enumerate(numbers)},
        state=_state([probe.facts for probe in probes]),
    )


def _state(facts: Sequence[Mapping[str, float]]) -> dict[str, np.ndarray]:
    """What is known of the sources at every probe, where anything is."""
    names = {"loss": "source_loss", "accuracy": "source_accuracy", "nonlinearity": "nonlinearity"}
    found = {word: np.array([one.get(fact, np.nan) for one in facts], dtype=float) for word, fact in names.items()}
    return {word: values for word, values in found.items() if np.isfinite(values).any()}


def without_examples(run: Run | Foreseen | Tabled) -> Run | Foreseen | Tabled:
    """The same without anything of its examples but their classes and distances."""
    if isinstance(run, (Foreseen, Tabled)):
        return run.without_examples()
    sources, targets = (replace(side, examples=None) for side in (run.sources, run.targets))
    panels = tuple(_with_listed_examples(panel, None) for panel in run.panels)
    return replace(run, sources=sources, targets=targets, panels=panels, marked=())


def with_examples(run: Run | Foreseen | Tabled, examples: Any) -> Run | Foreseen | Tabled:
    """The same with examples and their distances, where they fit and it has none of its own."""
    if isinstance(run, (Foreseen, Tabled)):
        return run.with_examples(examples)
    given = examples if isinstance(examples, tuple) else (examples, examples if run.square else None)
    sides, fitting, notes = [run.sources, run.targets], [], []
    for place, (side, these) in enumerate(zip((run.sources, run.targets), given, strict=True)):
        if these is None or side.examples is not None:
            continue
        try:
            chosen = _chosen(these, side)
            sides[place] = replace(side, examples=kept_examples(chosen, len(side)).tolist())
            fitting.append(chosen)
            if place == 0:
                run = replace(run, panels=tuple(_with_listed_examples(panel, these) for panel in run.panels))
        except ValueError as error:
            word = "targets" if place else "sources"
            notes.append(f"The given examples are not shown for the {word} of this run: {error}.")
    apart = distances(*fitting) if len(fitting) == 2 and run.apart is None else run.apart
    return replace(run, sources=sides[0], targets=sides[1], notes=(*run.notes, *notes), apart=apart)


def _with_listed_examples(panel: Panel, examples: Any) -> Panel:
    """The same with examples for the sources that are listed; without any if they are None."""
    if panel.listed is None:
        return panel
    side, kept = panel.listed.sources, None
    if examples is not None:
        used, values = panel.listed.used, as_given(examples)
        if len(used) and int(side.places[used].max()) >= len(values):
            raise ValueError(f"examples: {len(values)} do not fit {len(side)} sources; give one for each")
        kept = np.full(len(side), "", dtype=object)
        kept[used] = kept_examples(values[side.places[used]], len(used))
    side = replace(side, examples=None if kept is None else kept.tolist())
    return replace(panel, listed=replace(panel.listed, sources=side))


def _chosen(examples: Any, side: Side) -> np.ndarray:
    """Those of the examples that the side shows; one was given for each source or target that there was."""
    values = as_given(examples)
    last = int(side.places.max()) + 1 if len(side) else 0
    if len(values) < last or (last == len(side) and len(values) > last):
        raise ValueError(f"examples: {len(values)} do not fit {last} examples; give one for each")
    return values[side.places]


def is_empty(run: Any) -> bool:
    return isinstance(run, Run) and (not run.panels or 0 in run.panels[0].values.shape)
