"""What a store claims about its size, compared with what is on disk before any memory is allocated for it.

A few bytes of JSON can claim any number. A store that was copied from elsewhere must not exhaust the memory.
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import zarr
from numcodecs.zstd import Zstd
from zarr.storage import LocalStore

from local_elasticity.engine.memory import available

MOST_BLOCKS = 10**6
"""Blocks of one store, which are listed in memory."""

LARGEST_EMPTY_CHUNK = 1 << 26
"""Bytes of a chunk that may be left out on disk; zarr leaves out chunks that hold the fill value alone."""

LARGEST_DESCRIPTION = 1 << 28
"""Bytes of a file that describes a store or an array."""

UNPACKED = ("bytes", "vlen-utf8")
"""How zarr lays out numbers and texts."""

ZSTD = bytes.fromhex("28b52ffd")
"""The first bytes of a frame of zstd."""

SHARE_OF_FREE = 0.25
"""The share of the free memory that a store may fill; a larger matrix is left on disk, and read where it is used."""


def whole_number(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_shape(name: str, array: Any, shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
    """Raise a ValueError if an array is not of the shape, or not cut into the chunks, that its store declares."""
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
    """Raise a ValueError if the file of an uncompressed chunk has another size than its values take.

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


def check_packed(folder: Path, array: Any) -> None:
    """Raise a ValueError if a chunk of a small array, which may be compressed, unpacks to another size than its values
    take. A text's values begin with their number, for which memory is allocated."""
    codecs = [one.get("name") for one in read_json(folder / "zarr.json")["codecs"]]
    if codecs not in (*([kind] for kind in UNPACKED), *([kind, "zstd"] for kind in UNPACKED)):
        raise ValueError(f"{folder.name} is packed by {', '.join(map(str, codecs))}, which is not read")
    values = math.prod(array.chunks)
    wanted = values * array.dtype.itemsize
    if wanted > SHARE_OF_FREE * available(torch.device("cpu")):
        raise ValueError(f"a chunk of {folder.name} claims {wanted:,} bytes")
    for file in (folder / "c").rglob("*") if (folder / "c").is_dir() else [folder / "c"]:
        if not file.is_file():
            continue
        check_readable(file)
        data = file.read_bytes()
        size = unpacked_size(data) if "zstd" in codecs else len(data)
        if codecs[0] == "bytes" and size == wanted:
            continue
        if codecs[0] == "bytes" or size > max(LARGEST_EMPTY_CHUNK, wanted):
            raise ValueError(f"a chunk of {folder.name} unpacks to {size:,} bytes")
        data = Zstd().decode(data) if "zstd" in codecs else data
        if int.from_bytes(data[:4], "little") != values:
            raise ValueError(f"a chunk of {folder.name} does not hold {values:,} texts")


def unpacked_size(frame: bytes) -> int:
    """The size that a frame of zstd says it unpacks to (RFC 8878, 3.1.1.1); a ValueError if it does not say that.

    >>> unpacked_size(Zstd().encode(bytes(1000)))
    1000
    """
    about = frame[4] if len(frame) > 4 else 0
    alone = about >> 5 & 1
    length = {0: alone, 1: 2, 2: 4, 3: 8}[about >> 6]
    start = 5 + (1 - alone) + (0, 1, 2, 4)[about & 3]
    if frame[:4] != ZSTD or not length or len(frame) < start + length:
        raise ValueError("a chunk is not a frame of zstd that says its size")
    return int.from_bytes(frame[start : start + length], "little") + (256 if length == 2 else 0)


class RegularFiles(LocalStore):
    """A folder as zarr reads it; each file is checked before it is read (`check_readable`)."""

    async def _open(self, *, mode: Any = None) -> None:
        if not self.root.is_dir():  # zarr would make it
            raise FileNotFoundError(f"{self.root} does not exist")
        await super()._open(mode=mode)

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        check_readable(self.root / key)
        return await super().get(key, *args, **options)

    def get_sync(self, key: str, **options: Any) -> Any:
        check_readable(self.root / key)
        return super().get_sync(key, **options)


def read_json(file: Path) -> Any:
    """What a description says; a ValueError if it cannot be read."""
    check_readable(file)
    try:
        return json.loads(file.read_text())
    except RecursionError as error:
        raise ValueError(f"{file.name} is nested too deeply") from error
    except IsADirectoryError as error:
        raise ValueError(f"{file.name} is a folder") from error


def check_readable(file: Path) -> None:
    """Raise a ValueError if a file of a store is a FIFO or a device, which reading would wait for, or is too large
    for the memory. Missing files and folders are left to the reader.
    """
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{file} is not a regular file")
    limit = LARGEST_DESCRIPTION if file.suffix == ".json" else LARGEST_EMPTY_CHUNK
    if found.st_size <= limit:
        return
    if file.suffix == ".json" or found.st_size > SHARE_OF_FREE * available(torch.device("cpu")):
        raise ValueError(f"{file} has {found.st_size:,} bytes, which are too many to read")


def check_affordable(arrays: Iterable[Any]) -> None:
    """Raise a ValueError if arrays that are read at once would fill more than a share of the free memory."""
    wanted = sum(array.nbytes for array in arrays if isinstance(array, zarr.Array))
    limit = int(SHARE_OF_FREE * available(torch.device("cpu")))
    if wanted > limit:
        raise ValueError(f"they would take {wanted / 1e9:.3g} GB, and at most {limit / 1e9:.3g} GB may be used")
