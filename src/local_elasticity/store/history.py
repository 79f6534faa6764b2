"""A history on disk as it grows: one zarr store, one chunk a probe, readable with xarray between two probes.

A probe's chunks are written first and the arrays' new lengths after them, that of the steps last; every file appears
whole or not at all. A process that is killed in between leaves chunks without a step, which are ignored and later
overwritten. The files are written here, following zarr's specification, and not by its library, which takes three times
as long while training waits and whose threads may be gone when a process ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from local_elasticity.engine.guard import raise_interruption
from local_elasticity.store.atomic import check_name, whole_folder, write_whole
from local_elasticity.store.provenance import Fingerprints, different, in_words
from local_elasticity.store.sizes import RegularFiles, check_chunk, check_shape, read_json

NOT_WRITTEN = -1
"""The step of a probe that was not finished."""

FORMAT = "local elasticity history 1"

OF_STEP = ("step_size", "nonlinearity")
"""Numbers about the step of a probe, an array each; a store of an earlier version lacks them."""

OF_SOURCES = ("source_loss", "source_accuracy", "sources_measured")
"""Numbers about the sources of a probe, in the array `sources`: one file more for a probe, and not three."""

FACTS = (*OF_STEP, *OF_SOURCES)

ORDER = ("seconds", *OF_STEP, "sources", "numbers", "denominators", "similarity", "digest", "step")
"""In which a probe's arrays are written. `digest` is the SHA-256 of the others; earlier versions did not write it."""

DESCRIPTION = "zarr.json"
"""The file that describes an array or the whole."""

LITTLE_ENDIAN = {"float64": "<f8", "int64": "<i8", "uint8": "u1"}


@dataclass(frozen=True)
class StoredProbe:
    """A finished probe: similarities [measures, n, m], the measures of features, facts, and denominators
    [measures, 2, n]: the own change of each source and its noise floor. A store of an earlier version has none."""

    step: int
    similarity: Sequence[np.ndarray] | np.ndarray
    seconds: float
    numbers: list[float]
    facts: Mapping[str, float]
    denominators: Sequence[np.ndarray] | np.ndarray


class OtherWriterError(OSError):
    """Another monitor has written to the store."""


