"""What changes or fails around a monitor never ends a training run: it is reported once, and training continues."""

import copy
import logging
import re
import resource
import shutil
import subprocess
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.nn.utils.prune as prune
from torch import nn

import local_elasticity as le
from local_elasticity.emergence import FeatureMeasure, stream_features
from local_elasticity.training.history import History
from tests.test_adapters import imported, needs

Warned = le.training.MonitorWarning
x, y = torch.randn(12, 8, generator=torch.Generator().manual_seed(3)), torch.arange(12) % 3
OPTIONS = {"loss": "cross_entropy", "every": 1, "budget": None}


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


class Run:
    """A training run that may be interfered with between steps."""

    def __init__(self, net=None, **options):
        self.net = network() if net is None else net
        self.monitor = le.Monitor(self.net, (x, y), **{**OPTIONS, **options})
        self.at = 0

    def train(self, steps=1):
        """Real optimizer steps, each told to the monitor; whether the last one was probed."""
        probed = False
        for _ in range(steps):
            for p in self.net.parameters():
                p.grad = None
            outputs = self.net(x.to(next(self.net.parameters()).dtype))
            if outputs.requires_grad:
                nn.functional.cross_entropy(outputs, y).backward()
            with torch.no_grad():
                for p in self.net.parameters():
                    if p.grad is not None:
                        p -= 0.1 * p.grad
            probed = self.monitor.step(self.at)
            self.at += 1
        return probed

    def results_are_there(self):
        self.monitor.frame()
        self.monitor.phases()
        self.monitor.plot()
        self.monitor._repr_html_()
        self.monitor.history.dataset()
        self.monitor.close()


@contextmanager
def one_warning(match):
    """Exactly one of ours that says so; pytest raises the others again."""
    with pytest.warns(Warned, match=match) as seen:
        yield
    told = [str(one.message) for one in seen if re.search(match, str(one.message))]
    assert len(told) == 1, told


def expected(net, step_size=1e-3):
    """S_rel by real steps on the network, which are taken back."""
    S = torch.zeros(len(x), len(x), dtype=torch.float64)
    stepped = [p for p in net.parameters() if p.requires_grad]
    before = net(x.double()).detach()
    for i in range(len(x)):
        loss = nn.functional.cross_entropy(net(x.double()[i : i + 1]), y[i : i + 1])
        gradients = torch.autograd.grad(loss, stepped)
        kept = [p.detach().clone() for p in stepped]
        with torch.no_grad():
            for p, g in zip(stepped, gradients, strict=True):
                p -= step_size * g
            moved = (net(x.double()) - before).norm(dim=1)
            for p, was in zip(stepped, kept, strict=True):
                p.copy_(was)
        S[i] = moved / moved[i]
    return S.numpy()


def swap_head(net, outputs):
    net[2] = nn.Linear(16, outputs)


def normalize(net):
    nn.utils.parametrizations.weight_norm(net[0])


def freeze(net):
    net[0].requires_grad_(False)


CHANGES = {
    "pruned": (lambda net: prune.random_unstructured(net[0], "weight", 0.5), "0.weight is now 0.weight_orig"),
    "parametrized": (normalize, "0.weight is now 0.parametrizations.weight.original0 and 0.parametrizations.weight"),
    "frozen": (freeze, "no longer stepped: 0.weight, 0.bias"),
    "a larger head": (lambda net: swap_head(net, 5), r"2.weight has shape \(5, 16\), it had \(3, 16\)"),
}


