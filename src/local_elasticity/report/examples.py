"""What is shown of an example: a small picture, a text or a few numbers, kept as one string that travels with it."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from local_elasticity.extras import extra

LARGEST_SIDE = 48
"""Pixels; larger pictures are made smaller."""

LONGEST_TEXT = 500
"""Characters; longer texts are cut."""

LONGEST_VECTOR = 64
"""Numbers; of longer vectors the first ones are kept."""

PICTURE = re.compile(r"data:image/(png|webp);base64,[A-Za-z0-9+/]+=*\Z")
CHANNELS = (1, 3, 4)


def kept_examples(examples: Any, size: int, name: str = "examples") -> np.ndarray:
    """One string for each of `size` examples: a picture as a data URI, a vector as a JSON list, a text as it is, and
    nothing for None or for a picture without pixels.

    Args:
        examples: images [n, C, H, W] or [n, H, W] (any range; darkest and brightest become black and white), vectors
            [n, d], or n texts; also a list of those that differ in size. What is kept already is left alone.

    >>> kept_examples(np.zeros((1, 3)), 1).tolist()
    ['[0.0, 0.0, 0.0]']
    >>> kept_examples(["a cat", None], 2).tolist()
    ['a cat', '']
    """
    values = one_for_each(examples, size, name)
    brightness = _brightness(values)
    return np.array([_kept(one, brightness) for one in values], dtype=str)


def one_for_each(examples: Any, size: int, name: str = "examples") -> np.ndarray:
    """The examples as given, where there are `size` of them."""
    values = as_given(examples)
    if len(values) != size:
        raise ValueError(f"{name}: {len(values)} do not fit {size} examples; give one for each")
    return values


def as_given(examples: Any) -> np.ndarray:
    """The examples as one array, [n, …], or as n objects where they are texts, differ in shape, or some are missing."""
    if isinstance(examples, Mapping):
        raise ValueError("examples: a dict of inputs cannot be shown; give texts, pictures or vectors, one for each")
    values = _array(examples)
    if isinstance(values, np.ndarray):
        return values
    if not isinstance(values, Iterable):
        raise TypeError(f"examples: expected one for each example, got {type(values).__name__}")
    values = [_array(one) for one in values]
    if not any(one is None or isinstance(one, str) for one in values) and len({np.shape(one) for one in values}) == 1:
        return np.array(values)
    objects = np.empty(len(values), dtype=object)
    for place, one in enumerate(values):
        objects[place] = one
    return objects


def is_picture(kept: str) -> bool:
    """Whether this is a picture of ours and nothing else, so that it may become the source of an <img>."""
    return PICTURE.match(kept) is not None


def encoded(picture: np.ndarray) -> str:
    """A picture [H, W] or [H, W, 3] of uint8 as a data URI: PNG without colour, WebP with it."""
    with extra("report"):
        from PIL import Image

    image = Image.fromarray(picture)
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    file = io.BytesIO()
    kind = "png" if picture.ndim == 2 else "webp"
    image.save(file, kind, **({"optimize": True} if kind == "png" else {"quality": 80}))
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def _array(one: Any) -> Any:
    return one.detach().cpu().numpy() if hasattr(one, "detach") else one


def _kept(one: Any, brightness: tuple[float, float]) -> str:
    if one is None:
        return ""
    values = np.asarray(one) if not isinstance(one, str) else None
    if values is None or values.dtype.kind not in "biuf":
        text = str(one)
        return text if is_picture(text) else text[:LONGEST_TEXT]
    if values.ndim in (2, 3) and not values.size:
        return ""
    if values.ndim in (2, 3):
        return encoded(_picture(values, brightness))
    row = values.ravel()[:LONGEST_VECTOR].astype(float)
    return json.dumps([float(f"{number:.4g}") for number in row])


def _brightness(values: np.ndarray) -> tuple[float, float]:
    """The darkest and the brightest over the whole set, so that two pictures can be compared."""
    whole = [values] if values.dtype.kind in "biuf" else [one for one in values if isinstance(one, np.ndarray)]
    known = [one[np.isfinite(one)] for one in whole if one.size and one.dtype.kind in "biuf"]
    known = [one for one in known if one.size]
    if not known:
        return 0.0, 1.0
    return float(min(one.min() for one in known)), float(max(one.max() for one in known))


def _picture(values: np.ndarray, brightness: tuple[float, float]) -> np.ndarray:
    """[H, W] or [H, W, 3] of uint8; values that are not finite are black."""
    if values.ndim == 3 and values.shape[0] in CHANNELS:
        values = values.transpose(1, 2, 0)
    if values.ndim == 3 and values.shape[2] not in CHANNELS:
        raise ValueError(f"examples: expected images [C, H, W] with 1, 3 or 4 channels, got {values.shape}")
    if values.ndim == 3:
        values = values[..., 0] if values.shape[2] == 1 else values[..., :3]
    if values.dtype != np.uint8:
        low, high = (edge / 2 for edge in brightness)  # halves, so that differences of huge numbers are finite
        values = np.nan_to_num((values / 2 - low) / ((high - low) or 1.0), nan=0.0, posinf=1.0, neginf=0.0)
        values = (255 * values).round().astype(np.uint8)
    return np.ascontiguousarray(values)
