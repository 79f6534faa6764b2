"""One similarity in one zarr store: written whole or not at all, read back with everything it knew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from local_elasticity.engine.guard import raise_interruption
from local_elasticity.engine.memory import available
from local_elasticity.engine.supported import first_line
from local_elasticity.store.atomic import check_name, whole_folder
from local_elasticity.store.blocks import BlockStore, Grid, label_digest
from local_elasticity.store.sizes import SHARE_OF_FREE, RegularFiles, check_affordable

SIDE = 2048
"""Rows and columns of a chunk of a result that is saved whole."""


def save(S: xr.DataArray, path: str | Path) -> Path:
    """Write a labelled similarity. An interrupted save leaves nothing under `path`; an existing path is refused."""
    path = Path(path)
    check_name(path, "store")
    if path.exists():
        raise FileExistsError(f"store: {path} is there already; choose another path or remove it")
    coords = as_stored(S.coords.to_dataset())
    with whole_folder(path, "store") as unfinished:
        grid = Grid(len(S), S.shape[1], SIDE)
        BlockStore.create(unfinished, coords, grid, dtype=str(S.dtype), own=(), record={})
        store = BlockStore.open(unfinished, write=True)
        for at in grid.blocks():
            store.write(at, S.values[grid.region(at)], {})
        store.finish(attrs_as_stored(S.attrs))
    return path


def read(
    path: str | Path, lazy: bool | None = None, *, part: Callable[[xr.DataArray], xr.DataArray] | None = None
) -> xr.DataArray:
    """What `save` or `fill` wrote, or the part of it that a function takes before anything large is read; `lazy` leaves
    the values on disk, None where they are large.
    """
    store = BlockStore.open(Path(path))
    if not store.finished:
        done = sum(store.state(at) == "finished" for at in store.grid.blocks())
        raise ValueError(
            f"path: {path} is not finished: {done} of {store.grid.count} blocks are there; the same le.similarity(..., "
            "store=path) resumes it"
        )
    labels = {**_labels(store), **_own(store)}
    S = xr.DataArray(indexing.LazilyIndexedArray(Blocks(store)), labels, ("source", "target"), "similarity")
    S = part(S) if part else S
    if lazy is None:
        lazy = S.nbytes > SHARE_OF_FREE * available(torch.device("cpu"))
    S = S if lazy else S.load()
    S.attrs = _attributes(store)
    return S


def verify(path: str | Path) -> dict[str, list[tuple[int, int]]]:
    """The blocks that are `finished`, `missing` and `damaged`, every byte of every block read; labels that are damaged
    are a ValueError.
    """
    store = BlockStore.open(Path(path))
    _labels(store)
    found: dict[str, list[tuple[int, int]]] = {"finished": [], "missing": [], "damaged": []}
    for at in store.grid.blocks():
        found[store.state(at)].append(at)
    return found


def as_stored(coords: xr.Dataset) -> xr.Dataset:
    """Coordinates as the zarr format has them."""
    return coords.assign_coords(_strings(coords.coords, "U", object))


def attrs_as_stored(attrs: dict[Any, Any]) -> dict[str, str]:
    """Attributes as JSON."""
    return {str(name): json.dumps(value) for name, value in attrs.items()}


class Blocks(BackendArray):
    """The matrix, read from its blocks; those below the diagonal of a symmetric one are others' mirror images."""

    def __init__(self, store: BlockStore) -> None:
        self.store, self.shape, self.dtype = store, (store.grid.n, store.grid.m), store.dtype

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
        return self.store.read((j, i))[0].T if mirrored else self.store.read((i, j))[0]


def _places(rows: np.ndarray, columns: np.ndarray) -> tuple[Any, ...]:
    """Where some rows and columns meet: slices, which are copied faster, where they follow one another."""
    if (np.diff(rows) == 1).all() and (np.diff(columns) == 1).all():
        return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    return np.ix_(rows, columns)


def _labels(store: BlockStore) -> dict[str, Any]:
    """The coordinates; a ValueError where one is not what was written."""
    digests = store.record["labels"]
    try:
        check_affordable(array for name, array in store.group.arrays() if name not in ("similarity", "block_digest"))
        with xr.open_zarr(RegularFiles(store.path, read_only=True), consolidated=False, chunks=None) as stored:
            found = {name: stored.variables[name].load() for name in digests}
    except Exception as error:  # zarr raises what its codecs raise
        raise_interruption(error)
        raise ValueError(f"path: {store.path} is damaged: its labels cannot be read ({first_line(error)})") from error
    for name, digest in digests.items():
        if label_digest(found[name].values) != digest:
            raise ValueError(f"path: {store.path} is damaged: {name} is not what was written; remove the store")
    return {**found, **_strings(found, "OT", str)}


def _attributes(store: BlockStore) -> dict[str, Any]:
    """What the result says of itself."""
    try:
        return {name: json.loads(str(value)) for name, value in store.arrays["similarity"].attrs.items()}
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
