"""Sources at which rounding decides a unit: their rows are computed in float64, or not called resolved."""

import copy

import pytest
import torch
from torch import nn

import local_elasticity as le
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
