"""Objects of Python's library, Pillow and pandas whose contents are written in C: files in memory, pixels, cells."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np

_FILES = (io.StringIO, io.BytesIO)


def is_file_in_memory(kind: Any) -> bool:
    """Whether a class is a file in memory that releases nothing when it is deleted."""
    return issubclass(kind, _FILES) and kind.__del__ is io.IOBase.__del__


def copy_of_file(value: Any) -> Any:
    """A file in memory with the same contents and position, without attributes. Raises a ValueError if it is closed."""
    kind = type(value)
    base: Any = next(one for one in _FILES if issubclass(kind, one))
    state = base.__getstate__(value)
    made = base.__new__(kind)
    base.__setstate__(made, (*state[:-1], None))
    return made


def are_pixels(kind: type) -> bool:
    """Whether a class is what an image of Pillow keeps its pixels in."""
    return kind.__name__ == "ImagingCore" and "PIL.Image" in sys.modules


def pixels_in_bytes(value: Any) -> bytes:
    """The numbers of all pixels."""
    images: Any = sys.modules["PIL.Image"]
    found: bytes = images.Image()._new(value).tobytes()
    return found


def object_cells(value: Any) -> list[Any]:
    """The arrays of objects in which a DataFrame or a Series of pandas keeps its cells."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or not issubclass(type(value), (pandas.DataFrame, pandas.Series)):
        return []
    arrays = [block.values for block in value._mgr.blocks]
    return [one for one in arrays if isinstance(one, np.ndarray) and one.dtype == object]