@pytest.mark.parametrize("given", ["a model", "a problem"])
@pytest.mark.parametrize("change", CHANGES)
def test_other_parameters_step_from_then_on(change, given, tmp_path):
    interfere, words = CHANGES[change]
    net = network().double()
    options = {"store": tmp_path / "history.zarr"}
    if given == "a problem":
        problem = le.Problem.of(net, "cross_entropy")
        run = Run(net)
        run.monitor = le.Monitor(problem, (x, y), every=1, budget=None, **options)
    else:
        run = Run(net, **options)
    run.train(2)
    interfere(net)
    net.double()
    with one_warning(f"the stepped parameters changed at step 2: {words}"):
        assert run.train()
    assert np.allclose(run.monitor.history[2].similarity["relative"], expected(net), rtol=1e-5)
    assert run.train()
    assert run.monitor.history.steps == [0, 1, 2, 3]
    assert list(run.monitor.history.notes) == [2]
    run.results_are_there()
    assert "step 2: " in run.monitor.history.dataset().attrs["notes"][0]
    assert History.open(tmp_path / "history.zarr").notes == run.monitor.history.notes
    le.write_report(tmp_path / "history.zarr", tmp_path / "page.html")
    assert "At step 2: " in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_layers_may_be_frozen_and_unfrozen():
    run = Run()
    run.train()
    freeze(run.net)
    with one_warning("no longer stepped"):
        run.train()
    run.net.requires_grad_(True)
    with one_warning("now stepped: 0.weight, 0.bias"):
        assert run.train()


def test_probing_stops_where_nothing_steps_any_more():
    run = Run()
    run.train()
    run.net.requires_grad_(False)
    with one_warning("the probe at step 1 failed .ValueError: model: none of its parameters requires a gradient"):
        assert not run.train(5)
    assert "probing stopped at step 3 after 3 failures" in run.monitor.stopped
    assert run.monitor.skipped == [1, 2, 3]
    assert "probing stopped" in run.monitor.history.notes[3]
    run.results_are_there()
    with pytest.raises(ValueError, match="none of its parameters requires a gradient"):
        run.monitor.probe(10)
    run.net.requires_grad_(True)
    assert run.monitor.probe(11)  # an explicit probe starts again
    assert run.monitor.stopped is None
    assert run.monitor.step(12)


def test_a_selection_that_no_longer_matches_stops_probing():
    net = network()
    run = Run(net)
    problem = le.Problem.of(net, "cross_entropy", params=r"0\.weight")
    run.monitor = le.Monitor(problem, (x, y), every=1, budget=None)
    run.train()
    freeze(net)
    assert run.train()  # it was selected by name, whether it requires a gradient or not
    prune.random_unstructured(net[0], "weight", 0.5)
    with one_warning("params: the selected parameters 0.weight are no longer in the model"):
        run.train(4)
    assert run.monitor.stopped
    run.results_are_there()


def test_a_head_that_is_too_small_for_the_labels_is_skipped():
    run = Run()
    run.train()
    swap_head(run.net, 2)
    with one_warning("label 2 is outside"), one_warning("has shape"):
        assert not run.monitor.step(1)
    swap_head(run.net, 3)
    with one_warning("has shape"):
        assert run.monitor.step(2)
    run.results_are_there()


class Moody(nn.Module):
    """Fails while it is told to."""

    fails = False

    def forward(self, h):
        if self.fails:
            raise RuntimeError(f"the forward failed, {torch.rand(()):.6f}")
        return h


def test_a_forward_that_fails_costs_probes_and_not_the_run():
    mood = Moody()
    run = Run(nn.Sequential(*network(), mood), measure=("relative", "stiffness_cos"))
    run.train()
    mood.fails = True
    with one_warning("the probe at step 1 failed .*the forward failed"):
        assert not run.monitor.step(1)
        assert not run.monitor.step(2)
    mood.fails = False
    assert run.monitor.step(3)
    mood.fails = True
    for step in range(4, 9):
        assert not run.monitor.step(step)
    assert "step 6" in run.monitor.stopped
    assert run.monitor.history.steps == [0, 3]
    assert run.monitor.skipped == [1, 2, 4, 5, 6]
    with pytest.raises(ValueError, match="the forward failed"):
        run.monitor.probe(9)
    run.results_are_there()


def test_the_traceback_can_be_seen(caplog):
    mood = Moody()
    monitor = le.Monitor(nn.Sequential(*network(), mood), (x, y), **OPTIONS)
    mood.fails = True
    with caplog.at_level(logging.DEBUG, "local_elasticity"), one_warning("the forward failed"):
        monitor.step(0)
    assert "in forward" in caplog.text
    assert "Traceback" in caplog.text


