"""What is shown of an example: a small picture, a text or a few numbers, kept as one string that travels with it."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

LARGEST_SIDE = 48
"""Pixels; larger pictures are made smaller."""

LONGEST_TEXT = 500
"""Characters; longer texts are cut."""

LONGEST_VECTOR = 64
"""Numbers; of longer vectors the first ones are kept."""

PICTURE = re.compile(r"data:image/(png|webp);base64,[A-Za-z0-9+/]+=*\Z")
CHANNELS = (1, 3, 4)


def kept_examples(examples: Any, size: int, name: str = "examples") -> np.ndarray:
    """One string for each of `size` examples: a picture as a data URI, a vector as a JSON list, a text as it is.

    Args:
        examples: images [n, C, H, W] or [n, H, W] (any range; darkest and brightest become black and white), vectors
            [n, d], or n texts. What is kept already is left alone.

    >>> kept_examples(np.zeros((1, 3)), 1).tolist()
    ['[0.0, 0.0, 0.0]']
    >>> kept_examples(["a cat", "a dog"], 2).tolist()
    ['a cat', 'a dog']
    """
    values = examples.detach().cpu().numpy() if hasattr(examples, "detach") else examples
    if not isinstance(values, np.ndarray):
        values = np.array([str(one)[:LONGEST_TEXT] for one in values] if _are_texts(values) else values)
    if len(values) != size:
        raise ValueError(f"{name}: {len(values)} do not fit {size} examples; give one for each")
    if values.dtype.kind in "OSUT":
        return np.array([_text(one) for one in values], dtype=str)
    if values.ndim in (3, 4):
        return np.array(_pictures(values), dtype=str)
    rows = values.reshape(size, -1)[:, :LONGEST_VECTOR].astype(float)
    return np.array([json.dumps([float(f"{number:.4g}") for number in row]) for row in rows], dtype=str)


def numbers(kept: Sequence[str]) -> np.ndarray | None:
    """The pictures or vectors as numbers, [n, d]; None for texts, or where they differ in size."""
    rows = [_numbers(one) for one in kept]
    if any(row is None for row in rows) or len({row.size for row in rows if row is not None}) != 1:
        return None
    return np.stack([row.ravel() for row in rows if row is not None])


def is_picture(kept: str) -> bool:
    """Whether this is a picture of ours and nothing else, so that it may become the source of an <img>."""
    return PICTURE.match(kept) is not None


def encoded(picture: np.ndarray) -> str:
    """A picture [H, W] or [H, W, 3] of uint8 as a data URI: PNG without colour, WebP with it."""
    from PIL import Image

    image = Image.fromarray(picture)
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    file = io.BytesIO()
    kind = "png" if picture.ndim == 2 else "webp"
    image.save(file, kind, **({"optimize": True} if kind == "png" else {"quality": 80}))
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def _are_texts(values: Any) -> bool:
    return all(isinstance(one, str) for one in values)


def _text(one: Any) -> str:
    text = str(one)
    return text if is_picture(text) else text[:LONGEST_TEXT]


def _pictures(values: np.ndarray) -> list[str]:
    """Brightness over the whole set, so that two pictures can be compared; values that are not finite are black."""
    if values.ndim == 4 and values.shape[1] in CHANNELS:
        values = values.transpose(0, 2, 3, 1)
    if values.ndim == 4 and values.shape[3] not in CHANNELS:
        raise ValueError(f"examples: images are [n, C, H, W] with 1, 3 or 4 channels, not {values.shape}")
    if values.ndim == 4:
        values = values[..., 0] if values.shape[3] == 1 else values[..., :3]
    if values.dtype != np.uint8:
        known = values[np.isfinite(values)]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
        values = np.nan_to_num((values - low) / ((high - low) or 1.0), nan=0.0, posinf=1.0, neginf=0.0)
        values = (255 * values).round().astype(np.uint8)
    return [encoded(np.ascontiguousarray(picture)) for picture in values]


def _numbers(kept: str) -> np.ndarray | None:
    if is_picture(kept):
        from PIL import Image

        with Image.open(io.BytesIO(base64.b64decode(kept.partition(",")[2]))) as image:
            return np.asarray(image, dtype=np.float32) / 255
    try:
        vector = np.asarray(json.loads(kept), dtype=np.float64)
    except (ValueError, TypeError):
        return None
    return vector if vector.ndim == 1 and vector.size else None
