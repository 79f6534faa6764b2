"""A probe that a GPU records: what is replayed is what would be measured, or it is measured instead.

Here a recording is played by computing everything again from the weights that were put in; tests/test_gpu.py has the
graphs of a real GPU.
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import local_elasticity as le
from local_elasticity.engine.fast_paths import replay
from local_elasticity.training.budget import Budget
from local_elasticity.training.history import History
from local_elasticity.training.schedule import Listed


class Net(nn.Module):
    """A convolution, batch norm, and a factor that is no parameter."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
        self.factor = 1.0

    def forward(self, x):
        return self.factor * self.body(x)


class Player(replay.Launched):
    """Computes everything again when it is launched, and is done when it is told so."""

    def __init__(self, work, launches):
        self.work, self.launches, self.found = work, launches, work()
        self.ready = True

    @property
    def done(self):
        return self.ready

    def launch(self):
        self.launches.append(1)
        for kept, new in zip(tree_leaves(self.found), tree_leaves(self.work()), strict=True):
            kept.copy_(new)
        return self

    def read(self):
        return tree_map(torch.clone, self.found)

    def wait(self):
        self.ready = True
        return 0.5


class Ordered:
    def __init__(self):
        self.seen = []

    def log(self, values, step):
        self.seen.append(step)


class AnyOrder(Ordered):
    def log_metrics(self, values, step):
        self.seen.append(step)


@pytest.fixture
def played(monkeypatch):
    """Recordings on the CPU; the list grows with each that is played."""
    launches = []

    def captured(works, device):
        look, measure = works
        return Player(look, []), Player(measure, launches)

    monkeypatch.setattr(replay, "records_on", lambda device: True)
    monkeypatch.setattr(replay, "waits", lambda work: False)
    monkeypatch.setattr(replay, "captured", captured)
    return launches


def examples(n=6):
    torch.manual_seed(0)
    return torch.randn(n, 2, 6, 6), torch.arange(n) % 3


def watch(net, sources, **options):
    options = {"measure": ("kl", "relative"), "engine": "structured", "every": 1, "budget": None, **options}
    return le.Monitor(net, sources, loss=options.pop("loss", "cross_entropy"), update=le.SGD(0.01), **options)


def assert_same(one, other):
    for name, S in other.similarity.items():
        assert abs(one.similarity[name] - S).max() <= 1e-5 * abs(S).max()


def train(net, sources, monitors, steps=4):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(steps):
        net.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(sources[0]), sources[1]).backward()
        optimizer.step()
        for monitor in monitors:
            monitor.step(step)


@pytest.mark.parametrize("given", [None, 4])
def test_a_replay_is_what_would_be_measured(played, monkeypatch, given):
    """While weights and running statistics move; at the sources, and at other targets."""
    net, sources = Net(), examples()
    targets = None if given is None else torch.randn(given, 2, 6, 6)
    replaying = watch(net, sources, targets=targets)
    monkeypatch.setattr(replay, "records_on", lambda device: False)
    measuring = watch(net, sources, targets=targets)
    assert measuring._runner.prober.replay is None
    train(net, sources, (replaying, measuring))
    assert len(played) == len(replaying.history) == 4
    for one, other in zip(replaying.history, measuring.history, strict=True):
        assert_same(one, other)
    assert (replaying.history[0].similarity["kl"] != replaying.history[3].similarity["kl"]).any()


def test_a_network_that_python_code_changes_is_measured_instead(played, monkeypatch):
    """A graph does what it did when it was recorded, whatever Python would do now."""
    monkeypatch.setattr(Player, "launch", lambda self: self.launches.append(1) or self)
    net, sources = Net(), examples()
    monitor = watch(net, sources)
    monitor.probe(0)
    net.factor = 2.0
    monitor.probe(1)
    monitor.probe(2)
    assert len(played) == 1
    assert not monitor._runner.prober.replay.usable
    fresh = watch(net, sources, engine="looped")
    fresh.probe(1)
    assert_same(monitor.history[1], fresh.history[0])


def test_a_layer_that_was_put_in_is_measured_instead(played):
    net, sources = Net(), examples()
    monitor = watch(net, sources)
    net.body[2] = nn.Tanh()
    monitor.probe(0)
    assert not played


def learned():
    """A net and three sources, the first of which it has learned already, so that it does not move."""
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 9, 1))
    x = torch.randn(3, 1, 4, 4)
    return net, (x, net(x).detach()[:, 0] + torch.tensor([1e-9, 1.0, 2.0]))


def test_rows_that_rounding_hides_are_nan_or_computed_again(played, monkeypatch):
    """`structured` says NaN; `auto` measures them in float64, at the weights of the step that it was launched at."""
    monkeypatch.setattr(replay.Replay, "beats_the_loop", lambda self: True)
    options = {"loss": "half_mse", "measure": ("relative",)}
    net, sources = learned()
    one, other = (watch(net, sources, engine=engine, **options) for engine in ("structured", "auto"))
    truth = watch(net, sources, engine="looped", **options)
    later(other)
    for monitor in (one, other, truth):
        monitor.probe(0)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn_like(p))
    assert np.isnan(one.history[0].similarity["relative"][0]).all()
    assert other._runner.busy
    found, expected = (monitor.history[0].similarity["relative"] for monitor in (other, truth))
    assert abs(found - expected)[1:].max() < 1e-4
    assert len(played) == 2


def later(monitor):
    """Its probes are under way until somebody waits for them."""
    recording = monitor._runner.prober.replay._recording
    launch = recording.launch

    def launched():
        launch()
        recording.ready = False
        return recording

    recording.launch = launched
    return recording


