"""What a signal handler raises ends a call unchanged, also where errors are passed over or put in other words."""

import pathlib
import signal

import pytest
import torch
import zarr
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import local_elasticity as le
from local_elasticity.training.transformers import MonitorCallback

ASKED = {"loss": "cross_entropy", "measure": "kl"}


class LateError(RuntimeError):
    pass


@pytest.fixture(params=[TimeoutError, LateError], ids=lambda kind: kind.__name__)
def late(request):
    """The error that the handler raises, with its text."""

    def stop(number, frame):
        raise request.param("the job is over")

    before = signal.signal(signal.SIGUSR1, stop)
    yield pytest.raises(request.param, match="^the job is over$")
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def ring(monkeypatch):
    """Lets the signal arrive at the next call of a function."""

    def patch(owner, name):
        function = getattr(owner, name)

        def ringing(*args, **options):
            monkeypatch.setattr(owner, name, function)
            signal.raise_signal(signal.SIGUSR1)

        monkeypatch.setattr(owner, name, ringing)

    return patch


def asked():
    torch.manual_seed(0)
    return nn.Linear(4, 2), (torch.randn(6, 4), torch.arange(6) % 2)


@pytest.mark.filterwarnings("ignore")
def test_while_a_monitor_writes(tmp_path, ring, late):
    monitor = le.Monitor(*asked(), **ASKED, every=1, budget=None, store=tmp_path / "h.zarr")
    ring(pathlib.Path, "write_bytes")
    with late:
        monitor.step(0)
    assert monitor.step(1)
    monitor.close()


def test_while_a_result_is_written(tmp_path, ring, late):
    ring(zarr.Array, "__setitem__")
    with late:
        le.similarity(*asked(), **ASKED, update=le.SGD(0.1), store=tmp_path / "s.zarr")


def test_while_a_logger_logs(ring, late):
    class Log:
        def log(self, values, step): ...

    log = Log()
    monitor = le.Monitor(*asked(), **ASKED, every=1, budget=None, loggers=[lambda *args: log.log(*args)])
    ring(log, "log")
    with late:
        monitor.step(0)


def test_a_logger_that_times_out_does_not_end_a_run():
    def log(values, step):
        raise TimeoutError("the server does not answer")

    monitor = le.Monitor(*asked(), **ASKED, every=1, budget=None, loggers=[log])
    with pytest.warns(UserWarning, match="loggers: log failed at step 0"):
        assert monitor.step(0)


@pytest.mark.filterwarnings("ignore")
def test_while_values_for_loggers_are_computed(ring, late):
    from local_elasticity.training import probe_runner

    monitor = le.Monitor(*asked(), **ASKED, every=1, budget=None, loggers=[lambda values, step: None])
    ring(probe_runner, "logged_values")
    with late:
        monitor.step(0)


def test_while_slots_of_a_stream_are_read(late):
    class Item:
        __slots__ = ("label",)
        rings = True

        def __init__(self, label):
            self.label = label

        def __getattribute__(self, name):
            if name == "label" and Item.rings:
                Item.rings = False
                signal.raise_signal(signal.SIGUSR1)
            return object.__getattribute__(self, name)

    class Stream(IterableDataset):
        def __init__(self):
            self.items = [Item(i % 2) for i in range(6)]

        def __iter__(self):
            yield from ((torch.ones(4), item.label) for item in self.items)

    with late:
        le.similarity(nn.Linear(4, 2), DataLoader(Stream(), batch_size=6), **ASKED, update=le.SGD(0.1))


def test_while_a_report_reads_a_result(tmp_path, ring, late):
    le.similarity(*asked(), **ASKED, update=le.SGD(0.1)).le.save(tmp_path / "s.zarr")
    ring(zarr, "open_group")
    with late:
        le.write_report(tmp_path / "s.zarr", tmp_path / "page.html")


def test_while_a_trainer_saves(tmp_path, ring, late):
    callback = MonitorCallback(None, problem=None)
    callback.monitor = le.Monitor(*asked(), **ASKED, every=1, budget=None)
    ring(torch, "save")
    with late:
        callback._save(tmp_path / "monitor.pt")
