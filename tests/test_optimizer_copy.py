"""Steps of a live optimizer on a copy: small displacements keep their digits, and rounding that remains is counted."""

import copy
import itertools

import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.engine.optimizer_copy import OptimizerCopy
from tests.tolerances import RESOLVED_ERROR

optim = torch.optim
KINDS = {
    "sgd": (optim.SGD, {"momentum": 0.9, "weight_decay": 1e-2}),
    "asgd": (optim.ASGD, {}),
    "adam": (optim.Adam, {}),
    "adamw": (optim.AdamW, {}),
    "adamax": (optim.Adamax, {}),
    "nadam": (optim.NAdam, {}),
    "radam": (optim.RAdam, {}),
    "adagrad": (optim.Adagrad, {}),
    "adadelta": (optim.Adadelta, {}),
    "adafactor": (optim.Adafactor, {}),
    "rmsprop": (optim.RMSprop, {}),
    "rmsprop, centered": (optim.RMSprop, {"centered": True, "momentum": 0.5}),
    "rprop": (optim.Rprop, {"step_sizes": (1e-9, 1.0)}),
}


def trained(make, rate):
    """A net with large weights whose optimizer has taken some steps, and then has a small learning rate."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3))
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(3)
    optimizer = make(net.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(torch.randn(32, 5)), torch.randint(3, (32,))).backward()
        optimizer.step()
    optimizer.zero_grad()
    for group in optimizer.param_groups:
        group["lr"] = rate
    for state in optimizer.state.values():
        if "step_size" in state:  # Rprop's own
            state["step_size"].fill_(rate)
    return net, optimizer


def oracle(net, optimizer, x, y, clip_norm=None):
    """S_rel from deep copies in float64, one for every source."""
    rows = []
    for i in range(len(x)):
        moved, moving = copy.deepcopy((net, optimizer))
        for group in moving.param_groups:
            if isinstance(moving, optim.Adafactor):
                group["eps"] = (torch.finfo(torch.float32).eps, group["eps"][1])
        moved.double()
        for state in moving.state.values():
            floating = [k for k, v in state.items() if isinstance(v, torch.Tensor) and v.ndim and v.is_floating_point()]
            state.update({key: state[key].double() for key in floating})
        before = moved(x.double()).detach()
        nn.functional.cross_entropy(moved(x[i, None].double()), y[i, None]).backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(moved.parameters(), clip_norm)
        moving.step()
        rows.append((moved(x.double()).detach() - before).norm(dim=1))
    change = torch.stack(rows)
    return change / change.diagonal()[:, None]


@pytest.mark.parametrize("clip_norm", [None, 1e-4])
@pytest.mark.parametrize("rate", [1e-4, 1e-7])
@pytest.mark.parametrize("name", KINDS)
def test_small_steps_of_every_optimizer_keep_their_digits(name, rate, clip_norm):
    kind, options = KINDS[name]
    net, optimizer = trained(lambda params: kind(params, lr=1e-3, **options), rate)
    x, y = torch.randn(6, 5), torch.arange(6) % 3
    truth = oracle(net, optimizer, x, y, clip_norm)
    update = le.FromOptimizer(optimizer, clip_norm=clip_norm)
    S = le.relative(le.respond(le.Problem.of(net, "cross_entropy"), (x, y), update=update, engine="structured"))
    known = S.isfinite()
    assert known.any()
    assert ((S.double() - truth).abs() <= RESOLVED_ERROR * truth)[known].all()


@pytest.mark.parametrize("rate", [1e-14, 1e-17, 1e-18])
def test_the_rounding_of_the_copys_weights_counts(rate):
    """A step of 1e-17 is a unit in the last place of weights of 0.1 in float64."""
    torch.manual_seed(0)
    net, x, y = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3)), torch.randn(6, 8), torch.arange(6) % 3

    def measured(rate):
        update = le.FromOptimizer(optim.RMSprop(net.parameters(), lr=rate))
        return le.relative(le.respond(net, (x, y), loss="cross_entropy", update=update)).double()

    truth, found = measured(1e-8), measured(rate)  # ratios of small steps are those of the limit
    known = found.isfinite()
    assert ((found - truth).abs() <= RESOLVED_ERROR * truth.clamp_min(1))[known].all()
    assert known.all() or rate < 1e-14


class InFloat32(optim.Optimizer):
    """Refuses other precisions, or accepts them and computes in float32."""

    def __init__(self, params, lr, refuses):
        super().__init__(params, {"lr": lr})
        self.refuses = refuses

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                assert p.dtype == torch.float32 or not self.refuses, "float32 only"
                p.copy_(p.float() - group["lr"] * p.grad.float().sign())


@pytest.mark.parametrize("engine", ["structured", "looped", "auto"])
@pytest.mark.parametrize("refuses", [True, False])
def test_rounding_by_an_optimizer_that_insists_on_float32_is_not_called_resolved(refuses, engine):
    found = {}
    for rate in (1e-2, 1e-7):
        net, optimizer = trained(lambda params: InFloat32(params, 1e-3, refuses), rate)
        x, y = torch.randn(6, 5), torch.arange(6) % 3
        exact = copy.deepcopy(net).double()
        change = []
        for i in range(len(x)):
            moved = copy.deepcopy(exact)
            nn.functional.cross_entropy(moved(x[i, None].double()), y[i, None]).backward()
            with torch.no_grad():
                for p in moved.parameters():
                    p -= rate * p.grad.sign()
                change.append((moved(x.double()) - exact(x.double())).norm(dim=1))
        truth = torch.stack(change) / torch.stack(change).diagonal()[:, None]
        problem = le.Problem.of(net, "cross_entropy")
        S = le.relative(le.respond(problem, (x, y), update=le.FromOptimizer(optimizer), engine=engine)).double()
        known = found[rate] = S.isfinite()
        assert ((S - truth).abs() <= RESOLVED_ERROR * truth.clamp_min(1))[known].all()
    assert found[1e-2].all()
    assert not found[1e-7].any()


def test_the_precision_of_a_copy():
    net = nn.Linear(3, 2)
    places = {"weight": (0, 0), "bias": (0, 1)}
    fine = OptimizerCopy.of(optim.RMSprop(net.parameters(), lr=1e-3), places)
    strict = OptimizerCopy.of(InFloat32(net.parameters(), 1e-3, True), places)
    coarse = OptimizerCopy.of(InFloat32(net.parameters(), 1e-3, False), places)
    assert (fine.dtype, fine.unit) == (torch.float64, torch.finfo(torch.float64).eps)
    assert (strict.dtype, strict.unit) == (torch.float32, torch.finfo(torch.float32).eps)
    assert (coarse.dtype, coarse.unit) == (torch.float64, torch.finfo(torch.float32).eps)
    assert all(p.dtype == torch.float32 for p in net.parameters())


def test_adafactor_keeps_the_constant_of_its_own_precision():
    """Its ε depends on the precision of the parameters; gradients below it are where that shows."""
    torch.manual_seed(0)
    net, x = nn.Linear(4, 1, bias=False), 1e-9 * torch.randn(3, 4)
    optimizer = optim.Adafactor(net.parameters(), lr=1e-2)
    response = le.respond(
        le.Problem.of(net, "half_mse"), (x, torch.ones(3)), torch.eye(4), update=le.FromOptimizer(optimizer)
    )
    for i in range(len(x)):
        moved, moving = copy.deepcopy((net, optimizer))
        (0.5 * (moved(x[i, None]) - 1) ** 2).sum().backward()
        moving.step()
        expected = (moved.weight - net.weight)[0].detach()
        assert torch.allclose(response.target_change[i, :, 0].float(), expected, rtol=1e-2, atol=0)


class Flat(optim.Optimizer):
    """Updates one buffer, of which the parameters are views. Weight decay is for matrices alone."""

    def __init__(self, params, lr, momentum):
        super().__init__(params, {"lr": lr, "decay": 0.01})
        held = self.param_groups[0]["params"]
        self.buffer, self.momentum = torch.cat([p.detach().flatten() for p in held]), momentum
        self.velocity, ends = torch.zeros_like(self.buffer), itertools.accumulate(p.numel() for p in held)
        for p, end in zip(held, ends, strict=True):
            p.data = self.buffer[end - p.numel() : end].view_as(p)

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        for p in group["params"]:
            if p.ndim > 1:
                p.mul_(1 - group["lr"] * group["decay"])
        self.velocity.mul_(self.momentum).add_(torch.cat([p.grad.flatten() for p in group["params"]]))
        self.buffer.sub_(group["lr"] * self.velocity)


class FlatGradients(Flat):
    """Reads one buffer of gradients, too."""

    def __init__(self, params, lr, momentum):
        super().__init__(params, lr, momentum)
        held = self.param_groups[0]["params"]
        self.gradients = torch.zeros_like(self.buffer)
        for p, end in zip(held, itertools.accumulate(p.numel() for p in held), strict=True):
            p.grad = self.gradients[end - p.numel() : end].view_as(p)


def flat_net(kind, seed, momentum=0.9):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    return net, kind(net.parameters(), 0.1, momentum)


@pytest.mark.parametrize("engine", ["looped", "structured"])
@pytest.mark.parametrize("momentum", [0, 0.9])
def test_parameters_that_are_views_of_a_buffer_of_the_optimizer(momentum, engine):
    def trained(seed):
        net, optimizer = flat_net(Flat, seed, momentum)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        optimizer.zero_grad()
        return net, optimizer

    for seed in range(12):
        torch.manual_seed(seed)
        x, y = torch.randn(4, 5).double(), torch.arange(4) % 3
        net, optimizer = trained(seed)
        buffer, weights = optimizer.buffer.clone(), [p.detach().clone() for p in net.parameters()]
        update = le.FromOptimizer(optimizer)
        found = le.respond(net, (x, y), loss="cross_entropy", update=update, engine=engine).target_change
        assert torch.equal(optimizer.buffer, buffer)
        assert all(map(torch.equal, net.parameters(), weights))
        for i in range(4):
            moved, moving = trained(seed)
            nn.functional.cross_entropy(moved(x[i, None]), y[i, None]).backward()
            moving.step()
            assert torch.allclose(found[i], (moved(x) - net(x)).detach(), rtol=1e-9, atol=1e-12)


def test_gradients_that_are_views_of_a_buffer_of_the_optimizer_are_refused():
    net, optimizer = flat_net(FlatGradients, 0)
    data = torch.randn(4, 5).double(), torch.arange(4) % 3
    with pytest.raises(ValueError, match="^optimizer: FlatGradients holds a buffer of which gradients are views"):
        le.respond(net, data, loss="cross_entropy", update=le.FromOptimizer(optimizer))


def test_the_rounding_of_a_buffer_in_float32_counts():
    for rate in (0.1, 1e-7):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
        x, y, exact = torch.randn(4, 5), torch.arange(4) % 3, copy.deepcopy(net).double()
        optimizer = Flat(net.parameters(), rate, 0)
        optimizer.param_groups[0]["decay"] = 0
        S = le.relative(le.respond(net, (x, y), loss="cross_entropy", update=le.FromOptimizer(optimizer))).double()
        truth = le.relative(le.respond(exact, (x.double(), y), loss="cross_entropy", update=le.SGD(rate)))
        known = S.isfinite()
        assert ((S - truth).abs() <= RESOLVED_ERROR * truth.clamp_min(1))[known].all()
        assert known.all() == (rate == 0.1)
