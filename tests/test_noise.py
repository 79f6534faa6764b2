"""Numbers one can trust: what is called resolved is right to one percent, and what is hidden is called so."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import xarray as xr
from torch import nn

import local_elasticity as le
from local_elasticity.engine.null_steps import NullSteps
from tests.tolerances import RESOLVED_ERROR

RESIDUALS = [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5]
STEP_SIZES = [1e-6, 1e-4, 1e-2]


def _wide():
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1))


def _deep():
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))


def _convolutional():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, 32),
        nn.ReLU(),
        nn.Linear(32, 1),
    )


NETS = {"wide relu": _wide, "deep tanh": _deep, "convolutional": _convolutional}


@pytest.fixture(scope="module")
def digits():
    return le.data.load("digits").take([3, 8], per_class=15)


@pytest.fixture(scope="module", params=NETS)
def trained(request, digits):
    """A net that has learned to tell 3s from 8s."""
    torch.manual_seed(0)
    net = NETS[request.param]()
    x, y = digits[0].flatten(1), (digits[1] == 3).float()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01 if request.param != "wide relu" else 2e-3)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x)[:, 0], y).backward()
        optimizer.step()
    return net, x


def labels_at(net, x, residual):
    """Labels that leave this residual, up to its sign and the rounding of float32."""
    with torch.no_grad():
        f = net.double()(x.double())[:, 0]
    net.float()
    signs = torch.ones(len(x))
    signs[::2] = -1
    return (f + residual * signs * torch.linspace(0.5, 1.5, len(x))).float()


@pytest.mark.parametrize(
    ("exact", "engines"), [("looped", ("looped", "vmapped", "structured", "auto")), ("linearized", ("linearized",))]
)
def test_resolved_values_are_right_to_one_percent(trained, exact, engines):
    """In float32 against float64, at every residual and step size; and auto resolves everything."""
    net, x = trained
    for residual in RESIDUALS:
        y = labels_at(net, x, residual)
        problem = le.Problem.of(net, "half_mse")
        for step_size in STEP_SIZES:
            update = le.SGD(step_size)
            truth = le.relative(le.respond(problem.to(torch.float64), (x, y), update=update, engine=exact))
            for engine in engines:
                S = le.relative(le.respond(problem, (x, y), update=update, engine=engine)).double()
                resolved = S.isfinite()
                if engine in ("auto", "linearized", "structured"):
                    assert resolved.all(), engine
                error = (S - truth).abs()[resolved]
                assert (error <= RESOLVED_ERROR * truth[resolved].clamp_min(1)).all(), engine


@pytest.mark.parametrize("engine", ["structured", "linearized", "auto"])
@pytest.mark.filterwarnings("ignore:.*pairs")
def test_large_outputs_hide_small_residuals(engine):
    """Of several outputs around 1e5, the last digits of float32 decide where a step goes that a residual of 0.1 asks
    for."""
    torch.manual_seed(0)
    net, x = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)), torch.randn(8, 5)
    with torch.no_grad():
        net[2].bias += 1e5
        y = (net.double()(x.double()) + torch.randn(8, 3).double() * torch.tensor([0.1, 0.01, 0.001])).float()
    net.float()
    problem = le.Problem.of(net, "half_mse")
    exact = "linearized" if engine == "linearized" else "looped"
    truth = le.relative(le.respond(problem.to(torch.float64), (x, y), update=le.SGD(1e-2), engine=exact))
    S = le.relative(le.respond(problem, (x, y), update=le.SGD(1e-2), engine=engine)).double()
    resolved = S.isfinite()
    assert resolved.all() if engine == "auto" else not resolved.any()
    assert ((S - truth).abs()[resolved] <= RESOLVED_ERROR * truth[resolved].clamp_min(1)).all()


def _one_hot(outputs, labels):
    return F.one_hot(labels, outputs.shape[1]).to(outputs.dtype)


def _weights(outputs):
    return torch.linspace(1, 3, outputs.shape[1], dtype=outputs.dtype)


def _focal(outputs, labels):
    log_p = F.log_softmax(outputs, 1).gather(1, labels[:, None])
    return ((1 - log_p.exp()).square() * -log_p).mean()


def _binary_from_probabilities(outputs, labels):
    return F.binary_cross_entropy(torch.sigmoid(outputs), labels.to(outputs.dtype))


@pytest.mark.parametrize("seed", [4, 14, 49, 50])
@pytest.mark.parametrize("offset", [8, 14])
@pytest.mark.filterwarnings("ignore:.*pairs")
def test_losses_that_lose_digits_inside_are_noticed(seed, offset):
    """Of a probability near 1 float32 keeps few digits of 1 − p, and so of the direction of the step."""
    torch.manual_seed(seed)
    net, x = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)), torch.randn(14, 6)
    with torch.no_grad():
        net[2].weight *= 5
        net[2].bias += offset
        y = (net(x) > 0).float()
    problem = le.Problem.of(net, _binary_from_probabilities, kind="numbers")
    truth = le.relative(le.respond(problem.to(torch.float64), (x, y), update=le.SGD(1.0), engine="looped"))
    for engine in ("structured", "looped", "auto"):
        S = le.relative(le.respond(problem, (x, y), update=le.SGD(1.0), engine=engine)).double()
        known = S.isfinite() & truth.isfinite()
        assert ((S - truth).abs()[known] <= RESOLVED_ERROR * truth.clamp_min(1)[known]).all(), engine
        assert known.all() or engine != "auto"


OF_NUMBERS = {
    "mse": F.mse_loss,
    "huber": F.smooth_l1_loss,
    "absolute": F.l1_loss,
    "quartic": lambda outputs, labels: (outputs - labels).pow(4).mean(),
}
OF_CLASSES = {
    "weighted": lambda outputs, labels: F.cross_entropy(outputs, labels, weight=_weights(outputs)),
    "smoothed": lambda outputs, labels: F.cross_entropy(outputs, labels, label_smoothing=0.1),
    "focal": _focal,
    "brier": lambda outputs, labels: (outputs.softmax(1) - _one_hot(outputs, labels)).square().sum(1).mean(),
    "margin": F.multi_margin_loss,
    "binary": lambda outputs, labels: F.binary_cross_entropy_with_logits(outputs, _one_hot(outputs, labels)),
}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.filterwarnings("ignore:.*pairs")
def test_losses_of_the_user_keep_the_promise(seed):
    """Losses and outputs of any scale, learned to any residual: what is called resolved is right, and a loss in another
    unit is resolved as well."""
    torch.manual_seed(seed)
    low, high = torch.tensor([-2.0, -6.0, -6.0]), torch.tensor([3.0, 6.0, 0.0])
    size, scale, residual = (10 ** (low + (high - low) * torch.rand(3))).tolist()
    net, x = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 2 + seed % 4)), torch.randn(10, 6)
    with torch.no_grad():
        for p in net[2].parameters():
            p *= size
        f = net.double()(x.double())
    net.float()
    numbers, classes = (f + residual * size * torch.randn(f.shape).double()).float(), f.argmax(1)
    for name, loss in (OF_NUMBERS | OF_CLASSES).items():
        y = numbers if name in OF_NUMBERS else classes
        shares = []
        for unit in (1.0, scale):
            problem = le.Problem.of(net, lambda f, y, loss=loss, unit=unit: unit * loss(f, y))
            update = le.SGD(1e-3 / unit)
            truth = le.relative(le.respond(problem.to(torch.float64), (x, y), update=update, engine="structured"))
            for engine in ("structured", "looped"):
                S = le.relative(le.respond(problem, (x, y), update=update, engine=engine)).double()
                known = S.isfinite() & truth.isfinite()
                assert ((S - truth).abs() <= RESOLVED_ERROR * truth.clamp_min(1))[known].all(), (name, engine)
                shares.append(float(known.double().mean()))
        assert shares[:2] == pytest.approx(shares[2:], abs=0.2), name


@pytest.mark.filterwarnings("ignore:.*pairs")
def test_masked_outputs_are_not_rounded_with_the_rest():
    """A mask of −1e9 or −∞ puts outputs out of the loss; their last digit is not that of the others."""
    torch.manual_seed(0)
    net, x, y = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5)), torch.randn(8, 6), torch.arange(8) % 3

    for mask in (-1e9, torch.finfo(torch.float32).min, -torch.inf):
        for loss in ("cross_entropy", lambda f, y: F.cross_entropy(f, y, label_smoothing=0.0)):
            masked = nn.Sequential(net, Masked(mask))
            S = le.relative(le.respond(le.Problem.of(masked, loss, kind="logits"), (x, y), engine="structured"), le.kl)
            assert S.isfinite().all()


class Masked(nn.Module):
    """Only the first three outputs count."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, f):
        return f.masked_fill(torch.arange(f.shape[1]) >= 3, self.mask)


