"""Passes that are rounded otherwise: lost digits are seen wherever they are lost, and nothing else is disturbed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import local_elasticity as le
from tests.tolerances import RESOLVED_ERROR

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pairs"),
    pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter"),
    pytest.mark.usefixtures("unchecked"),
]

WIDE = torch.arange(6)


def tail(inputs=6, outputs=2):
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


class Then(nn.Module):
    """A function, and a small net of what it gives."""

    def __init__(self, function, inputs=6, outputs=2):
        super().__init__()
        self.function, self.net = function, tail(inputs, outputs)

    def forward(self, *x):
        return self.net(self.function(*x))


def frozen():
    layer = nn.Linear(6, 16)
    with torch.no_grad():
        layer.weight -= layer.weight.mean(1, keepdim=True)
    return nn.Sequential(layer.requires_grad_(False), nn.Tanh(), nn.Linear(16, 2))


def as_complex(x):
    z = torch.complex(x[:, :3], x[:, 3:]) + 1e5 - 1e5
    return torch.cat([z.real, z.imag], 1)


def put(x):
    places = torch.arange(len(x))[:, None], WIDE.expand(len(x), -1)
    return torch.full_like(x, 1e6).index_put(places, x, accumulate=True) - 1e6


LOST = {
    "a frozen layer": (frozen, 1e6),
    "a layer norm": (lambda: nn.Sequential(nn.LayerNorm(6), *tail()), 1e6),
    "an instance norm": (lambda: Then(lambda x: F.instance_norm(x[:, None])[:, 0]), 1e6),
    "a variance": (lambda: Then(lambda x: x.var(1, keepdim=True).expand(-1, 6)), 1e5),
    "a Fourier transform": (lambda: Then(lambda x: torch.fft.rfft(x).abs()[:, 1:], 3), 1e6),
    "complex numbers": (lambda: Then(as_complex), 0.0),
    "a cast": (lambda: Then(lambda x: (x.double() + 1e6).to(x.dtype) - 1e6), 0.0),
    "index_put": (lambda: Then(put), 0.0),
    "scatter": (
        lambda: Then(lambda x: torch.full_like(x, 1e6).scatter(1, WIDE.expand(len(x), -1), x, reduce="add") - 1e6),
        0.0,
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_digits_that_kernels_lose_inside_are_seen(name):
    """Also of what no stepped parameter enters: the network that is measured is not the one that was meant."""
    torch.manual_seed(0)
    make, offset = LOST[name]
    problem, x, y = le.Problem.of(make(), "mse"), torch.randn(8, 6) + offset, torch.randn(8, 2)
    truth = le.relative(le.respond(problem.to(torch.float64), (x, y), update=le.SGD(0.1), engine="looped"))
    for engine in ("looped", "auto"):
        S = le.relative(le.respond(problem, (x, y), update=le.SGD(0.1), engine=engine)).double()
        known = S.isfinite()
        assert known.all() if engine == "auto" else not known.any(), engine
        assert ((S - truth).abs()[known] <= RESOLVED_ERROR * truth.clamp_min(1)[known]).all(), engine


class Last(nn.Module):
    """The hidden state at the last token that is not padding, whose place is computed in floating point."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 5)

    def forward(self, x, mask):
        h = torch.tanh(self.a(x))
        return self.b(h[torch.arange(len(h)), mask.sum(1).long() - 1])


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, x, mask):
        lengths = mask.sum(1).long()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.b(self.a(packed)[1][0])


class Compared(Last):
    def forward(self, x, mask):
        h = torch.tanh(self.a(x)).masked_fill(((mask * mask.flip(0).flip(0)) != 1)[..., None], 0.0)
        return self.b(h.sum(1))


class Checked(Last):
    """An assertion about numbers that are equal only where they are rounded alike."""

    def forward(self, x, mask):
        h = self.a(x[:, 0])
        products = h[:, :, None] * h[:, None, :]
        assert torch.equal(products, products.mT)
        return self.b(products.sum(1))


