"""Every engine, every update, every case: equal to the loop that copies the model and steps the copy."""

import pytest
import torch

import local_elasticity as le
from local_elasticity.engine.job import Job
from local_elasticity.engine.linearized import LinearizedRunner
from local_elasticity.engine.structured import LimitRunner
from tests.cases import CASE_OF, CASES
from tests.oracles.loop import looped_response
from tests.tolerances import SAME_IN_FLOAT64, SLOPE

EXACT = {
    "looped": le.Looped(),
    "looped in twos, channels last": le.Looped(at_once=2, channels_last=True),
    "looped, gradients in threes": le.Looped(gradients_at_once=3),
    "vmapped": le.Vmapped(),
    "vmapped in twos": le.Vmapped(chunk=2),
    "structured": le.Structured(),
    "auto": "auto",
}

UPDATES = {
    "sgd": (le.SGD(0.05), lambda model: torch.optim.SGD(model.parameters(), lr=0.05)),
    "sgd with decay": (
        le.SGD(0.05, weight_decay=0.1),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.1),
    ),
    "fresh adam": (le.Adam(1e-3), lambda model: torch.optim.Adam(model.parameters(), lr=1e-3)),
    "fresh adam with decay": (
        le.Adam(1e-3, weight_decay=0.1),
        lambda model: torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.1),
    ),
}

case_of = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def assert_same_rows(got, expected, tolerance=SAME_IN_FLOAT64):
    """Equal to a share of the row's norm."""
    rows = expected.flatten(1).norm(dim=1)
    worst = ((got - expected).flatten(1).norm(dim=1) / rows).max()
    assert worst < tolerance


@case_of
@pytest.mark.usefixtures("racing")
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("engine", EXACT)
def test_exact_engines_agree_with_the_oracle(case, update, engine):
    if engine.startswith("vmapped") and not case.vectorizes:
        with pytest.raises(ValueError, match="engine: Vmapped"):
            le.respond(case.problem(), case.sources, (case.targets, None), engine=EXACT[engine])
        return
    rule, make_optimizer = UPDATES[update]
    source, target = looped_response(
        case.model, case.oracle_loss, case.sources, case.targets, make_optimizer, call=case.call, take=case.take
    )
    response = le.respond(case.problem(), case.sources, (case.targets, None), update=rule, engine=EXACT[engine])
    assert_same_rows(response.target_change, target)
    assert_same_rows(response.source_change, source[:, 0])


@case_of
def test_targets_default_to_the_sources(case):
    problem, (inputs, _) = case.problem(), case.sources
    default = le.respond(problem, case.sources)
    given = le.respond(problem, case.sources, inputs)
    assert default.targets_are_sources
    assert given.targets_are_sources
    copied = le.respond(problem, case.sources, (case.take(inputs, torch.arange(case.n)), None))
    assert not copied.targets_are_sources
    assert_same_rows(default.target_change, copied.target_change)
    assert_same_rows(default.source_change, copied.source_change)
    assert torch.equal(le.relative(default).diagonal(), torch.ones(case.n).double())


@case_of
@pytest.mark.parametrize("update", ["sgd", "sgd with decay"])
def test_linearized_is_the_limit_of_small_steps(case, update):
    """The relative difference to the exact response is of first order in the step size."""
    problem = case.problem()
    sizes = torch.tensor([1e-3, 1e-4, 1e-5]).double()
    differences = []
    for size in sizes.tolist():
        rule = le.SGD(size, weight_decay=0.1 if update == "sgd with decay" else 0.0)
        exact = le.respond(problem, case.sources, (case.targets, None), update=rule).target_change
        limit = le.respond(problem, case.sources, (case.targets, None), update=rule, approximate=True)
        assert limit.engine == "linearized"
        differences.append((limit.target_change - exact).norm() / exact.norm())
    slopes = torch.stack(differences).log().diff() / sizes.log().diff()
    assert (slopes - 1).abs().max() < SLOPE


@case_of
def test_linearized_source_change_is_that_of_a_target(case):
    problem, (inputs, _) = case.problem(), case.sources
    apart = le.respond(problem, case.sources, (case.take(inputs, torch.arange(case.n)), None), engine="linearized")
    rows = torch.arange(case.n)
    assert_same_rows(apart.source_change, apart.target_change[rows, rows])


def test_linearized_follows_any_rule():
    case = CASE_OF["tanh net, three outputs"]
    exact = le.respond(case.problem(), case.sources, (case.targets, None), update=le.Adam(1e-7))
    limit = le.respond(case.problem(), case.sources, (case.targets, None), update=le.Adam(1e-7), engine="linearized")
    assert_same_rows(limit.target_change, exact.target_change, 1e-4)