@pytest.mark.filterwarnings("ignore:.*pairs")
def test_activations_that_lose_digits_are_noticed_by_every_engine():
    """Unix times of three hours: float32 knows them to two minutes. `auto` resolves everything, in float64."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    x, y = 1.7e9 + 1e4 * torch.rand(40, 8), torch.arange(40) % 3
    net[0].running_mean.copy_(x.double().mean(0))
    net[0].running_var.copy_(x.double().var(0))
    problem, update = le.Problem.of(net, "cross_entropy"), le.SGD(1e-2)
    for exact, engines in {"looped": ("looped", "structured", "auto"), "linearized": ("linearized",)}.items():
        truth = le.relative(le.respond(problem.to(torch.float64), (x, y), update=update, engine=exact))
        for engine in engines:
            response = le.respond(problem, (x, y), update=update, engine=engine)
            S = le.relative(response).double()
            assert S.isfinite().all() if engine == "auto" else S.isnan().all()
            assert engine not in ("structured", "linearized") or "loses digits" in response.notes[0]
            assert torch.allclose(S[S.isfinite()], truth[S.isfinite()], atol=RESOLVED_ERROR)
    first_order = le.similarity(problem, (x, y), measure="loss", update=update, approximate=True)
    assert first_order.isnull().all()
    monitor = le.Monitor(problem, (x, y), update=update, every=1, budget=None)
    monitor.step(0)
    truth = le.similarity(problem.to(torch.float64), (x, y), update=update).values
    assert monitor.history[0].similarity["relative"] == pytest.approx(truth, abs=RESOLVED_ERROR)


def test_a_batch_that_is_rounded_otherwise_is_no_dependence_on_the_batch():
    """A first layer that takes inputs of 1e5 ± 1 apart: float32 gives one example 0.4 % more or less in a batch."""
    torch.manual_seed(0)
    x, y = 1e5 + torch.randn(60, 6), torch.arange(60) % 3
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    with torch.no_grad():
        net[0].bias -= (net[0].weight.double() @ x.double().mean(0)).float()
    problem, update = le.Problem.of(net, "cross_entropy"), le.SGD(1e-12)
    truth = le.relative(le.respond(problem.to(torch.float64), (x, y), update=update))
    S = le.relative(le.respond(problem, (x, y), update=update)).double()
    assert torch.allclose(S, truth, atol=RESOLVED_ERROR)


class LogSurvival(nn.Module):
    """log(1 − p) as it is often written: float32 rounds 1 − p to multiples of 6e-8."""

    def forward(self, z):
        return torch.log(1 - torch.sigmoid(z))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore:.*pairs")
def test_steps_within_a_staircase_of_rounding_are_noticed(seed):
    """Weights that move by their last digit do not reach the next stair; functions that round otherwise do."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3), LogSurvival())
    x, y = torch.randn(24, 6), torch.randn(24, 3)
    with torch.no_grad():
        for p in net[2].parameters():
            p *= 14 / net[:3](x).abs().max()
    problem = le.Problem.of(net, "mse")
    truth = le.relative(le.respond(problem.to(torch.float64), (x, y), engine="looped"))
    for engine in ("looped", "auto"):
        S = le.relative(le.respond(problem, (x, y), engine=engine)).double()
        known = S.isfinite() & truth.isfinite()
        assert ((S - truth).abs() <= RESOLVED_ERROR * truth.clamp_min(1))[known].all()


