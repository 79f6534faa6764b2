"""Sources at which rounding decides a unit: their rows are computed in float64, or not called resolved."""

import copy

import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.engine import linearized
from local_elasticity.engine.job import Job
from local_elasticity.engine.near_ties import GRADIENT_ERROR, decided_by_rounding


def offset_net(act, seed=0):
    """Units that read differences of inputs, which are far from 0 and near each other."""
    torch.manual_seed(seed)
    first = nn.Linear(8, 16)
    with torch.no_grad():
        first.weight -= first.weight.mean(1, keepdim=True)
        first.bias.zero_()
    return nn.Sequential(first, act(), nn.Linear(16, 3))


def gradient_errors(net, x, y):
    """Of each source, in float32 against float64."""

    def gradient(net, x, y):
        loss = nn.functional.cross_entropy(net(x), y)
        return torch.cat([g.flatten().double() for g in torch.autograd.grad(loss, list(net.parameters()))])

    fine = copy.deepcopy(net).double()
    pairs = [
        (gradient(net, x[i : i + 1], y[i : i + 1]), gradient(fine, x[i : i + 1].double(), y[i : i + 1]))
        for i in range(len(x))
    ]
    return torch.stack([(a - b).norm() / b.norm() for a, b in pairs])


@pytest.mark.parametrize(
    "act", [nn.ReLU, lambda: nn.ReLU(inplace=True), nn.LeakyReLU, lambda: nn.Hardtanh(-1e-3, 1e-3), nn.PReLU]
)
def test_gradients_that_rounding_decides_are_found(act):
    net, y = offset_net(act), torch.arange(200) % 3
    x = 1000 + 1e-3 * torch.randn(200, 8)
    wrong = gradient_errors(net, x, y) > 5 * GRADIENT_ERROR
    assert wrong.any()
    with le.Problem.of(net, "cross_entropy").bound() as bound:
        found = decided_by_rounding(Job.read(bound, (x, y), None, le.SGD(0.1)))
        scaled = decided_by_rounding(Job.read(bound, (x[:20] - 1000, y[:20]), None, le.SGD(0.1)))
    assert found[wrong].all()
    assert scaled is None


class Offset(nn.Module):
    """Loses digits of its input."""

    def forward(self, x):
        return (x + 1e3) - 1e3


def test_maxima_that_rounding_decides_are_found():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), Offset(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(324, 3))
    x, y = torch.randn(400, 1, 20, 20), torch.arange(400) % 3
    wrong = gradient_errors(net, x, y) > 5 * GRADIENT_ERROR
    assert wrong.any()
    with le.Problem.of(net, "cross_entropy").bound() as bound:
        found = decided_by_rounding(Job.read(bound, (x, y), None, le.SGD(0.1)))
    assert found[wrong].all()


def normed(channels_last, seed):
    torch.manual_seed(seed)
    net = nn.Sequential(
        *(nn.Conv2d(3, 16, 3), nn.GroupNorm(16, 16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1)),
        *(nn.GroupNorm(16, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)),
    )
    x = 30 + torch.randn(32, 3, 12, 12)
    if channels_last:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    return net, x, torch.arange(32) % 4


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("engine", ["auto", "looped", "structured", le.Looped(channels_last=True)], ids=str)
def test_group_norms_of_unscaled_images_keep_the_promise(engine, channels_last):
    """torch's kernel loses more digits where channels come last."""
    for seed in range(3):
        net, x, y = normed(channels_last, seed)
        expected = exact_similarity(net, x, y)
        S = le.relative(le.respond(net, (x, y), loss="cross_entropy", update=le.SGD(0.1), engine=engine)).double()
        known = S.isfinite()
        assert bool((((S - expected).abs() / expected.clamp_min(1))[known] < 0.01).all())
        assert known.any() or engine != "auto"


def exact_similarity(net, x, y):
    fine, x = copy.deepcopy(net).double().to(memory_format=torch.contiguous_format), x.double().contiguous()
    response = le.respond(fine, (x, y), loss="cross_entropy", update=le.SGD(0.1), engine="looped")
    return le.relative(response)


