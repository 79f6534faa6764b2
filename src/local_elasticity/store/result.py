"""One similarity in one zarr store: written whole or not at all, read back with everything it knew."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr


def save(S: xr.DataArray, path: str | Path) -> Path:
    """Write a labelled similarity. An interrupted save leaves nothing under `path`; an existing path is refused."""
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"store: {path} is there already; choose another path or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    plain = _with_strings(S.assign_attrs({name: json.dumps(value) for name, value in S.attrs.items()}), "U", object)
    try:
        plain.to_dataset(name="similarity").to_zarr(unfinished, mode="w-", consolidated=False, zarr_format=3)
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return path


def read(path: str | Path, *, part: Callable[[xr.DataArray], xr.DataArray] | None = None) -> xr.DataArray:
    """What `save` wrote, or the part of it that a function takes before anything large is read."""
    if not (Path(path) / "zarr.json").exists():
        raise FileNotFoundError(f"path: {path} is not a result; le.similarity(..., store=path) writes one")
    with xr.open_zarr(path, consolidated=False, chunks=None) as stored:
        if "similarity" not in stored:
            raise ValueError(f"path: {path} is a zarr store, but holds no similarity")
        S = stored["similarity"]
        S = (part(S) if part else S).load()
    return _with_strings(S.assign_attrs({name: json.loads(value) for name, value in S.attrs.items()}), "OT", str)


def _with_strings(S: xr.DataArray, kinds: str, dtype: type) -> xr.DataArray:
    """String labels as the zarr format specifies them (variable length), and back as NumPy's."""
    strings: dict[Any, Any] = {
        name: (c.dims, np.array(c.values.tolist(), dtype=dtype))
        for name, c in S.coords.items()
        if c.dtype.kind in kinds
    }
    return S.assign_coords(strings)