class Offset(nn.Module):
    """A small net whose changes pass a sum that is large beside them."""

    def __init__(self, forward):
        super().__init__()
        self.body, self.head, self.written = nn.Sequential(nn.Linear(8, 32), nn.Tanh()), nn.Linear(32, 1), forward

    def forward(self, x):
        return self.written(self, x)


class ConstantBias(Offset):
    """A last layer whose bias is no parameter."""

    def __init__(self):
        super().__init__(lambda net, x: F.linear(net.body(x), net.head.weight, net.constant))
        self.register_buffer("constant", torch.full((1,), 3000.0))


LARGE_SUMS = {
    "a constant is added": (lambda: Offset(lambda net, x: 2000 + net.head(net.body(x))), 1e-5),
    "a constant bias": (ConstantBias, 1e-5),
    "added in place": (lambda: Offset(lambda net, x: net.head(net.body(x)).add_(2000)), 1e-5),
    "inputs are added": (lambda: Offset(lambda net, x: 1e5 * x[:, :1] + net.head(net.body(x))), 1e-4),
    "and subtracted again": (lambda: Offset(lambda net, x: net.head((net.body(x) + 1e5) - 1e5)), 1e-3),
    "before a norm": (lambda: Offset(lambda net, x: net.head(F.layer_norm(net.body(x) + 1e4, (32,)))), 1e-3),
    "summed up": (lambda: Offset(lambda net, x: net.head(net.body(x)) + (1e5 * x).cumsum(1)[:, 3:4]), 1e-5),
    "a sine of large numbers": (lambda: Offset(lambda net, x: net.head(torch.sin(1e6 * x[:, :1] + net.body(x)))), 1e-4),
}


@pytest.mark.parametrize("name", LARGE_SUMS)
@pytest.mark.filterwarnings("ignore:.*pairs")
def test_sums_that_are_large_beside_their_parts_lose_digits(name):
    torch.manual_seed(1)
    make, step_size = LARGE_SUMS[name]
    net, x = make(), torch.randn(12, 8)
    y = torch.randn(12, 1) + net(x).detach()
    problem, update = le.Problem.of(net, "mse"), le.SGD(step_size)
    truth = le.relative(le.respond(problem.to(torch.float64), (x, y), update=update, engine="looped"))
    for engine in ("looped", "vmapped", "auto"):
        S = le.relative(le.respond(problem, (x, y), update=update, engine=engine)).double()
        known = S.isfinite()
        assert known.all() if engine == "auto" else not known.any()
        assert ((S - truth).abs()[known] <= RESOLVED_ERROR * truth.clamp_min(1)[known]).all()


def test_the_share_resolved_falls_with_the_residual(trained, record_property):
    """Nothing is called resolved where float32 is all noise, nearly all where it is not; the shares are reported."""
    net, x = trained
    shares = {}
    for residual in RESIDUALS:
        problem, y = le.Problem.of(net, "half_mse"), labels_at(net, x, residual)
        S = le.relative(le.respond(problem, (x, y), update=le.SGD(1e-2), engine="looped"))
        shares[residual] = float(S.isfinite().double().mean())
        tiny = le.relative(le.respond(problem, (x, y), update=le.SGD(1e-9), engine="looped"))
        assert tiny.isnan().float().mean() > 0.9
    record_property("share resolved", str(shares))
    assert shares[1.0] > 0.95
    assert shares[1.0] >= shares[1e-3] >= shares[1e-5]


