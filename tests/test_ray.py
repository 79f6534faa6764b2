"""Blocks and units on Ray's workers: the same bytes, also where one of them dies in the middle."""

import os
import signal
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import local_elasticity as le
from local_elasticity.api import sketched
from local_elasticity.measures.registry import OURS
from local_elasticity.papers.runner import find_experiment, run_experiment
from local_elasticity.scale import on_ray
from local_elasticity.scale.workers import _current, current_workers
from local_elasticity.store.result import verify
from tests.test_influence import chunks as sketches
from tests.test_store import chunks
from tests.tolerances import SAME_IN_FLOAT32

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("default")  # Ray's own


def wide():
    torch.manual_seed(1)
    return le.Problem.of(nn.Sequential(nn.Linear(4, 3000), nn.ReLU(), nn.Linear(3000, 3)), "cross_entropy")


def data(n=96):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(n, 4, generator=generator), torch.arange(n) % 3


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    """One local Ray for all tests here, with a home of its own."""
    patch = pytest.MonkeyPatch()
    patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    with le.workers("local", count=2) as found:
        yield found
    patch.undo()


@contextmanager
def in_this_process():
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def whole(path):
    x, y = data()
    le.similarity(wide(), (x, y), measure="kl", update=le.SGD(0.1), store=path, block=16)
    return chunks(path)


@pytest.mark.parametrize("measure", [one.name for one in OURS])
def test_every_measure_is_the_same_on_workers(two_workers, tmp_path, measure):
    x, y = data(24)
    here = le.similarity(wide(), (x, y), measure=measure)
    there = le.similarity(wide(), (x, y), measure=measure, store=tmp_path / "there.zarr", block=10)
    with in_this_process():
        alone = le.similarity(wide(), (x, y), measure=measure, store=tmp_path / "alone.zarr", block=10)
    assert chunks(tmp_path / "there.zarr") == chunks(tmp_path / "alone.zarr")
    assert set(there.coords) == set(alone.coords) == set(here.coords)
    np.testing.assert_allclose(there.values, here.values, rtol=SAME_IN_FLOAT32, atol=1e-5)


def worker(shared, task):
    return os.getpid(), torch.get_num_threads(), shared["scale"] * task


def dies(shared, task):
    os.kill(os.getpid(), signal.SIGKILL)


def fails(shared, task):
    raise ValueError(f"task {task} is impossible")


def slowly(shared, task):
    time.sleep(1.0)
    return os.getpid()


def test_tasks_run_elsewhere_with_their_threads_set(two_workers):
    found = dict(two_workers.map(worker, {"scale": 10}, range(6), threads=1))
    assert {task: result for task, (_, _, result) in found.items()} == {task: 10 * task for task in range(6)}
    assert {threads for _, threads, _ in found.values()} == {1}
    assert os.getpid() not in {process for process, _, _ in found.values()}


def test_the_bytes_are_those_of_one_process(two_workers, tmp_path):
    x, y = data()
    seen = []
    le.similarity(
        wide(),
        (x, y),
        measure="kl",
        update=le.SGD(0.1),
        store=tmp_path / "ray.zarr",
        block=16,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (36, 36)
    with in_this_process():
        assert chunks(tmp_path / "ray.zarr") == whole(tmp_path / "here.zarr")


def test_a_worker_killed_in_the_middle_changes_nothing(two_workers, tmp_path):
    expected = whole(tmp_path / "quiet.zarr")
    (_, victim), *_ = two_workers.map(slowly, None, range(2))
    killed = []

    def after_a_few(done, total):
        if done >= 5 and not killed:
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

    x, y = data()
    path = tmp_path / "killed.zarr"
    le.similarity(wide(), (x, y), measure="kl", update=le.SGD(0.1), store=path, block=16, progress=after_a_few)
    assert killed
    assert chunks(path) == expected
    assert len(verify(path)["finished"]) == 36


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
def test_an_index_is_the_same_on_workers_though_one_is_killed(two_workers, tmp_path, monkeypatch, streamed):
    monkeypatch.setattr(sketched, "BLOCK", 8)
    x, y = data()
    given = TensorDataset(x, y) if streamed else (x, y)
    options = {"dimension": 256}
    with in_this_process():
        alone = le.influence_index(wide(), given, store=tmp_path / "alone.zarr", **options)
    (_, victim), *_ = two_workers.map(slowly, None, range(2))
    killed = []

    def after_a_few(done, total):
        if done >= 3 and not killed:
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

    there = le.influence_index(wide(), given, store=tmp_path / "there.zarr", progress=after_a_few, **options)
    assert killed
    assert sketches(tmp_path / "there.zarr") == sketches(tmp_path / "alone.zarr")
    assert len(sketches(tmp_path / "there.zarr")) == 12
    np.testing.assert_array_equal(there.scores((x[:3], y[:3])), alone.scores((x[:3], y[:3])))


@pytest.mark.slow
def test_a_task_whose_worker_is_killed_is_done_again(two_workers):
    """Surely in the middle: the worker dies while its task sleeps."""
    victims = [process for _, process in two_workers.map(slowly, None, range(2))]

    def kill():
        os.kill(victims[0], signal.SIGKILL)

    timer = threading.Timer(0.5, kill)
    timer.start()
    found = dict(two_workers.map(slowly, None, range(4)))
    assert sorted(found) == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_worker_that_dies_for_good_is_an_error(two_workers, monkeypatch):
    monkeypatch.setattr(on_ray, "RETRIES", 1)
    with pytest.raises(RuntimeError, match="2 workers died one after another on task 7"):
        list(two_workers.map(dies, None, [7]))


def test_an_error_in_a_task_comes_back_as_it_is(two_workers):
    with pytest.raises(ValueError, match="task 3 is impossible"):
        list(two_workers.map(fails, None, [3]))


def test_more_than_any_node_has_is_refused(two_workers):
    with pytest.raises(ValueError, match="no node has 64 cores"):
        list(two_workers.map(worker, {"scale": 1}, [0], threads=64))


@pytest.mark.slow
def test_units_of_experiments_fan_out(two_workers, tmp_path):
    result = run_experiment(find_experiment("he2020local/fig1"), tmp_path / "ray", scale="smoke", seeds=1)
    assert result["seeds"] == [0]
    assert result["environment"]["device"] == "cpu, 1 threads"
    assert result["cells"]


def test_one_connection_at_a_time(two_workers):
    with pytest.raises(RuntimeError, match="already"), le.workers("local"):
        pass


@pytest.mark.parametrize("address", ["nowhere", "http://a:1", "ray://", "host:port", ""])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="workers"), le.workers(address):
        pass


@pytest.mark.parametrize("form", ["ray://127.0.0.1:{}", "127.0.0.1:{}"])
def test_an_unreachable_address_is_said_at_once(form):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="nothing answers at"), le.workers(form.format(port)):
        pass
    assert time.monotonic() - began < 30


def test_count_belongs_to_this_machine():
    with pytest.raises(ValueError, match="count"), le.workers("ray://a:1", count=3):
        pass
    with pytest.raises(ValueError, match="count"), le.workers("local", count=0):
        pass


def test_without_workers_this_process_does_it():
    with in_this_process():
        found = list(current_workers().map(worker, {"scale": 2}, [3, 4]))
    assert [(task, process, result) for task, (process, _, result) in found] == [
        (3, os.getpid(), 6),
        (4, os.getpid(), 8),
    ]
