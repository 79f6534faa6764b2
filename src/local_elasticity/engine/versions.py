"""What a result was computed with."""

from __future__ import annotations

import platform

import torch

import local_elasticity


def versions() -> dict[str, str]:
    """The versions that matter to a number.

    >>> sorted(versions())
    ['local_elasticity', 'python', 'torch']
    """
    return {
        "local_elasticity": local_elasticity.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