def test_classifiers_keep_the_promise_for_every_change(digits):
    """Cross-entropy, confident and not, in all three changes."""
    torch.manual_seed(1)
    x, y = digits[0].flatten(1), (digits[1] == 3).long()
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    for sharpness in (1.0, 10.0, 40.0):
        sharp = copy.deepcopy(net)
        with torch.no_grad():
            sharp[2].weight *= sharpness
        problem = le.Problem.of(sharp, "cross_entropy")
        for step_size in STEP_SIZES:
            exact = le.respond(problem.to(torch.float64), (x, y), update=le.SGD(step_size), engine="looped")
            for engine in ("looped", "vmapped", "structured", "auto"):
                response = le.respond(problem, (x, y), update=le.SGD(step_size), engine=engine)
                for change in (le.euclidean, le.manhattan, le.kl):
                    S, truth = le.relative(response, change).double(), le.relative(exact, change)
                    error, allowed = (S - truth).abs(), RESOLVED_ERROR * truth.clamp_min(1)
                    assert (error <= allowed)[S.isfinite() & truth.isfinite()].all()
                    if engine == "auto":
                        assert S.isfinite().double().mean() > truth.isfinite().double().mean() - 0.02


def learn(net, x, y, rate, steps):
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("engine", ["structured", "linearized"])
def test_learned_sources_of_a_classifier_are_clear_in_float32(digits, engine):
    """Their loss gradient is tiny, but nothing is lost in it."""
    torch.manual_seed(0)
    x, y = digits[0].flatten(1), (digits[1] == 3).long()
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    learn(net, x, y, rate=1e-3, steps=160)
    with torch.no_grad():
        net[4].weight *= 2.5
    problem = le.Problem.of(net, "cross_entropy")
    response = le.respond(problem, (x, y), update=le.SGD(1e-3), engine=engine)
    exact = le.respond(problem.to(torch.float64), (x, y), update=le.SGD(1e-3), engine=engine)
    assert response.loss_gradient.norm(dim=1).max() < 1e-4
    for change in (le.euclidean, le.kl):
        S, truth = le.relative(response, change).double(), le.relative(exact, change)
        assert S.isfinite().all()
        assert ((S - truth).abs() <= RESOLVED_ERROR / 10 * truth.clamp_min(1)).all()


def test_auto_resolves_learned_sources_whatever_it_chose(digits):
    """A short job is looped; rows that even float64 hides are computed by differences."""
    torch.manual_seed(0)
    x, y = digits[0][::3].flatten(1), (digits[1][::3] == 3).long()
    net = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    learn(net, x, y, rate=1e-2, steps=100)
    problem = le.Problem.of(net, "cross_entropy")
    for asked in (problem, problem.to(torch.float64)):
        response = le.respond(asked, (x, y), update=le.SGD(1e-7))
        assert response.engine == "looped"
        assert any("by differences" in note for note in response.notes)
        exact = le.respond(problem.to(torch.float64), (x, y), update=le.SGD(1e-7), engine="structured")
        for change in (le.euclidean, le.kl):
            S, truth = le.relative(response, change).double(), le.relative(exact, change)
            assert S.isfinite().all()
            assert ((S - truth).abs() <= RESOLVED_ERROR * truth.clamp_min(1)).all()


class Idle(nn.Module):
    """Computes a second head that nothing depends on, which `Structured` cannot differentiate."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.idle = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        self.idle(hidden)
        return self.head(hidden)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_stay_hidden_where_differences_fail(dtype):
    """And the others keep their values."""
    net, x = Idle().to(dtype), torch.randn(6, 4, dtype=dtype)
    y = net(x)[:, 0].detach() + torch.tensor([0, 1, 1, 1, 1, 1], dtype=dtype)
    S = le.relative(le.respond(le.Problem.of(net, "half_mse"), (x, y), update=le.SGD(1e-6)))
    assert S[1:].isfinite().all()


def test_steps_that_rounding_swallows_are_noticed():
    """Every weight is so large that the step vanishes in float32: nothing moves, and that is said."""
    net = nn.Linear(4, 1, bias=False)
    nn.init.constant_(net.weight, 1e4)
    x = torch.eye(4)
    y = net(x)[:, 0].detach() - 1
    response = le.respond(le.Problem.of(net, "half_mse"), (x, y), update=le.SGD(1e-5), engine="looped")
    assert le.relative(response).isnan().all()
    climbed = le.respond(le.Problem.of(net, "half_mse"), (x, y), update=le.SGD(1e-5))
    assert torch.allclose(le.relative(climbed), torch.eye(4), atol=1e-6)
    assert any("computed again in float64" in note for note in climbed.notes)


def test_half_precision_models_are_measured_in_float32():
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3)).bfloat16()
    x, y = torch.randn(20, 8).bfloat16(), torch.arange(20) % 3
    problem = le.Problem.of(net, "cross_entropy")
    response = le.respond(problem, (x, y), update=le.SGD(1e-2))
    truth = le.respond(problem.to(torch.float64), (x, y), update=le.SGD(1e-2))
    assert response.target_change.dtype == torch.float32
    assert torch.allclose(le.relative(response).double(), le.relative(truth), atol=RESOLVED_ERROR)
    assert "half precision" in response.notes[0]
    raw = le.respond(problem.to(torch.bfloat16), (x, y), update=le.SGD(1e-6), engine="looped")
    assert raw.target_change.dtype == torch.float32
    assert le.relative(raw).isnan().all()


@pytest.mark.parametrize("options", [{"approximate": True}, {"engine": "looped"}, {"engine": "vmapped"}])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_lifted_whatever_the_engine(dtype, options):
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3)).to(dtype)
    x, y = torch.randn(20, 8), torch.arange(20) % 3
    response = le.respond(le.Problem.of(net, "cross_entropy"), (x, y), update=le.SGD(1e-2), **options)
    assert le.relative(response).isfinite().all()
    assert "half precision" in response.notes[0]


def test_half_precision_is_lifted_by_every_measure_and_walk():
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)).bfloat16()
    x, y = torch.randn(20, 8), torch.arange(20) % 3
    problem = le.Problem.of(net, "cross_entropy")
    assert le.ntk(problem, x).dtype == torch.float32
    assert le.stiffness(problem, (x, y)).dtype == torch.float32
    assert le.relative(le.respond_in_sequence(problem, (x, y), x, update=le.SGD(1e-2))).isfinite().all()
    for measure in ("stiffness_cos", "activation"):
        assert le.similarity(problem, (x, y), measure=measure).dtype == "float32"


def test_a_model_that_cannot_run_in_float64_stays_unresolved_and_says_so():
    class Stubborn(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, x):
            return self.linear(torch.mm(x, torch.ones(4, 4, dtype=torch.float32)))

    x, y = torch.randn(10, 4), torch.randn(10)
    response = le.respond(le.Problem.of(Stubborn(), "half_mse"), (x, y), update=le.SGD(1e-9))
    assert le.relative(response).isnan().all()
    assert any("float64 is not possible" in note for note in response.notes)


def test_hopeless_rows_are_not_tried_twice():
    """Where the first rows are all below the noise, the rest go to float64 at once."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    calls = []
    net.register_forward_hook(lambda module, args, out: calls.append(args[0].dtype))
    x, y = torch.randn(60, 4), torch.randn(60)
    response = le.respond(le.Problem.of(net, "half_mse"), (x, y), update=le.SGD(1e-9))
    assert le.relative(response).isfinite().all()
    assert calls.count(torch.float32) < 60


