"""Progress of long work: a bar on a terminal, lines elsewhere, or a function of yours; silent when quick. And the clock
that engines are timed by, which waits for a GPU."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

logger = logging.getLogger("local_elasticity")

ProgressOption = bool | Callable[[int, int], None] | None
"""None: a bar where stderr is a terminal, log lines elsewhere; True: lines on stderr instead of those; False: nothing;
a function (done, total): called after every chunk."""

QUIET_SECONDS = 2.0
LINE_EVERY_SECONDS = 10.0


class Progress:
    """`with Progress(total, "what", option) as bar: bar.advance(count)`."""

    def __init__(self, total: int, what: str, option: ProgressOption = None) -> None:
        self.total, self.what, self.option = total, what, option
        self.done = 0
        self.started, self.told = time.monotonic(), -math.inf
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self, count: int = 1) -> None:
        self.done += count
        if callable(self.option):
            self.option(self.done, self.total)
        elif self.option is not False and time.monotonic() - self.started > QUIET_SECONDS:
            self._show()

    def _show(self) -> None:
        if self.bar is None and sys.stderr.isatty():
            self.bar = _rich_bar()
            if self.bar is not None:
                self.bar.start()
                self.task = self.bar.add_task(self.what, total=self.total)
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done)
        elif time.monotonic() - self.told > LINE_EVERY_SECONDS:
            self.told = time.monotonic()
            self._tell(f"{self.what}: {self.done} of {self.total}")

    def _tell(self, line: str) -> None:
        if self.option is True:
            sys.stderr.write(line + "\n")
        else:
            logger.info(line)


def _rich_bar() -> Any:
    """A bar that leaves nothing behind when it ends; None if rich is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bar(*columns, console=Console(stderr=True), transient=True)


def now(device: torch.device) -> float:
    """Seconds, when the device has done what it was given."""
    wait_for(device)
    return time.perf_counter()


def wait_for(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_in_words(seconds: float) -> str:
    """A duration.

    >>> seconds_in_words(0.3), seconds_in_words(90), seconds_in_words(1e6)
    ('0.3 s', '1.5 min', '12 days')
    """
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{rounded(seconds / size)} {unit}"
    return f"{seconds * 1e3:.2g} ms" if seconds < 0.1 else f"{rounded(seconds)} s"


def rounded(value: float) -> str:
    """Two digits, or all before the point."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
