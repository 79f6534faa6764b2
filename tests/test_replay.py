"""A probe that a GPU records: what is replayed is what would be measured, or it is measured instead.

Here a recording is played by computing everything again from the weights that were put in; tests/test_gpu.py has the
graphs of a real GPU.
"""

import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.engine import replay


class Net(nn.Module):
    """A convolution, batch norm, and a factor that is no parameter."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
        self.factor = 1.0

    def forward(self, x):
        return self.factor * self.body(x)


@pytest.fixture
def played(monkeypatch):
    """Recordings on the CPU; the list grows with each that is played."""
    launches = []

    def captured(work, device):
        found = work()

        def launch():
            launches.append(1)
            again = work()
            for name, S in found.similarity.items():
                S.copy_(again.similarity[name])
            found.before.copy_(again.before)
            found.clear.copy_(again.clear)

        return launch, found

    monkeypatch.setattr(replay, "records_on", lambda device: True)
    monkeypatch.setattr(replay, "waits", lambda work: False)
    monkeypatch.setattr(replay, "captured", captured)
    return launches


def examples(n=6):
    torch.manual_seed(0)
    return torch.randn(n, 2, 6, 6), torch.arange(n) % 3


def watch(net, sources, **options):
    options = {"measures": ("kl", "relative"), "engine": "structured", "every": 1, "budget": None, **options}
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
    assert measuring._prober.replay is None
    train(net, sources, (replaying, measuring))
    assert len(played) == len(replaying.history) == 4
    for one, other in zip(replaying.history, measuring.history, strict=True):
        assert_same(one, other)
    assert (replaying.history[0].similarity["kl"] != replaying.history[3].similarity["kl"]).any()


def test_a_network_that_python_code_changes_is_measured_instead(played, monkeypatch):
    """A graph does what it did when it was recorded, whatever Python would do now."""
    monkeypatch.setattr(replay, "captured", lambda work, device: (lambda: played.append(1), work()))
    net, sources = Net(), examples()
    monitor = watch(net, sources)
    monitor.probe(0)
    net.factor = 2.0
    monitor.probe(1)
    monitor.probe(2)
    assert len(played) == 2
    assert not monitor._prober.replay.usable
    fresh = watch(net, sources, engine="looped")
    fresh.probe(1)
    assert_same(monitor.history[1], fresh.history[0])


def test_a_layer_that_was_put_in_is_measured_instead(played):
    net, sources = Net(), examples()
    monitor = watch(net, sources)
    net.body[2] = nn.Tanh()
    monitor.probe(0)
    assert not played


def test_rows_that_rounding_hides_are_computed_again(played):
    """A source that is learned already does not move: `auto` looks at it in float64, `structured` says NaN."""
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 9, 1))
    x = torch.randn(3, 1, 4, 4)
    y = net(x).detach()[:, 0] + torch.tensor([0.0, 1.0, 2.0])
    prober = watch(net, (x, y), loss="half_mse", measures=("relative",))._prober
    assert prober.replay(all_clear=False)["relative"][0].isnan().all()
    assert prober.replay(all_clear=True) is None


@pytest.mark.parametrize(
    "options",
    [
        {"measures": (le.relative,)},
        {"measures": ("relative", "activation")},
        {"engine": "looped"},
        {"loss": lambda outputs, labels: nn.functional.cross_entropy(outputs, labels), "measures": ("relative",)},
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
    recording = watch(net, sources)._prober.replay
    assert recording.beats_the_loop() in (True, False)
    recording._launch = lambda: None
    assert recording.beats_the_loop()
