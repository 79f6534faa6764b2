"""Walks: each step from where the last one ended, equal to a copy of the model that torch.optim really moves."""

import copy

import pytest
import torch
from torch import nn

import local_elasticity as le
from tests.test_engines import assert_same_rows

NETS = {
    "two layers": (lambda: le.models.fnn(4, width=12), "half_mse"),
    "two layers, several outputs": (lambda: le.models.fnn(4, 3, width=12), "cross_entropy"),
    "two layers, sigmoid": (lambda: le.models.fnn(4, width=12, probability=True), "bce"),
    "two linear layers": (lambda: le.models.fnn(4, width=12, activation="linear"), "half_mse"),
    "three layers": (lambda: le.models.fnn(4, 3, width=12, layers=3), "cross_entropy"),
    "with norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)), "mse"),
}


def really_walked(problem, net, x, y, x2, rate, decay=0.0):
    moving = copy.deepcopy(net).eval()
    optimizer = torch.optim.SGD(moving.parameters(), lr=rate, weight_decay=decay)
    before, source, target = [], [], []
    for one, label in zip(x, y, strict=True):
        with torch.no_grad():
            was, own = moving(x2), moving(one[None])
        optimizer.zero_grad()
        problem.loss(moving(one[None]), label[None]).backward()
        optimizer.step()
        with torch.no_grad():
            before.append(was)
            source.append((moving(one[None]) - own)[0])
            target.append(moving(x2) - was)
    return torch.stack(before), torch.stack(source), torch.stack(target)


def labels_for(loss, n, outputs):
    if loss == "cross_entropy":
        return torch.arange(n) % outputs
    return torch.rand(n, outputs).double() if loss == "bce" else torch.randn(n, outputs).double()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("step_size", [1e-3, 0.1])
def test_a_walk_is_what_sgd_does(name, step_size):
    make, loss = NETS[name]
    net = make().double()
    problem = le.Problem.of(net, loss)
    x, x2 = torch.randn(9, 4).double(), torch.randn(5, 4).double()
    y = labels_for(loss, 9, net.eval()(x).shape[1])
    before, source, target = really_walked(problem, net, x, y, x2, step_size)
    weights = copy.deepcopy(net.state_dict())
    walk = le.respond_in_sequence(problem, (x, y), x2, update=le.SGD(step_size))
    assert walk.engine == ("sequential, two layers" if "two" in name else "sequential, looped")
    assert torch.allclose(walk.target_before, before)
    assert_same_rows(walk.target_change, target)
    assert_same_rows(walk.source_change, source)
    assert all(torch.equal(weights[key], value) for key, value in net.state_dict().items())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(torch.relu(self.layer(x)))


class Sorted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x).sort(1)[0]))


@pytest.mark.parametrize("make", [Tied, Sorted])
def test_what_only_looks_like_two_layers_is_walked_plainly(make):
    net = make().double()
    problem = le.Problem.of(net, "half_mse")
    x, x2 = torch.randn(7, 4).double(), torch.randn(5, 4).double()
    y = labels_for("half_mse", 7, net(x).shape[1])
    walk = le.respond_in_sequence(problem, (x, y), x2, update=le.SGD(0.1))
    assert walk.engine == "sequential, looped"
    assert_same_rows(walk.target_change, really_walked(problem, net, x, y, x2, 0.1)[2])
    assert_same_rows(
        le.respond(problem, (x, y), x2).target_change, le.respond(problem, (x, y), x2, engine="looped").target_change
    )


@pytest.mark.parametrize("name", ["two layers", "three layers"])
def test_only_recorded_steps_become_rows(name):
    """Algorithm 1: auxiliary examples move the weights and are not recorded."""
    make, loss = NETS[name]
    net = make().double()
    problem = le.Problem.of(net, loss)
    x, x2 = torch.randn(8, 4).double(), torch.randn(5, 4).double()
    y = labels_for(loss, 8, net(x).shape[1])
    record = torch.tensor([True, False, False, True, True, False, True, False])
    all_steps = le.respond_in_sequence(problem, (x, y), x2, update=le.SGD(0.2))
    seen = []
    some = le.respond_in_sequence(
        problem, (x, y), x2, update=le.SGD(0.2), record=record, progress=lambda done, total: seen.append((done, total))
    )
    assert torch.allclose(some.target_change, all_steps.target_change[record])
    assert torch.allclose(some.target_before, all_steps.target_before[record])
    assert torch.allclose(some.source_before, all_steps.source_before[record])
    assert seen[-1] == (8, 8)


def test_measures_read_a_walk():
    net = le.models.fnn(4, 3, width=12).double()
    x, y = torch.randn(6, 4).double(), torch.arange(6) % 3
    walk = le.respond_in_sequence(le.Problem.of(net, "cross_entropy"), (x, y), x, update=le.SGD(0.1))
    rows = torch.arange(6)
    for S in (
        le.relative(walk),
        le.relative(walk, change=le.kl),
        le.relative(walk.as_probabilities(), change=le.manhattan),
    ):
        assert S.shape == (6, 6)
        assert torch.allclose(S[rows, rows], torch.ones(6).double())
    assert le.kernel(walk).shape == (6, 6)


def test_small_walks_are_like_standing_still():
    """The sequential and the frozen protocol differ little where steps are small."""
    net = le.models.fnn(4, width=64).double()
    problem = le.Problem.of(net, "half_mse")
    x, y = torch.randn(20, 4).double(), torch.ones(20).double()
    frozen = le.relative(le.respond(problem, (x, y), update=le.SGD(1e-6)))
    walked = le.relative(le.respond_in_sequence(problem, (x, y), x, update=le.SGD(1e-6)))
    assert (frozen - walked).abs().max() < 1.4e-3


def test_float32_walks_of_two_layers_do_not_drown():
    net = le.models.fnn(16, width=512)
    x, y = torch.randn(20, 16), torch.randn(20)
    problem = le.Problem.of(net, "half_mse")
    S = le.relative(le.respond_in_sequence(problem, (x, y), x, update=le.SGD(1e-7)))
    truth = le.relative(le.respond_in_sequence(problem.to(torch.float64), (x, y), x, update=le.SGD(1e-7)))
    assert (S.double() - truth).abs().max() < 1e-4
    deep = le.Problem.of(le.models.fnn(16, width=64, layers=3), "half_mse")
    assert le.relative(le.respond_in_sequence(deep, (x, y), x, update=le.SGD(1e-9))).isnan().all()


@pytest.mark.usefixtures("unchecked")
def test_bad_walks_are_refused():
    problem = le.Problem.of(nn.Linear(3, 1), "mse")
    x, y = torch.randn(4, 3), torch.randn(4)
    with pytest.raises(ValueError, match="update: a walk takes steps of le.SGD"):
        le.respond_in_sequence(problem, (x, y), x, update=le.Adam(1e-3))
    for record in ([True], [False] * 4):
        with pytest.raises(ValueError, match="record"):
            le.respond_in_sequence(problem, (x, y), x, record=record)
