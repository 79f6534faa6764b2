"""How far a step is from its limit, against the slow definition; the step that is chosen by it; and who says so."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

import local_elasticity as le
from local_elasticity.engine.derivatives import derivative_along
from local_elasticity.engine.inputs import count, take
from local_elasticity.engine.nonlinearity import ALLOWED, LARGE, SOURCES, TARGETS
from local_elasticity.training.history import History
from tests.cases import CASE_OF, CASES
from tests.oracles.loop import looped_response
from tests.tolerances import SAME_AT_SMALL_STEPS


def spread(n, few):
    return torch.linspace(0, n - 1, min(n, few)).round().long()


def by_definition(case, rate, small=1e-8):
    """The response at the step and at one that is far smaller, by the oracle loop, on the same pairs."""

    def change(size):
        optimizer = lambda model: torch.optim.SGD(model.parameters(), lr=size)
        options = {"call": case.call, "take": case.take}
        return looped_response(case.model, case.oracle_loss, case.sources, case.targets, optimizer, **options)[1]

    rows, columns = spread(case.n, SOURCES), spread(case.m, TARGETS)
    found, limit = (part[rows][:, columns].flatten(1) for part in (change(rate), change(small) * (rate / small)))
    return float(((found - limit).norm(dim=1) / limit.norm(dim=1)).median())


@pytest.mark.parametrize("rate", [1e-3, 0.3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_what_it_says(case, rate):
    response = le.respond(case.problem(), case.sources, (case.targets, None), update=le.SGD(rate))
    assert response.nonlinearity == pytest.approx(by_definition(case, rate), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_two_ways_give_the_same_derivative(case):
    from local_elasticity.engine import derivatives

    problem = case.problem()
    with problem.bound() as bound:
        bound.watched(case.targets)
        moved = [{name: torch.randn_like(p) for name, p in bound.params.items()} for _ in range(2)]
        found = torch.stack([derivative_along(bound, bound.params, one, case.targets) for one in moved])
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            for way in (derivatives._two_backward_passes, derivatives._forward_mode):
                assert torch.allclose(found, way(bound, bound.params, moved, case.targets))
    assert torch._C._get_mkldnn_enabled()


@pytest.mark.parametrize("options", [{}, {"drift": "remove"}, {"clip_norm": 1e-2, "drift": "remove"}])
def test_any_update(options):
    case = CASE_OF["tanh net, three outputs"]
    model = copy.deepcopy(case.model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    for _ in range(2):
        optimizer.zero_grad()
        case.oracle_loss(model(case.sources[0]), case.sources[1]).backward()
        optimizer.step()
    problem, update = le.Problem.of(model, case.loss), le.FromOptimizer(optimizer, **options)
    assert le.respond(problem, case.sources, update=update).nonlinearity < SAME_AT_SMALL_STEPS
    optimizer.param_groups[0]["lr"] = 50.0
    assert le.respond(problem, case.sources, update=update).nonlinearity > LARGE


def test_a_linear_model_and_a_linear_answer_have_none():
    net, x, y = nn.Linear(4, 3), torch.randn(9, 4), torch.arange(9) % 3
    assert le.respond(net, (x, y), loss="cross_entropy", update=le.SGD(10.0)).nonlinearity < 1e-5
    net = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3))
    limit = le.respond(net, (x, y), loss="cross_entropy", update=le.SGD(10.0), approximate=True)
    assert limit.nonlinearity == 0


def test_rounding_is_not_taken_for_it():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3))
    x, y = torch.randn(9, 4), torch.arange(9) % 3
    for engine in ("looped", "auto", "structured"):
        for size in (1e-8, 1e-6, 1e-5):
            found = le.respond(net, (x, y), loss="cross_entropy", update=le.SGD(size), engine=engine).nonlinearity
            assert np.isnan(found) or found < 2e-2


class Opaque(torch.autograd.Function):
    """It has a gradient, and no derivative of that."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * 2


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return Opaque.apply(self.layer(x))


def test_a_network_without_such_a_derivative_has_none():
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    S = le.similarity(Unknown(), (x, y), loss="cross_entropy", update=le.SGD(0.1), engine="looped")
    assert "nonlinearity" not in S.attrs
    assert np.isfinite(S.values).all()


