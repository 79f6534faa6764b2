"""Checks of constructor arguments, in scikit-learn's manner: at fit, never before."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch


class UnusableSimilarityError(ValueError):
    """A similarity that nothing can be clustered by; it says why."""


def check_count(name: str, value: Any, *, least: int = 1) -> None:
    """A whole number from `least` on."""
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")


def check_positive(name: str, value: Any) -> None:
    """A positive, finite number."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < float("inf"):
        raise ValueError(f"{name}: expected a positive, finite number, got {value!r}")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """One of these words."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def check_device(device: Any) -> None:
    """One that torch can use on this machine."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f"device: {device!r} is not available here ({str(error).splitlines()[0]})") from error
