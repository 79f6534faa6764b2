"""Filling a store: begun, or resumed where an earlier process stopped, and closed when no block is missing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import xarray as xr

from local_elasticity.engine.progress import Progress, ProgressOption
from local_elasticity.scale.workers import current_workers
from local_elasticity.store.atomic import alone, check_name, whole_folder
from local_elasticity.store.blocks import At, Block, BlockStore, Grid
from local_elasticity.store.provenance import Fingerprints, different, in_words

logger = logging.getLogger("local_elasticity")

Array = np.ndarray

MEASURED_AGAIN = 8
"""Sources and targets whose stored pairs are measured again before a store is resumed."""

ROUNDING = 0.05
"""By how much those may differ, on average: they are computed in other chunks than before."""


Self = TypeVar("Self", bound="Work")


class Work(Protocol):
    """What blocks are computed from; all that a store needs to know of a measurement."""

    @property
    def grid(self) -> Grid: ...

    @property
    def dtype(self) -> str: ...

    @property
    def names(self) -> tuple[str, ...] | None:
        """What the measures are called, where there are several."""

    @property
    def own(self) -> tuple[str, ...]:
        """What the sources' own values are called."""

    @property
    def diagonal_first(self) -> bool:
        """Whether blocks on the diagonal must be there before the others."""

    @property
    def threads(self) -> int: ...

    @property
    def gpus(self) -> int: ...

    def planned(self: Self, side: int | None) -> Self:
        """With all decisions made that the bits of a block depend on."""

    def record(self) -> dict[str, Any]:
        """What was decided, in plain values."""

    def resumed(self: Self, record: dict[str, Any], side: int) -> Self:
        """As it was decided before."""

    def with_own(self: Self, own: Mapping[str, Array]) -> Self:
        """With the sources' own values by name, which blocks off the diagonal are divided by."""

    def block(self, at: At) -> Block: ...

    def corner(self, at: At, few: int) -> Mapping[str, Array]:
        """The first rows of a block, by matrix, and the first or all of their columns."""

    def describe(self, unresolved: Mapping[str, float]) -> dict[str, dict[str, str]]:
        """What each matrix says of itself, given its share of pairs without a value."""


def compute_block(work: Work, at: At) -> Block:
    """A task for workers."""
    return work.block(at)


def fill(
    path: Path,
    work: Work,
    provenance: Fingerprints,
    coords: xr.Dataset,
    *,
    side: int | None,
    versions: dict[str, str],
    progress: ProgressOption = None,
) -> None:
    """Compute the blocks that `path` does not hold yet."""
    check_name(path, "store")
    sketches = work.grid.width is not None
    if not path.exists():
        planned = work.planned(side)
        _begin(path, planned, coords, {"provenance": provenance, "plan": planned.record(), "versions": versions})
    if not (path / "zarr.json").exists():
        raise FileExistsError(f"store: {path} is there already and is not a result; choose another path or remove it")
    _same_or_refused(BlockStore.open(path, sketches=sketches), provenance, work, side)
    with alone(path):
        _sweep(path)
        store = BlockStore.open(path, write=True, sketches=sketches)
        _warn_of_versions(store, versions)
        work = _resumed(store, work)
        _measures_the_same_or_refused(store, work)
        unresolved = _compute(store, work, progress)
        if not store.finished:
            store.finish(work.describe(unresolved))


def _sweep(path: Path) -> None:
    """Remove what zarr had half written when an earlier process was killed."""
    for leftover in path.rglob("*.partial"):
        leftover.unlink(missing_ok=True)


def _begin(path: Path, work: Work, coords: xr.Dataset, record: dict[str, Any]) -> None:
    """An empty store under `path`, all at once."""
    try:
        with whole_folder(path, "store") as unfinished:
            BlockStore.create(
                unfinished, coords, work.grid, measures=work.names, own=work.own, dtype=work.dtype, record=record
            )
    except OSError as error:
        if not path.exists():
            raise
        raise RuntimeError(f"store: another process has just begun {path}; run the same call again") from error


