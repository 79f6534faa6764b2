"""A similarity, or those of several measures, in one zarr store: written whole, read back with all attributes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
import zarr
from xarray.backends import BackendArray
from xarray.core import indexing

from local_elasticity.engine.guard import raise_interruption
from local_elasticity.engine.memory import available
from local_elasticity.engine.supported import first_line
from local_elasticity.store.atomic import check_name, whole_folder
from local_elasticity.store.blocks import ALONE, INDEX, BlockStore, Grid, label_digest
from local_elasticity.store.sizes import SHARE_OF_FREE, RegularFiles, check_affordable, check_packed

SIDE = 2048
"""Rows and columns of a chunk of a result that is saved whole."""


def save(S: xr.DataArray | xr.Dataset, path: str | Path) -> Path:
    """Write a labelled similarity, or those of several measures. An interrupted save leaves nothing under `path`; an
    existing path is refused.
    """
    path = Path(path)
    check_name(path, "store")
    if path.exists():
        raise FileExistsError(f"store: {path} is there already; choose another path or remove it")
    several = {ALONE: S} if isinstance(S, xr.DataArray) else {str(name): one for name, one in S.data_vars.items()}
    measures = None if isinstance(S, xr.DataArray) else list(several)
    dtype = str(np.result_type(*(one.dtype for one in several.values())))
    coords = as_stored(S.coords.to_dataset())
    with whole_folder(path, "store") as unfinished:
        grid = Grid(S.sizes["source"], S.sizes["target"], SIDE)
        BlockStore.create(unfinished, coords, grid, measures=measures, own=(), dtype=dtype, record={})
        store = BlockStore.open(unfinished, write=True)
        for at in grid.blocks():
            store.write(at, ({name: one.values[grid.region(at)] for name, one in several.items()}, {}))
        store.finish({name: attrs_as_stored(one.attrs) for name, one in several.items()})
    return path


def read(
    path: str | Path, lazy: bool | None = None, *, part: Callable[[xr.Dataset], xr.Dataset] | None = None
) -> xr.DataArray | xr.Dataset:
    """What `save` or `fill` wrote: a DataArray, or a Dataset where there are several measures.

    `part` takes some of the pairs before anything large is read. `lazy` leaves the values on disk; None does so where
    they are large.
    """
    if not isinstance(path, (str, Path)):
        raise TypeError(f"path: expected that of a stored similarity, got {type(path).__name__}")
    store = BlockStore.open(Path(path))
    if not store.finished:
        done = sum(store.state(at) == "finished" for at in store.grid.blocks())
        raise ValueError(
            f"path: {path} is not finished: {done} of {store.grid.count} blocks are there; the same le.similarity(..., "
            "store=path) resumes it"
        )
    labels = {**_labels(store), **_own(store)}
    values = {name: indexing.LazilyIndexedArray(Blocks(store, name)) for name in store.matrices}
    several = xr.Dataset({name: (("source", "target"), one) for name, one in values.items()}, labels)
    for name in store.matrices:
        several[name].attrs = _attributes(store, name)
    several.attrs = shared_attrs(several)
    several = part(several) if part else several
    if lazy is None:
        size = sum(several[name].nbytes for name in store.matrices)
        lazy = size > SHARE_OF_FREE * available(torch.device("cpu"))
    several = several if lazy else several.load()
    return several if store.several else several[ALONE]


def shared_attrs(several: xr.Dataset) -> dict[str, Any]:
    """What all measures of a Dataset have in common: engine, step, nonlinearity, notes, versions and the like.

    >>> one, other = (xr.DataArray([1.0], attrs={"measure": name, "engine": "looped"}) for name in ("kl", "loss"))
    >>> shared_attrs(xr.Dataset({"kl": one, "loss": other}))
    {'engine': 'looped'}
    """
    first, *rest = (one.attrs for one in several.data_vars.values())
    own = ("measure", "words", "unresolved")
    return {
        name: value
        for name, value in first.items()
        if name not in own and all(name in other and other[name] == value for other in rest)
    }


def verify(path: str | Path) -> dict[str, list[tuple[int, int] | str]]:
    """The blocks that are `finished`, `missing` and `damaged`, every byte of every block read; labels that are damaged
    are a ValueError. Blocks of an index of influences are named after their checkpoint.
    """
    path = Path(path)
    found: dict[str, list[tuple[int, int] | str]] = {"finished": [], "missing": [], "damaged": []}
    for checkpoint in _checkpoints(path):
        store = BlockStore.open(path / checkpoint, sketches=bool(checkpoint))
        if not checkpoint:
            _labels(store)
            for name in store.matrices:
                _attributes(store, name)
        for at in store.grid.blocks():
            found[store.state(at)].append(f"{checkpoint} {at[0]}" if checkpoint else at)
    return found


def _checkpoints(path: Path) -> list[str]:
    """The stores of an index of influences, one for each checkpoint; of a similarity, itself."""
    check_name(path)
    try:
        is_index = INDEX in zarr.open_group(RegularFiles(path), mode="r").attrs
    except Exception as error:  # zarr raises what its codecs raise; opening the store says what is wrong
        raise_interruption(error)
        is_index = False
    if not is_index:
        return [""]
    return sorted(one.name for one in path.iterdir() if (one / "zarr.json").is_file())


def as_stored(coords: xr.Dataset) -> xr.Dataset:
    """Coordinates as the zarr format has them."""
    return coords.assign_coords(_strings(coords.coords, "U", object))


def attrs_as_stored(attrs: dict[Any, Any]) -> dict[str, str]:
    """Attributes as JSON."""
    return {str(name): json.dumps(value) for name, value in attrs.items()}


class Blocks(BackendArray):
    """A matrix, read from its blocks; those below the diagonal of a symmetric one are others' mirror images."""

    def __init__(self, store: BlockStore, name: str) -> None:
        self.store, self.name, self.shape, self.dtype = store, name, (store.grid.n, store.grid.m), store.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        support = indexing.IndexingSupport.OUTER
        return indexing.explicit_indexing_adapter(key, self.shape, support, self._read)

    def _read(self, key: tuple[Any, Any]) -> Any:
        """The rows and columns asked for, block by block."""
        side = self.store.grid.side
        rows, columns = (np.atleast_1d(np.arange(size)[part]) for size, part in zip(self.shape, key, strict=True))
        values = np.empty((len(rows), len(columns)), dtype=self.dtype)
        for i in np.unique(rows // side):
            for j in np.unique(columns // side):
                here, there = np.flatnonzero(rows // side == i), np.flatnonzero(columns // side == j)
                block = self._block(int(i), int(j))
                values[_places(here, there)] = block[_places(rows[here] - i * side, columns[there] - j * side)]
        return values[tuple(slice(None) if np.ndim(part) or isinstance(part, slice) else 0 for part in key)]

    def _block(self, i: int, j: int) -> Any:
        mirrored = self.store.grid.symmetric and i > j
        values = self.store.matrix((j, i) if mirrored else (i, j), self.name)
        return values.T if mirrored else values


def _places(rows: np.ndarray, columns: np.ndarray) -> tuple[Any, ...]:
    """Where some rows and columns meet: slices, which are copied faster, where they follow one another."""
    if (np.diff(rows) == 1).all() and (np.diff(columns) == 1).all():
        return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    return np.ix_(rows, columns)


def _labels(store: BlockStore) -> dict[str, Any]:
    """The coordinates; a ValueError if one is not what was written."""
    digests = store.record["labels"]
    try:
        large = (*store.matrices, "block_digest")
        check_affordable(array for name, array in store.group.arrays() if name not in large)
        for name in digests:
            check_packed(store.path / name, store.group[name])
        with xr.open_zarr(RegularFiles(store.path, read_only=True), consolidated=False, chunks=None) as stored:
            found = {name: stored.variables[name].load() for name in digests}
    except Exception as error:  # zarr raises what its codecs raise
        raise_interruption(error)
        raise ValueError(f"path: {store.path} is damaged: its labels cannot be read ({first_line(error)})") from error
    for name, digest in digests.items():
        if label_digest(found[name].values) != digest:
            raise ValueError(f"path: {store.path} is damaged: {name} is not what was written; remove the store")
    return {**found, **_strings(found, "OT", str)}


def _attributes(store: BlockStore, matrix: str) -> dict[str, Any]:
    """What a matrix says of itself."""
    try:
        return {name: json.loads(value) for name, value in store.attributes(matrix).items()}
    except ValueError as error:
        raise ValueError(f"path: {store.path} is damaged: its attributes are not JSON ({error})") from error


def _own(store: BlockStore) -> dict[str, Any]:
    """The sources' own values, which are kept with some of the blocks."""
    holders = sorted(at for at in store.grid.blocks() if store.grid.holds_own(at))
    return {name: ("source", np.concatenate([store.read(at)[1][name] for at in holders])) for name in store.own}


def _strings(coords: Any, kinds: str, dtype: type) -> dict[Any, Any]:
    """String labels as the zarr format specifies them (variable length), and back as NumPy's."""
    return {
        name: (c.dims, np.array(c.values.tolist(), dtype=dtype)) for name, c in coords.items() if c.dtype.kind in kinds
    }