class PartlyUnknown(nn.Module):
    """The gradient of its first layer comes by two ways, of which one has no derivative."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        h = self.first(x).tanh()
        return self.last(h + Opaque.apply(h))


def test_a_derivative_that_is_cut_off_is_no_derivative():
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    problem = le.Problem.of(PartlyUnknown(), "cross_entropy")
    assert np.isnan(le.respond(problem, (x, y), update=le.SGD(0.1), engine="looped").nonlinearity)
    with pytest.raises(ValueError, match='update: le.SGD\\("auto"\\) finds no derivative of the network'):
        le.respond(problem, (x, y), update=le.SGD("auto"))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3))


x, y = torch.randn(12, 6, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_step_is_the_largest_that_is_linear(case):
    response = le.respond(case.problem(), case.sources, (case.targets, None), update=le.SGD("auto"))
    size = response.update.step_size
    assert any(f"the step size is {size:g}" in note for note in response.notes)
    if size < 1:
        assert _deviation(case, size) <= ALLOWED * 1.001
        assert _deviation(case, 1.4 * size) > ALLOWED


def _deviation(case, size):
    """What nine in ten of some sources deviate by at most, at four targets and at themselves, the worse of outputs and
    probabilities, from steps that are 1e-6 of it."""
    problem = case.problem().to(torch.float64)
    rows = spread(len(case.sources[1]), 12)
    targets = take(case.targets, spread(count(case.targets), TARGETS))
    found = []
    for row in rows.tolist():
        source = tree_map(lambda leaf, row=row: leaf[row : row + 1], case.sources)
        for inputs in (targets, source[0]):
            change, small = (
                le.respond(problem, source, (inputs, None), update=le.SGD(rate), engine="looped")
                for rate in (size, 1e-6 * size)
            )
            shares = []
            spaces = [lambda z: z]
            if change.kind == "logits":
                spaces.append(lambda z: z.softmax(-1))
            elif change.kind == "binary_logits":
                spaces.append(torch.sigmoid)
            for space in spaces:
                z = change.target_before
                moved, limit = (space(z + r.target_change[0]) - space(z) for r in (change, small))
                shares.append(float((moved - 1e6 * limit).norm() / (1e6 * limit).norm()))
            found += [max(shares)] if bool(small.target_change.norm() > 0) else []
    return float(np.quantile(found, 0.9, method="higher"))


def test_the_step_is_small_for_probabilities_too():
    """A network that has learned: most sources hardly move, and some move across the decision."""
    torch.manual_seed(0)
    net, inputs = network(), torch.randn(60, 6)
    labels = inputs[:, :3].argmax(1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
    options = {"loss": "cross_entropy", "measure": "kl"}
    S = le.similarity(net.double(), (inputs.double(), labels), update=le.SGD("auto"), **options)
    limit = le.similarity(net, (inputs.double(), labels), update=le.SGD("auto"), approximate=True, **options)
    ratio = (S / limit).values
    assert 0.9 < np.nanmedian(ratio) < 1.1


@pytest.mark.parametrize("loss", ["cross_entropy", "bce_logits"])
def test_sources_that_are_learned_do_not_choose_the_step(loss):
    """Half of them have no gradient to speak of, and probabilities that round to one."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3 if loss == "cross_entropy" else 1))
    inputs = torch.randn(40, 6)
    inputs[::2] *= 0.01
    with torch.no_grad():
        net[2].weight *= 200
        outputs = net(inputs)
    labels = outputs.argmax(1) if loss == "cross_entropy" else (outputs > 0).float()
    options = {"loss": loss, "measure": "relative"}
    S = le.similarity(net, (inputs, labels), update=le.SGD("auto"), **options)
    limit = le.similarity(net, (inputs, labels), update=le.SGD(1e-3), approximate=True, **options)
    assert S.attrs["step_size"] > 1e-7
    ratio = (S / limit).values[::2]
    assert np.isfinite(ratio).mean() > 0.8
    assert np.nanquantile(abs(ratio - 1), 0.9) < 0.1


def test_no_step_is_linear_where_gradients_are_no_derivatives():
    class Rounded(nn.Module):
        def forward(self, x):
            return x + (x.sign() - x).detach()

    net = nn.Sequential(nn.Linear(6, 40), Rounded(), nn.Linear(40, 3))
    with pytest.raises(ValueError, match='update: le.SGD\\("auto"\\) finds no step from 1e-12 to 1'):
        le.respond(net, (x, y), loss="cross_entropy", update=le.SGD("auto"))


