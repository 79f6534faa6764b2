"""Blocks on disk: a labelled zarr store, filled block by block, each one whole and with its digest, or not there.

A block is one chunk of `similarity`, or of each matrix where a store holds several measures. After it is written, the
SHA-256 of its values goes into the same place of `block_digest`; a block without a digest is not finished. Chunks are
written to a file of another name and renamed (zarr does so since 3.1.3), so a killed process leaves whole chunks only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from local_elasticity.engine.guard import raise_interruption
from local_elasticity.engine.supported import first_line
from local_elasticity.store.atomic import check_name, plainly
from local_elasticity.store.sizes import MOST_BLOCKS, RegularFiles, check_chunk, check_shape, chunk_file, whole_number

SCHEMA = 2
OURS = "local_elasticity"
"""The attribute of the zarr group that says whose it is: schema, provenance, plan, whether it is finished."""

INDEX = "local_elasticity_index"
"""The attribute of a group whose groups are the stores of an index of influences."""

ROWS_AT_ONCE = 4096
"""Labels whose text is in memory at a time."""

Array = np.ndarray
At = tuple[int, int]
"""A block by its place: (which block of sources, which block of targets)."""

Block = tuple[Mapping[str, Array], Mapping[str, Array]]
"""The values of a block by the name of their matrix, and its sources' own values by theirs."""

ALONE = "similarity"
"""The matrix of a store that holds one measure. Where there are several, each has the name of its measure."""


