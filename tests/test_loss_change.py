"""The measure `loss`: copy, step, loss, subtract; and the digits that a subtraction would lose."""

import copy
import warnings

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import local_elasticity as le
from local_elasticity.engine.loss import LOSSES, gradient_of
from local_elasticity.measures.loss_differences import NamedLosses, OwnLosses
from tests.cases import CASE_OF, CASES
from tests.kinds import KINDS, N
from tests.oracles.loop import looped_loss_change
from tests.tolerances import RESOLVED_ERROR, ROUNDING, SAME_AT_SMALL_STEPS, SAME_IN_FLOAT64, STRUCTURED_IN_FLOAT32


def sgd(rate):
    return lambda model: torch.optim.SGD(model.parameters(), lr=rate)


def of_case(case, rate, **options):
    """What the package and the oracle say, with labels of the targets."""
    torch.manual_seed(3)
    targets = case.targets, case.labels(case.m)
    S = le.similarity(case.problem(), case.sources, targets, measure="loss", update=le.SGD(rate), **options)
    expected = looped_loss_change(
        case.model, case.oracle_loss, case.sources, targets, sgd(rate), call=case.call, take=case.take
    )
    return torch.from_numpy(S.values), expected


@pytest.mark.parametrize("rate", [1e-3, 0.3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_the_change_of_the_loss(case, rate):
    got, expected = of_case(case, rate)
    assert torch.allclose(got, expected, rtol=0, atol=SAME_IN_FLOAT64)
    assert ((got - expected).norm(dim=1) / expected.norm(dim=1)).max() < SAME_IN_FLOAT64


@pytest.mark.parametrize("name", ["relu net, squared loss", "tanh net, three outputs", "attention"])
@pytest.mark.parametrize("engine", ["looped", "vmapped", "structured"])
def test_every_engine_gives_it(name, engine):
    got, expected = of_case(CASE_OF[name], 0.1, engine=engine)
    assert torch.allclose(got, expected, rtol=0, atol=SAME_IN_FLOAT64)


@pytest.mark.parametrize("case", CASES[:4], ids=lambda case: case.name)
def test_its_limit_is_the_product_of_gradients(case):
    torch.manual_seed(3)
    targets, rate = (case.targets, case.labels(case.m)), 0.3
    problem = case.problem()
    S = le.similarity(problem, case.sources, targets, measure="loss", update=le.SGD(rate), approximate=True)

    def gradients(x, y):
        found = []
        for i in range(len(y)):
            loss = case.oracle_loss(case.model(x[i : i + 1]), y[i : i + 1])
            found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(case.model.parameters()))]))
        return torch.stack(found)

    expected = -rate * gradients(*case.sources) @ gradients(*targets).T
    assert torch.allclose(torch.from_numpy(S.values), expected, rtol=SAME_IN_FLOAT64)
    small = le.similarity(problem, case.sources, targets, measure="loss", update=le.SGD(1e-7))
    scale = np.abs(expected.numpy()).max()
    assert np.abs(small.values / 1e-7 * rate - expected.numpy()).max() < SAME_AT_SMALL_STEPS * scale


def digits_and_net():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 3))
    return net, torch.randn(12, 1, 8, 8), torch.arange(12) % 3


@pytest.mark.parametrize("memory", [None, 40_000], ids=["at once", "in blocks"])
@pytest.mark.parametrize("square", [True, False])
def test_its_limit_from_gradients_is_that_of_responses(square, memory):
    """Alone it takes one gradient of each example; beside another measure it is read from the response."""
    net, x, y = digits_and_net()
    targets = None if square else (x[:5], y[:5])
    options = {"loss": "cross_entropy", "update": le.SGD(0.1), "approximate": True, "memory": memory}
    alone = le.similarity(net, (x, y), targets, measure="loss", **options)
    beside = le.similarity(net, (x, y), targets, measure=["loss", "kl"], **options)["loss"]
    np.testing.assert_allclose(alone, beside, rtol=1e-4, atol=1e-7)
    same = {"engine", "nonlinearity", "unresolved", "step_size", "update"}
    assert {name: alone.attrs[name] for name in same} == {name: beside.attrs[name] for name in same}


