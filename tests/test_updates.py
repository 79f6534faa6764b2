"""The live optimizer: the step measured is the step that optimizer.step() would take on a deep copy."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import local_elasticity as le
from tests.cases import CASE_OF, CASES
from tests.test_engines import assert_same_rows
from tests.tolerances import SAME_IN_FLOAT64

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd with momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "sgd with everything": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "nesterov, maximized": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, betas=(0.8, 0.95), weight_decay=0.1),
    "adam, amsgrad, maximized": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True, maximize=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3),
}


def trained(make_optimizer, steps, case=CASE_OF["tanh net, three outputs"]):
    """A case whose optimizer has lived through some steps."""
    model = copy.deepcopy(case.model).eval()
    optimizer = make_optimizer(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        case.oracle_loss(case.call(model, case.sources[0]), case.sources[1]).backward()
        optimizer.step()
    return case, model, optimizer


def one_step_each(case, model, optimizer):
    """Deep-copy model and optimizer together, step the copies on each source."""
    changes = []
    for i in range(case.n):
        x, y = (case.take(part, slice(i, i + 1)) for part in case.sources)
        moved, moving = copy.deepcopy((model, optimizer))
        moving.zero_grad()
        case.oracle_loss(case.call(moved, x), y).backward()
        moving.step()
        changes.append((case.call(moved, case.targets) - case.call(model, case.targets)).detach().flatten(1))
    return torch.stack(changes)


@pytest.mark.usefixtures("racing")
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_live_optimizer_steps_as_it_would(name, steps):
    case, model, optimizer = trained(OPTIMIZERS[name], steps)
    expected = one_step_each(case, model, optimizer)
    problem = le.Problem.of(model, case.loss)
    state = copy.deepcopy(optimizer.state_dict())
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    update = le.FromOptimizer(optimizer)
    engines = ["auto", "looped", "vmapped"] if update.vectorizes else ["auto", "looped"]
    for engine in engines:
        response = le.respond(problem, case.sources, (case.targets, None), update=update, engine=engine)
        assert_same_rows(response.target_change, expected)
    assert _same(optimizer.state_dict(), state)
    assert all((p.grad is None) == (g is None) for p, g in zip(model.parameters(), gradients, strict=True))
    assert all(g is None or torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", ["sgd with everything", "adamw", "rmsprop"])
def test_the_live_optimizer_steps_as_it_would_in_every_case(name, case):
    case, model, optimizer = trained(OPTIMIZERS[name], 2, case)
    problem = le.Problem.of(model, case.loss, **case.options)
    update = le.FromOptimizer(optimizer)
    response = le.respond(problem, case.sources, (case.targets, None), update=update, engine="looped")
    assert_same_rows(response.target_change, one_step_each(case, model, optimizer))


def test_groups_have_step_sizes_of_their_own_and_others_do_not_move():
    case, model, _ = trained(OPTIMIZERS["sgd"], 0)
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.01}]
    optimizer = torch.optim.SGD(groups, momentum=0.5)
    update = le.FromOptimizer(optimizer)
    response = le.respond(le.Problem.of(model, case.loss), case.sources, (case.targets, None), update=update)
    assert_same_rows(response.target_change, one_step_each(case, model, optimizer))
    assert torch.isnan(response.step_size).all()


def test_a_wrapped_optimizer_is_unwrapped():
    model = nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.5)
    wrapper = type("AcceleratedOptimizer", (), {"optimizer": inner})()
    assert le.FromOptimizer(wrapper).step_size == 0.5


@pytest.mark.usefixtures("racing")
@pytest.mark.parametrize("name", ["sgd", "adamw", "rmsprop"])
def test_a_step_of_zero_resolves_nothing_and_is_no_error(name):
    """Where a warm-up begins at 0, a probe has nothing to say, and the next one says it."""
    case, model, optimizer = trained(OPTIMIZERS[name], 1)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: epoch / 4)
    update = le.FromOptimizer(optimizer)
    monitor = le.Monitor(le.Problem.of(model, case.loss), case.sources, update=update, every=1, budget=None)
    for step in range(2):
        monitor.probe(step)
        optimizer.step()
        warm_up.step()
    first, second = (probe.similarity["relative"] for probe in monitor.history)
    assert np.isnan(first).all()
    assert np.isfinite(second).all()
    unresolved = monitor.frame().groupby("step").unresolved.agg(["min", "max"])
    assert unresolved.to_numpy().tolist() == [[1, 1], [0, 0]]


def test_plain_is_said_of_plain_sgd_only():
    model = nn.Linear(2, 1)
    plain = {name: le.FromOptimizer(make(model.parameters())).plain for name, make in OPTIMIZERS.items()}
    assert [name for name, is_plain in plain.items() if is_plain] == ["sgd"]
    assert le.SGD(0.1).plain
    assert not le.SGD(0.1, weight_decay=0.1).plain
    assert not le.Adam(0.1).plain


def test_other_rules_run_in_float64_too():
    """A rule that only a deep copy knows is stepped in the precision that is asked for."""
    case, model, optimizer = trained(OPTIMIZERS["rmsprop"], 2)
    expected = one_step_each(case, model, optimizer)
    low = copy.deepcopy(model).float()
    low_optimizer = torch.optim.RMSprop(low.parameters(), lr=1e-3, momentum=0.5)
    low_optimizer.load_state_dict(optimizer.state_dict())
    problem = le.Problem.of(low, case.loss).to(torch.float64)
    response = le.respond(problem, case.sources, (case.targets, None), update=le.FromOptimizer(low_optimizer))
    assert_same_rows(response.target_change, expected, 1e-4)


def test_what_cannot_be_measured_is_refused():
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match="LBFGS"):
        le.FromOptimizer(torch.optim.LBFGS(model.parameters()))
    with pytest.raises(TypeError, match="optimizer"):
        le.FromOptimizer("adam")
    other = le.FromOptimizer(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1))
    with pytest.raises(ValueError, match="none of the parameters"):
        le.respond(le.Problem.of(model, "mse"), (torch.ones(2, 2), torch.ones(2)), update=other)
    slow = le.FromOptimizer(torch.optim.Adagrad(model.parameters()))
    with pytest.raises(ValueError, match="Looped"):
        le.respond(le.Problem.of(model, "mse"), (torch.ones(2, 2), torch.ones(2)), update=slow, engine="vmapped")


class NeedsClosure(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    def step(self, closure):
        return closure()


def test_an_optimizer_that_needs_a_closure_is_refused():
    model = nn.Linear(2, 1)
    update = le.FromOptimizer(NeedsClosure(model.parameters()))
    with pytest.raises(ValueError, match="gradient alone"):
        le.respond(le.Problem.of(model, "mse"), (torch.ones(2, 2), torch.ones(2)), update=update)


def test_fresh_adam_is_nearly_the_sign():
    model = nn.Linear(3, 1, bias=False).double()
    x = torch.tensor([[1.0, -2.0, 3.0]]).double()
    response = le.respond(le.Problem.of(model, "half_mse"), (x, torch.full((1,), 50.0)), update=le.Adam(1e-3))
    assert abs(response.source_change.item() - 1e-3 * 6) < SAME_IN_FLOAT64


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("step_size", [0, -1e-3, float("nan"), float("inf"), "fast", True])
@pytest.mark.parametrize("rule", [le.SGD, le.Adam])
def test_step_sizes_are_positive_and_finite(rule, step_size):
    with pytest.raises(ValueError, match="step_size"):
        rule(step_size)
    with pytest.raises(ValueError, match="weight_decay: expected a finite number, zero or more"):
        rule(1e-3, weight_decay="a")


@pytest.mark.usefixtures("unchecked")
def test_a_step_size_may_be_a_number_of_numpy():
    assert le.SGD(np.float32(0.5)) == le.SGD(0.5)
    assert isinstance(le.Adam(np.float32(0.5)).step_size, float)


def _same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: le.SGD(lr=0.1), r"lr: le.SGD calls it step_size; write le.SGD\(step_size=0.1\)"),
        (lambda: le.SGD(0.1, momentum=0.9), r"momentum: .* wrap it: le.FromOptimizer\(torch.optim.SGD\(model"),
        (lambda: le.Adam(1e-3, betas=(0.9, 0.99)), "betas: le.Adam takes step_size, eps, weight_decay"),
        (lambda: le.SGD(), r"step_size: expected le.SGD\(step_size, weight_decay\)"),
        (lambda: le.Adam(1e-3, 1e-8, 0.0, 1), "step_size: expected le.Adam"),
    ],
)
def test_options_of_torch_are_answered_with_ours(make, words):
    with pytest.raises(TypeError, match=words):
        make()
