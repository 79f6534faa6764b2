"""The history on disk: it grows, survives being killed, and goes on where a checkpoint stopped."""

import json
import logging
import operator
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from torch import nn

import local_elasticity as le
from local_elasticity.emergence import FeatureMeasure, stream_features
from local_elasticity.report.diagnostics import examine
from local_elasticity.report.results import opened
from local_elasticity.statistics.class_pairs import carried
from local_elasticity.training.history import History

x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3
OPTIONS = {"loss": "cross_entropy", "measure": ("kl", "relative"), "every": 10, "budget": None}


class Run:
    """A little training run that can be checkpointed."""

    def __init__(self, **options):
        torch.manual_seed(2)
        self.net = nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.5)
        self.monitor = le.Monitor(self.net, (x, y), **{**OPTIONS, **options})

    def train(self, start, stop):
        for step in range(start, stop):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.net(x), y).backward()
            self.optimizer.step()
            self.monitor.step(step)

    def save(self, path):
        torch.save({"net": self.net.state_dict(), "monitor": self.monitor.state_dict()}, path)

    def load(self, path):
        state = torch.load(path, weights_only=True)
        self.net.load_state_dict(state["net"])
        self.monitor.load_state_dict(state["monitor"])
        return state["monitor"]["step"]


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "stored"])
def test_a_resumed_run_has_the_history_of_an_uninterrupted_one(stored, tmp_path):
    fixed = {"engine": "structured"}  # on a busy machine a race decides, and another engine has other last digits
    whole = Run(**fixed)
    whole.train(0, 60)
    options = fixed | ({"store": tmp_path / "history.zarr"} if stored else {})
    first = Run(**options)
    first.train(0, 25)
    first.save(tmp_path / "checkpoint.pt")
    first.train(25, 45)  # steps that are lost with the crash
    second = Run(**options)
    start = second.load(tmp_path / "checkpoint.pt") + 1
    assert start == 25
    second.train(start, 60)
    assert second.monitor.history.steps == [0, 10, 20, 30, 40, 50]
    assert second.monitor.frame().equals(whole.monitor.frame())
    if stored:
        assert History.open(tmp_path / "history.zarr").frame().equals(whole.monitor.frame())


def test_any_tool_can_read_the_store(tmp_path):
    run = Run(store=tmp_path / "history.zarr")
    run.train(0, 30)
    with xr.open_zarr(tmp_path / "history.zarr", consolidated=False) as data:
        assert data.step.values.tolist() == [0, 10, 20]
        assert data.similarity.dims == ("probe", "measure", "source", "target")
        assert np.array_equal(data.similarity[1, 0], run.monitor.history[1].similarity["kl"])
    again = History.open(tmp_path / "history.zarr")
    assert again.about["update"] == "SGD(step_size=0.001, weight_decay=0.0)"
    assert again.phases().equals(run.monitor.phases())
    assert again[0].engine == run.monitor.history[0].engine


def test_the_step_sizes_of_parameter_groups_are_noted(tmp_path):
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    groups = [{"params": [*net[0].parameters()], "lr": 0.01}, {"params": [*net[1].parameters()], "lr": 0.1}]
    update = le.FromOptimizer(torch.optim.SGD(groups, lr=1.0))
    monitor = le.Monitor(net, (x, y), update=update, store=tmp_path / "history.zarr", **OPTIONS)
    for step in range(11):
        monitor.step(step)
    note = "the parameter groups have step sizes 0.01 to 0.1; the largest is recorded"
    for history in (monitor.history, History.open(tmp_path / "history.zarr")):
        assert [probe.facts["step_size"] for probe in history] == [0.1, 0.1]
        assert history.notes == {0: note}


def test_denominators_are_kept_and_are_those_of_similarity(tmp_path):
    fixed = {"engine": "structured"}  # another engine has other last digits
    run = Run(store=tmp_path / "history.zarr", **fixed)
    run.train(0, 11)
    S = le.similarity(run.net, (x, y), loss="cross_entropy", measure=("kl", "relative"), **fixed)
    for there in (run.monitor.history, History.open(tmp_path / "history.zarr")):
        last = there[-1]
        assert list(last.denominators) == ["kl", "relative"]
        for name in last.denominators:
            own, floor = last.denominators[name]
            assert np.allclose(own, carried(S[name], "source_change"), rtol=1e-6, atol=0)
            assert np.allclose(floor, carried(S[name], "source_floor"), rtol=1e-6, atol=0)