class Binned(nn.Module):
    """Ten bins of [0, 1), one of them by a number just below 1."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Embedding(10, 6), nn.Linear(6, 5)

    def forward(self, x, mask):
        return self.b(self.a((x[:, 0].sigmoid().clamp(max=1 - 2**-24) * 10).long()).tanh().sum(1))


class Ordered(Last):
    def forward(self, x, mask):
        h = torch.tanh(self.a(x))
        best = h.detach().sum(-1).topk(2, dim=1)
        chosen = h.gather(1, best.indices[..., None].expand(-1, -1, 16))
        return self.b((best.values.softmax(1)[..., None] * chosen).sum(1))


class Written(Last):
    """Decisions in place, into what is given, and of numbers that stand for several."""

    def forward(self, x, mask):
        h, last = torch.tanh(self.a(x)), torch.empty(len(x), dtype=torch.long)
        last[:] = mask.sum(1) - 1
        shown = torch.empty(x.shape[:2], dtype=torch.bool)
        torch.lt(torch.arange(7), mask.sum(1, keepdim=True).expand(-1, 7), out=shown)
        steps = mask.clone().cumsum_(1).sub_(1).floor_()
        weights = (steps % 3 == 0).to(h) * shown * (mask.sum(1, keepdim=True) + 1).frac().eq_(0)
        return self.b(h[torch.arange(len(h)), last] + (h * weights[..., None]).sum(1))


class Unpooled(Last):
    """Places of the largest of equal numbers, which another kernel uses."""

    def forward(self, x, mask):
        h = torch.tanh(self.a(x))[:, None] * mask[:, None, :, None] * 1.5
        pooled, places = F.max_pool2d(h.relu(), 2, return_indices=True)
        return self.b(F.max_unpool2d(pooled, places, 2, output_size=h.shape)[:, 0].sum(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [Last, Packed, Compared, Checked, Binned, Ordered, Written, Unpooled])
def test_decisions_by_numbers_are_not_rounded(make, dtype):
    """Three tokens stay three: places, lengths and comparisons are those of the network itself."""
    torch.manual_seed(0)
    net, x, y = make().to(dtype), torch.randn(8, 7, 6, dtype=dtype), torch.randn(8, 5, dtype=dtype)
    mask = (torch.arange(7) < torch.tensor([1, 2, 3, 4, 5, 6, 7, 3])[:, None]).to(dtype)
    problem = le.Problem.of(net, "mse")
    truth = le.relative(le.respond(problem.to(torch.float64), ((x, mask), y), engine="looped"))
    for engine in ("looped", "auto"):
        response = le.respond(problem, ((x, mask), y), engine=engine)
        S = le.relative(response).double()
        assert S.isfinite().all(), engine
        assert (S - truth).abs().max() <= RESOLVED_ERROR * truth.max(), engine
        assert not any("digits" in note for note in response.notes)


def test_a_loss_that_checks_its_numbers_is_measured():
    torch.manual_seed(1)
    net, x, y = tail(outputs=5), torch.randn(8, 6), torch.arange(8) % 5
    with torch.no_grad():
        net[2].weight *= 60

    def loss(outputs, labels):
        share = outputs.exp() / outputs.exp().sum(1, keepdim=True)
        return F.binary_cross_entropy(share, F.one_hot(labels, 5).to(outputs))

    assert le.respond(net, (x, y), loss=loss, engine="looped").engine == "looped"


class SecondDerivatives(nn.Module):
    """As networks for differential equations have them."""

    def __init__(self, derivative):
        super().__init__()
        self.a, self.b, self.derivative = nn.Linear(4, 6), nn.Linear(6, 2), derivative

    def forward(self, x):
        return self.b(self.derivative(self.a(x)))


DERIVATIVES = {
    "hessian": lambda h: torch.func.vmap(torch.func.hessian(lambda row: row.tanh().sum()))(h).sum(2),
    "jacfwd of grad": lambda h: torch.func.vmap(torch.func.jacfwd(torch.func.grad(lambda r: r.tanh().sum())))(h).sum(2),
    "jvp of jvp": lambda h: torch.func.jvp(
        lambda z: torch.func.jvp(torch.tanh, (z,), (torch.ones_like(z),))[1], (h,), (torch.ones_like(h),)
    )[1],
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_inside_a_network_are_measured(name):
    """A pass that is rounded in forward mode would end the process."""
    torch.manual_seed(0)
    net, x, y = SecondDerivatives(DERIVATIVES[name]), torch.randn(6, 4), torch.randn(6, 2)
    problem = le.Problem.of(net, "mse")
    truth = le.relative(le.respond(problem.to(torch.float64), (x, y), engine="looped"))
    S = le.relative(le.respond(problem, (x, y))).double()
    assert (S - truth).abs().max() <= RESOLVED_ERROR * truth.max()
    monitor = le.Monitor(net, (x, y), loss="mse", every=1, budget=None)
    monitor.step(0)
    assert len(monitor.history) == 1


class Two(nn.Module):
    """Two outputs, each of four features whose weights add up to about 0: float32 knows them to 4e-4."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 1)
        with torch.no_grad():
            for layer in (self.a, self.b):
                layer.weight -= layer.weight.mean()

    def forward(self, x):
        return torch.cat([self.a(x[:, :4]), self.b(x[:, 4:])], 1)


