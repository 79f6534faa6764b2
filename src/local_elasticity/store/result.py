"""One similarity in one zarr store: written whole or not at all, read back with everything it knew."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from local_elasticity.engine.memory import available
from local_elasticity.store.blocks import BlockStore, Grid

SIDE = 2048
"""Rows and columns of a chunk of a result that is saved whole."""

SHARE_OF_FREE = 0.25
"""A result that takes more of the free memory than this is left on disk, and read where it is used."""


def save(S: xr.DataArray, path: str | Path) -> Path:
    """Write a labelled similarity. An interrupted save leaves nothing under `path`; an existing path is refused."""
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"store: {path} is there already; choose another path or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    coords = as_stored(S.coords.to_dataset())
    try:
        grid = Grid(len(S), S.shape[1], SIDE)
        BlockStore.create(unfinished, coords, grid, dtype=str(S.dtype), own=None, record={})
        store = BlockStore.open(unfinished, write=True)
        for at in grid.blocks():
            store.write(at, S.values[grid.region(at)], None)
        store.finish(attrs_as_stored(S.attrs))
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return path


def read(
    path: str | Path, lazy: bool | None = None, *, part: Callable[[xr.DataArray], xr.DataArray] | None = None
) -> xr.DataArray:
    """What `save` or `fill` wrote, or the part of it that a function takes before anything large is read; `lazy` leaves
    the values on disk, None where they are large.
    """
    store = BlockStore.open(Path(path))
    if not store.finished:
        blocks = store.grid.blocks()
        done = sum(store.state(at) == "finished" for at in blocks)
        raise ValueError(
            f"path: {path} is not finished: {done} of {len(blocks)} blocks are there; the same le.similarity(..., "
            "store=path) goes on with it"
        )
    stored = xr.open_zarr(path, consolidated=False, chunks=None).drop_vars("block_digest")
    S = stored["similarity"]
    if store.grid.symmetric:
        S = S.copy(data=indexing.LazilyIndexedArray(Mirrored(store)))
    S = part(S) if part else S
    if lazy is None:
        lazy = S.nbytes > SHARE_OF_FREE * available(torch.device("cpu"))
    try:
        S = S if lazy else S.load()
        labels = {name: c.load() for name, c in S.coords.items()}
    except Exception as error:  # zarr raises what its codecs raise
        raise ValueError(f"path: {path} is damaged ({error}); `local-elasticity verify-store` tells where") from error
    S.attrs = {name: json.loads(value) for name, value in S.attrs.items()}
    result: xr.DataArray = S.assign_coords({**labels, **_strings(labels, "OT", str)})
    return result


def verify(path: str | Path) -> dict[str, list[tuple[int, int]]]:
    """The blocks that are `finished`, `missing` and `damaged`, every byte of every block read."""
    store = BlockStore.open(Path(path))
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


class Mirrored(BackendArray):
    """A symmetric matrix of which only the blocks on and above the diagonal are on disk."""

    def __init__(self, store: BlockStore) -> None:
        array: Any = store.group["similarity"]
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.side = store.grid.side

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        support = indexing.IndexingSupport.OUTER
        return indexing.explicit_indexing_adapter(key, self.shape, support, self._read)

    def _read(self, key: tuple[Any, Any]) -> Any:
        """The half that is there, completed by its transpose."""
        places = [np.atleast_1d(np.arange(size)[part]) for size, part in zip(self.shape, key, strict=True)]
        rows, columns = places
        there = self.array.oindex[rows, columns]
        below = rows[:, None] // self.side > columns // self.side
        if below.any():
            there = np.where(below, self.array.oindex[columns, rows].T, there)
        return there.reshape(
            [len(p) for p, part in zip(places, key, strict=True) if np.ndim(part) or isinstance(part, slice)]
        )


def _strings(coords: Any, kinds: str, dtype: type) -> dict[Any, Any]:
    """String labels as the zarr format specifies them (variable length), and back as NumPy's."""
    return {
        name: (c.dims, np.array(c.values.tolist(), dtype=dtype)) for name, c in coords.items() if c.dtype.kind in kinds
    }