def test_its_limit_knows_what_an_optimizer_holds_and_what_rounding_hides():
    net, x, y = digits_and_net()
    head = torch.optim.SGD(net[3].parameters(), lr=0.1)
    options = {"loss": "cross_entropy", "approximate": True}
    found = le.similarity(net, (x, y), measure="loss", update=le.FromOptimizer(head), **options)
    of_head = le.Problem.of(net, "cross_entropy", params="^3")
    expected = le.similarity(of_head, (x, y), measure=["loss", "kl"], update=le.SGD(0.1), approximate=True)["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
    adam = le.FromOptimizer(torch.optim.Adam(net.parameters(), lr=1e-3))
    expected = le.similarity(net, (x, y), measure=["loss", "kl"], update=adam, **options)["loss"]
    np.testing.assert_allclose(le.similarity(net, (x, y), measure="loss", update=adam, **options), expected)
    with torch.no_grad():  # residuals of single examples are rounding: 1e6 + 1 against 1e6
        net[3].weight[0], net[3].bias[0] = 0, 1e6 + 1
    first = le.Problem.of(net, "mse", output=lambda out: out[:, :1])
    hidden = le.similarity(first, (x, torch.full((12, 1), 1e6)), measure="loss", approximate=True)
    assert hidden.isnull().all()


@pytest.mark.parametrize("name", ["embedding, largest norm", "clamps its weights"])
def test_its_limit_is_refused_where_a_forward_pass_writes_weights(name):
    kind = next(kind for kind in KINDS if kind.name == name)
    problem = le.Problem.of(kind.model(), "mse")
    with pytest.raises(ValueError, match="engine: Linearized cannot follow a forward pass that writes its weights"):
        le.similarity(problem, (kind.examples(), torch.randn(N, 2)), measure="loss", approximate=True)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, x):
        return torch.cat([self.a(x), self.b(x)], 1)


@pytest.mark.filterwarnings("ignore:.*pairs")
@pytest.mark.parametrize("measure", ["loss", ["loss", "relative"]], ids=["alone", "beside"])
@pytest.mark.parametrize("seed", range(6))
def test_sources_whose_steps_are_turned_by_rounding_are_not_resolved(seed, measure):
    """Sources are learned, the second head to the last digits, and the targets' losses are those of that head."""
    torch.manual_seed(seed)
    net, x = TwoHeads(), torch.randn(8, 6)
    with torch.no_grad():
        y = net.double()(x.double())
        y[:4] += torch.randn(4, 2).double() * torch.tensor([1e-4, 1e-6])
        y[4:, 1] += 1
    sources, targets, options = (x[:4], y[:4].float()), (x[4:], y[4:].float()), {"loss": "mse", "approximate": True}
    expected = le.similarity(net, sources, targets, measure="loss", **options).values
    own = np.abs(le.similarity(net, sources, measure="loss", **options).values.diagonal())[:, None]
    found = le.similarity(net.float(), sources, targets, measure=measure, **options)
    found = (found if isinstance(measure, str) else found["loss"]).values
    error = np.abs(found - expected) / np.maximum(np.abs(expected), own)
    assert (error[np.isfinite(found)] <= RESOLVED_ERROR).all()


OUTPUTS = {
    "mse": [(4,), (4, 3), (4, 2, 3)],
    "half_mse": [(4,), (4, 3)],
    "cross_entropy": [(4, 5), (4, 1), (4, 5, 3)],
    "bce": [(4, 1), (4, 3)],
    "bce_logits": [(4,), (4, 3)],
}


def in_many_digits(name, before, after, labels):
    """The losses of single examples, with 60 digits."""
    mp = mpmath.mp

    def one(f, y):
        f = np.vectorize(mp.mpf, otypes=[object])(f)
        if name == "cross_entropy":
            columns = f.reshape(len(f), -1)
            each = [mp.log(sum(mp.exp(v) for v in column)) for column in columns.T]
            if y.dtype.kind == "f":
                terms = [
                    t * sum(map(mp.mpf, q)) - sum(mp.mpf(a) * v for a, v in zip(q, column, strict=True))
                    for t, q, column in zip(each, y.reshape(len(f), -1).T, columns.T, strict=True)
                ]
            else:
                known = [
                    (t - column[label])
                    for t, label, column in zip(each, y.reshape(-1), columns.T, strict=True)
                    if label != -100
                ]
                return sum(known) / len(known)
            return sum(terms) / len(terms)
        f, y = f.reshape(-1), [mp.mpf(float(v)) for v in y.reshape(-1)]
        if name in ("mse", "half_mse"):
            total = sum((a - b) ** 2 for a, b in zip(f, y, strict=True))
            return total / 2 if name == "half_mse" else total / len(y)
        p = f if name == "bce" else [1 / (1 + mp.exp(-v)) for v in f]
        return -sum(b * mp.log(a) + (1 - b) * mp.log(1 - a) for a, b in zip(p, y, strict=True)) / len(y)

    with mp.workdps(60):
        return [one(a, y) - one(b, y) for a, b, y in zip(after, before, labels, strict=True)]


