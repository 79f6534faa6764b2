"""The clock that engines are timed by, which waits for a GPU."""

from __future__ import annotations

import time

import torch


def now(device: torch.device) -> float:
    """Seconds, when the device has done what it was given."""
    wait_for(device)
    return time.perf_counter()


def wait_for(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
