"""Peak memory of this process on Linux, as its own: a child otherwise begins with its parent's."""

from __future__ import annotations

from pathlib import Path


def forget_peak() -> None:
    """From now on the peak is what is in use now, or what comes after."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_gib() -> float:
    """GiB since the process began, or since the peak was forgotten."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 2**20
    raise RuntimeError("/proc/self/status tells no peak")