def drawn(name, shape, soft, sure, generator):
    logits = sure * torch.randn(shape, generator=generator, dtype=torch.float64)
    outputs = torch.sigmoid(logits) if name == "bce" else logits
    labels = torch.rand(shape, generator=generator, dtype=torch.float64)
    if name == "cross_entropy" and not soft:
        labels = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=generator)
        if len(shape) > 2:
            labels[0, 0] = -100
    elif name == "cross_entropy":
        labels = labels / labels.sum(1, keepdim=True)
    elif not soft:
        labels = labels.round()
    return outputs, labels


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name, shapes in OUTPUTS.items() for shape in shapes])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e-2, 1.0, 40.0])
@pytest.mark.parametrize("sure", [1.0, 10.0])
def test_nothing_cancels(name, shape, soft, size, sure):
    generator = torch.Generator().manual_seed(0)
    before, labels = drawn(name, shape, soft, sure, generator)
    d = size * torch.randn(shape, generator=generator, dtype=torch.float64)
    if name == "bce":
        d = torch.where(d > 0, d * (1 - before), d * before).clamp(-0.9 * before, 0.9 * (1 - before))
    with mpmath.mp.workdps(60):
        after = [
            np.vectorize(lambda a, b: mpmath.mpf(a) + mpmath.mpf(b), otypes=[object])(a, b)
            for a, b in zip(before.numpy(), d.numpy(), strict=True)
        ]
    expected = in_many_digits(name, list(before.numpy()), after, list(labels.numpy()))
    got = NamedLosses(LOSSES[name][0]).change(before, d, labels, torch.zeros_like(d))[0]
    slope = NamedLosses(LOSSES[name][0]).gradient(before, labels)
    scale = (slope * d).abs().reshape(len(d), -1).sum(1)
    for value, true, least in zip(got.tolist(), expected, scale.tolist(), strict=True):
        assert abs(value - float(true)) <= ROUNDING * max(abs(float(true)), least * (1 + sure)) + 1e-50


@pytest.mark.parametrize("name", OUTPUTS)
def test_gradients_are_those_of_the_losses(name):
    generator = torch.Generator().manual_seed(1)
    for shape in OUTPUTS[name]:
        before, labels = drawn(name, shape, False, 1.0, generator)
        if len(shape) > 2 and name == "cross_entropy":
            labels = labels.clamp_min(0)
        expected = gradient_of(LOSSES[name][0], before, labels)
        assert torch.allclose(NamedLosses(LOSSES[name][0]).gradient(before, labels), expected)


