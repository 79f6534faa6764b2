"""The monitor: what it measures, when, and that the run does not notice."""

import copy
import json
import logging

import numpy as np
import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.training.budget import Budget
from local_elasticity.training.history import History, Probe
from local_elasticity.training.probe import Prober
from tests.test_untouched import fingerprint, surroundings
from tests.tolerances import SAME_IN_FLOAT32

x, y = torch.randn(48, 1, 8, 8, generator=torch.Generator().manual_seed(3)), torch.arange(48) % 3
SOURCES = x[:6], y[:6]


def network():
    """Batch norm, dropout, a frozen layer."""
    torch.manual_seed(5)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(144, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )
    net[5].weight.requires_grad_(False)
    return net


def trainable(net):
    return [p for p in net.parameters() if p.requires_grad]


OPTIMIZERS = {
    "sgd": lambda net: torch.optim.SGD(trainable(net), lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda net: torch.optim.Adam(trainable(net), lr=1e-2),
    "adamw amsgrad": lambda net: torch.optim.AdamW(trainable(net), lr=1e-2, amsgrad=True),
    "rmsprop": lambda net: torch.optim.RMSprop(trainable(net), lr=1e-3),
}


def train(optimizer, *, watch=False, amp=False, compiled=False, accumulate=1, steps=6, update=None):
    """A training run with everything in it, watched or not; losses and the final state."""
    net = network()
    called = torch.compile(net, backend="eager") if compiled else net
    rule = OPTIMIZERS[optimizer](net)
    scaler = torch.amp.GradScaler("cpu", enabled=amp)
    monitor = None
    if watch:
        measures = ("relative", "kl", "stiffness_cos", "activation")
        step = le.FromOptimizer(rule) if update == "live" else le.SGD(1e-2)
        problem = le.Problem.of(called, "cross_entropy")
        monitor = le.Monitor(problem, SOURCES, measure=measures, update=step, every=1, budget=None)
    torch.manual_seed(7)
    losses = []
    for step in range(steps):
        for part in range(accumulate):
            rows = torch.randperm(len(x))[:16]
            with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                loss = nn.functional.cross_entropy(called(x[rows]), y[rows])
                if monitor and part == 0 and step % 2:
                    monitor.probe(10_000 + step)  # in the middle of things, inside autocast
            scaler.scale(loss / accumulate).backward()
            losses.append(loss.item())
        if monitor:
            monitor.history.keep_until(9_999)
            monitor.step(step)  # before the optimizer: gradients are there and must stay
        scaler.step(rule)
        scaler.update()
        rule.zero_grad()
    state = json.dumps(rule.state_dict(), default=lambda tensor: tensor.tolist(), sort_keys=True)
    return losses, fingerprint(net), state, surroundings(), monitor


RUNS = {
    "plain": {},
    "amp with a scaler": {"amp": True},
    "compiled": {"compiled": True},
    "accumulation": {"accumulate": 3},
    "live steps": {"update": "live"},
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_run_does_not_notice(optimizer, run):
    """Losses, weights, batch-norm statistics, optimizer state, random state and flags, bit for bit."""
    *alone, _ = train(optimizer, **{key: value for key, value in RUNS[run].items() if key != "update"})
    *watched, monitor = train(optimizer, watch=True, **RUNS[run])
    assert watched == alone
    assert monitor.history.steps == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_run_compiled_to_code_does_not_notice():
    torch.manual_seed(0)

    def run(watch):
        net = network()
        fast = torch.compile(net)
        rule = torch.optim.Adam(trainable(net), lr=1e-2)
        monitor = le.Monitor(fast, SOURCES, loss="cross_entropy", every=1, budget=None) if watch else None
        torch.manual_seed(7)
        losses = []
        for step in range(5):
            loss = nn.functional.cross_entropy(fast(x), y)
            rule.zero_grad()
            loss.backward()
            rule.step()
            losses.append(loss.item())
            if monitor:
                monitor.step(step)
        return losses, fingerprint(net)

    assert run(watch=True) == run(watch=False)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_live_step_is_a_real_step_on_a_deep_copy(optimizer):
    net = network().double()
    rule = OPTIMIZERS[optimizer](net)
    for _ in range(3):
        rule.zero_grad()
        nn.functional.cross_entropy(net(x.double()), y).backward()
        rule.step()
    sources = x[:3].double(), y[:3]
    monitor = le.Monitor(net, sources, loss="cross_entropy", update=le.FromOptimizer(rule), every=1, budget=None)
    monitor.probe(0)
    net.eval()
    before = net(sources[0]).detach()
    expected = torch.zeros(3, 3, dtype=torch.float64)
    for i in range(3):
        stepped, moving = copy.deepcopy((net, rule))
        moving.zero_grad()
        nn.functional.cross_entropy(stepped(sources[0][i : i + 1]), y[i : i + 1]).backward()
        moving.step()
        moved = (stepped(sources[0]).detach() - before).norm(dim=1)
        expected[i] = moved / moved[i]
    assert np.allclose(monitor.history[0].similarity["relative"], expected.numpy(), rtol=1e-8)


def test_the_frame_says_what_similarity_says():
    net = network()
    problem = le.Problem.of(net, "cross_entropy")
    targets = x[6:15], y[6:15]
    monitor = le.Monitor(
        problem, SOURCES, targets=targets, target_labels=y[6:15], measure=("kl", "stiffness_cos"), every=5, budget=None
    )
    for step in range(7):
        monitor.step(step)
    frame = monitor.frame()
    names = ["step", "measure", "source_class", "target_class", "value", "low", "high", "pairs", "unresolved"]
    assert list(frame.columns) == names
    assert len(frame) == 2 * 2 * 9
    S = le.similarity(problem, SOURCES, targets[0], measure="kl", source_labels=y[:6], target_labels=y[6:15])
    expected = S.le.classes()
    found = frame[(frame.step == 5) & (frame.measure == "kl")].reset_index(drop=True)
    assert np.allclose(found.value, expected.value, rtol=SAME_IN_FLOAT32)
    assert np.allclose(found.low, expected.low, rtol=SAME_IN_FLOAT32)
    assert (found.low <= found.value).all()
    assert (found.value <= found.high).all()
    data = monitor.history.dataset()
    assert dict(data.sizes) == {"step": 2, "source": 6, "target": 9}


def test_measures_may_be_functions_and_regression_has_one_class():
    def largest(response):
        return le.relative(response, change=lambda before, d: d.abs().amax(-1))

    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    monitor = le.Monitor(net, (torch.randn(5, 2), torch.randn(5)), loss="mse", measure=[largest, "kernel"], every=1)
    monitor.step(0)
    frame = monitor.frame()
    assert frame.measure.tolist() == ["largest", "kernel"]
    assert frame.source_class.tolist() == ["all", "all"]
    assert frame.pairs.tolist() == [20, 20]  # self-pairs left out
    assert monitor.phases().of.tolist() == ["within", "within"]


def test_targets_with_the_sources_labels_are_other_examples():
    """The diagonal of a square matrix is left out only where the targets are the sources."""
    net, a, b = nn.Linear(3, 2), torch.randn(4, 3), torch.randn(4, 3)
    labels, seen = torch.arange(4) % 2, []
    options = {"loss": "cross_entropy", "every": 1, "loggers": [lambda values, step: seen.append(values)]}
    le.Monitor(net, (a, labels), **options).step(0)
    others = le.Monitor(net, (a, labels), targets=b, target_labels=labels, **options)
    others.step(0)
    assert others.frame().pairs.tolist() == [4, 4, 4, 4]
    S = others.history[0].similarity["relative"]
    assert seen[1]["local_elasticity/relative/0-0"] == pytest.approx(np.median(S[::2, ::2]))


def test_it_can_be_drawn(tmp_path):
    from local_elasticity.report.figures import save_figure

    monitor = le.Monitor(network(), SOURCES, loss="cross_entropy", measure=("relative", "kl"), every=1, budget=None)
    with pytest.raises(ValueError, match="nothing to draw yet"):
        monitor.plot()
    for step in range(3):
        monitor.step(step)
    assert all(file.stat().st_size > 5000 for file in save_figure(monitor.plot(), tmp_path / "curves"))
    net, many = nn.Linear(4, 12), (torch.randn(24, 4), torch.arange(24) % 12)
    crowded = le.Monitor(net, many, loss="cross_entropy", every=1)
    crowded.step(0)
    save_figure(crowded.plot(), tmp_path / "crowded")
    assert [crowded.plot(columns=columns).get_figwidth() for columns in (1, 2)] == [3.4, 7.0]
    lines = crowded.plot().subfigs[0].axes[0].get_lines()
    found = crowded.locality()
    found = found[found.measure == crowded.history.measures[0]]
    for line, name in zip(lines, ("within", "between"), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), found[name])


def test_the_axis_follows_what_is_drawn():
    """With many classes only medians and quartiles are drawn: a single pair of classes far off sets no limit."""
    net, many = nn.Linear(4, 12), (torch.randn(24, 4), torch.arange(24) % 12)
    monitor = le.Monitor(net, many, loss="cross_entropy", every=1)
    monitor.step(0)
    monitor.history[0].similarity["relative"][::12, 1::12] = 1000.0
    assert monitor.plot().axes[0].get_ylim()[1] < 100


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_the_budget_is_kept_by_leaving_probes_out(monkeypatch, caplog):
    clock = Clock()
    net = nn.Linear(3, 1)
    monitor = le.Monitor(net, (torch.randn(4, 3), torch.randn(4)), loss="mse", every=1, budget=0.1)
    monitor._runner.budget = Budget(0.1, clock=clock)
    measure = Prober.__call__

    def slow(prober):
        clock.now += 2.0
        return measure(prober)

    monkeypatch.setattr(Prober, "__call__", slow)
    with caplog.at_level(logging.WARNING):
        for step in range(200):
            clock.now += 1.0
            monitor.step(step)
    taken = len(monitor.history)
    assert taken + len(monitor.skipped) == 200
    assert 0.08 <= monitor.budget.probing_seconds / monitor.budget.training_seconds <= 0.1
    assert taken == 10
    assert np.ptp(np.diff(monitor.history.steps[2:])) <= 1  # evenly spread, once the first is paid for
    assert sum("left out" in record.message for record in caplog.records) == 1


def test_without_a_budget_every_probe_is_taken():
    net = nn.Linear(3, 1)
    monitor = le.Monitor(net, (torch.randn(4, 3), torch.randn(4)), loss="mse", schedule=[0, 3, 4], budget=None)
    assert [step for step in range(6) if monitor.step(step)] == [0, 3, 4]
    assert monitor.skipped == []


def test_running_out_of_memory_costs_a_probe_and_not_the_run(monkeypatch):
    net = nn.Linear(3, 1)
    monitor = le.Monitor(net, (torch.randn(4, 3), torch.randn(4)), loss="mse", every=1, budget=None)
    with monkeypatch.context() as patched:
        patched.setattr(Prober, "__call__", lambda prober: (_ for _ in ()).throw(torch.OutOfMemoryError("no memory")))
        with pytest.warns(le.training.MonitorWarning, match="not enough memory for the probe at step 0"):
            assert not monitor.step(0)
    assert monitor.step(1)
    assert monitor.skipped == [0]


class Narrow(nn.Sequential):
    """Knows how many examples it was shown at a time."""

    most = 0

    def forward(self, x):
        self.most = max(self.most, len(x))
        return super().forward(x)


@pytest.mark.parametrize("measure", ["stiffness_cos", "stiffness_sign", "activation"])
def test_no_measure_takes_more_memory_than_it_was_given(measure):
    net = Narrow(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    sources = torch.randn(6, 3), torch.randn(6)
    monitor = le.Monitor(net, sources, loss="mse", measure=(measure,), every=1, budget=None, memory=1)
    monitor.step(0)
    assert net.most <= 3  # one at a time, once the layers are understood from three
    le.similarity(le.Problem.of(net, "mse"), sources, measure=measure, memory=1)
    assert net.most <= 3


class Recorder:
    def __init__(self):
        self.seen = []

    def log(self, values, step):
        self.seen.append((step, values))


class Broken:
    def log_metrics(self, values, step):
        raise ConnectionError("the server is gone")


def test_loggers_get_numbers_and_cannot_stop_training(caplog):
    recorder = Recorder()
    monitor = le.Monitor(
        network(), SOURCES, loss="cross_entropy", measure=("kl",), every=1, budget=None, loggers=[Broken(), recorder]
    )
    with pytest.warns(le.training.MonitorWarning, match="Broken failed at step 0 .ConnectionError: the server is gone"):
        monitor.step(0)
    for step in (1, 2):
        monitor.step(step)
    assert [step for step, _ in recorder.seen] == [0, 1, 2]
    values = recorder.seen[0][1]
    assert "local_elasticity/kl/0-1" in values
    ratio = values["local_elasticity/kl/inter"] / values["local_elasticity/kl/intra"]
    assert values["local_elasticity/kl/ratio"] == pytest.approx(ratio)
    assert all(isinstance(value, float) for value in values.values())
    assert caplog.text.count("the server is gone") == 1


def test_tensorboard_reads_what_was_logged(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(tmp_path)
    monitor = le.Monitor(network(), SOURCES, loss="cross_entropy", every=2, budget=None, loggers=[writer])
    for step in range(5):
        monitor.step(step)
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("local_elasticity/relative/ratio")] == [0, 2, 4]


def other_model():
    return torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every: expected a whole number of at least 1"),
        ({"every": 5, "schedule": [1]}, "every, schedule: give one"),
        ({"schedule": []}, "schedule: none of its steps"),
        ({"schedule": [-3]}, "never fire"),
        ({"schedule": "often"}, "schedule: expected steps"),
        ({"schedule": [0.5, 1.7]}, "schedule: expected whole numbers from 0 on, got 0.5"),
        ({"budget": None}, "every, schedule: give one of them where budget is None"),
        ({"budget": -0.1}, "budget: expected a positive share"),
        ({"loss": None}, "loss: a bare model needs one"),
        ({"measure": ()}, "measure: expected at least one"),
        ({"measure": ("elastic",)}, "measure: expected one of .*, got 'elastic'"),
        ({"measure": ("elasticity",)}, "measure: 'elasticity' is a measure of features; say of which"),
        ({"measure": (3,)}, "measure: expected a name, a le.Measure or a function"),
        ({"source_labels": [1, 2]}, "source_labels: expected 6 classes"),
        ({"engine": "quick"}, "engine: 'quick'"),
        ({"loggers": [3]}, "loggers: int has none of"),
        ({"update": le.FromOptimizer(other_model())}, "optimizer: it holds none of the parameters"),
        ({"update": 0.1}, "update: "),
        ({"measure": "kl", "loss": lambda *pair: nn.functional.cross_entropy(*pair)}, "kl needs a distribution"),
        ({"measure": "kernel", "update": le.Adam(1e-3)}, "kernel: the update is Adam"),
        ({"measure": "normalized_kernel", "targets": x[6:9]}, "normalized_kernel needs the targets to be the sources"),
        ({"measure": lambda response: le.relative(response)[:, 0]}, r"measure: <lambda> gives \(6,\), not a tensor"),
        ({"measure": lambda response: 3.0}, "measure: <lambda> gives float"),
        ({"measure": "activation", "update": le.SGD(1e-3)}, "update: activation takes no step"),
        ({"measure": "stiffness_cos", "targets": x[6:9]}, "targets: this measure reads their labels"),
    ],
)
def test_mistakes_are_told_before_training(options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        le.Monitor(network(), SOURCES, **{"loss": "cross_entropy", **options})


def test_mistakes_in_sources_are_told_before_training():
    net = network()
    with pytest.raises(ValueError, match="sources: label 7 is outside the model's 3 outputs"):
        le.Monitor(net, (x[:3], torch.tensor([0, 7, 1])), loss="cross_entropy")
    with pytest.raises(ValueError, match="sources: inputs are on meta, the model on cpu"):
        le.Monitor(net, (x[:3].to("meta"), y[:3]), loss="cross_entropy")
    with pytest.raises(ValueError, match="loss: the problem has one"):
        le.Monitor(le.Problem.of(net, "cross_entropy"), SOURCES, loss="mse")


def test_a_rehearsal_changes_nothing_and_shows_a_measure_the_whole_size():
    net = network()
    before, seen = (fingerprint(net), surroundings()), []

    def shape(response):
        seen.append(tuple(response.target_change.shape))
        return le.relative(response)

    le.Monitor(net, SOURCES, targets=x[6:11], loss="cross_entropy", measure=[shape], every=1)
    assert seen == [(6, 5, 3)]
    assert (fingerprint(net), surroundings()) == before
    with pytest.raises(ValueError, match="model: no ReLU was met"):
        le.Monitor(nn.Linear(2, 1), (torch.eye(2), torch.ones(2)), loss="mse", measure="activation")


def test_a_schedule_that_never_fires_is_told_of_at_the_end(caplog):
    with le.Monitor(network(), SOURCES, loss="cross_entropy", schedule=[1000], budget=None) as monitor:
        for step in range(5):
            monitor.step(step)
        assert len(monitor.phases()) == len(monitor.frame()) == 0
        assert caplog.text.count("schedule: it never fired up to step 4") == 1
        assert {"measure", "half_life", "p_value"} <= set(monitor.phases().columns)
    assert caplog.text.count("schedule: it never fired") == 1


def test_targets_that_are_the_sources_are_known_as_such():
    """Given twice or left out, an example's similarity to itself counts for nothing."""
    options = {"loss": "cross_entropy", "measure": ("kl",), "every": 1, "budget": None}
    once, twice = (le.Monitor(network(), SOURCES, targets=targets, **options) for targets in (None, SOURCES[0]))
    for monitor in (once, twice):
        monitor.step(0)
    assert twice.history.square
    assert twice.frame().pairs.tolist() == once.frame().pairs.tolist()
    assert twice.frame().value.tolist() == pytest.approx(once.frame().value.tolist(), rel=1e-2)


def small_monitor(**options):
    options = {"loss": "cross_entropy", "measure": ("kl",), "every": 1, "budget": None, **options}
    torch.manual_seed(0)
    return le.Monitor(nn.Linear(3, 2), (torch.randn(4, 3), torch.arange(4) % 2), **options)


def test_probes_come_in_order_too():
    monitor = small_monitor()
    monitor.step(0)
    monitor.probe(7)
    for step in (1, 7):
        with pytest.raises(ValueError, match="given after step 7"):
            monitor.probe(step)
    assert monitor.history.steps == [0, 7]


@pytest.mark.parametrize("step", [None, 1.5, "1"])
def test_steps_are_whole_numbers(step):
    with pytest.raises(TypeError, match="step: expected a whole number"):
        small_monitor().step(step)


def test_a_step_may_be_a_tensor():
    monitor = small_monitor()
    monitor.step(torch.tensor(3))
    assert monitor.history.steps == [3]
    assert type(monitor.history.steps[0]) is int


def test_a_logger_by_itself_is_refused():
    with pytest.raises(TypeError, match="loggers=.logger."):
        small_monitor(loggers=object())


def test_without_a_schedule_nothing_counts_as_left_out(caplog):
    """It was asked for as many probes as fit."""
    monitor = small_monitor(every=None, budget=1e-9)
    assert sum(monitor.step(step) for step in range(50)) == 1
    assert monitor.skipped == []
    assert "left out" not in caplog.text


def test_short_probes_are_structured_at_once(monkeypatch):
    """Without a race, which they would not be worth; what cannot be read goes as before."""
    monkeypatch.setattr("local_elasticity.engine.choose.SECONDS_WORTH_A_RACE", 60.0)  # however busy the machine is
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    sources = torch.randn(6, 3), torch.arange(6) % 2
    monitor = le.Monitor(net, sources, loss="cross_entropy", every=1, budget=None)
    monitor.step(0)
    assert monitor.history[0].engine == "structured"
    net[1] = Odd()
    monitor.step(1)
    assert monitor.history[1].engine == "looped"


class Odd(nn.Module):
    """Nothing that Structured could read."""

    def forward(self, x):
        return torch.special.erfcx(x)


def test_a_way_that_no_longer_goes_is_left():
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    monitor = le.Monitor(net, (torch.randn(6, 3), torch.arange(6) % 2), loss="cross_entropy", every=1, budget=None)
    net[1] = Odd()
    assert monitor.step(0)
    assert monitor.history[0].engine == "looped"


def test_a_monitor_is_made_where_memory_is_short(monkeypatch):
    """Its probes may find more."""
    monkeypatch.setattr(
        Prober, "chosen", lambda prober: (_ for _ in ()).throw(torch.OutOfMemoryError("no memory for it"))
    )
    monitor = small_monitor()
    assert monitor.step(0)


def test_what_is_written_into_the_sources_later_does_not_count():
    x, y = torch.randn(6, 3), torch.arange(6) % 2
    net = nn.Linear(3, 2)
    monitors = [le.Monitor(net, (x, y), loss="cross_entropy", every=1, budget=None) for _ in range(2)]
    monitors[0].step(0)
    x.zero_()
    monitors[1].step(0)
    one, other = (monitor.history[0].similarity["relative"] for monitor in monitors)
    assert np.array_equal(one, other)


def test_unresolved_pairs_are_told_of_once(caplog):
    """By the measure and its step, however often the frame is asked for."""
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(4, 3)
    monitor = le.Monitor(net, (x, net(x)[:, 0].detach()), loss="half_mse", engine="looped", every=1, budget=None)
    for step in range(3):
        monitor.step(step)
    for _ in range(2):
        monitor.frame()
        monitor.phases()
    told = [record.getMessage() for record in caplog.records if "unresolved" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("relative at step 0: up to 100 %")


@pytest.mark.parametrize(("largest", "scale"), [(2.0, "linear"), (5000.0, "log")])
def test_one_large_class_does_not_flatten_the_others(largest, scale):
    history = History(("kl",), list("aabbcc"), list("aabbcc"), square=True)
    for step in range(3):
        S = np.full((6, 6), 0.5)
        S[:2] = largest
        history.append(Probe(step, {"kl": S}, 0.1, "looped"))
    panels = [axes for part in history.plot().subfigs for axes in part.axes]
    assert {axes.get_yscale() for axes in panels} == {scale}


def test_the_old_name_of_measure_is_read_with_a_warning():
    options = {"loss": "cross_entropy", "every": 1, "budget": None}
    with pytest.warns(DeprecationWarning, match="measures: le.Monitor calls it measure, as le.similarity does"):
        monitor = le.Monitor(network(), SOURCES, measures=("kl", "relative"), **options)
    assert monitor.history.measures == ("kl", "relative")
    assert le.Monitor(network(), SOURCES, measure="kl", **options).history.measures == ("kl",)