def test_one_step_for_all_parts_and_probes(tmp_path):
    net = network()
    S = le.similarity(net, (x, y), loss="cross_entropy", update=le.SGD("auto"))
    size = S.attrs["step_size"]
    assert S.attrs["update"] == f"SGD(step_size={size!r}, weight_decay=0.0)"
    assert S.attrs["nonlinearity"] <= 2 * ALLOWED
    for _ in range(2):
        stored = le.similarity(
            net, (x, y), loss="cross_entropy", update=le.SGD("auto"), store=tmp_path / "s.zarr", block=5
        )
        assert stored.attrs["step_size"] == size
        assert stored.attrs["nonlinearity"] <= 2 * ALLOWED
    monitor = le.Monitor(
        net, (x, y), loss="cross_entropy", update=le.SGD("auto"), every=1, budget=None, store=tmp_path / "h.zarr"
    )
    for step in range(2):
        monitor.probe(step)
    assert [probe.facts["step_size"] for probe in monitor.history] == [size, size]
    again = History.open(tmp_path / "h.zarr").dataset()
    assert again["nonlinearity"].values == pytest.approx([S.attrs["nonlinearity"]] * 2, abs=1e-5)


def test_a_limit_of_small_steps_is_what_it_gives():
    net = network()
    S = le.similarity(net, (x, y), loss="cross_entropy", update=le.SGD("auto"))
    limit = le.similarity(net, (x, y), loss="cross_entropy", approximate=True)
    assert np.corrcoef(S.values.ravel(), limit.values.ravel())[0, 1] > 0.999


@pytest.mark.parametrize("bad", ["large", 0.0, -1.0, float("nan"), float("inf")])
def test_steps_that_are_none(bad):
    with pytest.raises(ValueError, match="step_size: expected a positive, finite number"):
        le.SGD(bad)


def test_no_gradient_no_step():
    net = nn.Linear(3, 1)
    inputs = torch.zeros(2, 3)
    with pytest.raises(ValueError, match='le.SGD\\("auto"\\) finds no gradient'):
        le.respond(net, (inputs, net(inputs).detach()), loss="mse", update=le.SGD("auto"))


def test_it_is_said_once_by_similarity_and_monitor_and_not_by_respond(tmp_path):
    net, words = network(), r"update: the step is so large that changes deviate by \d+%"
    options = {"loss": "cross_entropy", "update": le.SGD(3.0)}
    for store in ({}, {"store": tmp_path / "s.zarr"}):
        with pytest.warns(le.LargeStepWarning, match=words) as told:
            S = le.similarity(net, (x, y), **options, **store)
        assert len(told) == 1
        assert told[0].filename == __file__
        assert S.attrs["nonlinearity"] > LARGE
    monitor = le.Monitor(net, (x, y), every=1, budget=None, **options)
    with pytest.warns(le.LargeStepWarning, match=words) as told:
        monitor.step(0)
    assert len(told) == 1
    assert told[0].filename == __file__
    assert "from those of small steps" in monitor.history.notes[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert monitor.step(1)
        assert le.respond(net, (x, y), **options).nonlinearity > LARGE
        le.similarity(net, (x, y), loss="cross_entropy", update=le.SGD(1e-3))
        le.similarity(net, (x, y), loss="cross_entropy", update=le.SGD(3.0), approximate=True)


def test_as_an_error_it_ends_the_run():
    monitor = le.Monitor(network(), (x, y), loss="cross_entropy", update=le.SGD(3.0), every=1, budget=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error", le.LargeStepWarning)
        with pytest.raises(le.LargeStepWarning):
            monitor.step(0)


def test_the_model_is_as_it_was():
    net = network()
    before = copy.deepcopy(net.state_dict())
    state = torch.get_rng_state()
    le.similarity(net, (x, y), loss="cross_entropy", update=le.SGD("auto"))
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert torch.equal(state, torch.get_rng_state())


def stepped_adamw(net, sources):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1)
    nn.functional.cross_entropy(net(sources[0]), sources[1]).backward()
    optimizer.step()
    return le.FromOptimizer(optimizer)


STEPS = {
    "small": lambda *_: le.SGD(1e-2),
    "large": lambda *_: le.SGD(3.0),
    "decay": lambda *_: le.SGD(1.0, weight_decay=0.1),
    "adam": lambda *_: le.Adam(0.1),
    "adamw": stepped_adamw,
}


@pytest.mark.parametrize("n", [6, 36])
@pytest.mark.parametrize("step", STEPS)
def test_differences_and_derivatives_agree_with_few_sources_and_many(n, step):
    """With many sources the limits are found beside the rows, in one pass."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    problem = le.Problem.of(net, "cross_entropy")
    sources = torch.randn(n, 4, dtype=torch.float64), torch.arange(n) % 3
    update = STEPS[step](net, sources)
    found, expected = (
        le.respond(problem, sources, update=update, engine=engine).nonlinearity
        for engine in (le.Structured(), le.Looped())
    )
    assert found == pytest.approx(expected, rel=1e-4)
