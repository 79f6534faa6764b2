"""The step of an ordinary training loop: clip, step; and what momentum and decay alone would move, taken off."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import local_elasticity as le
from tests.cases import CASE_OF
from tests.test_engines import assert_same_rows
from tests.test_updates import OPTIMIZERS, trained
from tests.tolerances import RESOLVED_ERROR, SAME_AT_SMALL_STEPS, SAME_IN_FLOAT64


class Lion(torch.optim.Optimizer):
    """A rule of the user's, with a state and a decay of its own."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                direction = (group["betas"][0] * average + (1 - group["betas"][0]) * p.grad).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * direction)
                average.lerp_(p.grad, 1 - group["betas"][1])


LISTED = {
    "momentum": OPTIMIZERS["sgd with momentum"],
    "sgd with everything": OPTIMIZERS["sgd with everything"],
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "plain": OPTIMIZERS["sgd"],
    "adam": OPTIMIZERS["adam"],
    "adamw": OPTIMIZERS["adamw"],
    "rmsprop": OPTIMIZERS["rmsprop"],
    "adagrad": OPTIMIZERS["adagrad"],
    "lion": Lion,
}
OPTIONS = {
    "norm": {"clip_norm": 0.05},
    "a norm that is not reached": {"clip_norm": 1e3},
    "value": {"clip_value": 0.01},
    "both": {"clip_norm": 0.1, "clip_value": 0.02},
    "drift": {"drift": "remove"},
    "all": {"clip_norm": 0.1, "clip_value": 0.02, "drift": "remove"},
}


def one_step_each(case, model, optimizer, *, clip_norm=None, clip_value=None, drift="keep"):
    """Deep-copy model and optimizer, clip, step; from the model, or from a copy that stepped with zero gradients."""

    def after(gradient_of):
        moved, moving = copy.deepcopy((model, optimizer))
        moving.zero_grad()
        gradient_of(moved)
        held = [p for group in moving.param_groups for p in group["params"]]
        if clip_norm is not None:
            clip_grad_norm_(held, clip_norm)
        if clip_value is not None:
            clip_grad_value_(held, clip_value)
        moving.step()
        return case.call(moved, case.targets).detach().flatten(1)

    def zero(moved):
        for p in moved.parameters():
            p.grad = torch.zeros_like(p)

    start = after(zero) if drift == "remove" else case.call(model, case.targets).detach().flatten(1)
    changes = []
    for i in range(case.n):
        x, y = (case.take(part, slice(i, i + 1)) for part in case.sources)
        changes.append(after(lambda moved: case.oracle_loss(case.call(moved, x), y).backward()) - start)  # noqa: B023
    return torch.stack(changes), start


@pytest.mark.usefixtures("racing")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", LISTED)
def test_the_step_is_that_of_the_loop(name, options):
    case, model, optimizer = trained(LISTED[name], 3)
    expected, start = one_step_each(case, model, optimizer, **OPTIONS[options])
    problem, state = le.Problem.of(model, case.loss), copy.deepcopy(optimizer.state_dict())
    update = le.FromOptimizer(optimizer, **OPTIONS[options])
    for engine in ["auto", "looped", "structured", *(["vmapped"] if update.vectorizes else [])]:
        response = le.respond(problem, case.sources, (case.targets, None), update=update, engine=engine)
        assert_same_rows(response.target_change, expected)
        assert torch.allclose(response.target_before, start, rtol=SAME_IN_FLOAT64)
        square = le.respond(problem, case.sources, update=update, engine=engine)
        assert_same_rows(square.source_change, response.source_change)
        assert torch.allclose(square.source_before, response.source_before, rtol=SAME_IN_FLOAT64)
    assert str(optimizer.state_dict()) == str(state)


@pytest.mark.parametrize("name", ["relu net, squared loss", "residual cnn", "language model with tied weights"])
def test_other_networks(name):
    case, model, optimizer = trained(OPTIMIZERS["adamw"], 2, CASE_OF[name])
    options = {"clip_norm": 0.1, "drift": "remove"}
    expected, _ = one_step_each(case, model, optimizer, **options)
    response = le.respond(
        le.Problem.of(model, case.loss, **case.options),
        case.sources,
        (case.targets, None),
        update=le.FromOptimizer(optimizer, **options),
    )
    assert_same_rows(response.target_change, expected)


def test_groups_and_some_of_the_parameters():
    case, model, _ = trained(OPTIMIZERS["sgd"], 0)
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].weight, "lr": 0.01}]
    optimizer = torch.optim.SGD(groups, momentum=0.5, weight_decay=0.1)
    for options in OPTIONS.values():
        expected, _ = one_step_each(case, model, optimizer, **options)
        update = le.FromOptimizer(optimizer, **options)
        assert update.step_sizes == [0.1, 0.01]
        S = le.respond(le.Problem.of(model, case.loss), case.sources, (case.targets, None), update=update)
        assert_same_rows(S.target_change, expected)