def _same_or_refused(store: BlockStore, provenance: Fingerprints, work: Work, side: int | None) -> None:
    there = store.record.get("provenance")
    if there is None:
        raise FileExistsError(
            f"store: {store.path} is a result that was saved whole, so that there is nothing to resume; choose "
            "another path or remove it"
        )
    if different(there, provenance):
        raise ValueError(
            f"store: {store.path} holds another measurement: {in_words(there, provenance)} differ; choose another path "
            "or remove it"
        )
    if store.record.get("measures") != (None if work.names is None else list(work.names)):
        raise ValueError(f"store: {store.path} is damaged: it names other measures than it was begun with; remove it")
    if replace(work.grid, side=store.grid.side) != store.grid:
        raise ValueError(f"store: {store.path} is damaged: {store.grid} is not the grid of its measurement; remove it")
    if side not in (None, store.grid.side):
        raise ValueError(f"block: {store.path} was begun with blocks of {store.grid.side}; leave block out, or keep it")


def _resumed(store: BlockStore, work: Work) -> Work:
    try:
        return work.resumed(store.record["plan"], store.grid.side)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"store: {store.path} is damaged: its plan cannot be read ({error}); remove it") from error


def _measures_the_same_or_refused(store: BlockStore, work: Work) -> None:
    """Measure a few stored pairs again: this detects changes that no fingerprint shows, such as a file that a function
    reads."""
    first = next((at for at in store.grid.blocks() if store.state(at) == "finished"), None)
    if first is None:
        return
    if work.diagonal_first:
        work = work.with_own(store.own_values())
    again = work.corner(first, MEASURED_AGAIN)
    for name, values in store.read(first)[0].items():
        here = again[name]
        there = values[: len(here), : here.shape[1]]
        known = np.isfinite(there) & np.isfinite(here)
        if np.abs(here - there)[known].sum() <= ROUNDING * np.abs(there)[known].sum():
            continue
        raise ValueError(
            f"store: {store.path} holds another measurement: its pairs have other values when they are measured again, "
            "though weights, data and settings are the same; look for what the model, the loss or the measure reads "
            "from elsewhere, choose another path, or remove it"
        )


def _warn_of_versions(store: BlockStore, versions: dict[str, str]) -> None:
    there = store.record.get("versions") or {}
    if not store.finished and there != versions:
        changed = ", ".join(f"{name} {there.get(name)} → {versions[name]}" for name in different(there, versions))
        logger.warning("store: begun under other versions (%s); new blocks may differ in their last bits", changed)


def _compute(store: BlockStore, work: Work, progress: ProgressOption) -> dict[str, float]:
    """Check what is there, compute what is not; the share of pairs without a value, by matrix."""
    unresolved = dict.fromkeys(store.matrices, 0)
    missing, places = [], store.grid.blocks()
    for at in places:
        state = store.state(at)
        if state == "finished":
            _count_unresolved(unresolved, store, at, store.read(at))
        else:
            missing.append(at)
            if state == "damaged":
                logger.warning("store: block %s of %s is damaged and is computed again", at, store.path)
    with Progress(len(places), "blocks", progress) as bar:
        bar.done = len(places) - len(missing)
        for phase in _phases(work, missing):
            if work.diagonal_first and any(i != j for i, j in phase):
                work = work.with_own(store.own_values())
            tasks = current_workers().map(compute_block, work, phase, threads=work.threads, gpus=work.gpus)
            for at, block in tasks:
                store.write(at, block)
                _count_unresolved(unresolved, store, at, block)
                bar.advance()
    return {name: empty / (store.grid.n * store.grid.m) for name, empty in unresolved.items()}


def _phases(work: Work, missing: list[At]) -> list[list[At]]:
    """Blocks on the diagonal first, where the others need them."""
    if not work.diagonal_first:
        return [missing]
    return [[at for at in missing if at[0] == at[1]], [at for at in missing if at[0] != at[1]]]


def _count_unresolved(unresolved: dict[str, int], store: BlockStore, at: At, block: Block) -> None:
    """Add the pairs of a block without a value, those of the mirrored block included."""
    twice = 2 if store.grid.symmetric and at[0] != at[1] else 1
    for name in unresolved:
        unresolved[name] += twice * int(np.isnan(block[0][name]).sum())
