"""What a store claims about its size, compared with what is on disk before any memory is allocated for it.

A few bytes of JSON can claim any number. A store that was copied from elsewhere must not exhaust the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import zarr

from local_elasticity.engine.memory import available

MOST_BLOCKS = 10**6
"""Blocks of one store, which are listed in memory."""

LARGEST_EMPTY_CHUNK = 1 << 26
"""Bytes of a chunk that may be left out on disk; zarr leaves out chunks that hold the fill value alone."""

SHARE_OF_FREE = 0.25
"""The share of the free memory that a store may fill; a larger matrix is left on disk, and read where it is used."""


def whole_number(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_shape(name: str, array: Any, shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
    """Raise a ValueError where an array is not of the shape, or not cut into the chunks, that its store tells."""
    if not isinstance(array, zarr.Array):
        raise ValueError(f"{name} is not an array")
    if array.shape != shape or array.chunks != chunks:
        raise ValueError(
            f"{name} has the shape {array.shape} in chunks of {array.chunks}; expected {shape} in chunks of {chunks}"
        )


def chunk_file(folder: Path, array: zarr.Array[Any], place: tuple[int, ...]) -> Path:
    """The file of a chunk of the array in this folder."""
    return folder / array.metadata.encode_chunk_key(place)


def check_chunk(folder: Path, array: zarr.Array[Any], place: tuple[int, ...], *, may_lack: bool = True) -> None:
    """Raise a ValueError where the file of an uncompressed chunk has another size than its values take.

    A file that is not there is allowed where `may_lack` and the chunk is small: it holds the fill value.
    """
    wanted = math.prod(array.chunks) * array.dtype.itemsize
    try:
        file = chunk_file(folder, array, place)
        there = file.stat().st_size if file.is_file() or not file.exists() else -1
    except FileNotFoundError:
        if may_lack and wanted <= LARGEST_EMPTY_CHUNK:
            return
        there = 0
    if there != wanted:
        raise ValueError(f"a chunk of {folder.name} has {there:,} bytes; expected {wanted:,}")


def check_regular(path: Path) -> None:
    """Raise a ValueError where a description in a store is a FIFO or a device, which reading would wait for."""
    for file in (path / "zarr.json", *path.glob("*/zarr.json")):
        if file.exists() and not file.is_file():
            raise ValueError(f"path: {path} is damaged: {file.name} is not a regular file; remove it")


def check_affordable(arrays: Iterable[Any]) -> None:
    """Raise a ValueError where arrays that are read at once would fill more than a share of the free memory."""
    wanted = sum(array.nbytes for array in arrays if isinstance(array, zarr.Array))
    limit = int(SHARE_OF_FREE * available(torch.device("cpu")))
    if wanted > limit:
        raise ValueError(f"they would take {wanted / 1e9:.3g} GB, and at most {limit / 1e9:.3g} GB may be used")