def learned(dtype):
    """A classifier whose loss is about 1e-6 at every example."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3)).double()
    x, y = torch.randn(12, 8).double(), torch.arange(12) % 3
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    while F.cross_entropy(net(x), y) > 1e-6:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.float().to(dtype), x.float().to(dtype), y


@pytest.mark.parametrize("engine", ["structured", "auto"])
def test_float32_keeps_the_digits_of_learned_examples(engine):
    exact = le.similarity(
        learned(torch.float64)[0], learned(torch.float64)[1:], loss="cross_entropy", measure="loss", update=le.SGD(0.1)
    )
    net, x, y = learned(torch.float32)
    S = le.similarity(net, (x, y), loss="cross_entropy", measure="loss", update=le.SGD(0.1), engine=engine)
    assert S.attrs["unresolved"] == 0
    size = np.maximum(np.abs(np.diag(exact.values))[:, None], np.abs(exact.values))
    assert (np.abs(S.values - exact.values) / size).max() < 10 * STRUCTURED_IN_FLOAT32
    response = le.respond(net, (x, y), loss="cross_entropy", update=le.SGD(0.1), engine=engine)
    after = response.target_after.flatten(0, 1)
    each = F.cross_entropy(after, y.repeat(12), reduction="none").view(12, 12)
    subtracted = each - F.cross_entropy(response.target_before, y, reduction="none")
    assert (np.abs(subtracted.numpy() - exact.values) / size).max() > 0.1


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_what_is_resolved_in_float32_is_right(rate, loss):
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3))
    x, y = torch.randn(20, 6), torch.arange(20) % 3
    y = y if loss == "cross_entropy" else F.one_hot(y, 3).float()
    for engine in ("looped", "auto"):
        S = le.similarity(net, (x, y), loss=loss, measure="loss", update=le.SGD(rate), engine=engine).values
        double = (x.double(), y if loss == "cross_entropy" else y.double())
        exact = le.similarity(net.double(), double, loss=loss, measure="loss", update=le.SGD(rate)).values
        net = net.float()
        known = np.isfinite(S)
        own = np.abs(np.diag(exact))[:, None]
        assert (np.abs(S - exact) / own)[known].max(initial=0) < RESOLVED_ERROR
        assert known.all() or engine == "looped"


def test_small_influences_stay_small_numbers():
    """A target that a step hardly moves is not unresolved."""
    net = nn.Linear(2, 1, bias=False)
    x, y = torch.tensor([[1.0, 0.0], [1e-6, 1.0]]), torch.tensor([3.0, 5.0])
    S = le.similarity(net, (x, y), loss="half_mse", measure="loss", update=le.SGD(0.1))
    assert np.isfinite(S.values).all()
    assert 0 < np.abs(S.values[0, 1]) < 1e-4


def smooth(outputs, labels):
    return F.smooth_l1_loss(outputs, labels.reshape(outputs.shape))


def branching(outputs, labels):
    """vmap cannot take it."""
    return (outputs.reshape(-1) - labels.reshape(-1)).abs().mean() * (2.0 if float(labels.flatten()[0]) > 0 else 1.0)


OWN = {
    "a function": smooth,
    "with Python's branches": branching,
    "a module of torch": nn.HuberLoss(delta=0.5),
}


@pytest.mark.parametrize("name", OWN)
def test_a_loss_of_the_users_is_subtracted_in_float64(name):
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 1))
    x, y, x2, y2 = torch.randn(5, 4), torch.randn(5, 1), torch.randn(3, 4), torch.randn(3, 1)
    S = le.similarity(net, (x, y), (x2, y2), loss=OWN[name], measure="loss", update=le.SGD(0.05))
    net = net.double()
    expected = looped_loss_change(
        net, OWN[name], (x.double(), y.double()), (x2.double(), y2.double()), sgd(0.05)
    ).numpy()
    own = looped_loss_change(net, OWN[name], (x.double(), y.double()), (x.double(), y.double()), sgd(0.05)).numpy()
    assert np.isfinite(S.values).all()
    assert (np.abs(S.values - expected) / np.abs(np.diag(own))[:, None]).max() < 1e-4
    double = le.similarity(
        net, (x.double(), y.double()), (x2.double(), y2.double()), loss=OWN[name], measure="loss", update=le.SGD(0.05)
    )
    assert np.allclose(double.values, expected, rtol=0, atol=SAME_IN_FLOAT64)


def test_weights_of_classes_and_smoothed_labels():
    torch.manual_seed(4)
    net, x, y = nn.Linear(4, 3), torch.randn(6, 4), torch.arange(6) % 3
    for loss in (
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda outputs, labels: F.cross_entropy(outputs, labels, weight=torch.ones(3), label_smoothing=0.1),
    ):
        S = le.similarity(net, (x, y), loss=loss, measure="loss", update=le.SGD(0.1), engine="structured")
        expected = looped_loss_change(net, loss, (x, y), (x, y), sgd(0.1)).numpy()
        assert np.allclose(S.values, expected, rtol=0, atol=1e-6)


def test_its_rounding_counts():
    """A loss that keeps few digits leaves its small changes unresolved."""

    def coarse(outputs, labels):
        return (1e9 + (outputs - labels).square()).mean()

    net, x, y = nn.Linear(2, 1).double(), torch.randn(4, 2).double(), torch.randn(4, 1).double()
    S = le.similarity(net, (x, y), loss=coarse, measure="loss", update=le.SGD(1e-9))
    assert S.attrs["unresolved"] == 1
    assert le.similarity(net, (x, y), loss=coarse, measure="loss", update=le.SGD(1e-1)).attrs["unresolved"] == 0
    assert OwnLosses(coarse).change(torch.ones(1, 1), torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1, 1))[1] > 0


def regression_of_cancelling_units():
    """Predictions near 0 as sums of large terms, whose labels are 1e-5 to 1e-3 from them."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).double(), torch.randn(20, 8).double()
    hidden, v = torch.tanh(net[0](x)).detach(), torch.randn(64, 1).double()
    v = 30 * (v - torch.linalg.pinv(hidden) @ hidden @ v)
    with torch.no_grad():
        net[2].weight.copy_((v + torch.linalg.pinv(hidden) @ (1e-3 * torch.randn(20, 1).double())).T)
        net[2].bias.zero_()
        net.float()
        y = copy.deepcopy(net).double()(x.float().double()) - torch.logspace(-5, -3, 20).double()[:, None]
    return net, x.float(), y.float()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "structured"])
