"""KL from differences of logits, against 60 digits, from 1e-9 to 1e3."""

import copy
import math

import mpmath
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import local_elasticity as le
from local_elasticity.measures.relative import kl
from tests.tolerances import ROUNDING

mpmath.mp.dps = 60


def exact_kl(z, d):
    """Σ p log(p/q) of p = softmax(z + d), q = softmax(z), in 60 digits."""
    old = [mpmath.mpf(v) for v in z]
    new = [a + mpmath.mpf(v) for a, v in zip(old, d, strict=True)]
    top = max(new), max(old)
    p = [mpmath.exp(v - top[0]) for v in new]
    q = [mpmath.exp(v - top[1]) for v in old]
    sums = sum(p), sum(q)
    logs = [
        (a - top[0] - mpmath.log(sums[0])) - (b - top[1] - mpmath.log(sums[1])) for a, b in zip(new, old, strict=True)
    ]
    return sum(a / sums[0] * difference for a, difference in zip(p, logs, strict=True))


@pytest.mark.parametrize("size", [10.0**e for e in range(-9, 4)])
@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_stable_kl_is_right_at_every_size(size, k, spread):
    generator = torch.Generator().manual_seed(k)
    for _ in range(5):
        z = spread * torch.randn(k, generator=generator, dtype=torch.float64)
        d = size * torch.randn(k, generator=generator, dtype=torch.float64)
        expected = exact_kl(z.tolist(), d.tolist())
        got = kl(z, d).item()
        assert abs(got - expected) <= ROUNDING * expected + 1e-300


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-20, 20), min_size=2, max_size=6),
    st.floats(1e-9, 1e3),
    st.integers(0, 2**31),
)
def test_stable_kl_is_right_on_random_logits(z, size, seed):
    d = size * torch.randn(len(z), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = exact_kl(z, d.tolist())
    assert abs(kl(torch.tensor(z, dtype=torch.float64), d).item() - expected) <= 10 * ROUNDING * expected + 1e-300


def test_nothing_moved_is_exactly_zero():
    z = torch.randn(50, 7)
    for dtype in (torch.float32, torch.float64):
        assert (kl(z.to(dtype), torch.zeros(50, 7, dtype=dtype)) == 0).all()
    p = z.softmax(-1)
    assert (kl(p, torch.zeros(50, 7), kind="probabilities") == 0).all()
    assert (kl(p, torch.zeros(50, 7), kind="binary_probabilities") == 0).all()
    assert (kl(z, torch.zeros(50, 7), kind="binary_logits") == 0).all()


def test_a_common_shift_is_not_seen():
    z = torch.randn(20, 5).double()
    assert kl(z, torch.full((20, 5), 123.0).double()).abs().max() < 1e-25


@pytest.mark.parametrize("size", [1e-7, 1e-3, 1.0, 300.0])
def test_float32_is_finite_and_right(size):
    z, d = 5 * torch.randn(200, 4), size * torch.randn(200, 4)
    got, expected = kl(z, d), kl(z.double(), d.double())
    assert got.isfinite().all()
    assert ((got - expected).abs() <= 1e-4 * expected).all()


def test_the_kinds_agree():
    """Logits, probabilities and binary outputs of the same distribution have the same KL."""
    z, d = torch.randn(30, 1).double(), torch.randn(30, 1).double() * 1e-3
    binary = kl(z, d, kind="binary_logits")
    pair = torch.cat([z, torch.zeros_like(z)], 1), torch.cat([d, torch.zeros_like(d)], 1)
    p, q = torch.sigmoid(z + d), torch.sigmoid(z)
    assert torch.allclose(binary, kl(*pair), rtol=1e-12)
    assert torch.allclose(binary, kl(q, p - q, kind="binary_probabilities"), rtol=1e-9)
    soft = pair[0].softmax(-1)
    moved = (pair[0] + pair[1]).softmax(-1) - soft
    assert torch.allclose(binary, kl(soft, moved, kind="probabilities"), rtol=1e-9)


def test_probabilities_at_the_edge():
    q = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.5, 0.5]]).double()
    moved = torch.tensor([[0.0, 0.0], [0.1, -0.1], [-0.5, 0.5]]).double()
    values = kl(q, moved, kind="probabilities").tolist()
    assert values[0] == 0
    assert values[1] == math.inf
    assert values[2] == pytest.approx(math.log(2))


def test_plain_numbers_are_refused():
    with pytest.raises(ValueError, match="plain numbers"):
        kl(torch.zeros(2), torch.zeros(2), kind="numbers")


@pytest.mark.parametrize("shape", [(2, 2), (3,)], ids=["pixels", "tokens"])
@pytest.mark.parametrize("batch", [None, 2])
def test_over_many_places_it_is_the_sum(shape, batch):
    """A deep copy takes the step; KL of torch at every place, summed; the same for L1 of the probabilities."""
    torch.manual_seed(0)
    kind = nn.Conv2d if len(shape) == 2 else nn.Conv1d
    net = nn.Sequential(kind(1, 4, 3, padding=1), nn.Tanh(), kind(4, 3, 1)).double()
    x, y = torch.randn(4, 1, *shape, dtype=torch.float64), torch.randint(3, (4, *shape))
    y[0].flatten()[0] = -100
    update = le.SGD(0.3)
    options = {"loss": "cross_entropy", "update": update, "source_batch_size": batch, "targets": x}
    found = {name: le.similarity(net, (x, y), measure=name, **options).values for name in ("kl", "relative_l1")}
    before = net(x).detach()
    size = batch or 1
    for i in range(0, 4, size):
        moved = copy.deepcopy(net)
        rows = slice(i, i + size)
        F.cross_entropy(moved(x[rows]), y[rows]).backward()
        with torch.no_grad():
            for p in moved.parameters():
                p -= 0.3 * p.grad
            after = moved(x)
        divergence = F.kl_div(before.log_softmax(1), after.log_softmax(1), reduction="none", log_target=True)
        l1 = (after.softmax(1) - before.softmax(1)).abs()
        for name, each in (("kl", divergence), ("relative_l1", l1)):
            total = each.flatten(1).sum(1)
            expected = total / total[rows].mean()
            assert found[name][i // size] == pytest.approx(expected.numpy(), rel=1e-6)


def test_places_of_torch_losses_are_read_too():
    net, x, y = nn.Conv2d(1, 3, 1).double(), torch.randn(4, 1, 2, 2).double(), torch.randint(3, (4, 2, 2))
    plain = le.similarity(net, (x, y), loss="cross_entropy", measure="kl").values
    weighted = le.similarity(net, (x, y), loss=nn.CrossEntropyLoss(torch.ones(3).double()), measure="kl").values
    assert weighted == pytest.approx(plain, rel=1e-6)
