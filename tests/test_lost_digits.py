"""Digits that changes lose though predictions keep theirs, that decide choices, or that only some examples lose."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.engine.inputs import scattered
from local_elasticity.engine.null_steps import WELL_CONDITIONED
from tests.tolerances import RESOLVED_ERROR

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pairs"),
    pytest.mark.filterwarnings("ignore:.*Sparse CSR"),
    pytest.mark.usefixtures("unchecked"),
]

CENTRE = torch.eye(6) - 1 / 6
CODES = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))
PLACES = torch.randn(40, 6, generator=torch.Generator().manual_seed(5)) + 1e3
POOL = ThreadPoolExecutor(1)


class Then(nn.Module):
    """A function, and a small net of what it gives."""

    def __init__(self, function, inputs=6):
        super().__init__()
        self.function = function
        self.net = nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x):
        return self.net(self.function(x))


class Checked(Then):
    """It does not take numbers that are rounded otherwise."""

    def forward(self, x):
        h = x - x.mean(1, keepdim=True)
        products = h[:, :, None] * h[:, None, :]
        if not (products.detach().numpy() == products.detach().mT.numpy()).all():
            raise ValueError("the products are not symmetric")
        return self.net(h)


class Skip(nn.Module):
    """Most of a prediction keeps its digits; what a step changes has lost them."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(6, elementwise_affine=False), nn.Linear(6, 2)

    def forward(self, x):
        return 1e3 * (x[:, :2] - 3e6) + self.head(self.norm(x))


def of_scales():
    """One example in eight has another scale, where nothing is lost."""
    layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    with torch.no_grad():
        layers[0].weight -= layers[0].weight.mean(1, keepdim=True)
    layers[0].requires_grad_(False)
    return layers


def nearest(x):
    return CODES.to(x)[((x @ CENTRE.to(x))[:, None] - CODES.to(x)).square().sum(-1).argmin(1)]


def both(x):
    return torch.cat([x, -x.roll(2, 1)], 1)


LOST = {
    "distances": (lambda: Then(lambda x: torch.exp(-torch.cdist(x, PLACES.to(x)) / 3), 40), 1e3),
    "an expanded product": (lambda: Then(lambda x: (CENTRE.to(x)[None] @ x[:, :, None])[..., 0]), 1e6),
    "a sparse product": (lambda: Then(lambda x: torch.sparse.mm(CENTRE.to(x).to_sparse(), x.T).T), 1e6),
    "a product in CSR": (lambda: Then(lambda x: (CENTRE.to(x).to_sparse_csr() @ x.T).T), 1e6),
    "out=": (lambda: Then(lambda x: torch.mm(x, CENTRE.to(x), out=torch.empty_like(x))), 1e6),
    "in place": (lambda: Then(lambda x: torch.zeros_like(x).addmm_(x, CENTRE.to(x))), 1e6),
    "index_add": (lambda: Then(lambda x: x.new_zeros(len(x), 3).index_add(1, torch.arange(12) % 3, both(x)), 3), 1e6),
    "nansum": (lambda: Then(lambda x: both(x).nansum(1, keepdim=True), 1), 1e6),
    "item": (lambda: Then(lambda x: torch.stack([row - row.mean().item() for row in x])), 3e6),
    "a thread": (lambda: Then(lambda x: POOL.submit(lambda: x - x.mean(1, keepdim=True)).result()), 1e7),
    "the nearest code": (lambda: Then(nearest), 1e7),
    "a mask": (lambda: Then(lambda x: ((x @ CENTRE.to(x)) > 0).to(x) * torch.linspace(1, 2, 6).to(x)), 1e7),
    "rounding": (lambda: Then(lambda x: ((x - x.mean(1, keepdim=True)) * 10).round() / 10), 1e6),
    "a network that checks itself": (lambda: Checked(None), 1e7),
    "a shortcut": (Skip, 3e6),
    "two scales": (of_scales, 1e6),
}


@pytest.mark.parametrize("name", LOST)
def test_lost_digits_are_seen(name):
    torch.manual_seed(0)
    make, offset = LOST[name]
    x, y, rate = torch.randn(24, 6) + offset, torch.randn(24, 2), 0.1
    if name == "two scales":
        x[::8], y, rate = 1e5 * torch.randn(3, 6), 100 * y, 1e-11
    problem, update = le.Problem.of(make(), "mse"), le.SGD(rate)
    truth = le.relative(le.respond(problem.to(torch.float64), (x, y), update=update))
    for engine in ("looped", "auto"):
        response = le.respond(problem, (x, y), update=update, engine=engine)
        S = le.relative(response).double()
        known = S.isfinite()
        assert known.all() if engine == "auto" else not known.any(), engine
        assert ((S - truth).abs()[known] <= RESOLVED_ERROR * truth.clamp_min(1)[known]).all(), engine
        assert any("digits" in note for note in response.notes), engine


