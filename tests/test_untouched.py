"""The user's model, optimizer, random state and global flags are as they were, also after an exception."""

import hashlib
import random

import numpy as np
import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.engine.guard import isolated
from tests.cases import CASES


def fingerprint(model):
    """Bytes of parameters and buffers, gradients, flags and modes."""
    digest = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(name.encode() + tensor.detach().numpy().tobytes())
        digest.update(str((tensor.requires_grad, tensor.grad is None, tensor._version)).encode())
    digest.update(str([m.training for m in model.modules()]).encode())
    return digest.hexdigest()


def surroundings():
    """Random state and global flags."""
    return (
        torch.get_rng_state().tolist(),
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,
        torch.backends.mkldnn.matmul.fp32_precision,
        torch.backends.mkldnn.conv.fp32_precision,
        torch.get_float32_matmul_precision(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_num_threads(),
        torch.get_default_dtype(),
    )


CALLS = {
    "respond": lambda problem, sources: le.respond(problem, sources),
    "vmapped": lambda problem, sources: le.respond(problem, sources, engine="vmapped"),
    "linearized": lambda problem, sources: le.respond(problem, sources, engine="linearized"),
    "adam": lambda problem, sources: le.respond(problem, sources, update=le.Adam(1e-3)),
    "estimate": lambda problem, sources: le.estimate(problem, sources),
    "ntk": lambda problem, sources: le.ntk(problem, sources[0]),
    "stiffness": lambda problem, sources: le.stiffness(problem, sources),
    "similarity": lambda problem, sources: le.similarity(problem, sources),
}


@pytest.mark.parametrize("case", [case for case in CASES if case.vectorizes], ids=lambda case: case.name)
@pytest.mark.parametrize("call", CALLS)
def test_nothing_is_changed(case, call):
    case.model.train()
    problem = case.problem()
    before = fingerprint(case.model), surroundings()
    CALLS[call](problem, case.sources)
    assert (fingerprint(case.model), surroundings()) == before


class Fragile(nn.Module):
    """Counts its calls in a buffer, draws random numbers, and breaks when told."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.register_buffer("calls", torch.zeros(1))
        self.breaks = False

    def forward(self, x):
        if self.breaks and len(x) > 1:
            raise RuntimeError("broken on purpose")
        self.calls += 1
        torch.rand(1)
        return self.linear(x)


@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "structured", "linearized"])
def test_nothing_is_changed_when_something_breaks(engine):
    model = Fragile().train()
    problem = le.Problem.of(model, "mse")
    sources = torch.randn(12, 2), torch.randn(12)
    before = fingerprint(model), surroundings()
    model.breaks = True
    with pytest.raises(RuntimeError, match="broken on purpose"):
        le.respond(problem, sources, engine=engine)
    assert (fingerprint(model), surroundings()) == before
    model.breaks = False
    le.respond(problem, sources, engine="looped")
    assert (fingerprint(model), surroundings()) == before


def test_the_random_states_of_all_libraries_come_back():
    """Augmentations, and networks too, draw from each of them."""

    def draw():
        return torch.rand(1).item(), np.random.rand(), random.random()  # noqa: NPY002

    def seed():
        torch.manual_seed(0), np.random.seed(0), random.seed(0)  # noqa: NPY002

    seed()
    expected = draw()
    seed()
    with isolated(torch.device("cpu"), None):
        draw()
    assert draw() == expected


def test_users_own_settings_come_back():
    problem, sources = le.Problem.of(nn.Linear(2, 1), "mse"), (torch.randn(3, 2), torch.randn(3))
    torch.set_float32_matmul_precision("high")
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        before = surroundings()
        le.respond(problem, sources)
        assert surroundings() == before
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.mha.set_fastpath_enabled(True)


def test_a_precision_set_above_still_reaches_below():
    """What followed a setting before a measurement follows it afterwards."""
    torch.backends.fp32_precision = "tf32"
    try:
        le.respond(le.Problem.of(nn.Linear(2, 1), "mse"), (torch.randn(3, 2), torch.randn(3)))
        assert torch.backends.mkldnn.conv.fp32_precision == "tf32"
        torch.backends.fp32_precision = "ieee"
        assert torch.backends.mkldnn.conv.fp32_precision == "ieee"
    finally:
        torch.backends.fp32_precision = "none"


class Setting(nn.Linear):
    """Sets what belongs to the process whenever it is called."""

    def forward(self, x):
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(2)
        return super().forward(x)


@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "structured", "linearized"])
def test_what_a_forward_pass_sets_comes_back(engine):
    sources = torch.randn(6, 2), torch.randn(6)
    problem, before = le.Problem.of(Setting(2, 1), "mse"), surroundings()
    try:
        le.respond(problem, sources, engine=engine)
        assert surroundings() == before
        with isolated(torch.device("cpu"), problem.model):
            problem.model(sources[0])
        assert surroundings() == before
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_it_works_inside_other_contexts(context):
    model, sources = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), (torch.randn(7, 3), torch.randn(7))
    outside = le.respond(le.Problem.of(model, "mse"), sources, engine="looped")
    with context():
        before = surroundings()
        inside = le.respond(le.Problem.of(model, "mse"), sources, engine="looped")
        assert surroundings() == before
    assert torch.equal(inside.target_change, outside.target_change)


def test_results_say_that_autocast_was_on(tmp_path):
    note = "autocast was on and is off while measuring"
    model, sources = (
        nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)),
        (torch.randn(9, 3), torch.arange(9) % 3),
    )
    problem = le.Problem.of(model, "cross_entropy")

    def told(name):
        monitor = le.Monitor(problem, sources, every=1, budget=None)
        for step in range(2):
            monitor.step(step)
        notes = [
            le.respond(problem, sources).notes,
            *(le.similarity(problem, sources, measure=one).attrs["notes"] for one in ("relative", "stiffness_cos")),
            le.similarity(problem, sources, store=tmp_path / name).attrs["notes"],
            le.similarity(problem, sources, approximate=True).attrs["notes"],
            [one for at in monitor.history.notes.values() for one in at.split("; ")],
        ]
        return [list(one).count(note) for one in notes]

    with torch.autocast("cpu", torch.bfloat16):
        assert told("on") == [1] * 6
    assert told("off") == [0] * 6
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        assert told("disabled") == [0] * 6


def test_a_model_made_in_inference_mode_can_be_measured():
    with torch.inference_mode():
        model = nn.Linear(3, 1)
        x, y = torch.randn(4, 3), torch.randn(4)
    response = le.respond(le.Problem.of(model, "mse"), (x.clone(), y.clone()))
    assert response.target_change.isfinite().all()


def test_interruption_leaves_everything_as_it_was():
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)).train()
    problem, sources = le.Problem.of(model, "mse"), (torch.randn(30, 2), torch.randn(30))
    before = fingerprint(model), surroundings()

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        le.respond(problem, sources, progress=interrupt)
    assert (fingerprint(model), surroundings()) == before


def test_the_model_is_read_anew_each_time():
    model, sources = nn.Linear(2, 1), (torch.eye(2), torch.full((2,), 3.0))
    problem = le.Problem.of(model, "half_mse")
    first = le.respond(problem, sources).source_before.clone()
    with torch.no_grad():
        model.weight += 1
    assert torch.allclose(le.respond(problem, sources).source_before, first + 1)


def test_compiled_and_parallel_wrappers_are_looked_through():
    model = nn.Linear(2, 1)
    assert le.Problem.of(torch.compile(model), "mse").model is model
    assert le.Problem.of(nn.DataParallel(model), "mse").model is model


@pytest.mark.usefixtures("racing")
@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "structured", "linearized"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_the_default_device_does_not_matter(engine, activation):
    net = nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 3))
    problem, x, y, x2 = le.Problem.of(net, "cross_entropy"), torch.randn(20, 4), torch.arange(20) % 3, torch.randn(5, 4)
    with torch.device("meta"):
        S = le.relative(le.respond(problem, (x, y), x2, update=le.SGD(0.1), engine=engine), change=le.kl)
        walk = le.respond_in_sequence(problem, (x, y), x2)
        K = le.ntk(problem, x)
    assert S.isfinite().all()
    assert walk.target_change.isfinite().all()
    assert K.isfinite().all()