@pytest.mark.parametrize("residual", [1e-2, 3e-3])
def test_rounding_of_outputs_turns_the_step(residual):
    """The gradient of a squared loss is a residual, which is known no better than the outputs."""
    torch.manual_seed(1)
    shares = torch.rand(12, 2) * 1.5 + 0.5
    x = torch.cat([share[:, None] * 1e4 + torch.randn(12, 4) for share in shares.T], 1)
    net = Two()
    with torch.no_grad():
        y = (net.double()(x.double()) + residual * torch.randn(12, 2).double()).float()
    net.float()
    problem = le.Problem.of(net, "half_mse")
    truth = le.relative(le.respond(problem.to(torch.float64), (x, y), update=le.SGD(1e-6), engine="looped"))
    for engine in ("looped", "structured", "auto"):
        S = le.relative(le.respond(problem, (x, y), update=le.SGD(1e-6), engine=engine)).double()
        known = S.isfinite()
        assert known.all() or engine != "auto"
        assert ((S - truth).abs()[known] <= RESOLVED_ERROR * truth.clamp_min(1)[known]).all(), engine


def test_a_large_bias_hides_no_lost_digits():
    torch.manual_seed(1)
    net, x = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1)), torch.randn(64, 6) + 1e6
    with torch.no_grad():
        net[0].weight -= net[0].weight.mean(1, keepdim=True)
        net[2].bias += 1e4
    response = le.respond(
        net, (x, torch.randn(64, 1) + 1e4), loss="half_mse", update=le.SGD(1e-15), engine="structured"
    )
    assert le.relative(response).isnan().all()


class Edge(nn.Module):
    """A root of a number that rounding may push below 0."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x):
        h = F.normalize(self.a(x), dim=1)
        return torch.cat([torch.sqrt(1.0 + 1e-7 - (h * h).sum(1, keepdim=True)), h], 1)


def test_predictions_that_rounding_makes_infinite_are_computed_in_float64():
    torch.manual_seed(1)
    response = le.respond(Edge(), (torch.randn(8, 6), torch.randn(8, 7)), loss="mse", update=le.SGD(1e-2))
    assert response.target_before.isfinite().all()
    assert le.relative(response).isfinite().all()


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        rows = torch.nested.as_nested_tensor(list(self.a(x)))
        return self.b(torch.nested.to_padded_tensor(rows, 0.0).tanh())


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_nested_tensors_inside_are_taken():
    torch.manual_seed(0)
    assert le.respond(Nested(), (torch.randn(6, 4), torch.randn(6, 2)), loss="mse").engine == "looped"


class Conditional(Nested):
    def forward(self, x):
        h = self.a(x)
        return self.b(torch.cond(h.sum() > 1e9, lambda a: a.sin(), lambda a: a.tanh(), (h,)))


def test_operators_that_take_functions_are_refused_in_words():
    with pytest.raises(ValueError, match="model: it calls cond, a higher-order operator of torch"):
        le.respond(Conditional(), (torch.randn(6, 4), torch.randn(6, 2)), loss="mse")


@pytest.mark.parametrize("engine", ["looped", "vmapped", "auto"])
def test_lost_digits_of_features_are_in_the_gradient_too(engine):
    """However far a step moves predictions, its direction is known no better than the features."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, 3))
    x, y = torch.randn(8, 8) + 1e6, 1e3 * torch.randn(8, 3)
    problem = le.Problem.of(net, "mse")
    truth = le.relative(le.respond(problem.to(torch.float64), (x, y), update=le.SGD(0.1), engine="looped"))
    S = le.relative(le.respond(problem, (x, y), update=le.SGD(0.1), engine=engine)).double()
    known = S.isfinite()
    assert known.all() if engine == "auto" else not known.any()
    assert ((S - truth).abs()[known] <= RESOLVED_ERROR * truth.clamp_min(1)[known]).all()