def test_a_large_change_at_a_noisy_target_is_kept():
    """Noise at the target is held against the larger change, so that large ratios are not the first to go."""
    problem = le.Problem.of(torch.nn.Linear(2, 1, bias=False).double(), "half_mse")
    x = torch.tensor([[0.1, 0.0]], dtype=torch.float64)
    targets = torch.tensor([[100.0, 0.0], [0.2, 0.0]], dtype=torch.float64)
    response = le.respond(problem, (x, torch.ones(1)), targets, engine="looped")
    noisy = torch.full_like(response.target_noise, float(le.source_change(response)) / 100)
    S = le.relative(replace(response, target_noise=noisy, noise_scale=torch.ones(1, dtype=torch.float64)))
    assert S[0, 0] == pytest.approx(1000)
    assert S[0, 1].isnan()


def test_adapters_in_float32_on_a_half_precision_model():
    """The usual set-up of LoRA: what steps is in float32, what it is added to is not."""

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(8, 16).bfloat16().requires_grad_(False)
            self.down, self.up, self.head = nn.Linear(8, 2), nn.Linear(2, 16), nn.Linear(16, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.base(x.to(self.base.weight.dtype)).to(x.dtype) + self.up(self.down(x))))

    problem = le.Problem.of(Adapted(), "cross_entropy")
    sources = torch.randn(12, 8), torch.arange(12) % 3
    truth = le.relative(le.respond(problem.to(torch.float64), sources, update=le.SGD(1e-3)))
    found = le.respond(problem, sources, update=le.SGD(1e-3))
    assert "half precision" in found.notes[0]
    S = le.relative(found).double()
    assert S.isfinite().any()
    assert (S - truth).abs()[S.isfinite()].max() < RESOLVED_ERROR
    raw = le.relative(le.respond(problem, sources, update=le.SGD(1e-3), engine="looped")).double()
    assert not ((raw - truth).abs()[raw.isfinite()] > RESOLVED_ERROR).any()


@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "linearized", "structured"])
def test_one_example_that_overflows_leaves_the_others_alone(engine):
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1, bias=False))
    with torch.no_grad():
        for layer in (net[0], net[2], net[4]):
            layer.weight.abs_()
    x, y = torch.rand(6, 3), torch.randn(6)
    alone = le.relative(le.respond(le.Problem.of(net, "half_mse"), (x[1:], y[1:]), engine=engine))
    x[0] = 3e38
    response = le.respond(le.Problem.of(net, "half_mse"), (x, y), engine=engine)
    S = le.relative(response)
    assert not S[0].isfinite().any()
    assert not S.isinf().any()
    assert torch.allclose(S[1:, 1:], alone, rtol=1e-3)
    assert any("not finite at 1 of the sources" in note for note in response.notes)


