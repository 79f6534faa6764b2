"""Images with channels last on CPUs, where torch ends the process in a group norm, or is wrong in a batch norm."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import local_elasticity as le
from tests.oracles.loop import looped_response

LAST = torch.channels_last


def norm_first():
    return nn.Sequential(nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def frozen_stem():
    net = nn.Sequential(nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    net[0].requires_grad_(False)
    return net


def data(layout=torch.contiguous_format):
    return torch.randn(4, 4, 4, 4).to(memory_format=layout), torch.arange(4) % 3


@pytest.mark.parametrize("make", [norm_first, frozen_stem])
def test_channels_last_are_not_tried_there(make):
    net, (x, y) = make(), data()
    exact = le.respond(net, (x, y), loss="cross_entropy", engine="looped").target_change
    assert torch.allclose(le.respond(net, (x, y), loss="cross_entropy").target_change, exact, rtol=1e-3, atol=1e-6)
    with pytest.raises(ValueError, match="engine: torch's group norm ends the process"):
        le.respond(net, (x, y), loss="cross_entropy", engine=le.Looped(channels_last=True))


def batch_norm_first():
    net = nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    nn.init.uniform_(net[0].running_var, 0.5, 2)
    return net.eval()


@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "structured", "linearized"])
@pytest.mark.parametrize("make", [norm_first, frozen_stem])
def test_ones_own_channels_last_are_refused_there(make, engine):
    net, (x, y) = make().to(memory_format=LAST), data(LAST)
    with pytest.raises(ValueError, match="model: torch's group norm ends the process"):
        le.respond(net, (x, y), loss="cross_entropy", engine=engine)
    with pytest.raises(ValueError, match="model: torch's group norm ends the process"):
        le.ntk(net, x)


class Aliased(nn.Module):
    """What is written in place is a copy with channels last, and the tensor itself without."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 6, 3), nn.Linear(6, 3)

    def forward(self, x):
        x = self.conv(x)
        written = nn.functional.relu(x.flatten(1), inplace=True)
        return self.head(x.mean((2, 3))) + written.mean(1, keepdim=True)


@pytest.mark.parametrize("engine", ["auto", "looped", "structured"])
@pytest.mark.parametrize("make", [batch_norm_first, Aliased])
def test_ones_own_channels_last_are_measured(make, engine):
    torch.manual_seed(0)
    net, (x, y) = make().double().to(memory_format=LAST), data(LAST)
    x = x.double()
    found = le.respond(net, (x, y), loss="cross_entropy", engine=engine, update=le.SGD(0.1)).target_change
    exact = looped_response(
        net, nn.functional.cross_entropy, (x, y), x, lambda model: torch.optim.SGD(model.parameters(), lr=0.1)
    )[1]
    assert torch.allclose(found.flatten(), exact.flatten(), rtol=1e-9, atol=1e-12)
    assert x.is_contiguous(memory_format=LAST)


def test_other_norms_take_channels_last():
    net = nn.Sequential(nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    found = le.respond(net, data(), loss="cross_entropy", engine=le.Looped(channels_last=True))
    assert found.target_change.isfinite().all()


def test_a_batch_norm_takes_channels_last():
    net, (x, y) = batch_norm_first().double(), data()
    exact, found = (
        le.respond(net, (x.double(), y), loss="cross_entropy", engine=engine).target_change
        for engine in (le.Looped(), le.Looped(channels_last=True))
    )
    assert torch.allclose(found, exact, rtol=1e-9, atol=1e-14)


def test_torch_still_ends_the_process():
    """If this fails, torch was mended, and the check can go."""
    code = """
import torch
for _ in range(1000):
    x = torch.randn(1, 4, 4, 4).to(memory_format=torch.channels_last)
    torch.nn.GroupNorm(2, 4)(x).sum().backward()
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode < 0