def test_the_warning_is_about_the_users_line():
    mood = Moody()
    monitor = le.Monitor(nn.Sequential(*network(), mood), (x, y), **OPTIONS)
    mood.fails = True
    with pytest.warns(Warned) as seen:
        monitor.step(0)
    assert seen[0].filename == __file__


def test_predictions_that_are_nan_are_written_down_as_such():
    run = Run(measure=("relative", "kl"))
    run.train()
    with torch.no_grad():
        run.net[0].weight.fill_(float("nan"))
    assert run.train(2)
    assert np.isnan(run.monitor.history[2].similarity["kl"]).all()
    run.results_are_there()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_precision_is_followed(dtype):
    run = Run()
    run.train()
    run.net.to(dtype)
    assert run.train()
    assert run.monitor.history.notes == {1: f"its parameters are {dtype}, they were torch.float32"}
    if dtype == torch.float64:
        assert np.allclose(run.monitor.history[1].similarity["relative"], expected(run.net), rtol=1e-5)
    run.results_are_there()


def test_a_model_without_values_is_skipped_and_measured_when_it_is_back():
    run = Run(targets=x[:4] + 1)
    run.train()
    state = run.net.state_dict()
    run.net.to("meta")
    with one_warning("is on the meta device"):
        assert not run.monitor.step(1)
    run.net.to_empty(device="cpu").load_state_dict(state)
    assert run.monitor.step(2)
    again = run.monitor.history
    assert np.array_equal(again[0].similarity["relative"], again[1].similarity["relative"])


@pytest.mark.gpu
@pytest.mark.parametrize(("start", "end"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_examples_move_with_the_model(start, end):
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    targets = (x[:5].double() + 1, y[:5])
    place = {"targets": tuple(part.to(start) for part in targets), "target_labels": y[:5]}
    measures = ("relative", "stiffness_cos")
    sources = x.double().to(start), y.to(start)
    monitor = le.Monitor(net.to(start), sources, measure=measures, **place, **OPTIONS)
    for step, device in enumerate((start, end, start)):
        net.to(device)
        assert monitor.step(step)
    one, other, third = monitor.history
    for name in measures:
        assert np.allclose(one.similarity[name], other.similarity[name], rtol=1e-6), name
        assert np.allclose(one.similarity[name], third.similarity[name], rtol=1e-6), name
    assert list(monitor.history.notes) == [1, 2]


@pytest.mark.gpu
def test_a_recorded_probe_follows_pruning():
    """A probe under way belongs to the network before; the next is measured without the graph."""
    net = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.Tanh())], nn.Linear(8, 3)).cuda()
    monitor = le.Monitor(net, (x.cuda(), y.cuda()), **OPTIONS)
    assert monitor.step(0)
    prune.random_unstructured(net[0], "weight", 0.5)
    with one_warning("0.weight is now 0.weight_orig"):
        assert monitor.step(1)
        assert monitor.step(2)
    assert monitor.history.steps == [0, 1, 2]