def test_minibatches():
    case, model, optimizer = trained(OPTIMIZERS["adam"], 2)
    x, y = (case.take(part, slice(0, 4)) for part in case.sources)
    update = le.FromOptimizer(optimizer, clip_norm=0.05, drift="remove")
    whole = le.respond(
        le.Problem.of(model, case.loss), (x, y), (case.targets, None), update=update, source_batch_size=4
    )
    moved, moving = copy.deepcopy((model, optimizer))
    moving.zero_grad()
    case.oracle_loss(case.call(moved, x), y).backward()
    clip_grad_norm_(moved.parameters(), 0.05)
    moving.step()
    _, start = one_step_each(case, model, optimizer, drift="remove")
    assert_same_rows(whole.target_change[0], moved(case.targets).detach() - start)
    still, standing = copy.deepcopy((model, optimizer))
    for p in still.parameters():
        p.grad = torch.zeros_like(p)
    standing.step()
    assert torch.allclose(whole.source_change[0], (moved(x) - still(x)).detach(), rtol=1e-6)
    assert torch.allclose(whole.source_before[0], still(x).detach())


def test_to_first_order():
    case, model, optimizer = trained(lambda p: torch.optim.Adam(p, lr=1e-7), 3)
    options = {"clip_norm": 0.05, "drift": "remove"}
    expected, _ = one_step_each(case, model, optimizer, **options)
    update = le.FromOptimizer(optimizer, **options)
    response = le.respond(
        le.Problem.of(model, case.loss), case.sources, (case.targets, None), update=update, approximate=True
    )
    assert_same_rows(response.target_change, expected, SAME_AT_SMALL_STEPS)


@pytest.mark.parametrize("rate", [1e-4, 1e-7])
def test_what_is_resolved_in_float32_is_right(rate):
    """The source's part is small beside the drift: rows that rounding hides are computed again."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 3))
    x, y = torch.randn(12, 6), torch.arange(12) % 3
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    update = le.FromOptimizer(optimizer, drift="remove")
    S = le.similarity(net, (x, y), loss="cross_entropy", measure="kl", update=update)
    exact = le.similarity(
        le.Problem.of(net, "cross_entropy").to(torch.float64), (x.double(), y), measure="kl", update=update
    )
    assert S.attrs["unresolved"] == 0
    assert np.nanmax(np.abs(S.values - exact.values) / np.maximum(exact.values, 1)) < RESOLVED_ERROR
    kept = le.similarity(net, (x, y), loss="cross_entropy", measure="kl", update=le.FromOptimizer(optimizer))
    assert np.nanmax(np.abs(kept.values - exact.values)) > 0.1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clip_norm": 0}, "clip_norm: expected a positive, finite number, got 0"),
        ({"clip_value": -1.0}, "clip_value: "),
        ({"clip_value": float("nan")}, "clip_value: "),
        ({"drift": "lose"}, 'drift: expected "keep" or "remove"'),
    ],
)
def test_options_that_are_none(options, words):
    with pytest.raises(ValueError, match=words):
        le.FromOptimizer(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1), **options)


def test_a_store_knows_the_options(tmp_path):
    net, x, y = nn.Linear(4, 3), torch.randn(6, 4), torch.arange(6) % 3
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    call = {"sources": (x, y), "loss": "cross_entropy", "store": tmp_path / "s.zarr"}
    S = le.similarity(net, update=le.FromOptimizer(optimizer, clip_norm=0.1), **call)
    assert "clip_norm=0.1" in S.attrs["update"]
    le.similarity(net, update=le.FromOptimizer(optimizer, clip_norm=0.1), **call)
    with pytest.raises(ValueError, match="update"):
        le.similarity(net, update=le.FromOptimizer(optimizer, clip_norm=0.2), **call)


def test_a_drift_that_differs_between_sources_is_refused():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return torch.cat([(self.a if float(one[0]) > 0 else self.b)(one[None]) for one in x])

    torch.manual_seed(0)
    net, inputs, labels = Experts(), torch.randn(8, 4), torch.arange(8) % 3
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    nn.functional.cross_entropy(net(inputs), labels).backward()
    optimizer.step()
    update = le.FromOptimizer(optimizer, drift="remove")
    with pytest.raises(ValueError, match="reaches other parameters than the first"):
        le.respond(net, (inputs, labels), loss="cross_entropy", update=update)
