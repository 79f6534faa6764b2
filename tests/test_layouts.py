"""Images with channels last on CPUs, where torch ends the process in a group norm, or is wrong in a batch norm."""

import copy
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import local_elasticity as le
from local_elasticity.engine.replica import Effects
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


class Aliased(nn.Module):
    """What is written in place is a copy with channels last, and the tensor itself without."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(4, 6, 3), nn.Linear(6, 3)

    def forward(self, x):
        x = self.conv(x)
        written = F.relu(x.flatten(1), inplace=True)
        return self.head(x.mean((2, 3))) + written.mean(1, keepdim=True)


@pytest.mark.parametrize("engine", ["auto", "looped", "structured"])
@pytest.mark.parametrize("make", [batch_norm_first, Aliased])
def test_ones_own_channels_last_are_measured(make, engine):
    torch.manual_seed(0)
    net, (x, y) = make().double().to(memory_format=LAST), data(LAST)
    x = x.double()
    found = le.respond(net, (x, y), loss="cross_entropy", engine=engine, update=le.SGD(0.1)).target_change
    exact = looped_response(net, F.cross_entropy, (x, y), x, lambda model: torch.optim.SGD(model.parameters(), lr=0.1))[
        1
    ]
    assert torch.allclose(found.flatten(), exact.flatten(), rtol=1e-9, atol=1e-12)
    assert x.is_contiguous(memory_format=LAST)


class Contiguous(nn.GroupNorm):
    """A group norm that torch takes with any layout."""

    def forward(self, x):
        return super().forward(x.clone(memory_format=torch.contiguous_format))


class Images(nn.Module):
    """A group norm of images that the forward pass lays out with channels last; the stem, if there is one, is frozen.
    `how` is what the group norm is called by."""

    def __init__(self, lay_out, channels, stem=None, post=nn.Conv2d, how=nn.GroupNorm.forward, kernel=2):
        super().__init__()
        self.lay_out, self.how, self.stem = lay_out, how, nn.Identity() if stem is None else stem.requires_grad_(False)
        self.norm, self.post = nn.GroupNorm(1 if channels == 1 else 2, channels), post(channels, 5, kernel)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        normal = self.how(self.norm, self.stem(self.lay_out(x)))
        return self.head(torch.relu(self.post(normal)).flatten(2).mean(2))


def permuted(x):
    return x.movedim(-1, 1)


def functional(norm, x):
    return torch.group_norm(x, norm.num_groups, norm.weight, bias=norm.bias, eps=norm.eps)


def native(norm, x):
    sizes = len(x), x.shape[1], x[0, 0].numel()
    return torch.native_group_norm(x, norm.weight, norm.bias, *sizes, norm.num_groups, norm.eps)[0]


def scripted(norm, x):
    return torch.jit.script(F.group_norm)(x, norm.num_groups, norm.weight, norm.bias, norm.eps)


def drawn(*shape):
    return torch.randn(5, *shape)


GROUP_NORMS = {
    "images with channels last": lambda: (Images(permuted, 4), drawn(6, 6, 4)),
    "a frozen front": lambda: (Images(permuted, 4, nn.Conv2d(3, 4, 2)), drawn(6, 6, 3)),
    "a cast": lambda: (Images(lambda x: x.to(memory_format=LAST), 4), drawn(4, 6, 6)),
    "a function": lambda: (Images(permuted, 4, how=functional), drawn(6, 6, 4)),
    "volumes": lambda: (Images(permuted, 4, nn.Conv3d(3, 4, 2), nn.Conv3d), drawn(5, 5, 5, 3)),
    "one channel": lambda: (Images(permuted, 1), drawn(6, 6, 1)),
    "one place": lambda: (Images(permuted, 4, kernel=1), drawn(1, 1, 4)),
    "images that are given so": lambda: (norm_first().to(memory_format=LAST), data(LAST)[0]),
    "images that are given so behind a frozen front": lambda: (frozen_stem().to(memory_format=LAST), data(LAST)[0]),
}
"""Nets whose group norm reads images with channels last that need no gradient, and inputs."""


def measured(name):
    """Check every engine on one of these; torch may end the process."""
    torch.manual_seed(0)
    net, x = GROUP_NORMS[name]()
    net, x, y = net.double(), x.double(), torch.arange(len(x)) % 3
    safe = copy.deepcopy(net)
    for module in safe.modules():
        if isinstance(module, nn.GroupNorm):
            module.__class__ = Contiguous
    safe.how = Contiguous.forward
    exact = looped_response(
        safe, F.cross_entropy, (x, y), x, lambda model: torch.optim.SGD(model.parameters(), lr=0.1)
    )[1].flatten()
    for engine in ("auto", "looped", "structured", "vmapped"):
        try:
            found = le.respond(net, (x, y), loss="cross_entropy", engine=engine, update=le.SGD(0.1))
        except ValueError as error:
            if not str(error).startswith("engine: Vmapped could not be checked"):  # torch's vmap takes few layouts
                raise
            continue
        assert torch.allclose(found.target_change.flatten(), exact, rtol=1e-9, atol=1e-12), engine
        le.respond(net.float(), (x.float(), y), loss="cross_entropy", engine=engine)
        net.double()
    limits, kernels = (
        [le.respond(one, (x, y), loss="cross_entropy", engine="linearized").target_change, le.ntk(one, x)]
        for one in (net, safe)
    )
    assert torch.allclose(limits[0], kernels[0], rtol=1e-9, atol=1e-12)
    assert torch.allclose(torch.as_tensor(limits[1]), torch.as_tensor(kernels[1]), rtol=1e-9, atol=1e-12)


def refused(name):
    """Check every engine on a group norm that is called in this way; torch may end the process."""
    how = {"native": native, "scripted": scripted}[name]
    net, x, y = Images(permuted, 4, nn.Conv2d(3, 4, 2), how=how), drawn(6, 6, 3), torch.arange(5) % 3
    for engine in ("auto", "looped", "vmapped", "structured", "linearized"):
        with pytest.raises(ValueError, match="model: torch's group norm ends the process"):
            le.respond(net, (x, y), loss="cross_entropy", engine=engine)
    with pytest.raises(ValueError, match="model: torch's group norm ends the process"):
        le.ntk(net, x)


def in_batches():
    """Measure a net whose convolution passes layouts on in larger batches only; torch may end the process."""
    torch.set_num_threads(1)
    volumes, y = torch.randn(32, 5, 5, 5, 3), torch.arange(32) % 3
    for lay_out, x in ((permuted, volumes), (nn.Identity(), permuted(volumes))):
        net = Images(lay_out, 4, nn.Conv3d(3, 4, 1), nn.Conv3d)
        for engine in ("auto", "looped", "structured"):
            for size in (None, 16):
                options = {"engine": engine, "source_batch_size": size}
                assert le.respond(net, (x, y), x[:4], loss="cross_entropy", **options).target_change.isfinite().all()


def assert_ends_well(call):
    code = f"import tests.test_layouts; tests.test_layouts.{call}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.parametrize("name", GROUP_NORMS)
def test_group_norms_that_torch_cannot_take_are_measured(name):
    assert_ends_well(f"measured({name!r})")


def test_layouts_of_larger_batches_are_measured():
    assert_ends_well("in_batches()")


@pytest.mark.parametrize("name", ["native", "scripted"])
def test_group_norms_that_cannot_be_seen_are_refused_there(name):
    assert_ends_well(f"refused({name!r})")


def test_what_passes_find_is_kept():
    """Where effects of several passes are joined."""
    assert (Effects() | Effects(group_norms=True)).group_norms
    assert (Effects(group_norms=True) | Effects()).group_norms


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