@contextmanager
def files_no_larger_than(size):
    """Writing more fails with an OSError, as on a full disk; for root as well."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_for_a_while(tmp_path):
    run = Run(store=tmp_path / "history.zarr")
    run.train(2)
    with (
        files_no_larger_than(100),
        one_warning("history.zarr cannot be written .OSError: .*every later probe tries the store again"),
    ):
        assert run.train(2)
        run.monitor.history.note(3, "a note")
    assert History.open(tmp_path / "history.zarr").steps == [0, 1]
    state = run.monitor.state_dict()
    assert [one["step"] for one in state["probes"]] == [0, 1, 2, 3]  # the checkpoint carries what the store lacks
    assert run.train()
    there = History.open(tmp_path / "history.zarr")
    assert there.steps == run.monitor.history.steps == [0, 1, 2, 3, 4]
    assert there.notes == {3: "a note"}
    for one, other in zip(there, run.monitor.history, strict=True):
        assert np.array_equal(one.similarity["relative"], other.similarity["relative"])
    assert run.monitor.state_dict()["probes"] == []


def test_what_waits_is_written_when_the_monitor_is_closed(tmp_path):
    run = Run(store=tmp_path / "history.zarr")
    with files_no_larger_than(100), one_warning("cannot be written"):
        run.train(2)
    run.monitor.close()
    assert History.open(tmp_path / "history.zarr").steps == [0, 1]


def test_a_resumed_run_has_what_the_full_disk_did_not_take(tmp_path):
    run = Run(store=tmp_path / "history.zarr")
    run.train(1)
    with files_no_larger_than(100), one_warning("cannot be written"):
        run.train(2)
        prune.random_unstructured(run.net[0], "weight", 0.5)
        with pytest.warns(Warned, match="stepped parameters changed"):
            run.train(1)
        run.monitor.history.keep_until(3)
    state = run.monitor.state_dict()
    again = Run(run.net, store=tmp_path / "history.zarr")
    again.monitor.load_state_dict(state)
    again.at = 4
    assert again.train()
    there = History.open(tmp_path / "history.zarr")
    assert there.steps == again.monitor.history.steps == [0, 1, 2, 3, 4]
    assert there.notes == again.monitor.history.notes == run.monitor.history.notes
    assert list(there.notes) == [3]


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 96 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_real_disk_that_is_full(tiny_disk):
    run = Run(store=tiny_disk / "history.zarr")
    with one_warning("No space left on device"):
        assert run.train(40)
    assert run.monitor.history.steps == list(range(40))
    there = History.open(tiny_disk / "history.zarr")
    assert there.steps == list(range(len(there)))
    assert 0 < len(there) < 40
    run.results_are_there()


def test_a_store_that_is_deleted(tmp_path):
    run = Run(store=tmp_path / "history.zarr")
    run.train(2)
    shutil.rmtree(tmp_path / "history.zarr")
    with one_warning("cannot be written .FileNotFoundError"):
        assert run.train(3)
    assert not (tmp_path / "history.zarr").exists()  # nothing is half there
    assert run.monitor.history.steps == [0, 1, 2, 3, 4]
    assert len(run.monitor.state_dict()["probes"]) == 5
    run.results_are_there()


def test_a_store_whose_files_are_spoiled(tmp_path):
    run = Run(store=tmp_path / "history.zarr")
    run.train()
    (tmp_path / "history.zarr" / "step" / "zarr.json").write_text("not JSON")
    with one_warning("its files cannot be read .JSONDecodeError"):
        assert run.train(3)
    assert run.monitor.history.steps == [0, 1, 2, 3]


def test_a_second_writer_keeps_its_history_in_memory(tmp_path):
    one, other = Run(store=tmp_path / "history.zarr"), Run(store=tmp_path / "history.zarr")
    one.train()
    with one_warning("another monitor writes to it. The history is kept in memory; give each monitor its own store"):
        assert other.train(3)
    one.train()
    assert History.open(tmp_path / "history.zarr").steps == [0, 1]
    assert other.monitor.history.steps == [0, 1, 2]
    assert len(other.monitor.state_dict()["probes"]) == 3


def test_a_logger_that_raises_is_left_out():
    calls, seen = [], []

    def broken(values, step):
        calls.append(step)
        if step == 1:
            raise ConnectionError("the server is gone")

    run = Run(loggers=[broken, lambda values, step: seen.append(step)])
    with one_warning("loggers: broken failed at step 1 .ConnectionError: the server is gone.*left out from now on"):
        run.train(4)
    assert calls == [0, 1]
    assert seen == [0, 1, 2, 3]


class Gone(logging.Handler):
    """A log server that is gone."""

    def emit(self, record):
        raise ConnectionError("the log server is gone")


def test_a_log_handler_that_raises_does_not_end_the_run(monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [Gone()])
    run = Run()
    run.net[2] = nn.Linear(11, 3)
    with pytest.warns(Warned, match="monitor: ") as told:
        assert not run.monitor.step(0)
    assert "the probe at step 0 failed" in str(told[-1].message)


def test_a_step_inside_a_probe_takes_none():
    """A forward hook that counts steps runs while measuring, too."""
    run, calls = Run(), []
    run.net.register_forward_hook(lambda *_: calls.append(run.monitor.step(len(calls))))
    run.net(x)
    assert run.monitor.history.steps == [0]
    assert calls.count(True) == 1


def test_one_measure_that_fails_leaves_the_others():
    fails = []

    def mine(response):
        if fails:
            raise ZeroDivisionError("mine is broken")
        return le.relative(response)

    seen = []
    run = Run(measure=(mine, "kl", "stiffness_cos"), loggers=[lambda values, step: seen.append(values)])
    run.train()
    fails.append(True)
    with one_warning("measure: mine failed at step 1 .ZeroDivisionError: mine is broken"):
        assert run.train(4)
    assert run.monitor.stopped is None
    assert np.isnan(run.monitor.history[4].similarity["mine"]).all()
    assert np.isfinite(run.monitor.history[4].similarity["kl"]).all()
    assert "local_elasticity/kl/ratio" in seen[4]
    run.results_are_there()
    fails.clear()
    run.train()
    assert np.isfinite(run.monitor.history[5].similarity["mine"]).all()


def test_a_measure_of_another_shape_is_left_out(tmp_path):
    rows = [12]

    def mine(response):
        return le.relative(response)[: rows[0]]

    run = Run(measure=(mine, "kl"), store=tmp_path / "history.zarr")
    run.train()
    rows[0] = 3
    with one_warning(r"mine: expected a tensor of shape \(12, 12\).*got shape \(3, 12\)"):
        assert run.train()
    assert History.open(tmp_path / "history.zarr").steps == [0, 1]
    run.results_are_there()


def test_features_that_cannot_be_had_are_nan():
    """Of a layer that the model lost; the similarities go on."""
    net = network()
    recall = FeatureMeasure("recall_at_1", stream_features(net, [(x, y)], layer="1"))
    run = Run(net, measure=("kl", recall))
    run.train()
    net[1] = nn.ReLU()
    with one_warning("measure: recall_at_1 failed at step 1 .ValueError: layer: "):
        assert run.train(4)
    assert np.isnan(run.monitor.history[4].numbers["recall_at_1"])
    assert np.isfinite(run.monitor.history[4].similarity["kl"]).all()
    run.results_are_there()


class Failing:
    """A schedule with a bug."""

    def due(self, step):
        if step > 1:
            raise IndexError("no such step")
        return True


def test_a_schedule_that_raises_stops_probing():
    run = Run(every=None, schedule=Failing())
    with one_warning("the probe at step 2 failed .IndexError: no such step"):
        run.train(8)
    assert run.monitor.history.steps == [0, 1]
    assert "step 4" in run.monitor.stopped


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass_through(error):
    run = Run()

    def interrupted(response):
        if run.at:
            raise error
        return le.relative(response)

    run.monitor = le.Monitor(run.net, (x, y), measure=(interrupted,), **OPTIONS)
    run.train()
    with pytest.raises(error):
        run.train()
    assert run.monitor.history.steps == [0]
    assert run.monitor.stopped is None


def test_training_goes_on_where_all_warnings_are_errors(caplog):
    run = Run()
    run.train()
    run.net[2] = nn.Linear(7, 3)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error")
        assert not run.monitor.step(1)
    assert "the probe at step 1 failed" in caplog.text


def test_a_user_who_turns_these_warnings_into_errors_gets_errors():
    run = Run()
    run.train()
    prune.random_unstructured(run.net[0], "weight", 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Warned)
        with pytest.raises(Warned, match="0.weight is now 0.weight_orig"):
            run.train()
    assert run.train()


def test_a_state_is_taken_up_after_all_that(tmp_path):
    run = Run()
    run.train(2)
    prune.random_unstructured(run.net[0], "weight", 0.5)
    with one_warning("stepped parameters changed"):
        run.train()
    run.net.requires_grad_(False)
    with one_warning("none of its parameters"):
        run.train(4)
    torch.save(run.monitor.state_dict(), tmp_path / "state.pt")
    run.net.requires_grad_(True)
    again = Run(run.net)
    again.monitor.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    again.at = 7
    assert again.train(2)
    assert again.monitor.history.steps == [0, 1, 2, 7, 8]
    assert again.monitor.history.notes == run.monitor.history.notes
    assert list(again.monitor.history.notes) == [2, 5]
    again.results_are_there()


@needs("lightning")
def test_a_lightning_run_outlives_pruning():
    """Lightning's own callback prunes in the middle of training."""
    worker = imported("lightning")
    import lightning.pytorch as pl

    watched = worker.callback(loggers=[])
    module = worker.Classifier()
    layer = next(part for part in module.modules() if isinstance(part, nn.Linear))

    class Prune(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                prune.l1_unstructured(layer, "weight", 0.5)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        worker.trained_by([watched, Prune()], 2, enable_checkpointing=False).fit(module, worker.loader())
    told = [str(one.message) for one in seen if one.category is Warned]
    assert len(told) == 1
    assert "weight is now" in told[0]
    assert watched.monitor.history.steps == [0, 2, 4, 6, 8]
    assert list(watched.monitor.history.notes) == [6]


@needs("transformers")
def test_a_hugging_face_run_outlives_a_full_disk(tmp_path):
    """The state of the monitor cannot be written, and training continues."""
    worker = imported("transformers")
    callback = worker.MonitorCallback(
        (worker.Examples().x[:6], worker.Examples().y[:6]),
        problem=lambda model: le.Problem.of(model, "cross_entropy", output=lambda out: out["logits"]),
        every=1,
        budget=None,
    )

    from transformers import TrainerControl, TrainerState, TrainingArguments

    told = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[]), TrainerState(), TrainerControl()
    callback.on_train_begin(*told, model=worker.Classifier())
    (tmp_path / "checkpoint-0").mkdir()
    with files_no_larger_than(10), one_warning("local_elasticity.pt cannot be written"):
        callback.on_save(*told)
        callback.on_save(*told)
    callback.on_save(*told)
    assert torch.load(tmp_path / "checkpoint-0" / "local_elasticity.pt", weights_only=True)["taken"] == 1