def test_the_rounding_of_predictions_counts(engine, shared):
    """A residual f − y is known no better than f, of which rounding may be more than a unit in its last place."""
    net, x, y = regression_of_cancelling_units()
    targets = (x, y) if shared else (x[5:], y[5:])
    options = {"loss": "half_mse", "measure": "loss", "update": le.SGD(1e-6)}
    S = le.similarity(net, (x, y), None if shared else targets, **options, engine=engine)
    double = copy.deepcopy(net).double(), (x.double(), y.double()), tuple(part.double() for part in targets)
    exact = le.similarity(*double, **options, engine="looped").values
    own = np.abs(le.similarity(*double[:2], **options, engine="looped").values.diagonal())[:, None]
    known = np.isfinite(S.values)
    assert (np.abs(S.values - exact) / np.maximum(np.abs(exact), own))[known].max(initial=0) < RESOLVED_ERROR
    assert known.mean() > 0.5 or engine != "auto"


@pytest.mark.parametrize("step_size", [0.3, 1, 5])
def test_probabilities_that_a_step_moves_to_an_end(step_size):
    """f + d cancels where a step moves f near 0 or 1, so that the logarithm of it is not known."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).double()
    x, y = 4 * torch.randn(12, 6).double(), (torch.arange(12) % 2).double()
    exact = looped_loss_change(
        net, F.binary_cross_entropy_with_logits, (x, y[:, None]), (x, y[:, None]), sgd(step_size)
    )
    found = le.loss_change(
        le.respond(nn.Sequential(net, nn.Sigmoid()), (x, y), loss="bce", update=le.SGD(step_size))
    ).numpy()
    exact, known = exact.numpy(), np.isfinite(found)
    size = np.maximum(np.abs(exact), np.abs(exact.diagonal())[:, None])
    assert (np.abs(found - exact) / size)[known].max() < 1e-6
    assert known.mean() > 0.5


def test_the_rounding_of_predictions_counts_along_a_walk():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
    with torch.no_grad():  # small sums of large parts
        net[0].weight[:32], net[0].bias[:32] = net[0].weight[32:], net[0].bias[32:]
        net[2].weight[:, :32], net[2].weight[:, 32:] = 1e3 + torch.rand(32), -1e3
    x, targets, exact = torch.randn(8, 6), 30 * torch.randn(10, 6), copy.deepcopy(net).double()
    y, labels = (exact(x.double()).detach() + 0.1).float(), (exact(targets.double()).detach() + 1e-3).float()
    walk = le.respond_in_sequence(net, (x, y), (targets, labels), loss="mse", update=le.SGD(1e-9))
    assert float(walk.target_rounding.min()) > 1e-3
    assert le.loss_change(walk).isnan().all()


@pytest.mark.parametrize("seed", [0, 3])
def test_losses_of_ones_own_that_lose_digits_after_the_step(seed):
    """1 − f has none where a step moves f to nearly 1."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).double()
    x, y = 8 * torch.randn(12, 6).double(), (torch.arange(12) % 2).double()[:, None]
    exact = looped_loss_change(net, F.binary_cross_entropy_with_logits, (x, y), (x, y), sgd(0.3)).numpy()
    own = lambda outputs, labels: F.binary_cross_entropy(outputs, labels)
    found = le.loss_change(le.respond(nn.Sequential(net, nn.Sigmoid()), (x, y), loss=own, update=le.SGD(0.3))).numpy()
    size, known = np.maximum(np.abs(exact), np.abs(exact.diagonal())[:, None]), np.isfinite(found)
    assert (np.abs(found - exact) / size)[known].max() < RESOLVED_ERROR
    assert known.mean() > 0.5


