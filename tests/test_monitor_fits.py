"""A monitor that fits its budget, and what its history tells of the sources."""

import numpy as np
import pytest
import torch

import local_elasticity as le
from local_elasticity.training.plan import count_due

pytestmark = pytest.mark.filterwarnings("ignore::local_elasticity.training.MonitorWarning")


def classifier():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def points(n=12):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(1)), torch.arange(n) % 3


def train(net, monitor, steps, pause=None):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = points(60)
    for step in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if pause is not None:
            pause()
        monitor.step(step)


def test_the_history_knows_the_loss_and_accuracy_of_its_sources(tmp_path):
    net, (x, y) = classifier(), points()
    expected = []

    class Told:
        def log(self, values, step):
            outputs = net(x)
            loss = torch.nn.functional.cross_entropy(outputs, y).item()
            expected.append((loss, (outputs.argmax(1) == y).double().mean().item()))

    options = {"loss": "cross_entropy", "every": 5, "budget": None, "loggers": [Told()], "store": tmp_path / "h.zarr"}
    monitor = le.Monitor(net, (x, y), **options)
    train(net, monitor, 11)
    for history in (monitor.history, le.training.History.open(tmp_path / "h.zarr")):
        found = [(probe.facts["source_loss"], probe.facts["source_accuracy"]) for probe in history]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    dataset = monitor.history.dataset()
    assert dataset.source_loss.dims == ("step",)
    assert dataset.sources_measured.values.tolist() == [12, 12, 12]


@pytest.mark.parametrize(
    ("loss", "labels", "accuracy"),
    [("mse", torch.zeros(6, 1), np.nan), ("bce_logits", torch.ones(6, 1), 1.0), ("half_mse", torch.ones(6), np.nan)],
)
def test_accuracy_is_told_where_there_are_classes(loss, labels, accuracy):
    net = torch.nn.Linear(4, 1)
    torch.nn.init.zeros_(net.weight)
    torch.nn.init.ones_(net.bias)
    monitor = le.Monitor(net, (torch.randn(6, 4), labels), loss=loss, every=1, budget=None)
    monitor.step(0)
    np.testing.assert_equal(monitor.history[0].facts["source_accuracy"], accuracy)
    assert np.isfinite(monitor.history[0].facts["source_loss"])


@pytest.mark.parametrize(("probes", "concludes"), [(3, False), (4, True)])
def test_nothing_is_concluded_from_fewer_than_four_probes(probes, concludes, caplog, tmp_path):
    net = classifier()
    monitor = le.Monitor(net, points(), loss="cross_entropy", every=1, budget=None)
    train(net, monitor, probes)
    (row,) = monitor.phases().itertuples()
    assert np.isfinite(row.first)
    assert np.isfinite(row.late) == concludes
    assert ("nothing is concluded from fewer than 4 probes" in caplog.text) != concludes
    page = le.write_report(monitor, tmp_path / "page.html").read_text(encoding="utf-8")
    assert ("3 probes are too few to say when it changed" in page) != concludes


def test_a_monitor_says_what_it_does():
    net = classifier()
    monitor = le.Monitor(net, points(), loss="cross_entropy", measure=("kl", "relative"), every=2, budget=None)
    train(net, monitor, 3)
    assert repr(monitor) == (
        "<Monitor: kl, relative; 12 sources × 12 targets; SGD(step_size=0.001, weight_decay=0.0); Every(n=2); "
        "no budget; 2 probes, the last at step 2>"
    )


