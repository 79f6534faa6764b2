"""The clock that engines are timed by."""

from __future__ import annotations

import time

import torch


def now(device: torch.device) -> float:
    """Seconds, when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
