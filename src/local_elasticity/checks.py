"""Checks of arguments: each error names the argument and says what was expected and what was given."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np
import torch


def check_count(name: str, value: Any, *, least: int = 1) -> None:
    """A whole number from `least` on."""
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")


def check_positive(name: str, value: Any) -> None:
    """A positive, finite number."""
    if not 0 < _number(value) < math.inf:
        raise ValueError(f"{name}: expected a positive number, got {value!r}")


def check_not_negative(name: str, value: Any) -> None:
    """A finite number from 0 on."""
    if not 0 <= _number(value) < math.inf:
        raise ValueError(f"{name}: expected a number of at least 0, got {value!r}")


def check_share(name: str, value: Any) -> None:
    """A number between 0 and 1, neither of them."""
    if not 0 < _number(value) < 1:
        raise ValueError(f"{name}: expected a share between 0 and 1 (such as 0.95), got {value!r}")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """One of these words."""
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def class_labels(name: str, labels: Any, size: int) -> np.ndarray:
    """One class for each of `size` examples, as an array: numbers or texts, none of them missing.

    >>> class_labels("source_labels", ["cat", "dog"], 2).tolist()
    ['cat', 'dog']
    """
    values = labels.detach().cpu().numpy() if isinstance(labels, torch.Tensor) else np.asarray(labels)
    if values.shape != (size,):
        raise ValueError(f"{name}: expected {size} classes, one for each example, got shape {values.shape}")
    if values.dtype.kind not in "fO":
        return values
    missing = next((i for i, one in enumerate(values.tolist()) if one is None or one != one), None)
    if missing is not None:
        raise ValueError(f"{name}: example {missing} has no class ({values[missing]}); leave it out or give it one")
    kinds = {"text" if isinstance(one, str) else "number" for one in values.tolist()}
    if len(kinds) > 1:
        raise ValueError(f"{name}: expected numbers or texts, got both; pass [str(one) for one in labels]")
    return values


def check_device(device: Any, name: str = "device") -> None:
    """One that torch can use on this machine."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f"{name}: {device!r} is not available here ({str(error).splitlines()[0]})") from error


def _number(value: Any) -> float:
    """NaN for what is not a number."""
    try:
        return math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        return math.nan