class Clock:
    """Time as steps of training and a slow measure make it pass."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def pass_(self, seconds):
        self.now += seconds

    def measure(self, seconds):
        """A measure that takes so many seconds for each source."""

        def relative(response):
            self.now += seconds * len(response.source_change)
            return le.relative(response)

        return relative


def timed(net, sources, clock, budget, **options):
    """A monitor whose budget reads this clock."""
    monitor = le.Monitor(net, sources, loss="cross_entropy", budget=budget, **options)
    monitor.budget.clock = clock
    monitor.budget.restart()
    return monitor


def test_the_probes_of_a_run_are_spread_over_it():
    net, clock = classifier(), Clock()
    monitor = timed(net, points(30), clock, 0.1, measure=(clock.measure(0.1),), total_steps=300)
    train(net, monitor, 300, pause=lambda: clock.pass_(1))
    steps = monitor.history.steps
    assert steps[0] == 0
    assert len(steps) == 10  # 30 s, 3 s each
    assert np.ptp(np.diff(steps)) <= 3
    assert 0.09 <= monitor.budget.probing_seconds / monitor.budget.training_seconds <= 0.101
    assert monitor.skipped == []
    assert monitor.history[-1].facts["sources_measured"] == 30


@pytest.mark.parametrize("others", [False, True])
def test_sources_are_left_out_so_that_eight_probes_fit(others, caplog, tmp_path):
    net, (x, y), clock = classifier(), points(30), Clock()
    options = {"targets": points(9) if others else None, "store": tmp_path / "run.zarr"}
    options |= {"measure": (clock.measure(0.3),), "every": 1, "total_steps": 300}
    monitor = timed(net, (x, y), clock, 0.1, **options)
    train(net, monitor, 300, pause=lambda: clock.pass_(1))
    history = le.training.History.open(tmp_path / "run.zarr")
    assert len(history) >= 8  # of 9 s each, three would fit
    assert history.steps[-1] > 250
    assert monitor.budget.probing_seconds <= 0.101 * monitor.budget.training_seconds
    assert len(history) + len(monitor.skipped) == 300
    counts = [probe.facts["sources_measured"] for probe in history]
    assert counts[0] == 30
    assert 6 <= counts[-1] < 30
    assert "sources are measured" in caplog.text
    assert "fewer than 8" not in caplog.text
    assert any("sources are measured" in note for note in history.notes.values())
    last = history[-1].similarity["relative"]
    rows = np.flatnonzero(np.isfinite(last).any(1))
    assert len(rows) == counts[-1]
    assert np.bincount(y.numpy()[rows]).min() >= 2
    frame = history.frame()
    assert frame[frame.step == history[-1].step].unresolved.max() == 0
    expected = le.similarity(net, (x[rows], y[rows]), points(9) if others else None, loss="cross_entropy")
    monitor.probe(1000)
    columns = slice(None) if others else rows
    again = monitor.history[-1].similarity["relative"][rows][:, columns]
    np.testing.assert_allclose(again, expected.values, atol=1e-3)  # two engines in float32


def test_a_budget_that_is_too_small_is_told_of(caplog):
    net, clock = classifier(), Clock()
    monitor = timed(net, points(12), clock, 0.01, measure=(clock.measure(1.0),), total_steps=40)
    train(net, monitor, 40, pause=lambda: clock.pass_(1))
    assert len(monitor.history) == 1
    assert "1 probe fit into 1 % of the time of 40 steps, fewer than 8; one takes 12 s" in caplog.text
    caplog.clear()
    unplanned = timed(net, points(12), clock, 0.01, measure=(clock.measure(1.0),))
    train(net, unplanned, 20, pause=lambda: clock.pass_(1))
    unplanned.close()
    unplanned.close()
    assert caplog.text.count("Pass total_steps= to have sources left out instead") == 1


def test_training_with_a_plan_changes_nothing():
    def weights(**options):
        net = classifier()
        train(net, le.Monitor(net, points(12), loss="cross_entropy", **options), 12)
        return torch.nn.utils.parameters_to_vector(net.parameters())

    assert torch.equal(weights(budget=0.9, total_steps=12), weights(budget=None, schedule=[50]))


@pytest.mark.parametrize(("total", "words"), [(0, "total_steps: expected"), (2.5, "total_steps: expected")])
def test_a_run_has_a_whole_number_of_steps(total, words):
    with pytest.raises((ValueError, TypeError), match=words):
        le.Monitor(classifier(), points(), loss="cross_entropy", total_steps=total)


@pytest.mark.parametrize(
    "schedule",
    [
        le.training.Every(7),
        le.training.LogSpaced(5),
        le.training.PerEpoch(3, 10),
        le.training.Listed([0, 4, 90, 500]),
    ],
)
def test_due_steps_are_counted_without_asking_for_each(schedule):
    for start, stop in ((0, 1), (0, 300), (5, 5), (17, 240), (1, 1000)):
        assert count_due(schedule, start, stop) == sum(schedule.due(step) for step in range(start, stop))
    assert count_due(object(), 0, 5) is None


def test_one_slow_probe_among_many_does_not_thin_out_the_rest():
    net, clock = classifier(), Clock()
    slow, quick = clock.measure(1.0), clock.measure(0.1)
    taken = []

    def relative(response):
        taken.append(len(response.source_change))
        return (slow if len(taken) == 6 else quick)(response)

    monitor = timed(net, points(12), clock, 0.1, measure=(relative,), total_steps=600)
    train(net, monitor, 600, pause=lambda: clock.pass_(1))
    seconds = [probe.seconds for probe in monitor.history]
    assert sorted(seconds)[-2:] == pytest.approx([1.2, 12.0])
    assert len(seconds) >= 40  # 60 s, less 12 s of the slow one, at 1.2 s each
    at = seconds.index(max(seconds))
    gaps = np.diff(monitor.history.steps)
    assert gaps[at] <= 2 * np.median(gaps)
    assert monitor.budget.probing_seconds <= 0.101 * monitor.budget.training_seconds


def test_sources_come_back_where_only_the_first_probe_was_slow():
    net, clock = classifier(), Clock()
    slow, quick = clock.measure(1.0), clock.measure(0.05)
    taken = []

    def relative(response):
        taken.append(len(response.source_change))
        return (slow if len(taken) < 3 else quick)(response)  # the first is a rehearsal

    monitor = timed(net, points(24), clock, 0.1, measure=(relative,), total_steps=600)
    train(net, monitor, 600, pause=lambda: clock.pass_(1))
    counts = [probe.facts["sources_measured"] for probe in monitor.history]
    assert counts[0] == 24
    assert min(counts) < 24
    assert counts[-1] == 24