DAMAGES = {
    "step": float("inf"),
    "measures": None,
    "source_classes": 3,
    "notes": -1,
    "taken": "x",
    "of_features": [1],
    "probes.0": torch.zeros(2),
    "probes.0.step": float("inf"),
    "probes.0.facts": None,
    "probes.0.denominators.kl": torch.zeros(2, 7),
    "probes.0.denominators": 3,
}


@pytest.mark.parametrize("place", DAMAGES)
def test_a_damaged_state_is_one_error(place):
    run = Run()
    run.train(2)
    state = copy.deepcopy(run.monitor.state_dict())
    *way, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    inner = state
    for part in way:
        inner = inner[part]
    inner[last] = DAMAGES[place]
    with pytest.raises(ValueError, match="^state: it is damaged"):
        Run(run.net).monitor.load_state_dict(state)


def test_a_warning_that_cannot_be_shown_ends_nothing(monkeypatch):
    def gone(*args, **options):
        raise ConnectionError("the log server is gone")

    monkeypatch.setattr(warnings, "showwarning", gone)
    net = network()
    monitor = le.Monitor(net, (x, y), loggers=[lambda values, step: 1 / 0], **OPTIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", gone)
        assert monitor.step(0)


def test_a_probe_that_fails_inside_an_except_clause_is_skipped():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.fails = network(), False

        def forward(self, x):
            if self.fails:
                raise ValueError("a model that fails")
            return self.net(x)

    model = Failing()
    monitor = le.Monitor(model, (x, y), **OPTIONS)
    assert monitor.step(0)
    model.fails = True
    try:
        raise TimeoutError("a worker timed out")
    except TimeoutError:
        with pytest.warns(Warned, match="a model that fails"):
            assert not monitor.step(1)
