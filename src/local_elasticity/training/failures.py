"""What fails or changes around a monitor while training continues: each is reported once, and probing stops after
several failures in a row.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Hashable

from local_elasticity.engine.guard import raise_interruption
from local_elasticity.warn import depth_of_caller

logger = logging.getLogger("local_elasticity")

PATIENCE = 3
"""Probes that may fail in a row before probing stops."""


class MonitorWarning(UserWarning):
    """Something failed or changed around a monitor. Training continues."""


def tell(message: str, error: BaseException | None = None, category: type[Warning] = MonitorWarning) -> None:
    """Warn at the line of the caller outside this package; log the traceback of an error at level DEBUG.

    The message is logged too if logging is set up. Otherwise Python would print it twice. Where all warnings are errors
    it is logged only: a training run continues unless this category of warnings was turned into an error.
    """
    logged = category is MonitorWarning and logger.hasHandlers()
    if logged:
        log(logging.WARNING, message)
    if error is not None:
        log(logging.DEBUG, f"traceback of: {message}", error)
    try:
        warnings.warn(message, category, stacklevel=depth_of_caller())
    except category:
        if any(action == "error" and kind is category for action, _, kind, *_ in warnings.filters):
            raise
        if not logged:
            log(logging.WARNING, message)
    except Exception as failure:  # of the user's own way to show warnings
        raise_interruption(failure)


def log(level: int, message: str, error: BaseException | None = None) -> None:
    """Log a message. A handler that fails, of a server that is gone say, does not end a training run."""
    try:
        logger.log(level, "%s", message, exc_info=error)
    except Exception as failure:
        raise_interruption(failure)


def first_line(error: BaseException) -> str:
    """The error's type and the first line of its message.

    >>> first_line(ValueError("no such layer\\ndetails"))
    'ValueError: no such layer'
    """
    try:
        lines = str(error).splitlines()
    except Exception:  # an error of the user's whose message fails
        lines = []
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


class Failures:
    """Counts probes that failed in a row, and reports each kind of failure once.

    `stopped` says why and since when nothing is probed; it is None while probing continues.
    """

    def __init__(self) -> None:
        self.stopped: str | None = None
        self._in_a_row = 0
        self._told: set[Hashable] = set()

    def tell_once(self, kind: Hashable, message: str, error: BaseException) -> None:
        """Report a failure unless one of the same kind was reported before."""
        known = kind in self._told
        self._told.add(kind)
        if known:
            log(logging.DEBUG, message, error)
        else:
            tell(message, error)

    def count(self, step: int, error: BaseException) -> bool:
        """Count a failed probe; whether probing stops because of it."""
        self._in_a_row += 1
        stops = self._in_a_row >= PATIENCE and self.stopped is None
        if stops:
            self.stopped = f"probing stopped at step {step} after {PATIENCE} failures in a row ({first_line(error)})"
            log(logging.INFO, f"monitor: {self.stopped}")
        return stops

    def tell_of_probe(self, step: int, error: BaseException) -> None:
        """Report a failed probe."""
        self.tell_once(
            _place(error),
            f"monitor: the probe at step {step} failed ({first_line(error)}). It is skipped and training continues; "
            f"probing stops after {PATIENCE} failures in a row. The traceback is logged at level DEBUG by the logger "
            "'local_elasticity'",
            error,
        )

    def worked(self) -> None:
        """Reset the count after a probe that worked."""
        self._in_a_row, self.stopped = 0, None


def _place(error: BaseException) -> Hashable:
    """The type of an error and the line that raised it, which stay the same when numbers in its message change."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return type(error).__qualname__, traceback and (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