def test_the_page_of_a_history_knows_all_its_checks(tmp_path):
    run = Run(store=tmp_path / "history.zarr")
    run.train(0, 30)
    for result in (run.monitor.history, tmp_path / "history.zarr"):
        (one,) = opened("run", result)
        for panel in one.panels:
            assert {found.level for found in examine(one, panel)}.isdisjoint({"unknown"})


def test_a_store_of_an_earlier_version_has_no_denominators_and_goes_on(tmp_path):
    path = tmp_path / "history.zarr"
    run = Run(store=path)
    run.train(0, 11)
    run.save(tmp_path / "checkpoint.pt")
    for later in ("denominators", "digest"):
        shutil.rmtree(path / later)
    assert History.open(path)[0].denominators == {}
    (one,) = opened("run", path)
    assert "Denominators were not kept" in {found.title for found in examine(one, one.panels[0])}
    again = Run(store=path)
    again.train(again.load(tmp_path / "checkpoint.pt") + 1, 30)
    assert again.monitor.history.steps == History.open(path).steps == [0, 10, 20]


def test_a_half_written_probe_counts_for_nothing(tmp_path):
    run = Run(store=tmp_path / "history.zarr")
    run.train(0, 30)
    store = zarr.open_group(tmp_path / "history.zarr")
    for name in ("seconds", "similarity"):
        array = store[name]
        array.resize((4, *array.shape[1:]))
        array[3] = 7.0
    assert History.open(tmp_path / "history.zarr").steps == [0, 10, 20]
    store["step"].resize((4,))
    assert History.open(tmp_path / "history.zarr").steps == [0, 10, 20]
    second = Run(store=tmp_path / "history.zarr")
    second.monitor.resume(25)
    second.train(26, 41)
    assert second.monitor.history.steps == [0, 10, 20, 30, 40]
    assert History.open(tmp_path / "history.zarr").steps == [0, 10, 20, 30, 40]
    assert not np.any(History.open(tmp_path / "history.zarr")[3].similarity["kl"] == 7.0)


def test_histories_are_not_mixed_up(tmp_path):
    run = Run(store=tmp_path / "history.zarr")
    run.train(0, 30)
    with pytest.raises(ValueError, match="other measures"):
        Run(store=tmp_path / "history.zarr", measure=("kl",))
    with pytest.raises(ValueError, match="other source classes"):
        Run(store=tmp_path / "history.zarr", source_labels=list("abcabc"))
    with pytest.raises(ValueError, match="call load_state_dict or resume"):
        Run(store=tmp_path / "history.zarr").train(0, 1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="holds no history"):
        Run(store=tmp_path / "mine")
    with pytest.raises(FileNotFoundError, match="not a history"):
        History.open(tmp_path)
    assert History.open(tmp_path / "history.zarr").steps == [0, 10, 20]


def test_a_state_of_another_monitor_is_refused():
    run = Run()
    run.train(0, 15)
    state = run.monitor.state_dict()
    for options, words in (
        ({"measure": ("kl",)}, r"state: it is of a monitor with other measures \(expected 1, got 2\)"),
        ({"measure": ("relative", "kl")}, "other measures .expected 'relative', got 'kl'"),
        ({"source_labels": list("abcabc")}, "other source classes .expected 'a', got 0.; make this one with the same"),
    ):
        with pytest.raises(ValueError, match=words):
            Run(**options).monitor.load_state_dict(state)
    with pytest.raises(ValueError, match="state: it is not a monitor's"):
        run.monitor.load_state_dict({"net": 3})
    assert run.monitor.history.steps == [0, 10]