def own_errors(net, loss, sources, targets, rate, engine="auto"):
    """The errors of `loss_change` in shares of the value, or of the source's own change, against the loop in float64;
    NaN where it is not resolved."""
    exact = copy.deepcopy(net).double()
    both = [(x.double(), y.double() if y.is_floating_point() else y) for x, y in (sources, targets)]
    named = {"mse": F.mse_loss}.get(loss, loss)
    expected = looped_loss_change(exact, named, *both, sgd(rate))
    own = looped_loss_change(exact, named, both[0], both[0], sgd(rate)).diagonal().abs()[:, None]
    found = le.loss_change(le.respond(net, sources, targets, loss=loss, update=le.SGD(rate), engine=engine)).double()
    return (found - expected).abs() / torch.maximum(expected.abs(), own)


def worst(errors):
    return errors[errors.isfinite()].max() if errors.isfinite().any() else torch.zeros(())


def focal(outputs, labels):
    p = torch.sigmoid(outputs)
    right = p * labels + (1 - p) * (1 - labels)
    return -((1 - right) ** 2 * right.log()).mean()


def percentage(outputs, labels):
    return ((outputs - labels).abs() / (labels.abs() + 1e-3)).mean()


IN_UNIT_INTERVAL = {
    "huber": nn.HuberLoss(),
    "logistic": nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0).double()),
    "focal": focal,
    "exponential": lambda outputs, labels: torch.exp(-(2 * labels - 1) * outputs).mean(),
}


@pytest.mark.parametrize("name", IN_UNIT_INTERVAL)
def test_outputs_that_happen_to_be_between_0_and_1_may_leave(name):
    """Of a loss that takes all numbers. A head of zeros predicts 0 everywhere."""
    for seed in range(50):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        with torch.no_grad():
            net[2].weight.mul_((0.01, 0)[seed % 2])
            net[2].bias.fill_((0, 0.05, 0.95, 1)[seed % 4])
        x, y = torch.randn(4, 5).double(), (torch.arange(4) % 2).double()[:, None]
        errors = own_errors(net, IN_UNIT_INTERVAL[name], (x, y), (x, y), (1e-3, 0.1, 1.0)[seed % 3])
        assert worst(errors) < 1e-6
        assert errors.isfinite().any()


@pytest.mark.parametrize("loss", ["bce", lambda outputs, labels: F.binary_cross_entropy(outputs, labels)])
def test_losses_of_probabilities_are_not_known_where_a_step_leaves_them(loss):
    net = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        net.weight.fill_(0.8)
    x, y = torch.eye(2).double(), torch.ones(2, 1).double()
    found = le.loss_change(le.respond(net, (x, y), loss=loss, update=le.SGD(0.1)))
    assert found.isfinite().all()
    for rate in (0.2, 1):
        left = le.loss_change(le.respond(net, (x, y), loss=loss, update=le.SGD(rate)))
        assert left.isnan().all()


def test_residuals_of_exactly_0_are_no_masks():
    """Of an output of 1000, beside one near 0: float32 rounds the first by as much as the labels are from it."""
    for seed in range(30):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2))
        with torch.no_grad():
            net[2].bias.copy_(torch.tensor([1000.0, 0.0]))
            x = torch.randn(8, 6)
            y = copy.deepcopy(net).double()(x.double()) + torch.tensor([1.5e-5, 2e-3]) * torch.randn(8, 2)
        data = x, y.float()
        assert worst(own_errors(net, "mse", data, data, 1e-2)) < RESOLVED_ERROR


KINKS = {
    "l1": nn.L1Loss(),
    "smooth l1": nn.SmoothL1Loss(beta=1e-3),
    "huber": nn.HuberLoss(delta=0.05),
    "percentage": percentage,
    "hinge": lambda outputs, labels: (1 + outputs - labels).clamp_min(0).mean(),
}


@pytest.mark.parametrize("engine", ["auto", "looped"])
@pytest.mark.parametrize("name", KINKS)
def test_the_rounding_of_predictions_counts_at_kinks(name, engine):
    """Float32 rounds predictions near a kink, which a step crosses."""
    resolved = []
    for seed in range(20):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
        far, off, rate = ((2e5, 1, 0.02), (3.0, 2e-6, 1e-7), (3.0, 1e-2, 1e-3), (0.0, 1.0, 0.1))[seed % 4]
        with torch.no_grad():
            net[2].bias.add_(far)
            x, targets = torch.randn(3, 6), torch.randn(20, 6)
            exact = copy.deepcopy(net).double()
            y = (exact(x.double()) + 20 * off * torch.randn(3, 1)).float()
            labels = (exact(targets.double()) + off * torch.randn(20, 1) + (name == "hinge")).float()
        errors = own_errors(net, KINKS[name], (x, y), (targets, labels), rate, engine)
        assert worst(errors) < RESOLVED_ERROR
        resolved.append(errors.isfinite().double().mean())
    assert max(resolved[3::4]) > 0.5 or engine == "looped"