class Written(nn.Module):
    """A function in the place of a layer."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def groups(x):
    return x.view(len(x), -1, 4)


WRITTEN = {
    "maximum": lambda x: torch.maximum(torch.zeros(()).to(x), x),
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "product": lambda x: x * (x > 0),
    "rrelu": nn.functional.rrelu,
    "fmax": lambda x: torch.fmax(x, torch.zeros(()).to(x)),
    "softshrink": lambda x: nn.functional.softshrink(x, 1e-3),
    "elu": lambda x: nn.functional.elu(x, 2.0),
    "topk": lambda x: groups(x).topk(1, -1)[0].flatten(1).repeat(1, 4),
    "sort": lambda x: groups(x).sort(-1)[0][:, :, 1:3].flatten(1).repeat(1, 2),
    "max": lambda x: groups(x).max(-1)[0].repeat(1, 4),
    "amax": lambda x: groups(x).amax(-1).repeat(1, 4),
    "clamp": lambda x: x.clamp(min=torch.zeros(16).to(x)),
    "adaptive pool": lambda x: nn.functional.adaptive_max_pool1d(x, 4).repeat(1, 4),
    "adaptive pool in 2d": lambda x: nn.functional.adaptive_max_pool2d(groups(x), (4, 1)).flatten(1).repeat(1, 4),
    "pool": lambda x: nn.functional.max_pool1d(x, 3, 2, ceil_mode=True).repeat(1, 2),
    "sum of magnitudes": lambda x: groups(x).norm(1, dim=-1).repeat(1, 4),
    "largest magnitude": lambda x: groups(x).norm(torch.inf, dim=-1).repeat(1, 4),
    "argmax": lambda x: nn.functional.one_hot(groups(x).argmax(-1), 4).flatten(1) * x,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_units_that_are_written_otherwise_are_found(name):
    net, y = offset_net(lambda: Written(WRITTEN[name])).eval(), torch.arange(200) % 3
    x = 1000 + 1e-3 * torch.randn(200, 8)
    wrong = gradient_errors(net, x, y) > 5 * GRADIENT_ERROR
    assert wrong.any()
    with le.Problem.of(net, "cross_entropy").bound() as bound:
        found = decided_by_rounding(Job.read(bound, (x, y), None, le.SGD(0.1)))
    assert found[wrong].all()


class TimeFirst(nn.Module):
    """Its layers see [time, examples, features]."""

    def __init__(self):
        super().__init__()
        self.first, _, self.last = offset_net(nn.ReLU, seed=3)

    def forward(self, x):
        return self.last(self.first(x.transpose(0, 1)).relu()[-1])


def test_the_axis_of_examples_is_not_guessed():
    """Also where there are as many steps of time as examples."""
    net, x, y = TimeFirst(), 1000 + 1e-3 * torch.randn(24, 24, 8), torch.arange(24) % 3
    wrong = gradient_errors(net, x, y) > 5 * GRADIENT_ERROR
    assert wrong.any()
    with le.Problem.of(net, "cross_entropy").bound() as bound:
        found = decided_by_rounding(Job.read(bound, (x, y), None, le.SGD(0.1)))
    assert found[wrong].all()


def with_a_far_column():
    torch.manual_seed(1)
    net, x = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3)), torch.randn(300, 8)
    x[:, 0] = 2e4 + 5 * torch.randn(300)
    with torch.no_grad():
        net[0].bias -= net[0].weight[:, 0] * 2e4
    return net, x


def with_a_few_far_examples():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)), torch.randn(3000, 8)
    with torch.no_grad():
        net[0].weight -= net[0].weight.mean(1, keepdim=True)
        net[0].bias.zero_()
    x[::10] += 1e5
    return net, x


@pytest.mark.parametrize("made", [with_a_far_column, with_a_few_far_examples])
def test_inputs_far_from_zero_need_not_be_all(made):
    net, x = made()
    y = torch.arange(len(x)) % 3
    wrong = gradient_errors(net, x, y) > 5 * GRADIENT_ERROR
    assert wrong.any()
    with le.Problem.of(net, "cross_entropy").bound() as bound:
        found = decided_by_rounding(Job.read(bound, (x, y), None, le.SGD(0.1)))
    assert found[wrong].all()


@pytest.mark.parametrize("engine", ["structured", "auto"])
@pytest.mark.parametrize(("offset", "seed"), [(1000.0, 0), (1000.0, 2), (100.0, 1)])
def test_small_steps_take_the_right_side_at_targets(engine, offset, seed):
    """A step that moves a unit less than it is rounded."""
    torch.manual_seed(seed)
    x, y = offset + torch.randn(3000, 8), torch.arange(3000) % 3
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        net[0].weight -= net[0].weight.mean(1, keepdim=True)
        net[0].bias.uniform_(-0.3, 0.3)
    problem, sources, update = le.Problem.of(net, "cross_entropy"), (x[:20], y[:20]), le.SGD(1e-9)
    exact = le.relative(le.respond(problem.to(torch.float64), sources, x, update=update, engine="looped"))
    for _ in range(2):  # auto may time another engine in its second call
        S = le.relative(le.respond(problem, sources, x, update=update, engine=engine)).double()
        known = S.isfinite()
        assert known.all()
        assert bool((((S - exact).abs() / exact.clamp_min(1))[known] < 0.01).all())


def test_rows_of_the_limit_are_computed_again_as_they_were(monkeypatch):
    """With many outputs by differences: Jacobians would take a backward pass for each output, in float64."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.LeakyReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.LeakyReLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(8, 2, 1)),
    )
    sources = torch.randn(60, 1, 16, 16), torch.randint(0, 2, (60, 8, 8))
    problem = le.Problem.of(net, "cross_entropy")
    step = {"update": le.SGD(1e-4), "engine": "linearized"}
    exact = le.respond(problem.to(torch.float64), sources, **step).target_change
    monkeypatch.setattr(linearized, "LinearizedRunner", None)
    found = le.respond(problem, sources, **step)
    assert any("computed again in float64" in note for note in found.notes)
    error = (found.target_change - exact).flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)
    assert error.max() < 0.01
