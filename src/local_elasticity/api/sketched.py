"""Sketches of loss gradients in blocks on disk: one zarr group for an index, in it one store for each checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from local_elasticity.engine.guard import raise_interruption
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.supported import first_line
from local_elasticity.scale.sketch import Sketch, loss_gradient_sketch
from local_elasticity.scale.stream import ExampleStream
from local_elasticity.store.atomic import check_name, whole_folder
from local_elasticity.store.blocks import INDEX, At, Block, Grid
from local_elasticity.store.provenance import Fingerprints, different, in_words
from local_elasticity.store.result import attrs_as_stored
from local_elasticity.store.sizes import RegularFiles

ARRAY = "sketch"
"""What the array of a checkpoint's store is called."""

BLOCK = 1024
"""Examples whose sketches are computed, and written, together."""


def checkpoint_path(index: Path, key: str) -> Path:
    """Where the sketches at weights with this fingerprint are."""
    return index / key


def begin_index(path: Path, about: Fingerprints) -> None:
    """Make the group of an index, or compare the one that is there; an error says what differs."""
    check_name(path, "store")
    if not path.exists():
        with whole_folder(path, "store") as unfinished:
            zarr.open_group(unfinished, mode="w-", zarr_format=3).attrs[INDEX] = dict(about)
    if not (path / "zarr.json").exists():
        raise FileExistsError(f"store: {path} is there already and is no index; choose another path or remove it")
    try:
        there = zarr.open_group(RegularFiles(path), mode="r").attrs.get(INDEX)
    except Exception as error:  # zarr raises what its codecs raise
        raise_interruption(error)
        raise ValueError(f"store: {path} cannot be read as an index ({first_line(error)}); remove it") from error
    if not isinstance(there, dict):
        raise FileExistsError(f"store: {path} is a zarr store, but no index of influences; choose another path")
    other = different(there, about)
    if other:
        what = "other examples" if other == ["examples"] else "another model or sketch"
        raise ValueError(
            f"store: {path} is an index of {what}: {in_words(there, about)} differ; choose another path or remove it"
        )


@dataclass(frozen=True)
class SketchWork:
    """What blocks of sketches are computed from; `store/resume.py` fills a store from it."""

    problem: Problem
    stream: ExampleStream
    sketch: Sketch
    memory: int | None
    side: int = BLOCK

    @property
    def grid(self) -> Grid:
        return Grid(self.stream.n, self.sketch.dimension, self.side, width=self.sketch.dimension)

    @property
    def dtype(self) -> str:
        return str(self.problem.precision).removeprefix("torch.")

    names: tuple[str, ...] | None = (ARRAY,)
    own: tuple[str, ...] = ()
    diagonal_first: bool = False
    threads: int = 1

    @property
    def gpus(self) -> int:
        return int(self.problem.device.type == "cuda")

    def planned(self, side: int | None) -> SketchWork:
        return replace(self, side=side or BLOCK)

    def tried(self) -> SketchWork:
        """The same, having sketched two examples: what is wrong is said before anything is written."""
        self._of(range(min(2, self.stream.n)))
        return self

    def record(self) -> dict[str, Any]:
        return {}

    def resumed(self, record: dict[str, Any], side: int) -> SketchWork:
        return replace(self, side=side)

    def with_own(self, own: Mapping[str, np.ndarray]) -> SketchWork:
        """The same; nothing is divided by anything here."""
        return self

    def block(self, at: At) -> Block:
        """The sketches of the examples of one block."""
        rows = self.grid.region(at)[0]
        return {ARRAY: self._of(range(rows.start, rows.stop))}, {}

    def corner(self, at: At, few: int) -> Mapping[str, np.ndarray]:
        """The first sketches of a block, whole: some of their numbers may be 0 but for rounding."""
        rows = self.grid.region(at)[0]
        return {ARRAY: self._of(range(rows.start, min(rows.stop, rows.start + few)))}

    def describe(self, unresolved: Mapping[str, float]) -> dict[str, dict[str, str]]:
        about = {"dimension": self.sketch.dimension, "seed": self.sketch.seed, "unresolved": unresolved[ARRAY]}
        return {ARRAY: attrs_as_stored(about)}

    def _of(self, rows: range) -> np.ndarray:
        place = self.problem.device, self.problem.precision
        found = loss_gradient_sketch(self.problem, *self.stream.read(rows, *place), self.sketch, memory=self.memory)
        return np.asarray(found.cpu().numpy())