@pytest.mark.parametrize("name", ["distances", "a mask", "item", "two scales", "a shortcut"])
def test_digits_that_are_there_are_not_called_lost(name, monkeypatch):
    """The same networks at inputs around zero."""
    torch.manual_seed(0)
    monkeypatch.setitem(globals(), "PLACES", PLACES - 1e3)
    problem, examples = le.Problem.of(LOST[name][0](), "mse"), (torch.randn(24, 6), torch.randn(24, 2))
    response = le.respond(problem, examples, update=le.SGD(0.1))
    assert not any("digits" in note for note in response.notes)
    assert le.relative(response).isfinite().all()


class Standardised(nn.Module):
    """A shortcut that is large beside the part that steps."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)) + 1e6 * x[:, :3].sign()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("other", [False, True])
def test_one_source_that_keeps_its_digits_and_other_data_hide_nothing(seed, other):
    """At some seeds the first source is centred exactly. Other data of the same size, whose digits are there, may have
    been measured before."""
    torch.manual_seed(seed)
    problem, noise, y = le.Problem.of(Standardised(), "mse"), torch.randn(24, 8), torch.randn(24, 3)
    if other:
        le.respond(problem, (3e6 * noise, y), update=le.SGD(0.1))
    x, update = noise + 3e6, le.SGD(0.1)
    truth = le.relative(le.respond(problem.to(torch.float64), (x, y), update=update))
    S = le.relative(le.respond(problem, (x, y), update=update)).double()
    assert ((S - truth).abs() <= RESOLVED_ERROR * truth.clamp_min(1)).all()


def test_predictions_that_are_nearly_equal_are_not_called_lost():
    """Sigmoids make the predictions of all examples alike; rounding moves them by 1e-7 of their size."""
    for seed in range(12):
        torch.manual_seed(seed)
        widths = [8, 16, 16, 16, 16]
        layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.Sigmoid())]
        net, x, y = nn.Sequential(*layers, nn.Linear(16, 3)), torch.randn(24, 8), torch.randint(0, 3, (24,))
        response = le.respond(net, (x, y), loss="cross_entropy", update=le.SGD(0.01), engine="structured")
        assert le.relative(response).isfinite().all()
        assert not any("digits" in note for note in response.notes)


def test_targets_of_another_shape_are_measured_all_the_same():
    """They cannot be run in one batch with the sources."""
    net = nn.Sequential(nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    x, targets, y = torch.randn(6, 1, 8), torch.randn(5, 1, 12), torch.randn(6, 2)
    S = le.relative(le.respond(net, (x, y), targets, loss="mse", update=le.SGD(0.1)))
    truth = le.relative(le.respond(le.Problem.of(net, "mse").to(torch.float64), (x, y), targets, update=le.SGD(0.1)))
    assert ((S - truth).abs() <= RESOLVED_ERROR * truth.clamp_min(1)).all()


def test_scattered_places_follow_no_period():
    for period in (2, 4, 8, 16):
        places = scattered(128, 16)
        assert len(set(places.tolist())) == 16
        assert len(set((places % period).tolist())) > 1
    assert scattered(3, 16).tolist() == [0, 1, 2]
    assert WELL_CONDITIONED < RESOLVED_ERROR


def test_a_step_whose_changes_have_no_norm_is_called_too_large():
    torch.manual_seed(0)
    layers = [part for _ in range(6) for part in (nn.Linear(8, 8), nn.ReLU())]
    net, x, y = nn.Sequential(*layers, nn.Linear(8, 2)), torch.randn(12, 8), torch.arange(12) % 2
    with pytest.warns(UserWarning, match="squares overflow; take a smaller step"):
        le.similarity(net, (x, y), loss="cross_entropy", update=le.SGD(1e6))


@pytest.mark.parametrize("engine", ["auto", "structured", "looped"])
def test_gradients_that_a_norm_turns_are_seen(engine):
    """The norm of channels far from 0 keeps the digits of predictions better than those of gradients."""
    torch.manual_seed(2)
    layers = nn.Conv1d(2, 8, 3), nn.GroupNorm(8, 8), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 4)
    net, x, y = nn.Sequential(*layers), 3000 + torch.randn(24, 2, 12), torch.arange(24) % 4
    problem = le.Problem.of(net, "cross_entropy")
    exact = le.relative(le.respond(problem.to(torch.float64), (x, y), update=le.SGD(1e-8), engine="looped"))
    S = le.relative(le.respond(problem, (x, y), update=le.SGD(1e-8), engine=engine)).double()
    known = S.isfinite()
    assert known.all() or engine != "auto"
    assert bool((((S - exact).abs() / exact.clamp_min(1))[known] < 0.01).all())