@pytest.mark.parametrize("labels", [list(np.arange(6) % 3), np.arange(6) % 3, list(y), np.array(list("abcabc"))])
def test_classes_may_be_numbers_of_any_library(labels, tmp_path):
    run = Run(source_labels=labels, store=tmp_path / "history.zarr")
    run.train(0, 15)
    assert History.open(tmp_path / "history.zarr").frame().equals(run.monitor.frame())
    torch.save(run.monitor.state_dict(), tmp_path / "state.pt")
    run.monitor.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))


def test_steps_that_go_back_are_refused():
    run = Run()
    run.train(0, 25)
    with pytest.raises(ValueError, match="count steps over all epochs"):
        run.train(0, 1)


def test_a_full_disk_leaves_no_unfinished_files(tmp_path, full_disk):
    with full_disk(300), pytest.raises(OSError, match=r"^store: .*history.zarr could not be written"):
        Run(store=tmp_path / "history.zarr")
    assert list(tmp_path.iterdir()) == []
    run = Run(store=tmp_path / "history.zarr")
    run.train(0, 5)
    with full_disk(500), pytest.warns(le.training.MonitorWarning, match="File too large"):
        run.train(5, 15)
    assert run.monitor.history.steps == [0, 10]
    assert not list(tmp_path.rglob("*.partial"))
    assert History.open(tmp_path / "history.zarr").steps == [0]


FOREVER = """
import sys, torch, local_elasticity as le
torch.manual_seed(0)
net, x, y = torch.nn.Linear(4, 3), torch.randn(6, 4), torch.arange(6) % 3
options = {"loss": "cross_entropy", "measure": ("kl", "relative"), "every": 1, "budget": None}
monitor = le.Monitor(net, (x, y), store=sys.argv[1], **options)
for step in range(10**9):
    monitor.step(step)
"""


def test_a_killed_process_leaves_a_whole_history(tmp_path):
    """SIGKILL at any moment; what was told last may be missing, nothing is torn."""
    path = tmp_path / "history.zarr"
    process = subprocess.Popen([sys.executable, "-c", FOREVER, str(path)])
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (path / "step" / "c" / "5").exists():
        time.sleep(0.01)
    time.sleep(0.013)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    history = History.open(path)
    assert len(history) >= 5  # the sixth step is being written
    assert history.steps == list(range(len(history)))
    assert all(np.isfinite(probe.similarity[name]).all() for probe in history for name in ("kl", "relative"))


def test_a_store_that_is_something_else_is_refused(tmp_path):
    problem = le.Problem.of(nn.Linear(4, 3), "cross_entropy")
    le.similarity(problem, (x, y), store=tmp_path / "similarity.zarr", measure="kl", progress=False)
    with pytest.raises(ValueError, match="holds no history"):
        Run(store=tmp_path / "similarity.zarr")
    (tmp_path / "file").write_text("precious")
    with pytest.raises(FileExistsError, match="is a file"):
        Run(store=tmp_path / "file")


