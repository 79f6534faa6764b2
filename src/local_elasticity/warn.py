"""Warnings that point at the user's own line."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

PACKAGE = str(Path(__file__).parent)


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the caller outside this package."""
    warnings.warn(message, category, stacklevel=depth_of_caller())


def depth_of_caller() -> int:
    """How many frames above the function that asks the user's own code is, past this package and other installed ones,
    such as Lightning; `warnings.warn` counts that function as 1.
    """
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(PACKAGE) or "site-packages" in frame.f_code.co_filename
    ):
        depth, frame = depth + 1, frame.f_back
    return depth