@dataclass(frozen=True)
class Grid:
    """n sources and m targets cut into blocks of at most `side` each way.

    A `symmetric` matrix is kept in the blocks on and above its diagonal; `square` where targets are the sources.
    """

    n: int
    m: int
    side: int
    square: bool = False
    symmetric: bool = False
    width: int | None = None

    @classmethod
    def read(cls, record: Any) -> Grid:
        """The grid that a store declares; a ValueError if it is not valid."""
        grid = cls(**record)
        numbers = all(whole_number(size, 1) for size in (grid.n, grid.m, grid.side, grid.wide))
        kinds = isinstance(grid.square, bool) and isinstance(grid.symmetric, bool)
        if not numbers or not kinds or (grid.square and grid.n != grid.m) or (grid.symmetric and not grid.square):
            raise ValueError(f"its record holds no valid grid: {record}")
        grid.check_count()
        return grid

    def check_count(self) -> None:
        """Raise a ValueError if there are too many blocks to list."""
        if self.count > MOST_BLOCKS:
            raise ValueError(
                f"block: {self.n:,} × {self.m:,} pairs in blocks of {self.side} are {self.count:.2g} blocks; a store "
                f"holds at most {MOST_BLOCKS:,}"
            )

    @property
    def wide(self) -> int:
        """The columns of a block."""
        return self.side if self.width is None else self.width

    @property
    def count(self) -> int:
        """How many blocks are kept."""
        rows, columns = self.shape
        return rows * (rows + 1) // 2 if self.symmetric else rows * columns

    @property
    def chunks(self) -> tuple[int, int]:
        return min(self.side, self.n), min(self.wide, self.m)

    @property
    def shape(self) -> tuple[int, int]:
        return -(-self.n // self.side), -(-self.m // self.wide)

    def region(self, at: At) -> tuple[slice, slice]:
        """The rows and columns of a block."""
        (i, j), side, wide = at, self.side, self.wide
        return slice(i * side, min(self.n, (i + 1) * side)), slice(j * wide, min(self.m, (j + 1) * wide))

    def blocks(self) -> list[At]:
        """All blocks that are kept: those on the diagonal first where there is one, then row by row.

        >>> Grid(5, 5, 2, square=True, symmetric=True).blocks()
        [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]
        """
        rows, columns = self.shape
        places = [(i, j) for i in range(rows) for j in range(columns) if not self.symmetric or j >= i]
        return sorted(places, key=lambda at: self.square and at[0] != at[1])

    def holds_own(self, at: At) -> bool:
        """Whether the sources' own values are kept with this block: on the diagonal, or in the first column."""
        return at[0] == at[1] if self.square else at[1] == 0


class BlockStore:
    """A store that is open for writing blocks, or for looking at them."""

    def __init__(self, path: Path, group: zarr.Group) -> None:
        self.path, self.group = path, group
        self.record: dict[str, Any] = dict(group.attrs[OURS])  # type: ignore[arg-type]
        self.grid = grid = Grid.read(self.record["grid"])
        own = self.record["own"]
        self.own: tuple[str, ...] = (own,) if isinstance(own, str) else tuple(own or ())  # a name in version 0.1
        self.matrices: tuple[str, ...] = tuple(self.record.get("measures", (ALONE,)))
        self.arrays = {name: group[name] for name in (*self.matrices, "block_digest", *self.own)}
        self._sound: set[At] = set()
        for name in self.matrices:
            check_shape(name, self.arrays[name], (grid.n, grid.m), grid.chunks)
        check_shape("block_digest", self.arrays["block_digest"], (*grid.shape, 32), (1, 1, 32))
        for name in self.own:
            check_shape(name, self.arrays[name], (grid.n,), grid.chunks[:1])

    @classmethod
    def create(
        cls,
        path: Path,
        coords: xr.Dataset,
        grid: Grid,
        *,
        measures: Sequence[str] | None = None,
        own: Sequence[str],
        dtype: str,
        record: Any,
    ) -> None:
        """An empty store: coordinates, arrays without chunks, what it is for. `measures` names the matrices where there
        are several, `own` the sources' own values.
        """
        grid.check_count()
        _check_names(measures or (), [*map(str, coords.coords), *own, "block_digest"])
        coords.to_zarr(path, mode="w-", consolidated=False, zarr_format=3)
        group = zarr.open_group(path, mode="r+")
        create: dict[str, Any] = {"fill_value": np.nan, "dtype": dtype, "compressors": None}
        dims = ("source", "target" if grid.width is None else "coordinate")
        for name in measures or (ALONE,):
            group.create_array(name, shape=(grid.n, grid.m), chunks=grid.chunks, dimension_names=dims, **create)
        for name in own:
            group.create_array(name, shape=(grid.n,), chunks=grid.chunks[:1], dimension_names=("source",), **create)
        if own:
            group.attrs["coordinates"] = " ".join([str(group.attrs.get("coordinates", "")), *own]).strip()
        group.create_array(
            "block_digest",
            shape=(*grid.shape, 32),
            chunks=(1, 1, 32),
            dtype="uint8",
            fill_value=0,
            compressors=None,
            dimension_names=("source_block", "target_block", "byte"),
        )
        labels = {str(name): label_digest(values.values) for name, values in coords.coords.items()}
        about: dict[str, Any] = {
            "schema": SCHEMA,
            "finished": False,
            "grid": {name: value for name, value in vars(grid).items() if value is not None},
            "own": list(own),
            "labels": labels,
        }
        group.attrs[OURS] = {**about, **({} if measures is None else {"measures": list(measures)}), **record}

    @classmethod
    def open(cls, path: Path, *, write: bool = False, sketches: bool = False) -> BlockStore:
        """Open a store of similarities, or of sketches, and all of its arrays; a FileNotFoundError or ValueError says
        what is at the path instead.
        """
        check_name(path)
        if not (path / "zarr.json").exists():
            raise FileNotFoundError(f"path: {path} is not a result; le.similarity(..., store=path) writes one")
        try:
            group = zarr.open_group(RegularFiles(path), mode="r+" if write else "r")
            ours = group.attrs.get(OURS)
        except Exception as error:
            raise_interruption(error)
            raise _unreadable(path, error) from error
        if not isinstance(ours, dict) or _holds_sketches(ours) != sketches:
            history = " It is the history of a Monitor: read it with le.training.History.open."
            index = " It is an index of influences: le.influence_index(..., store=path) reads it."
            is_index = INDEX in group.attrs or (isinstance(ours, dict) and _holds_sketches(ours))
            what = index if is_index else history if "history" in str(group.attrs.get("format", "")) else ""
            raise ValueError(f"path: {path} is a zarr store, but holds no similarity of local_elasticity.{what}")
        if ours.get("schema") != SCHEMA:
            raise ValueError(
                f"path: {path} has schema {ours.get('schema')!r}, and this version reads schema {SCHEMA}; use the "
                "version of local_elasticity that wrote it"
            )
        try:
            return cls(path, group)
        except Exception as error:
            raise_interruption(error)
            raise _unreadable(path, error) from error

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self._array(self.matrices[0]).dtype)

    @property
    def several(self) -> bool:
        """Whether it was asked for as several measures, and is read as a Dataset."""
        return "measures" in self.record

    @property
    def made_by(self) -> str:
        """What users call to write such a store."""
        return "le.similarity" if self.grid.width is None else "le.influence_index"

    @property
    def finished(self) -> bool:
        return self.record.get("finished") is True

    def write(self, at: At, block: Block) -> None:
        """One block, its sources' own values where they are kept with it, and last its digest."""
        rows, columns = self.grid.region(at)
        values = {name: _one_nan(np.asarray(block[0][name], self._array(name).dtype)) for name in self.matrices}
        own = self.own if self.grid.holds_own(at) else ()
        kept = {name: _one_nan(np.asarray(block[1][name], self._array(name).dtype)) for name in own}
        with self._writing(f"block {at}"):
            for name, matrix in values.items():
                self._array(name)[rows, columns] = matrix
            for name, numbers in kept.items():
                self._array(name)[rows] = numbers
            self._array("block_digest")[at] = np.frombuffer(_digest(values, kept), dtype=np.uint8)

    def read(self, at: At) -> Block:
        """A block and its sources' own values, compared with their digest the first time that they are read."""
        try:
            found = self._on_disk(at)
            if at not in self._sound and _digest(*found) != self._noted(at):
                raise ValueError("other bytes")
        except Exception as error:  # zarr raises what its codecs raise
            raise_interruption(error)
            raise ValueError(
                f"path: {self.path} is damaged: block {at} is not what was written ({first_line(error)}); the same "
                f"{self.made_by}(..., store=path) computes it again"
            ) from error
        self._sound.add(at)
        return found

    def matrix(self, at: At, name: str) -> Array:
        """One matrix of a block. The others are read with it the first time only, for the digest."""
        if at not in self._sound:
            return self.read(at)[0][name]
        return np.asarray(self._array(name)[self.grid.region(at)])

    def own_values(self) -> dict[str, Array]:
        """The sources' own values by name, of all blocks that are there."""
        return {name: np.asarray(self._array(name)[:]) for name in self.own}

    def state(self, at: At) -> str:
        """`"finished"`, `"missing"`, or `"damaged"` where what is there is not what was written."""
        try:
            if not self._file("block_digest", (*at, 0)).exists() or not any(self._noted(at)):
                return "missing"
            self.read(at)
        except Exception as error:  # zarr raises what its codecs raise
            raise_interruption(error)
            return "damaged"
        return "finished"

    def finish(self, attrs: Mapping[str, dict[str, Any]]) -> None:
        """Write down how each matrix was made; from here on the store is a result."""
        with self._writing("its description"):
            for name in self.matrices:
                self._array(name).attrs.update(attrs[name])
            self.record |= {"finished": True, "attributes": {name: self._said(name) for name in self.matrices}}
            self.group.attrs[OURS] = self.record

    def attributes(self, name: str) -> dict[str, str]:
        """How a matrix was made; a ValueError if that is not what was written."""
        if self.record.get("attributes", {}).get(name, self._said(name)) != self._said(name):
            raise ValueError(f"path: {self.path} is damaged: the attributes of {name} are not what was written")
        return {key: str(value) for key, value in self._array(name).attrs.items()}

    def _said(self, name: str) -> str:
        """The SHA-256 of a matrix's attributes; stores of an earlier version did not keep it."""
        return hashlib.sha256(json.dumps(dict(self._array(name).attrs), sort_keys=True).encode()).hexdigest()

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Says what could not be written, and that the rest is safe."""
        try:
            yield
        except OSError as error:
            raise plainly(
                error,
                f"store: {what} could not be written to {self.path} ({error.strerror or error}); finished blocks are "
                "kept, and the same call resumes once there is space",
            ) from error

    def _on_disk(self, at: At) -> Block:
        rows, columns = self.grid.region(at)
        for name in self.matrices:
            check_chunk(self.path / name, self._array(name), at)
        values = {name: np.asarray(self._array(name)[rows, columns]) for name in self.matrices}
        kept = self.own if self.grid.holds_own(at) else ()
        return values, {name: np.asarray(self._array(name)[rows]) for name in kept}

    def _noted(self, at: At) -> bytes:
        """The digest that was written with a block; zeros where it is not finished."""
        return np.asarray(self._array("block_digest")[at]).tobytes()

    def _file(self, name: str, place: tuple[int, ...]) -> Path:
        return chunk_file(self.path / name, self._array(name), place)

    def _array(self, name: str) -> zarr.Array[Any]:
        found = self.arrays[name]
        assert isinstance(found, zarr.Array)
        return found


def _holds_sketches(record: Mapping[str, Any]) -> bool:
    grid = record.get("grid")
    return isinstance(grid, dict) and grid.get("width") is not None


def _check_names(names: Sequence[str], taken: Sequence[str]) -> None:
    """Raise a ValueError if a matrix cannot be called by the name of its measure."""
    for name in names:
        if name in taken or not re.fullmatch(r"[\w<>-][\w<>. -]*", name) or name.startswith("__"):
            raise ValueError(
                f"measure: {name!r} cannot name a matrix in a store; give le.Measure(name, ...) another name"
            )


def _one_nan(numbers: Array) -> Array:
    """The same numbers with NaN of one sign: a chunk that is NaN throughout is not written, and read as that one."""
    return np.where(np.isnan(numbers), numbers.dtype.type(np.nan), numbers)


def _digest(values: Mapping[str, Array], own: Mapping[str, Array]) -> bytes:
    digest = hashlib.sha256()
    for numbers in (*values.values(), *own.values()):
        digest.update(np.ascontiguousarray(numbers).data)
    return digest.digest()


def label_digest(values: Array) -> str:
    """The SHA-256 of what a coordinate says, `repr(values.tolist())`, however it is kept; made a few rows at a time.

    >>> label_digest(np.arange(3)) == hashlib.sha256(b"[0, 1, 2]").hexdigest()
    True
    """
    if values.ndim == 0:
        return hashlib.sha256(repr(values.tolist()).encode()).hexdigest()
    digest = hashlib.sha256(b"[")
    for start in range(0, len(values), ROWS_AT_ONCE):
        rows = repr(values[start : start + ROWS_AT_ONCE].tolist())[1:-1]
        digest.update(f"{', ' if start else ''}{rows}".encode())
    digest.update(b"]")
    return digest.hexdigest()


def _unreadable(path: Path, error: BaseException) -> ValueError:
    return ValueError(f"path: {path} cannot be read as a zarr store ({type(error).__name__}: {first_line(error)})")
