"""Tasks on Ray: shared data is sent once, one task runs on each free core or GPU, and tasks of a dead worker are
repeated."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from local_elasticity.scale.workers import Task, Work

logger = logging.getLogger("local_elasticity")

RETRIES = 3
"""How often a task is given to another worker after its own has died."""

WAITING = 2
"""Tasks that are handed in for each one that can run, so that no worker waits for the driver."""

SECONDS_TO_ANSWER = 5.0


class OnRay:
    """The workers of the Ray cluster that this process is connected to."""

    threads = 1

    def __init__(self, ray: Any) -> None:
        self.ray = ray

    def map(
        self, function: Work, shared: Any, tasks: Iterable[Task], *, threads: int = 1, gpus: int = 0
    ) -> Iterator[tuple[Task, Any]]:
        ray = self.ray
        self._check_resources(threads, gpus)
        remote = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=RETRIES)(_run)
        handle = [ray.put((function, shared))]
        waiting = iter(tasks)
        running: dict[Any, Task] = {}

        def hand_in(count: int) -> None:
            running.update({remote.remote(handle, threads, task): task for task in islice(waiting, count)})

        try:
            hand_in(WAITING * self._slots(threads, gpus))
            while running:
                (done,), _ = ray.wait(list(running), num_returns=1)
                task = running.pop(done)
                yield task, self._result(done, task)
                hand_in(1)
        finally:
            for unfinished in running:
                ray.cancel(unfinished, force=False)

    def _result(self, done: Any, task: Task) -> Any:
        errors = self.ray.exceptions
        try:
            return self.ray.get(done)
        except errors.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError, errors.OutOfMemoryError) as e:
            why = str(e).splitlines()[0]
            raise RuntimeError(
                f"workers: {RETRIES + 1} workers died one after another on task {task} ({why}); what is finished is "
                "kept, and the same call resumes from there"
            ) from e

    def _slots(self, threads: int, gpus: int) -> int:
        there = self.ray.cluster_resources()
        slots = int(there.get("CPU", 1)) // threads
        return max(1, min(slots, int(there.get("GPU", 0)) // gpus) if gpus else slots)

    def _check_resources(self, threads: int, gpus: int) -> None:
        """Ray would wait forever for resources that no node has."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= threads and node.get("GPU", 0) >= gpus for node in nodes):
            raise ValueError(
                f"workers: no node has {threads} cores and {gpus} GPUs free for a task; begin the work with fewer "
                "threads, or add nodes"
            )


@contextmanager
def connected(address: str, count: int | None) -> Iterator[OnRay]:
    """A connection to Ray, started here or reached at an address; closed at the end."""
    options = _options(address, count)
    ray = _ray()
    if ray.is_initialized():
        raise RuntimeError("workers: this process is connected to Ray already; call ray.shutdown() first")
    try:
        ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise ConnectionError(
            f"workers: Ray at {address} cannot be used ({str(error).splitlines()[0]}); it must be of the same version, "
            "with the same token or RAY_AUTH_MODE as here"
        ) from error
    try:
        yield OnRay(ray)
    finally:
        ray.shutdown()


def _options(address: str, count: int | None) -> dict[str, Any]:
    if count is not None and (not isinstance(count, int) or count < 1):
        raise ValueError(f"count: expected a whole number of workers from 1 on, got {count!r}")
    if address == "local":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return {"address": "local", "num_cpus": count or cores, "include_dashboard": False}
    place = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = place.hostname, place.port
    except ValueError:
        host, port = None, None
    if not host or not port or place.scheme not in ("", "ray"):
        raise ValueError(f'workers: expected "local", "ray://HOST:PORT" or "HOST:PORT", got {address!r}')
    if count is not None:
        raise ValueError("count: a cluster that runs has its own workers; leave count out")
    try:
        socket.create_connection((host, port), timeout=SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise ConnectionError(
            f'workers: nothing answers at {address} ({error}); start Ray there with `ray start --head`, or use "local"'
        ) from error
    return {"address": address}


def _ray() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ImportError('workers: Ray is not installed; pip install "local-elasticity[ray]"') from error
    return ray


_kept: dict[str, Any] = {}
"""In a worker: what was shipped last, so that it is unpacked once and not for every task."""


def _run(handle: list[Any], threads: int, task: Task) -> Any:
    import ray
    import torch

    key = handle[0].hex()
    if key not in _kept:
        _kept.clear()
        _kept[key] = ray.get(handle[0])
    torch.set_num_threads(threads)
    function, shared = _kept[key]
    found = function(shared, task)
    return list(found) if isinstance(found, Iterator) else found