class HistoryStore:
    """Probes of n sources and m targets under a few measures, appended one at a time.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = HistoryStore(f"{folder}/run.zarr", ["kl"], ["a", "b"], ["a", "b"], {})
    ...     store.append(0, {"kl": np.eye(2)}, seconds=0.1, engine="looped")
    ...     HistoryStore(f"{folder}/run.zarr", ["kl"], ["a", "b"], ["a", "b"], {}).steps()
    [0]
    """

    def __init__(
        self,
        path: str | Path,
        measures: Sequence[str],
        source_classes: Sequence[Any],
        target_classes: Sequence[Any],
        about: Mapping[str, Any],
        *,
        numbers: Sequence[str] = (),
        provenance: Fingerprints | None = None,
    ) -> None:
        self.path = Path(path).absolute()  # the working folder may change
        check_name(self.path, "store")
        self._writer = f"{platform.node()} {os.getpid()} {time.time_ns()}"
        self._claimed = False
        self._provenance = {"provenance": provenance} if provenance else {}
        identity = {
            "format": FORMAT,
            "measures": list(measures),
            "source_classes": list(source_classes),
            "target_classes": list(target_classes),
            "numbers": list(numbers),
        }
        if self.path.exists() and not self.path.is_dir():
            raise FileExistsError(f"store: {self.path} is a file; choose another path")
        if (self.path / DESCRIPTION).exists():
            self._check(identity)
            self._check_provenance(provenance or {})
        elif self.path.exists() and any(self.path.iterdir()):
            raise FileExistsError(f"store: {self.path} is there already and holds no history; choose another path")
        else:
            self._create({**identity, **about, **self._provenance})
        self._names = [name for name in ORDER if (self.path / name).exists()]
        self._check_shapes(len(measures), len(source_classes), len(target_classes), len(numbers))
        self._said = self.about
        self._count, self._length = len(self.steps()), self._array("step").shape[0]

    @classmethod
    def open(cls, path: str | Path) -> HistoryStore:
        """A history that is there, whatever it holds."""
        check_name(Path(path))
        if not (Path(path) / DESCRIPTION).exists():
            raise FileNotFoundError(f"path: {path} is not a history; Monitor(..., store=path) writes one")
        if not _is_history(Path(path)):
            raise ValueError(f"path: {path} is a zarr store, but holds no history")
        about = _about(Path(path))
        names = ("measures", "source_classes", "target_classes", "numbers")
        measures, sources, targets, numbers = (_listed(Path(path), about.get(name, [])) for name in names)
        return cls(path, measures, sources, targets, {}, numbers=numbers)

    @property
    def about(self) -> dict[str, Any]:
        """All that is known of the run besides its numbers."""
        return _about(self.path)

    def _create(self, attributes: Mapping[str, Any]) -> None:
        """An empty history; it appears whole or not at all."""
        with whole_folder(self.path, "store") as unfinished:
            self._fill(unfinished, attributes)

    def _fill(self, folder: Path, attributes: Mapping[str, Any]) -> None:
        import zarr

        group = zarr.open_group(folder, mode="w-", zarr_format=3)
        measures = attributes["measures"]
        n, m = len(attributes["source_classes"]), len(attributes["target_classes"])

        def array(name: str, shape: tuple[int, ...], kind: str, fill: Any, dims: tuple[str, ...]) -> None:
            chunk = tuple(max(1, size) for size in shape)
            group.create_array(
                name, shape=shape, chunks=chunk, dtype=kind, fill_value=fill, dimension_names=dims, compressors=None
            )

        for name in ("seconds", *OF_STEP):
            array(name, (0,), "float64", np.nan, ("probe",))
        array("sources", (0, len(OF_SOURCES)), "float64", np.nan, ("probe", "fact"))
        array("numbers", (0, len(attributes["numbers"])), "float64", np.nan, ("probe", "number"))
        array("denominators", (0, len(measures), 2, n), "float64", np.nan, ("probe", "measure", "side", "source"))
        array("similarity", (0, len(measures), n, m), "float64", np.nan, ("probe", "measure", "source", "target"))
        array("digest", (0, 32), "uint8", 0, ("probe", "byte"))
        array("step", (0,), "int64", NOT_WRITTEN, ("probe",))
        group.attrs.update({name: json.dumps(value) for name, value in attributes.items()})

    def _check(self, identity: Mapping[str, Any]) -> None:
        if not _is_history(self.path):
            raise ValueError(f"store: {self.path} is a zarr store, but holds no history; choose another path")
        there = self.about
        for name, value in identity.items():
            if there.get(name, []) != json.loads(json.dumps(value)):
                raise ValueError(
                    f"store: {self.path} holds a history with other {name.replace('_', ' ')}; choose another path"
                )

    def _check_provenance(self, here: Fingerprints) -> None:
        """Refuse a history of another measurement. Histories of earlier versions do not record what they measured."""
        there = self.about.get("provenance", {})
        if not isinstance(there, dict):
            raise _damaged(self.path, TypeError(f"{there!r} is not a dict"))
        if there and here and different(there, here):
            raise ValueError(
                f"store: {self.path} holds the history of another measurement: {in_words(there, here)} differ; measure "
                "the same, or choose another path"
            )

    def _check_shapes(self, measures: int, n: int, m: int, numbers: int) -> None:
        """Raise a ValueError if the arrays are not those of the measures and classes, before they are read."""
        wanted: dict[str, tuple[int, ...]] = {
            "digest": (32,),
            "numbers": (numbers,),
            "sources": (len(OF_SOURCES),),
            "denominators": (measures, 2, n),
            "similarity": (measures, n, m),
        }
        try:
            for name in {*self._names, "similarity", "step", "seconds"}:
                array = self._array(name)
                sizes = wanted.get(name, ())
                check_shape(name, array, (array.shape[0], *sizes), (1, *(max(1, size) for size in sizes)))
        except Exception as error:  # zarr raises what its codecs raise
            raise_interruption(error)
            raise _damaged(self.path, error) from error

    def steps(self) -> list[int]:
        """The steps of the finished probes, in order; no more are read than there are files. A ValueError if one is
        missing before others."""
        folder = self.path / "step" / "c"
        files = sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
        try:
            written: list[int] = self._array("step")[:files].tolist()
        except ValueError as error:
            raise _damaged(self.path, error) from error
        count = written.index(NOT_WRITTEN) if NOT_WRITTEN in written else len(written)
        if any(step != NOT_WRITTEN for step in written[count:]):
            raise _damaged(self.path, ValueError(f"the step of probe {count} is missing"))
        return written[:count]

    def append(
        self,
        step: int,
        similarity: Mapping[str, np.ndarray],
        *,
        seconds: float,
        engine: str,
        numbers: Mapping[str, float] | None = None,
        facts: Mapping[str, float] | None = None,
        denominators: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Add a probe; its step is written last."""
        unknown = np.full((2, len(next(iter(similarity.values())))), np.nan) if similarity else None
        known = {**dict.fromkeys(FACTS, np.nan), **(facts or {})}
        values: dict[str, Any] = {
            **{name: known[name] for name in OF_STEP},
            "sources": [known[name] for name in OF_SOURCES],
            "seconds": seconds,
            "numbers": list((numbers or {}).values()),
            "denominators": [(denominators or {}).get(name, unknown) for name in similarity],
            "similarity": list(similarity.values()),
            "step": step,
        }
        descriptions = {name: read_json(self.path / name / DESCRIPTION) for name in self._names}
        if descriptions["step"]["shape"][0] != self._length or (self._claimed and self._other_writer()):
            raise OtherWriterError("another monitor writes to it; give each its own")
        self.say(engine=engine, writer=self._writer, **self._provenance)
        self._claimed = True
        written = {
            name: np.asarray(values[name], LITTLE_ENDIAN[about["data_type"]])
            for name, about in descriptions.items()
            if name != "digest"
        }
        if "digest" in descriptions:
            written["digest"] = _digest(written)
        for name, about in descriptions.items():
            about["shape"][0] = self._count + 1
            place = [self._count] + [0] * (len(about["shape"]) - 1)
            if 0 not in about["shape"]:
                chunk = self.path / name / "c" / "/".join(map(str, place))
                shape = about["chunk_grid"]["configuration"]["chunk_shape"]
                write_whole(chunk, written[name].reshape(shape).tobytes())
        for name, about in descriptions.items():
            write_whole(self.path / name / DESCRIPTION, json.dumps(about).encode())
        self._count = self._length = self._count + 1

    def _other_writer(self) -> bool:
        """Whether another process has resumed the store since this one wrote to it."""
        return bool(self.about.get("writer") != self._writer)

    def say(self, **facts: Any) -> None:
        """Add to `about`; nothing is written if it says so already or if there is nothing to say."""
        new = {name: value for name, value in facts.items() if (self._said.get(name) or None) != (value or None)}
        if not new:
            return
        about = read_json(self.path / DESCRIPTION)
        about["attributes"] |= {name: json.dumps(value) for name, value in new.items()}
        write_whole(self.path / DESCRIPTION, json.dumps(about).encode())
        self._said = {**self._said, **new}

    def keep(self, count: int) -> None:
        """Drop all probes after the first `count`; the steps go first."""
        for name in reversed(self._names):
            array = self._array(name)
            if array.shape[0] > count:
                array.resize((count, *array.shape[1:]))
        self._count = self._length = count

    def _array(self, name: str) -> Any:
        import zarr

        return zarr.open_array(RegularFiles(self.path), path=name, mode="r+")

    def probes(self) -> Iterator[StoredProbe]:
        """The finished probes."""
        arrays = {name: self._array(name) for name in self._names}
        for place, step in enumerate(self.steps()):
            self._check_probe(arrays, place)
            numbers = arrays["numbers"][place].tolist() if "numbers" in arrays else []
            facts = {name: float(arrays[name][place]) for name in OF_STEP if name in arrays}
            if "sources" in arrays:
                facts |= dict(zip(OF_SOURCES, arrays["sources"][place].tolist(), strict=True))
            denominators = arrays["denominators"][place] if "denominators" in arrays else np.empty((0, 2, 0))
            seconds = float(arrays["seconds"][place])
            yield StoredProbe(step, arrays["similarity"][place], seconds, numbers, facts, denominators)

    def _check_probe(self, arrays: Mapping[str, Any], place: int) -> None:
        """Raise a ValueError if a probe is not what was written."""
        try:
            for name, array in arrays.items():
                if 0 not in array.shape:
                    check_chunk(self.path / name, array, (place, *[0] * (array.ndim - 1)), may_lack=False)
            if "digest" in arrays:
                written = {name: arrays[name][place] for name in arrays if name != "digest"}
                if not np.array_equal(arrays["digest"][place], _digest(written)):
                    raise ValueError(f"probe {place} is not what was written")
        except ValueError as error:
            raise _damaged(self.path, error) from error


def _digest(values: Mapping[str, Any]) -> np.ndarray:
    digest = hashlib.sha256()
    for name in sorted(values):
        digest.update(np.ascontiguousarray(values[name]).tobytes())
    return np.frombuffer(digest.digest(), np.uint8)


def _about(path: Path) -> dict[str, Any]:
    try:
        return {name: json.loads(str(value)) for name, value in _attributes(path).items()}
    except ValueError as error:
        raise _damaged(path, error) from error


def _attributes(path: Path) -> dict[str, Any]:
    try:
        about = read_json(path / DESCRIPTION)
    except ValueError as error:
        raise _damaged(path, error) from error
    attributes = about.get("attributes") if isinstance(about, dict) else None
    return attributes if isinstance(attributes, dict) else {}


def _listed(path: Path, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _damaged(path, TypeError(f"{value!r} is not a list"))
    return value


def _damaged(path: Path, error: BaseException) -> ValueError:
    return ValueError(f"path: {path} is damaged ({error}); remove it, or restore it from a copy")


def _is_history(path: Path) -> bool:
    return bool(_attributes(path).get("format") == json.dumps(FORMAT))