@pytest.mark.parametrize(("n", "kind"), [(6, LimitRunner), (7, LinearizedRunner)])
def test_linearized_propagates_differences_for_many_outputs(n, kind):
    """In float32, where sources are fewer than twice the outputs, and backward passes hence more than pairs."""
    net, x = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3)), torch.randn(n, 4)
    problem, sources = le.Problem.of(net, "cross_entropy"), (x, torch.arange(n) % 3)
    with problem.bound() as bound:
        assert type(le.Linearized().runner(Job.read(bound, sources, None, le.SGD(1e-3)))) is kind
    found = le.respond(problem, sources, update=le.SGD(1e-3), engine="linearized")
    wanted = le.respond(problem.to(torch.float64), sources, update=le.SGD(1e-3), engine="linearized").target_change
    assert found.engine == "linearized"
    assert_same_rows(found.target_change, wanted, 1e-5)


@pytest.mark.parametrize("engine", [*EXACT, "linearized"])
def test_minibatches_take_one_step_each(engine):
    case = CASE_OF["tanh net, three outputs"]
    inputs, labels = torch.randn(6, 4).double(), torch.tensor([0, 1, 2, 2, 1, 0])
    optimizer = lambda model: torch.optim.SGD(model.parameters(), lr=1e-6)
    source, target = looped_response(case.model, case.oracle_loss, (inputs, labels), case.targets, optimizer, batch=3)
    response = le.respond(
        case.problem(),
        (inputs, labels),
        case.targets,
        update=le.SGD(1e-6),
        engine=EXACT.get(engine, engine),
        source_batch_size=3,
    )
    tolerance = 1e-5 if engine == "linearized" else 1e-7
    assert response.source_change.shape == (2, 3, 3)
    assert_same_rows(response.target_change, target, tolerance)
    assert_same_rows(response.source_change, source, tolerance)
    own = response.source_change.norm(dim=2).mean(1)
    assert torch.allclose(le.relative(response), response.target_change.norm(dim=2) / own[:, None])


@pytest.mark.parametrize("engine", EXACT)
def test_order_of_sources_does_not_matter(engine):
    case = CASE_OF["cnn with batch norm and dropout"]
    inputs, labels = case.sources
    order = torch.tensor([3, 0, 4, 2, 1])
    straight = le.respond(case.problem(), (inputs, labels), (case.targets, None), engine=EXACT[engine])
    shuffled = le.respond(case.problem(), (inputs[order], labels[order]), (case.targets, None), engine=EXACT[engine])
    assert_same_rows(shuffled.target_change, straight.target_change[order])


def test_a_plain_function_is_a_problem():
    w = torch.randn(3, 2).double()
    function = lambda params, x: torch.tanh(x @ params["w"])
    x, y = torch.randn(8, 3).double(), torch.randn(8, 2).double()
    problem = le.Problem.of(function, "mse", params={"w": w})
    response = le.respond(problem, (x, y), update=le.SGD(0.1), engine="vmapped")
    again = le.respond(problem, (x, y), update=le.SGD(0.1), engine="looped")
    assert problem.stepped == ("w",)
    assert_same_rows(response.target_change, again.target_change)


def test_only_the_selected_parameters_step():
    """LoRA-like: the base frozen, an adapter stepped; by requires_grad, by expression, by predicate."""

    class Adapted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.adapter = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
            self.base.requires_grad_(False)

        def forward(self, x):
            return self.base(x) + self.adapter(x)

    net = Adapted().double()
    x, y = torch.randn(6, 4).double(), torch.arange(6) % 3
    optimizer = lambda model: torch.optim.SGD(model.adapter.parameters(), lr=0.05)
    choices = [{}, {"params": "adapter"}, {"params": lambda name, p: "base" not in name}]
    _, target = looped_response(net, torch.nn.functional.cross_entropy, (x, y), x, optimizer)
    for choice in choices:
        problem = le.Problem.of(net, "cross_entropy", **choice)
        assert problem.stepped == ("adapter.weight", "adapter.bias")
        assert_same_rows(le.respond(problem, (x, y), update=le.SGD(0.05)).target_change, target)


def test_loss_gradient_is_that_of_the_loss():
    case = CASE_OF["sigmoid output, bce"]
    inputs, labels = case.sources
    f = case.model(inputs)[:, 0].detach()
    response = le.respond(case.problem(), case.sources)
    assert torch.allclose(response.loss_gradient[:, 0], (f - labels) / (f * (1 - f)))
    assert torch.allclose(response.source_before[:, 0], f)
