"""Who does the work: this process, or, inside `with le.workers(...)`, the workers of Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch

Task = Any
Work = Callable[[Any, Task], Any]
"""(what all tasks share, a task) → its result; a function that can be found by its name. An iterator is walked as it
goes in this process, and comes whole from another."""


class Workers(Protocol):
    """Does independent tasks and hands the results back as they are done, in any order."""

    @property
    def threads(self) -> int | None:
        """How many threads a task is given unless it says otherwise; None for as many as this process has."""

    def map(
        self, function: Work, shared: Any, tasks: Iterable[Task], *, threads: int = 1, gpus: int = 0
    ) -> Iterator[tuple[Task, Any]]:
        """(task, function(shared, task)) for every task."""


class ThisProcess:
    """One task after another, here."""

    threads: int | None = None

    def map(
        self, function: Work, shared: Any, tasks: Iterable[Task], *, threads: int = 1, gpus: int = 0
    ) -> Iterator[tuple[Task, Any]]:
        for task in tasks:
            yield task, function(shared, task)


_current: ContextVar[Workers | None] = ContextVar("local_elasticity_workers", default=None)


def current_workers() -> Workers:
    """The workers of the `with` block that is open, or this process."""
    return _current.get() or ThisProcess()


@contextmanager
def workers(address: str = "local", *, count: int | None = None) -> Iterator[Workers]:
    """Blocks of stores and of `le.influence_index`, and units of the papers' experiments, go to Ray's workers.

    Weights and data are shipped once through Ray's object store; every free core, or GPU for a model that is on one,
    gets one task at a time with its thread count set; a task whose worker dies is given to another. Results are
    written here, by the driver. Needs the extra `ray`.

    Args:
        address: `"local"` for workers on this machine, `"ray://HOST:10001"` or `"HOST:6379"` for a cluster that runs.
        count: workers on this machine; by default one for each core. A cluster has its own.

    Returns:
        A context manager; the blocks and units of calls inside it are computed by the workers.

    Raises:
        ValueError: if `count` is not positive, or does not fit the address.
        ImportError: if the extra `ray` is missing.

    >>> import local_elasticity as le
    >>> with le.workers("nowhere"):
    ...     pass
    Traceback (most recent call last):
    ...
    ValueError: workers: expected "local", "ray://HOST:PORT" or "HOST:PORT", got 'nowhere'
    """
    from local_elasticity.scale.on_ray import connected

    with connected(address, count) as found:
        token = _current.set(found)
        try:
            yield found
        finally:
            _current.reset(token)


@contextmanager
def threads_set(count: int) -> Iterator[None]:
    """Set the number of threads of torch, and restore it at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