MARGIN = lambda outputs, labels: F.multi_margin_loss(outputs, labels)


@pytest.mark.parametrize("classes", [2, 3, 9])
def test_kinks_between_outputs(classes):
    """A margin is the difference of two outputs, which rounding may move in opposite directions."""
    for seed in range(20):
        torch.manual_seed(seed)
        net, x, y = nn.Linear(4, classes), torch.randn(6, 4), torch.arange(6) % classes
        with torch.no_grad():
            net.weight.mul_(1e-6)
            net.bias.copy_(torch.arange(classes).float())  # margins of 1
        assert worst(own_errors(net, MARGIN, (x, y), (x, y), 1e-6)) < RESOLVED_ERROR


MASKED = {
    "named": "cross_entropy",
    "own": lambda outputs, labels: F.cross_entropy(outputs, labels),
    "by hand": lambda outputs, labels: -outputs.log_softmax(1).gather(1, labels[:, None]).mean(),
}


@pytest.mark.parametrize("loss", MASKED)
@pytest.mark.parametrize("masked", [-1e4, -1e9, torch.finfo(torch.float32).min, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masked_logits_do_not_count_as_noise(masked, dtype, loss):
    class Masked(nn.Linear):
        def forward(self, x):
            of_example = (x[:, 0] > 0) & (masked > -torch.inf)
            hidden = torch.stack([torch.ones_like(of_example), of_example], 1)
            return super().forward(x).masked_fill(F.pad(hidden, (3, 0)), masked)

    torch.manual_seed(0)
    net, x, y = Masked(4, 5).to(dtype), torch.randn(8, 4).to(dtype), torch.arange(8) % 3
    assert le.loss_change(le.respond(net, (x, y), loss=MASKED[loss], update=le.SGD(1))).isfinite().all()


def test_minibatches_move_the_loss_as_one_step():
    case = CASE_OF["tanh net, three outputs"]
    x, y = case.sources[0][:4], case.sources[1][:4]
    targets = case.targets, torch.arange(case.m) % 3
    S = le.similarity(case.problem(), (x, y), targets, measure="loss", update=le.SGD(0.1), source_batch_size=2)
    for row in range(2):
        batch = x[2 * row : 2 * row + 2], y[2 * row : 2 * row + 2]
        moved = torch.func.functional_call
        params = dict(case.model.named_parameters())
        loss = F.cross_entropy(case.model(batch[0]), batch[1])
        steps = torch.autograd.grad(loss, list(params.values()))
        after = {name: p - 0.1 * g for (name, p), g in zip(params.items(), steps, strict=True)}
        expected = F.cross_entropy(moved(case.model, after, (targets[0],)), targets[1], reduction="none")
        expected = expected - F.cross_entropy(case.model(targets[0]), targets[1], reduction="none")
        assert np.allclose(S.values[row], expected.detach().numpy(), rtol=0, atol=SAME_IN_FLOAT64)


def test_along_a_walk():
    torch.manual_seed(0)
    net, x, y = nn.Linear(3, 2).double(), torch.randn(4, 3).double(), torch.tensor([0, 1, 1, 0])
    walk = le.respond_in_sequence(le.Problem.of(net, "cross_entropy"), (x, y), (x, y), update=le.SGD(0.1))
    found = le.loss_change(walk)
    weight, bias = net.weight.detach().clone(), net.bias.detach().clone()
    for i in range(4):
        p = (x[i] @ weight.T + bias).softmax(-1)
        p[y[i]] -= 1
        before = F.cross_entropy(x @ weight.T + bias, y, reduction="none")
        weight, bias = weight - 0.1 * p[:, None] * x[i], bias - 0.1 * p
        after = F.cross_entropy(x @ weight.T + bias, y, reduction="none")
        assert torch.allclose(found[i], after - before, rtol=0, atol=SAME_IN_FLOAT64)


def test_targets_need_labels():
    net, x, y = nn.Linear(2, 3), torch.randn(4, 2), torch.tensor([0, 1, 2, 0])
    words = r"targets: this measure reads their labels; pass targets=\(inputs, labels\)"
    with pytest.raises(ValueError, match=words):
        le.similarity(net, (x, y), x.clone(), loss="cross_entropy", measure="loss")
    response = le.respond(net, (x, y), x.clone(), loss="cross_entropy")
    assert response.target_labels is None
    with pytest.raises(ValueError, match=words):
        le.loss_change(response)
    with pytest.raises(ValueError, match="transformed"):
        le.loss_change(le.respond(net, (x, y), loss="cross_entropy").as_probabilities())


@pytest.mark.parametrize(
    ("loss", "labels"),
    [("cross_entropy", torch.tensor([7, 0])), ("cross_entropy", torch.zeros(2, 3).long()), ("mse", torch.zeros(2))],
)
def test_labels_that_do_not_fit_are_named(loss, labels):
    net, x = nn.Linear(2, 3), torch.randn(4, 2)
    y = torch.tensor([0, 1, 2, 0]) if loss == "cross_entropy" else torch.randn(4, 3)
    with pytest.raises(ValueError, match="^targets: "):
        le.similarity(net, (x, y), (x[:2], labels), loss=loss, measure="loss")
    response = le.respond(net, (x, y), (x[:2], labels), loss=loss)
    assert torch.equal(response.target_labels.float(), labels.float())
    with pytest.raises(ValueError, match="^targets: "):
        le.loss_change(response)


def test_a_source_that_does_not_move_is_unresolved():
    net = nn.Linear(2, 1, bias=False)
    x = torch.eye(2)
    y = net(x).detach()
    y[1] += 1
    S = le.similarity(net, (x, y), loss="half_mse", measure="loss", update=le.SGD(0.1))
    assert np.isnan(S.values).tolist() == [[True, True], [False, False]]


def test_helpers_and_harmers():
    net = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(net.weight)
    x = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [2.0, 0.1], [1.0, -0.2]])
    y = torch.tensor([1.0, 1.0, -1.0, 1.0, -1.0])
    S = le.similarity(net, (x, y), loss="half_mse", measure="loss", update=le.SGD(0.1))
    found = S.le.nearest(target=0, top=2)
    assert found.columns.tolist() == ["source", "value", "effect"]
    assert found.effect.tolist() == ["helps", "helps", "harms"]
    assert found.source.tolist() == [3, 1, 4]
    assert (found.value[:2] < 0).all()
    assert found.value.tolist() == pytest.approx(S.sel(target=0).values[[3, 1, 4]])
    assert S.le.nearest(source=0, top=9).effect.value_counts().to_dict() == {"helps": 2, "harms": 1}
    moved = le.similarity(net, (x, y), loss="half_mse", update=le.SGD(0.1)).le.nearest(target=0, top=2)
    assert moved.columns.tolist() == ["source", "value"]
    assert moved.value.is_monotonic_decreasing