def test_training_goes_on_beside_a_probe(played, monkeypatch):
    """What it finds is what the network was at its step, whenever it is ready."""
    net, sources = Net(), examples()
    beside, plain = watch(net, sources), watch(net, sources)
    plain._runner.prober = replace(plain._runner.prober, replay=None)
    recording = later(beside)
    train(net, sources, (beside, plain), steps=1)
    assert beside._runner.busy
    assert len(beside._runner.history) == 0
    beside.schedule = plain.schedule = Listed([3])
    train(net, sources, (), steps=1)
    beside.step(1)
    assert beside._runner.busy
    recording.ready = True
    beside.step(2)
    assert not beside._runner.busy
    assert_same(beside.history[0], plain.history[0])
    assert 0.5 <= beside.history[0].seconds < 5
    with pytest.raises(ValueError, match="given after step 0"):
        beside.step(0)


@pytest.mark.parametrize(
    "read",
    [
        lambda monitor: monitor.history,
        lambda monitor: monitor.frame(),
        lambda monitor: monitor.state_dict(),
        lambda monitor: monitor.close(),
        lambda monitor: monitor.probe(1),
    ],
    ids=["history", "frame", "state_dict", "close", "another probe"],
)
def test_whoever_wants_a_probe_waits_for_it(played, read):
    monitor = watch(Net(), examples())
    later(monitor)
    monitor.step(0)
    assert monitor._runner.busy
    read(monitor)
    assert len(monitor._runner.history) == 1


def test_a_probe_beside_training_is_charged_to_the_budget(played):
    """As long as its cost is not known, no other is taken."""
    clock = iter(range(1000))
    monitor = watch(Net(), examples(), budget=0.1)
    monitor._runner.budget = Budget(0.1, clock=lambda: next(clock) / 10)
    recording = later(monitor)
    assert [monitor.step(step) for step in range(3)] == [True, False, False]
    assert monitor.skipped == [1, 2]
    before = monitor.budget.probing_seconds
    recording.ready = True
    monitor.step(3)
    assert monitor.budget.probing_seconds >= before + 0.5


@pytest.mark.parametrize(("logger", "waits"), [(Ordered(), True), (AnyOrder(), False)])
def test_loggers_that_want_steps_in_order_get_them_so(played, logger, waits):
    monitor = watch(Net(), examples(), loggers=[logger])
    later(monitor)
    monitor.step(0)
    assert monitor._runner.busy == (not waits)
    assert bool(logger.seen) == waits
    monitor.close()
    assert logger.seen == [0]


def test_a_probe_that_is_interrupted_when_it_is_read_is_read_again(played, monkeypatch):
    monitor = watch(Net(), examples())
    later(monitor)
    monitor.step(0)
    with monkeypatch.context() as patched:
        patched.setattr(Player, "wait", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            monitor.frame()
    assert monitor._runner.busy
    assert monitor.history.steps == [0]
    assert not monitor._runner.busy


def test_a_probe_without_memory_when_it_is_read_is_told_of(played, monkeypatch):
    monitor = watch(Net(), examples(), loggers=[Ordered()])
    monkeypatch.setattr(Player, "read", lambda self: (_ for _ in ()).throw(torch.OutOfMemoryError("no memory")))
    monitor._runner.prober.replay._look.read = lambda: monitor._runner.prober.replay._look.found
    with pytest.warns(le.training.MonitorWarning, match="not enough memory"):
        assert not monitor.step(0)
    assert monitor.skipped == [0]


def test_predictions_that_are_not_finite_are_no_reason_for_disbelief(played):
    net, sources = Net(), examples()
    monitor = watch(net, sources)
    with torch.no_grad():
        net.body[4].bias[0] = torch.nan
    monitor.step(0)
    assert len(played) == 1
    assert monitor._runner.prober.replay.usable


AT_THE_END = """
import sys, torch
import local_elasticity as le
from tests import test_replay
from local_elasticity.engine.fast_paths import replay

def captured(works, device):
    return [test_replay.Player(work, []) for work in works]

replay.records_on, replay.waits, replay.captured = lambda device: True, lambda work: False, captured
monitor = test_replay.watch(test_replay.Net(), test_replay.examples(), store=sys.argv[1])
test_replay.later(monitor)
monitor.step(0)
assert monitor._runner.busy
"""


def test_a_program_that_ends_beside_a_probe_does_not_lose_it(tmp_path):
    command = [sys.executable, "-c", AT_THE_END, str(tmp_path / "run.zarr")]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1])
    assert History.open(tmp_path / "run.zarr").steps == [0]


@pytest.mark.parametrize(
    "options",
    [
        {"measure": (le.relative,)},
        {"measure": ("relative", "activation")},
        {"engine": "looped"},
        {"loss": lambda outputs, labels: nn.functional.cross_entropy(outputs, labels), "measure": ("relative",)},
        {"memory": 20_000},
    ],
    ids=["a function", "no response", "another engine", "a loss of the user's", "chunks"],
)
def test_what_is_not_recorded(played, options):
    monitor = watch(Net(), examples(), **options)
    monitor.probe(0)
    assert not played


@pytest.mark.parametrize("fast", [True, False])
def test_auto_keeps_a_recording_that_is_faster_than_the_loop(played, monkeypatch, fast):
    monkeypatch.setattr(replay.Replay, "beats_the_loop", lambda self: fast)
    watch(Net(), examples(), engine="auto").probe(0)
    assert bool(played) == fast


def test_a_recording_is_timed_against_the_loop(played):
    net, sources = Net(), examples()
    replayed = watch(net, sources)._runner.prober.replay
    for seconds in (0.0, 1e9):
        replayed._recording.wait = lambda seconds=seconds: seconds
        assert replayed.beats_the_loop() == (seconds == 0.0)