@pytest.mark.parametrize("gap", [5, 15, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_of_a_sure_network_do_not_cancel(gap, dtype):
    import mpmath

    from local_elasticity.engine.response import softmax_change

    z, d = [gap / 1.0, 0.0, -1.0], [1e-3, -2e-3, 3e-3]
    with mpmath.workdps(60):
        before, after = (
            [mpmath.e ** mpmath.mpf(v) for v in row] for row in (z, [a + b for a, b in zip(z, d, strict=True)])
        )
        true = [float(a / sum(after) - b / sum(before)) for a, b in zip(after, before, strict=True)]
    found = softmax_change(torch.tensor(z, dtype=dtype), torch.tensor(d, dtype=dtype))
    assert found.tolist() == pytest.approx(true, rel=1e-4 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("size", [10.0**e for e in range(-9, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_changes_of_probabilities_do_not_cancel_at_any_size(size, dtype):
    """Down to 1e-30, and where another class becomes the likeliest."""
    import mpmath

    from local_elasticity.engine.response import sigmoid_change, softmax_change

    torch.manual_seed(0)
    eps = torch.finfo(dtype).eps
    with mpmath.workdps(60):
        for spread in (0.1, 3, 30, 70):
            z, d = (scale * torch.randn(20, 3, dtype=dtype) for scale in (spread, size))
            rounding = 10 * eps * (1 + z.abs().amax() + d.abs().amax())
            for found, start, move in zip(softmax_change(z, d).tolist(), z.tolist(), d.tolist(), strict=True):
                before = [mpmath.exp(a) for a in start]
                after = [mpmath.exp(mpmath.mpf(a) + b) for a, b in zip(start, move, strict=True)]
                true = [float(b / sum(after) - a / sum(before)) for a, b in zip(before, after, strict=True)]
                off = sum(abs(a - b) for a, b in zip(found, true, strict=True))
                assert off <= rounding * sum(map(abs, true)) + 1e-30
            logistic = [mpmath.exp(a) / (1 + mpmath.exp(a)) for a in z.flatten().tolist()]
            moved = [mpmath.mpf(a) + b for a, b in zip(z.flatten().tolist(), d.flatten().tolist(), strict=True)]
            true = [float(mpmath.exp(b) / (1 + mpmath.exp(b)) - a) for a, b in zip(logistic, moved, strict=True)]
            assert sigmoid_change(z, d).flatten().tolist() == pytest.approx(true, rel=float(rounding), abs=1e-30)


class Written(nn.Module):
    """Its outputs are written into a tensor of torch's default dtype."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x):
        out = torch.zeros(len(x), 3)
        out[:, :] = self.b(torch.tanh(self.a(x)))
        return out


@pytest.mark.parametrize("step_size", [1e-7, 2e-8])
def test_float32_inside_of_float64_is_not_called_resolved(step_size):
    torch.manual_seed(0)
    net, x, y = Written(), torch.randn(20, 4), torch.arange(20) % 3
    plain = nn.Sequential(net.a, nn.Tanh(), net.b)
    update = le.SGD(step_size)
    found = le.relative(le.respond(net, (x, y), loss="cross_entropy", update=update)).double()
    exact = le.respond(le.Problem.of(plain, "cross_entropy").to(torch.float64), (x, y), update=update)
    truth = le.relative(exact)
    known = found.isfinite()
    assert bool(((found - truth).abs() / truth.clamp_min(1) < RESOLVED_ERROR)[known].all())


@pytest.mark.parametrize("spread", [0.1, 3, 30])
@pytest.mark.parametrize("kind", ["logits", "binary_logits"])
def test_the_noise_of_probabilities_keeps_its_digits(spread, kind):
    """It is ‖J σ‖ with the Jacobian of the softmax or the sigmoid, also where a probability is rounded to 1."""
    torch.manual_seed(0)
    z, noise = spread * torch.randn(40, 5), 1e-6 * torch.rand(40, 5) + 1e-8
    response = le.respond(nn.Linear(2, 5), (torch.randn(40, 2), torch.arange(40) % 5), loss="cross_entropy")
    given = dict.fromkeys(("source_noise", "target_noise"), noise) | dict.fromkeys(
        ("source_before", "target_before"), z
    )
    soft = replace(response, kind=kind, **given).as_probabilities()
    z, noise = z.double(), noise.double()
    if kind == "logits":
        jacobian = torch.func.vmap(torch.func.jacrev(lambda one: one.softmax(-1)))(z)
        sums = torch.exp(z.unsqueeze(-2) - z.unsqueeze(-1)).masked_fill(torch.eye(5, dtype=torch.bool), 0).sum(-1)
        p = z.softmax(-1)
        jacobian = jacobian.masked_fill(torch.eye(5, dtype=torch.bool), 0) + torch.diag_embed(p * sums / (1 + sums))
        wanted = (jacobian * noise.unsqueeze(-2)).square().sum(-1).sqrt()
    else:
        wanted = z.sigmoid() * (-z).sigmoid() * noise
    assert soft.source_noise.flatten().tolist() == pytest.approx(wanted.flatten().tolist(), rel=1e-4, abs=1e-30)
    assert soft.target_noise.equal(soft.source_noise)


@pytest.mark.parametrize("engine", ["auto", "looped", "structured"])
def test_probabilities_that_are_rounded_to_one(engine):
    """Their changes are not resolved where those of their logits are rounding."""
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    torch.manual_seed(0)
    x = torch.randn(10, 6)
    with torch.no_grad():
        net[-1].bias += 20 - net(x).mean()
    exact, S = (
        le.respond(problem, (x, torch.ones(10, 1)), update=le.SGD(300), engine=way).as_probabilities()
        for problem, way in (
            (le.Problem.of(copy.deepcopy(net).double(), "bce_logits"), "structured"),
            (le.Problem.of(net, "bce_logits"), engine),
        )
    )
    truth, found = le.relative(exact, le.manhattan), le.relative(S, le.manhattan).double()
    known = found.isfinite()
    assert bool((((found - truth).abs() / truth.clamp_min(1))[known] < RESOLVED_ERROR).all())
    assert bool(known.all()) or engine == "looped"


def test_probabilities_of_large_changes_of_logits():
    net = nn.Linear(4, 3)
    with torch.no_grad():
        net.weight.copy_(9 * torch.eye(3, 4))
        net.bias.zero_()
    x, y = torch.tensor([[2.0, 0, 0, 1], [0, 1, 0, 1], [0.1, 0.2, 0.3, 1]]), torch.tensor([1, 1, 2])
    problem, update = le.Problem.of(net, "cross_entropy"), le.SGD(0.3)
    S, exact = (
        le.relative(le.respond(one, (x, y), update=update).as_probabilities(), le.manhattan)
        for one in (problem, problem.to(torch.float64))
    )
    assert ((S - exact).abs() / exact.clamp_min(1)).max() < RESOLVED_ERROR


@pytest.mark.parametrize("end", [nn.Sigmoid(), nn.Tanh()], ids=str)
def test_saturated_outputs_that_move_far(end):
    """From near 1 to nearer, which differences of two outputs would lose."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), end)
    nn.init.constant_(net[0].weight, 6.0)
    x, y = torch.tensor([[0.1], [1.0], [2.0]]), torch.full((3, 1), 2.0)
    problem, update = le.Problem.of(net, "half_mse"), le.SGD(20.0)
    found, exact = (
        le.respond(one, (x, y), update=update, engine="structured").target_change[0]
        for one in (problem, problem.to(torch.float64))
    )
    assert ((found - exact).abs() / exact.abs()).max() < 1e-4


def test_many_sources_are_read_together_where_targets_are_few():
    batches = []
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    net.register_forward_pre_hook(lambda module, inputs: batches.append(len(inputs[0])))
    x = torch.randn(50, 4)
    le.respond(le.Problem.of(net, "half_mse"), (x, torch.ones(50)), x[:1], engine="linearized")
    assert len(batches) < 20


class Cosine(nn.Module):
    """A classifier by angles, which undoes what a decay does to its weights."""

    def __init__(self):
        super().__init__()
        self.features = nn.Linear(8, 32, bias=False)
        self.register_buffer("classes", nn.functional.normalize(torch.randn(3, 32), dim=1))

    def forward(self, x):
        return 30 * nn.functional.linear(nn.functional.normalize(self.features(x), dim=1), self.classes)


@pytest.mark.parametrize("decay", [0.1, 5e-4])
def test_the_rounding_of_a_decay_that_the_network_undoes_is_not_called_resolved(decay):
    torch.manual_seed(0)
    net, x = Cosine(), torch.randn(30, 8)
    y = (x[:, 0] > 0).long()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    problem, update = le.Problem.of(net, "cross_entropy"), le.SGD(0.1, weight_decay=decay)
    found = le.relative(le.respond(problem, (x, y), update=update, engine="structured")).double()
    truth = le.relative(le.respond(problem.to(torch.float64), (x, y), update=update, engine="structured"))
    known = found.isfinite() & (truth > 0.1)
    assert 0.2 < known.double().mean() < 1
    assert ((found - truth).abs() / truth)[known].max() < RESOLVED_ERROR


def test_the_rounding_of_a_decay_is_measured_again_where_weights_have_changed():
    torch.manual_seed(0)
    net, x = Cosine(), torch.randn(30, 8)
    y = (x[:, 0] > 0).long()
    problem, update = le.Problem.of(net, "cross_entropy"), le.SGD(0.1, weight_decay=0.1)
    le.respond(problem, (x, y), update=update, engine="structured")
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    again = le.respond(problem, (x, y), update=update, engine="structured").source_noise
    alone = le.respond(le.Problem.of(copy.deepcopy(net), "cross_entropy"), (x, y), update=update, engine="structured")
    assert torch.allclose(again, alone.source_noise, rtol=0.5)


class InFloat64(nn.Module):
    """Sums up in float64 what a float32 net gives."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 64))

    def forward(self, x):
        return 1e4 + self.net(x).sum(1, keepdim=True, dtype=torch.float64)


@pytest.mark.parametrize("square", [True, False])
def test_outputs_in_float64_of_a_float32_net_keep_their_digits(square):
    """Float32 would round outputs of 1e4 to 1e-3; the changes in them are smaller."""
    torch.manual_seed(0)
    net, x = InFloat64(), torch.randn(20, 8)
    y = net(x).detach().float() + 0.1
    problem, update, targets = le.Problem.of(net, "half_mse"), le.SGD(1e-5), None if square else torch.randn(6, 8)
    truth = le.respond(problem.to(torch.float64), (x, y), targets, update=update, engine="looped").target_change
    found = le.respond(problem, (x, y), targets, update=update, engine="looped").target_change.double()
    assert ((found - truth).abs() / truth.abs().amax(1, keepdim=True)).max() < 1e-2


def test_changes_whose_squares_underflow_are_right_or_have_no_value():
    """A linear classifier that is sure of its examples, whose relative changes have a closed form."""
    torch.manual_seed(0)
    net, x = nn.Linear(10, 3), torch.randn(300, 10)
    with torch.no_grad():
        net.weight.mul_(20)
        net.bias.zero_()
    y = net(x).argmax(1)
    inner = x.double() @ x.double().T + 1
    for step_size in (0.1, 1e-6):
        S = le.relative(le.respond(net, (x, y), loss="cross_entropy", update=le.SGD(step_size))).double()
        exact = inner.abs() / inner.diagonal()[:, None]
        known = S.isfinite()
        assert known.any()
        assert bool((((S - exact).abs() / exact.clamp_min(1))[known] < RESOLVED_ERROR).all())


@pytest.mark.parametrize("offset", [1e5, 1e7])
@pytest.mark.parametrize("shared", [True, False])
def test_probabilities_of_logits_far_from_zero(offset, shared):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))
    with torch.no_grad():
        net[2].bias += offset
    x, y = torch.randn(16, 8), torch.arange(16) % 5
    problem, targets = le.Problem.of(net, "cross_entropy"), None if shared else x[8:]
    update = le.SGD(0.1)
    exact = le.respond(problem.to(torch.float64), (x, y), targets, update=update, engine="looped")
    found = le.respond(problem, (x, y), targets, update=update)
    for measured in (lambda r: le.relative(r, le.kl), lambda r: le.relative(r.as_probabilities(), le.manhattan)):
        S, truth = measured(found).double(), measured(exact)
        assert S.isfinite().all()
        assert bool(((S - truth).abs() / truth.clamp_min(1) < RESOLVED_ERROR).all())


def confident():
    """A linear classifier of two classes that is sure of its examples, of which some are labelled wrongly."""
    torch.manual_seed(0)
    net = nn.Linear(6, 2)
    x = torch.randn(24, 6) * torch.linspace(1, 20, 24)[:, None]
    y = (net(x).detach() > 0).float()
    y[::4] = 1 - y[::4]
    return net, x, y


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("engine", ["auto", "looped", "structured"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_near_one(engine, shared, dtype):
    """They are what their logits make of them. 1 − f keeps no digits in float32."""
    net, x, y = confident()
    columns, update = slice(0 if shared else 12, None), le.SGD(1e-4)
    exact = le.respond(le.Problem.of(net, "bce_logits").to(torch.float64), (x, y), update=update)
    problem = le.Problem.of(nn.Sequential(net, nn.Sigmoid()), "bce").to(dtype)
    targets = None if shared else (x[columns], y[columns])
    found = le.respond(problem, (x, y), targets, update=update, engine=engine)
    for measured in (lambda r: le.relative(r, le.kl), le.loss_change, lambda r: le.relative(r.as_probabilities())):
        S, truth = measured(found).double(), measured(exact)
        size = torch.maximum(truth.abs(), truth.diagonal().abs()[:, None])[:, columns]
        error = ((S - truth[:, columns]).abs() / size)[S.isfinite()]
        assert bool((error < RESOLVED_ERROR).all())
        assert len(error) > (0.9 if engine == "auto" else 0) * S.numel()


def test_saturated_probabilities_have_changes_without_divergence():
    """Of 1 − f at a logit of 35, float64 has one digit: a change of f is known, and its divergence is not."""
    net, x = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Sigmoid()).double(), torch.tensor([[1.0], [2.0], [35.0]])
    nn.init.ones_(net[0].weight)
    found = le.respond(net, (x.double(), torch.ones(3, 1).double()), loss="bce", update=le.SGD(1e-2))
    assert le.relative(found).isfinite().all()
    assert le.relative(found, le.kl).isfinite().tolist() == [[True] * 3, [True] * 3, [False] * 3]


def test_logits_far_from_zero_are_stored(tmp_path):
    torch.manual_seed(0)
    net = nn.Linear(5, 3)
    with torch.no_grad():
        net.bias += 1e5
    asked = (net, (torch.randn(6, 5), torch.arange(6) % 3))
    options = {"loss": "cross_entropy", "update": le.SGD(1e-2), "measure": "kl"}
    stored = le.similarity(*asked, **options, store=tmp_path / "far.zarr")
    assert stored.dtype == np.float32
    xr.testing.assert_allclose(stored.compute(), le.similarity(*asked, **options))


@pytest.mark.parametrize("lr", [1e-15, 1e-18])
def test_tiny_steps_are_resolved_in_float64(lr):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    problem, data = le.Problem.of(net, "cross_entropy"), (torch.randn(6, 5), torch.arange(6) % 3)
    S = le.similarity(problem, data, update=le.SGD(lr)).values
    exact = le.similarity(problem.to(torch.float64), data, update=le.SGD(1e-6)).values
    assert np.abs(S - exact).max() < RESOLVED_ERROR


def test_what_rounding_does_is_found_again_where_the_model_or_data_change(monkeypatch):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    problem, x, y = le.Problem.of(net, "cross_entropy"), torch.randn(6, 5), torch.arange(6) % 3
    measured, predictions = [], NullSteps.predictions
    monkeypatch.setattr(NullSteps, "predictions", lambda self: measured.append(1) or predictions(self))

    def null_steps(problem, x):
        measured.clear()
        le.respond(problem, (x, y), engine="structured")
        return len(measured)

    assert [null_steps(problem, x) for _ in range(2)] == [1, 0]
    assert null_steps(problem.to(torch.float64), x) == 1
    assert null_steps(problem, 3 * x) == 1
    assert null_steps(problem, x + 100) == 1
    assert null_steps(problem, torch.randn(6, 5)) == 1
    with torch.no_grad():
        net[2].bias += 30
    assert null_steps(problem, x) == 1
    with torch.no_grad():
        net[0].weight *= 3
    assert [null_steps(problem, x) for _ in range(2)] == [1, 0]