@pytest.mark.parametrize(
    ("array", "shape"),
    [
        ("step", [10**10]),
        ("similarity", [1, 2, 10**6, 10**6]),
        ("similarity", [1, 10**9, 6, 6]),
        ("numbers", [1, 10**9]),
    ],
)
def test_a_history_that_claims_too_much_is_refused_in_little_memory(tmp_path, array, shape):
    path = tmp_path / "history.zarr"
    Run(store=path).train(0, 5)
    file = path / array / "zarr.json"
    about = json.loads(file.read_text())
    about["shape"], about["chunk_grid"]["configuration"]["chunk_shape"] = shape, [1, *shape[1:]]
    file.write_text(json.dumps(about))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if array == "step":
        assert History.open(path).steps == [0]
    else:
        with pytest.raises(ValueError, match=rf"^path: .* is damaged \({array} has the shape .* remove it"):
            History.open(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


@pytest.mark.parametrize("how", ["truncated", "removed"])
def test_a_probe_whose_similarities_are_not_whole_is_refused(tmp_path, how):
    path = tmp_path / "history.zarr"
    Run(store=path).train(0, 15)
    file = path / "similarity" / "c" / "1" / "0" / "0" / "0"
    file.unlink() if how == "removed" else file.write_bytes(file.read_bytes()[:10])
    with pytest.raises(ValueError, match=r"^path: .* is damaged \(a chunk of similarity has .* bytes; expected 576\)"):
        History.open(path)


@pytest.mark.parametrize("content", ["[1]", "{", '{"attributes": 3}', '{"attributes": {"format": "{"}}'])
def test_a_description_that_is_none_is_refused(tmp_path, content):
    path = tmp_path / "history.zarr"
    Run(store=path)
    (path / "zarr.json").write_text(content)
    with pytest.raises(ValueError, match=r"^path: .* (is damaged|holds no history)"):
        History.open(path)


def test_two_monitors_cannot_write_to_one_store(tmp_path):
    """The second to write goes on in memory."""
    one, other = (Run(store=tmp_path / "history.zarr") for _ in range(2))
    one.train(0, 30)
    with pytest.warns(le.training.MonitorWarning, match="another monitor writes to it"):
        other.train(0, 1)
    other.train(1, 20)
    assert History.open(tmp_path / "history.zarr").steps == [0, 10, 20]
    assert other.monitor.history.steps == [0, 10]
    one.train(30, 50)
    assert History.open(tmp_path / "history.zarr").steps == [0, 10, 20, 30, 40]


def forget_provenance(path):
    """As version 0.1.0 wrote it."""
    about = json.loads((path / "zarr.json").read_text())
    del about["attributes"]["provenance"]
    (path / "zarr.json").write_text(json.dumps(about))


def test_an_early_store_that_was_begun_otherwise_is_told_of(tmp_path, caplog):
    path = tmp_path / "history.zarr"
    Run(store=path).train(0, 30)
    Run(store=path)
    assert not caplog.records
    forget_provenance(path)
    Run(store=path, update=le.SGD(10.0))
    assert "begun with update SGD(step_size=0.001, weight_decay=0.0), not SGD(step_size=10.0" in caplog.text


def scaled(by):
    def relative(response):
        return by * le.relative(response)

    return relative


def of_features(net, by):
    def spread(features, labels):
        return float(by * features.std())

    return FeatureMeasure(spread, stream_features(net, [(x, y)]))


def named(net, measure):
    return FeatureMeasure(measure, stream_features(net, [(x, y)]), name="named")


def normalized(by):
    compute = lambda response: le.measures.measure.Scores(le.relative(response), torch.ones(6))
    return le.Measure("mine", "what it says", compute, normalize=lambda values, own, others: by * values)


def smoothed(by):
    return lambda outputs, labels: nn.functional.cross_entropy(outputs, labels, label_smoothing=by / 10)


class Own:
    """An update of the user's."""

    plain, vectorizes = False, True

    def __init__(self, step_size):
        self.step_size = step_size

    def rule(self, problem):
        return lambda params, gradient: {name: -self.step_size * g for name, g in gradient.items()}


class Clipping(torch.optim.SGD):
    """Keeps a setting and a count on itself."""

    def __init__(self, params, lr, largest):
        super().__init__(params, lr=lr)
        self.largest, self.calls, self.seen = largest, 0, []

    def step(self, closure=None):
        self.calls += 1
        self.seen.append(self.calls)
        return super().step(closure)


class Focal(nn.Module):
    """A loss with a number that it was made with, under another name, and a count."""

    def __init__(self, gamma):
        super().__init__()
        self.power = float(gamma)
        self.calls = 0

    def forward(self, outputs, labels):
        each = nn.functional.cross_entropy(outputs, labels, reduction="none")
        return ((1 - torch.exp(-each)) ** self.power * each).mean()


@dataclass
class Settings:
    scale: float
    seen: list = field(default_factory=list, init=False)

    def loss(self, outputs, labels):
        return nn.functional.cross_entropy(outputs * self.scale, labels)

    def __call__(self, outputs, labels):
        return self.loss(outputs, labels)


def of_settings(settings):
    return lambda outputs, labels: settings.loss(outputs, labels)


def of_list(scales):
    return lambda outputs, labels: nn.functional.cross_entropy(outputs * scales[0], labels)


def by_keyword(by):
    def loss(outputs, labels, *, scale=by):
        return nn.functional.cross_entropy(outputs * scale, labels)

    return loss


def of_kind(kind):
    penalty = {"none": 0.0, "square": 1.0}
    return lambda outputs, labels: (
        nn.functional.cross_entropy(outputs, labels) + penalty[kind] * outputs.square().mean()
    )


def with_loss(make):
    return lambda by: lambda net: {"loss": make(by), "measure": ("relative",)}


class Heads(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, inputs):
        return {"a": self.net(inputs), "b": -self.net(inputs)}


def with_output(make):
    return lambda by: lambda net: {"problem": le.Problem.of(Heads(net), "cross_entropy", output=make("ab"[by - 1]))}


def live(kind, *args, **options):
    return lambda net: {"update": le.FromOptimizer(kind(net.parameters(), *args, **options))}


SGD = torch.optim.SGD
OTHERS = {
    "sources": lambda by: lambda net: {"sources": (by * x, y)},
    "labels": lambda by: lambda net: {"sources": (x, y.roll(by)), "source_labels": y},
    "targets": lambda by: lambda net: {"targets": by * x[:3]},
    "targets with labels": lambda by: lambda net: {"targets": (x[:3], y[:3] * (by - 1)), "target_labels": list("aab")},
    "measure relative": lambda by: lambda net: {"measure": (scaled(by),)},
    "measure kl": lambda by: lambda net: {"measure": ("kl" if by == 1 else le.Measure("kl", "mine", scaled(1)),)},
    "measure mine": lambda by: lambda net: {"measure": (normalized(by),)},
    "measure spread": lambda by: lambda net: {"measure": ("kl", of_features(net, by))},
    "measure named": lambda by: lambda net: {"measure": (named(net, ("", "nmi", "recall_at_1")[by]),)},
    "update by its numbers": lambda by: lambda net: {"update": le.SGD(by)},
    "update of the user's": lambda by: lambda net: {"update": Own(by)},
    "update by the optimizer": lambda by: live(SGD if by == 1 else torch.optim.AdamW, lr=0.1),
    "update by a setting": lambda by: live(SGD, lr=0.1, momentum=by / 4),
    "update by an attribute": lambda by: live(Clipping, 0.1, by),
    "update by its clipping": lambda by: lambda net: {"update": le.FromOptimizer(SGD(net.parameters(), 0.1), by)},
    "update by its drift": lambda by: (
        lambda net: {"update": le.FromOptimizer(SGD(net.parameters(), 0.1, 0.9), drift=["keep", "remove"][by - 1])}
    ),
    "response": lambda by: lambda net: {"approximate": by == 2},
    "loss": lambda by: lambda net: {"loss": smoothed(by), "measure": ("relative",)},
    "loss of a module with a number": with_loss(Focal),
    "loss of an object": with_loss(Settings),
    "loss of a bound method": with_loss(lambda by: Settings(by).loss),
    "loss of a closure over a dataclass": with_loss(lambda by: of_settings(Settings(by))),
    "loss of a closure over a list": with_loss(lambda by: of_list([by])),
    "loss of a closure over a text": with_loss(lambda by: of_kind(["none", "square"][by - 1])),
    "loss of a keyword's default": with_loss(by_keyword),
    "output by an item": with_output(operator.itemgetter),
    "output of a closure over a text": with_output(lambda name: lambda out: out[name]),
    "output": lambda by: lambda net: {"problem": le.Problem.of(net, "cross_entropy", output=lambda out: out / by)},
    "mode": lambda by: lambda net: {"problem": le.Problem.of(net, "cross_entropy", mode=["eval", "train"][by - 1])},
}


def begun(made, **options):
    """A network and its monitor."""
    torch.manual_seed(2)
    net = nn.Linear(4, 3)
    given = {**OPTIONS, "every": 1, **options, **made(net)}
    problem = given.pop("problem", None)
    if problem is not None:
        del given["loss"]
    return net, le.Monitor(net if problem is None else problem, given.pop("sources", (x, y)), **given)


@pytest.mark.parametrize("stored", [False, True], ids=["checkpoint", "store"])
@pytest.mark.parametrize("what", OTHERS)
def test_another_measurement_does_not_go_on_with_a_history(what, stored, tmp_path):
    path = tmp_path / "history.zarr" if stored else None
    _, monitor = begun(OTHERS[what](1), store=path)
    monitor.step(0)
    torch.save(monitor.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    _, again = begun(OTHERS[what](1), store=path)
    again.load_state_dict(state)
    again.step(1)
    assert again.history.steps == [0, 1]
    name = " ".join(what.split()[: 2 if what.startswith("measure") else 1])
    if stored:
        with pytest.raises(ValueError, match=f"^store: .* holds the history of another measurement: {name}.* differ; "):
            begun(OTHERS[what](2), store=path)
    _, other = begun(OTHERS[what](2))
    with pytest.raises(ValueError, match=f"^state: .* measures something else: {name}.* differ; make this one"):
        other.load_state_dict(state)
    assert len(other.history) == 0
    assert not stored or History.open(path).steps == [0, 1]


class Learned(nn.Module):
    """A loss with a parameter that is trained."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, outputs, labels):
        return nn.functional.cross_entropy(outputs, labels, weight=self.weight.detach().exp().to(outputs))


class Around(nn.Module):
    """A module around the network that knows the loss and keeps what it saw."""

    def __init__(self, net):
        super().__init__()
        self.net, self.losses = net, []

    def loss(self, outputs, labels):
        return nn.functional.cross_entropy(outputs, labels)


@pytest.mark.parametrize("stored", [False, True], ids=["checkpoint", "store"])
def test_what_changes_along_a_run_does_not_count(stored, tmp_path):
    path = tmp_path / "history.zarr" if stored else None

    def start(restored=None):
        torch.manual_seed(2)
        net, loss = nn.Linear(4, 3), Learned()
        around = Around(net)
        optimizer = Clipping(net.parameters(), 0.1, 1.0)
        if restored is not None:
            net, optimizer, loss, around = restored
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=9, cycle_momentum=False)
        penalised = lambda outputs, labels: loss(outputs, labels) + around.loss(outputs, labels)
        options = {"measure": ("relative",), "every": 1, "budget": None, "store": path}
        monitor = le.Monitor(net, (x, y), loss=penalised, update=le.FromOptimizer(optimizer), **options)
        return net, optimizer, loss, around, cycle, monitor

    net, optimizer, loss, around, cycle, monitor = start()
    monitor.step(0)
    around.loss(net(x), y).backward()
    optimizer.step()
    cycle.step()
    optimizer.param_groups[0]["momentum"] = 0.5
    optimizer.state[net.weight]["momentum_buffer"] = torch.ones(3, 4)
    around.losses.append(1.0)
    with torch.no_grad():
        loss.weight += 1
    net.double()
    *_, again = start((net, optimizer, loss, around))
    again.load_state_dict(monitor.state_dict())
    again.step(1)
    assert again.history.steps == [0, 1]


@pytest.mark.parametrize("stored", [False, True], ids=["checkpoint", "store"])
def test_a_history_without_fingerprints_goes_on_and_gets_them(stored, tmp_path):
    """As version 0.1.0 wrote it."""
    path = tmp_path / "history.zarr" if stored else None
    _, monitor = begun(OTHERS["sources"](1), store=path)
    monitor.step(0)
    state = monitor.state_dict()
    del state["provenance"]
    if stored:
        forget_provenance(path)
    _, again = begun(OTHERS["sources"](2), store=path)
    again.load_state_dict(state)
    again.step(1)
    _, first = begun(OTHERS["sources"](1))
    with pytest.raises(ValueError, match="measures something else: sources differ"):
        first.load_state_dict(again.state_dict())
    if stored:
        with pytest.raises(ValueError, match="another measurement: sources differ"):
            begun(OTHERS["sources"](1), store=path)


def test_a_state_with_a_damaged_provenance_is_refused():
    run = Run()
    with pytest.raises(ValueError, match="^state: it is damaged .its provenance is 3.; use another checkpoint"):
        run.monitor.load_state_dict({**run.monitor.state_dict(), "provenance": 3})


def test_a_checkpoint_without_its_store_is_told_of(tmp_path, caplog):
    run = Run(store=tmp_path / "history.zarr")
    run.train(0, 30)
    run.save(tmp_path / "checkpoint.pt")
    Run(store=tmp_path / "history.zarr").load(tmp_path / "checkpoint.pt")
    assert not caplog.records
    Run(store=tmp_path / "another.zarr").load(tmp_path / "checkpoint.pt")
    assert "had taken 3 probes, of which 0 are here" in caplog.text


class Surrounding:
    """What changes while a network trains, and is named by functions of the user's."""

    def __init__(self):
        self.epoch, self.logger, self.folder = 0, logging.getLogger(f"run {id(self)}"), str(id(self))

    def loss(self, outputs, labels):
        return nn.functional.cross_entropy(outputs, labels) + 0 * self.epoch


def of_a_run(run):
    def measured(response):
        run.logger.debug(run.folder)
        return le.relative(response)

    return measured


@pytest.mark.parametrize("stored", [False, True], ids=["checkpoint", "store"])
def test_the_same_run_goes_on_whatever_its_functions_refer_to(stored, tmp_path):
    path, state = tmp_path / "history.zarr" if stored else None, None
    for first in (0, 2):
        run, net = Surrounding(), nn.Linear(4, 3)
        run.epoch = first
        options = {"every": 1, "budget": None, "store": path, "update": le.SGD(1e-3)}
        monitor = le.Monitor(net, (x, y), loss=run.loss, measure=(of_a_run(run),), source_labels=y, **options)
        if state is not None:
            monitor.load_state_dict(state)
        for step in (first, first + 1):
            monitor.step(step)
        state = monitor.state_dict()
    assert monitor.history.steps == [0, 1, 2, 3]


FROM_A_FILE = """
import sys, torch
from tests.test_history import OTHERS, begun
for what in sys.argv[2:]:
    _, monitor = begun(OTHERS[what](1))
    torch.save(monitor.state_dict(), f"{sys.argv[1]}/{what}.pt")
"""


def test_the_same_functions_have_the_same_fingerprints_in_another_process(tmp_path):
    names = [name for name in OTHERS if name.startswith(("loss", "output"))]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # texts hash otherwise than here
    command = [sys.executable, "-c", FROM_A_FILE, str(tmp_path), *names]
    subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parent.parent)
    for name in names:
        _, monitor = begun(OTHERS[name](1))
        monitor.load_state_dict(torch.load(tmp_path / f"{name}.pt", weights_only=True))


def test_a_closure_that_collects_what_it_sees_goes_on():
    def collecting():
        seen = []

        def loss(outputs, labels):
            seen.append(1)
            return nn.functional.cross_entropy(outputs, labels)

        return seen, loss

    states = []
    for count in (0, 3):
        seen, loss = collecting()
        seen += [1] * count
        _, monitor = begun(with_loss(lambda by, loss=loss: loss)(1))
        states.append(monitor.state_dict())
    monitor.load_state_dict(states[0])


def test_large_steps_do_not_end_a_run_where_warnings_are_errors():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor = le.Monitor(net, (x, y), loss="cross_entropy", every=1, budget=None, update=le.SGD(50.0))
        assert monitor.step(0)
        warnings.simplefilter("error", le.LargeStepWarning)
        again = le.Monitor(net, (x, y), loss="cross_entropy", every=1, budget=None, update=le.SGD(50.0))
        with pytest.raises(le.LargeStepWarning):
            again.step(0)


@pytest.mark.parametrize(
    ("file", "words"),
    [("similarity/c/1/0/0/0", "probe 1 is not what was written"), ("step/c/1", "probe 1 is not what was written")],
)
def test_a_changed_bit_of_a_probe_is_found(tmp_path, file, words):
    path = tmp_path / "history.zarr"
    Run(store=path).train(0, 31)
    content = bytearray((path / file).read_bytes())
    content[1] ^= 1
    (path / file).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        History.open(path)


def test_a_lost_step_is_told_and_nothing_after_it_is_written_over(tmp_path):
    path = tmp_path / "history.zarr"
    Run(store=path).train(0, 31)
    (path / "step" / "c" / "1").unlink()
    for again in (lambda: History.open(path), lambda: Run(store=path)):
        with pytest.raises(ValueError, match="the step of probe 1 is missing"):
            again()