@pytest.mark.parametrize(
    ("options", "words"),
    [({}, "source, target: "), ({"source": 0, "target": 0}, "source, target: "), ({"target": 99}, "target: 99 is not")],
)
def test_nearest_says_what_is_wrong(options, words):
    S = le.as_similarity(np.eye(3))
    with pytest.raises(ValueError, match=words):
        S.le.nearest(**options)


def test_it_is_shown_on_the_page(tmp_path):
    net, x, y = nn.Linear(4, 3), torch.randn(12, 4), torch.arange(12) % 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        S = le.similarity(net, (x, y), loss="cross_entropy", measure="loss", update=le.SGD(0.1), examples=x)
        path = le.write_report(S, tmp_path / "report.html")
    assert "below 0 it helps" in path.read_text()


ASKED = []
"""The least and the largest output that `noted_bce` was asked for."""


def noted_bce(f, y):
    ASKED.append((float(f.detach().min()), float(f.detach().max())))
    return F.binary_cross_entropy(f, y)


def test_a_loss_of_probabilities_is_asked_for_no_others():
    """On a GPU, torch's binary cross-entropy of an output outside of [0, 1] ends the use of the device."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), nn.Sigmoid())
    with torch.no_grad():
        net[2].bias.copy_(torch.tensor([40.0, -200.0, 0.0]))
    x, y = torch.randn(6, 4), torch.randint(0, 2, (6, 3)).float()
    problem = le.Problem.of(net, noted_bce)
    ASKED.clear()
    le.loss_change(le.respond(problem, (x, y), (x, y), update=le.SGD(1e-3)))
    assert min(least for least, _ in ASKED) >= 0
    assert max(most for _, most in ASKED) <= 1
