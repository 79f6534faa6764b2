"""The closed forms: against the flow by numbers, high precision, the engine, and what must hold of any S_rel."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import local_elasticity as le
from local_elasticity.theory import (
    DiagonalQuadratic,
    Flow,
    HomogeneousFeatures,
    PenalisedFeatures,
    ReluGate,
    SymmetricPair,
    TwoLayerRelu,
    integrate,
    modified_sgd,
)
from tests.oracles import flows as oracle
from tests.tolerances import FLOW, ROUNDING, SLOPE

T = np.array([0.0, 0.4, 1.5, 6.0])
rng = np.random.default_rng(0)
X, Y, CLASSES = rng.normal(size=(25, 3)) + 0.2, rng.normal(size=25), np.arange(25) % 2
STAR, W0 = np.array([1.0, -0.5, 0.7]), rng.normal(size=3)
HIDDEN, SIGNS = rng.normal(size=(12, 4)), rng.choice([-1.0, 1.0], size=12)


def alpha(x):
    return np.cos(x).sum(1)


def beta(x):
    return np.stack([x, x**2 - 0.5], axis=1)


def homogeneous(degree):
    return HomogeneousFeatures(degree, alpha, beta, X, Y, np.full((2, 3), 0.6), 0.1)


def diagonal(a=(1.0, -2.0, 0.5)):
    return DiagonalQuadratic(a, [1.0, 0.5, 2.0], [0.4, -1.3, 0.9], 0.2)


PENALISED = PenalisedFeatures(X, CLASSES, 0.8, 0.3, rng.normal(size=(2, 3)))
GATE = ReluGate.of_inputs(X, STAR, W0, 0.5)
PAIR = SymmetricPair((0.7, 2.0), 0.9, 1.2, 0.2)
NET = TwoLayerRelu(HIDDEN, SIGNS, X, Y, 0.02)
FLOWS = {
    "penalised": (PENALISED, oracle.penalised_velocity(X, CLASSES, 0.8, 0.3), (X[:4], CLASSES[:4])),
    "gate": (GATE, oracle.gate_velocity(X, STAR, 0.5), X[:4]),
    "degree 1": (homogeneous(1), oracle.homogeneous_velocity(1, alpha, beta, X, Y, 0.1), (X[:4], Y[:4])),
    "degree 3": (homogeneous(3), oracle.homogeneous_velocity(3, alpha, beta, X, Y, 0.1), (X[:4], Y[:4])),
    "diagonal": (diagonal(), lambda w: 0.4 * w * (np.array([1, -2, 0.5]) - np.array([1, 0.5, 2]) * w**2), X[:4]),
    "zero a": (diagonal((0.0, 1e-14, 1.0)), None, (X[:4], Y[:4])),
    "pair": (PAIR, lambda w: 0.4 * w * np.array([0.7, 2.0]) * (1 - 0.81 * w**2), X[:4, :2]),
    "two layers": (NET, oracle.two_layer_velocity(SIGNS, X, Y, 0.02), (X[:4], Y[:4])),
}
EVERY = pytest.mark.parametrize("name", FLOWS)


def inputs_of(source):
    return source[0] if isinstance(source, tuple) else source


def quietly(work):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", le.theory.StillSource)
        return work()


@EVERY
def test_every_model_is_a_flow(name):
    flow, _, _ = FLOWS[name]
    assert isinstance(flow, Flow)
    assert flow.velocity(flow.start).shape == flow.start.shape
    assert flow.w(T).shape == (4, *flow.start.shape)
    assert flow.loss(T).shape == (4,)
    with pytest.raises(AttributeError):
        flow.rate = 2.0


@EVERY
def test_weights_follow_the_flow(name):
    flow, velocity, _ = FLOWS[name]
    if velocity is None:
        velocity = flow.velocity
    assert np.allclose(flow.velocity(flow.start), velocity(flow.start), rtol=ROUNDING, atol=ROUNDING)
    if name != "two layers":  # its velocity jumps where a neuron flips, which an implicit method does not like
        numbers = oracle.flow_by_numbers(velocity, flow.start, T)
        assert np.abs(flow.w(T) - numbers).max() < FLOW * np.abs(numbers).max()
    assert np.allclose(flow.w(0.0), flow.start, atol=ROUNDING)


@EVERY
def test_a_flow_goes_on_from_where_it_is(name):
    flow, _, _ = FLOWS[name]
    later = integrate(flow, flow.w(1.5), [0.0, 4.5])[1]
    assert np.abs(later - flow.w(6.0)).max() < 10 * FLOW * np.abs(later).max()


@EVERY
def test_the_loss_falls(name):
    flow, _, _ = FLOWS[name]
    assert (np.diff(flow.loss(np.linspace(0, 10, 40))) <= 1e-12).all()


@EVERY
@pytest.mark.parametrize("step_size", [0.0, 0.01])
def test_axes_and_self_similarity(name, step_size):
    """[t, n, m]; single times, sources and targets have no axis; S_rel(x, x) = 1."""
    flow, _, source = FLOWS[name]
    x = inputs_of(source)
    S = quietly(lambda: flow.relative(T, source, x, step_size=step_size))
    assert S.shape == (4, 4, 4)
    own = np.diagonal(S, axis1=1, axis2=2)
    assert np.allclose(own[np.isfinite(own)], 1, atol=ROUNDING)
    assert np.isfinite(own).any()
    one = (x[1], source[1][1]) if isinstance(source, tuple) else x[1]
    assert np.allclose(quietly(lambda: flow.relative(T, one, x[2], step_size=step_size)), S[:, 1, 2], equal_nan=True)
    assert np.allclose(quietly(lambda: flow.relative(T[2], one, x, step_size=step_size)), S[2, 1], equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(-30, 30),
    st.floats(0.01, 30),
    st.floats(0.01, 5),
    st.floats(0, 200),
)
def test_quadratic_weights_are_right_to_rounding(a, b, w0, t):
    """Any sign of a, w(0) on either side of a/b, early and late, against 60 digits."""
    if abs(a) < 1e-6:
        a = 1e-6
    found = DiagonalQuadratic([a], [b], [w0], 0.01).squares(t)[0]
    assert found == pytest.approx(oracle.quadratic_square(a, b, w0**2, 0.01, t), rel=1e-11, abs=1e-300)


def test_quadratic_weights_without_pull():
    """a = 0 is the limit of small a: w² = w0²/(1 + 4θbw0²t)."""
    t = np.array([0.0, 1.0, 1e6])
    exact = 0.25 / (1 + 4 * 0.1 * 2 * 0.25 * t)
    assert np.allclose(DiagonalQuadratic([0.0], [2.0], [0.5], 0.1).squares(t)[:, 0], exact, rtol=ROUNDING)
    assert np.allclose(DiagonalQuadratic([1e-300], [2.0], [0.5], 0.1).squares(t)[:, 0], exact, rtol=1e-9)
    overflowing = DiagonalQuadratic([-5.0], [1.0], [2.0], 1.0).squares([0.0, 1e5])
    assert overflowing[1, 0] == 0


def test_penalised_similarity_is_right_late_in_training():
    """Where expanded squares of size ‖h‖⁴ cancel: large features, after training, against 60 digits."""
    features = np.maximum(np.random.default_rng(1).normal(size=(40, 6)) * 300, 0)
    flow = PenalisedFeatures(features, np.arange(40) % 2, 1.0, 1e-6, np.ones((2, 6)))
    w = flow.w(1e9)
    for i in range(5):
        exact = oracle.penalised_relative(w, flow.ridge, features[i], i % 2, features[i + 6])
        assert float(flow.relative(1e9, (features[i], i % 2), features[i + 6])) == pytest.approx(exact, rel=1e-9)


def test_readings_of_the_ridge():
    n, k, penalty = 25, 2, 0.8
    ridges = {r: PenalisedFeatures(X, CLASSES, penalty, 1.0, reading=r).ridge for r in ("as_defined", "as_printed")}
    assert ridges == {"as_defined": penalty / k, "as_printed": n * penalty / k}
    released = PenalisedFeatures(X, CLASSES, penalty, 1.0, reading="as_released")
    assert np.allclose(
        released.loss(1.0),
        PenalisedFeatures(X, 1 - CLASSES, penalty, 1.0, released.w(1.0), reading="as_released").loss(0.0),
    )
    assert not np.allclose(released.relative(1.0, (X[0], 0), X[0]), 1.0)


def test_many_starts_share_one_eigendecomposition():
    other = PENALISED.starting_at(np.ones((2, 3)))
    assert other.spectrum[1] is PENALISED.spectrum[1]
    fresh = PenalisedFeatures(X, CLASSES, 0.8, 0.3, np.ones((2, 3)))
    assert np.array_equal(other.w(T), fresh.w(T))
    assert not np.array_equal(PENALISED.w(T), fresh.w(T))


def test_the_gate_settles_at_theorem_4_3():
    x = X[X @ STAR > 0.05][:5]
    late = GATE.late_time(x, x, step_size=0.1)
    assert late.shape == (5, 5)
    S = GATE.relative(late.max() + 1e-9, x, x, step_size=0.1)
    assert np.allclose(S, GATE.late_value(x, x), atol=1e-9)
    assert np.isinf(GATE.late_time(-x[0], x[1]))


def test_algorithm_1_reaches_the_true_weights_in_all_runs_at_once():
    draws = np.random.default_rng(3).normal(size=(3000, 5, 3))
    *_, together = modified_sgd(np.zeros((5, 3)), STAR, draws, step_size=0.1)
    *_, alone = modified_sgd(np.zeros(3), STAR, draws[:, 2], step_size=0.1)
    assert np.allclose(together, STAR, atol=1e-9)
    assert np.allclose(together[2], alone, atol=ROUNDING)


def test_theorem_5_1_contains_w_and_its_metric_does_not():
    flow = homogeneous(2)
    assert np.allclose(flow.proximity(X[:3], X[3:6]), flow.proximity(X[3:6], X[:3]).T)
    bounds = [flow.bound(w, X[:3], X[3:6]) for w in flow.w([0.0, 5.0])]
    assert np.abs(bounds[0] - bounds[1]).max() > 1e-3
    S = flow.relative([0.0, 5.0], X[:3], X[3:6])
    assert all((S[i] <= bounds[i] * (1 + 1e-12)).all() for i in range(2))


def test_the_pair_is_a_special_case_of_the_diagonal():
    x, v = X[:4, :2], X[5:9, :2]
    assert np.allclose(PAIR.relative(T, x, v), PAIR.diagonal.relative(T, x, v), rtol=1e-10)
    assert (
        PAIR.late_bound(PAIR.late_from(x, v).max() + T, x, v)
        <= PAIR.relative(PAIR.late_from(x, v).max() + T, x, v) * (1 + 1e-12)
    ).all()


def test_wide_nets_tend_to_the_arc_cosine():
    wide = TwoLayerRelu(np.random.default_rng(4).normal(size=(200_000, 4)), np.ones(200_000), X, Y, 1.0)
    found = wide.signed(0.0, X[:3], X[3:8])
    assert np.abs(found - TwoLayerRelu.infinite_width(X[:3], X[3:8])).max() < 0.02
    assert np.allclose(TwoLayerRelu.infinite_width(X[:3], X[:3]).diagonal(), 1)


# --- against the engine ---------------------------------------------------------------------------------------------


def engine_similarity(model, w, source, target, *, update, change=le.euclidean, loss="half_mse"):
    tensor = lambda value: torch.as_tensor(np.asarray(value, dtype=np.float64))
    problem = le.Problem.of(lambda p, x: model(p["w"], x), loss, params={"w": tensor(w)})
    given = tensor(source[0]), tensor(source[1])
    response = le.respond(problem, given, tensor(target), update=update, engine="looped", progress=False)
    return le.relative(response, change).numpy()


def engine_model(name):
    """The network in torch, what of it counts as the change, and the loss."""
    if name.startswith("degree"):
        degree = int(name[-1])
        features = lambda x: torch.stack([x, x**2 - 0.5], dim=1)
        return lambda w, x: (torch.cos(x).sum(1) + (features(x) * w**degree).sum((1, 2)))[:, None], {}
    if name == "diagonal":
        return lambda w, x: (x @ w**2)[:, None], {}
    if name == "two layers":
        signs = torch.as_tensor(SIGNS)
        return lambda w, x: (torch.relu(torch.cat([x, torch.ones(len(x), 1)], 1) @ w.T) @ signs)[:, None], {}
    pre_and_post = lambda w, x: torch.stack([x @ w, torch.relu(x @ w)], dim=1)
    loss = lambda f, y: (0.25 * (y > 0) * (y - f[:, 0]).square()).mean()
    return pre_and_post, {"loss": loss, "change": lambda before, d: d[..., 1].abs()}


@pytest.mark.parametrize("name", ["degree 3", "diagonal", "two layers", "gate"])
def test_a_finite_step_is_the_engines(name):
    flow, _, _ = FLOWS[name]
    model, options = engine_model(name)
    x, v, eta = X[:5], X[5:11], 0.02
    y = np.maximum(x @ STAR, 0) if name == "gate" else Y[:5]
    for t in (0.0, 1.5):
        theirs = engine_similarity(model, flow.w(t), (x, y), v, update=le.SGD(eta), **options)
        ours = quietly(lambda t=t: flow.relative(t, x if name == "gate" else (x, y), v, step_size=eta))
        known = np.isfinite(theirs) & np.isfinite(ours)
        assert known.any()
        assert np.allclose(ours[known], theirs[known], rtol=1e-8, atol=1e-9)


def test_a_penalty_is_the_engines_weight_decay():
    model = lambda w, x: x @ w.T
    labels = np.eye(2)[CLASSES[:5]]
    for t in T:
        theirs = engine_similarity(
            model, PENALISED.w(t), (X[:5], labels), X[5:11], update=le.SGD(0.01, weight_decay=0.4)
        )
        assert np.allclose(PENALISED.relative(t, (X[:5], CLASSES[:5]), X[5:11]), theirs, rtol=1e-9)


@pytest.mark.parametrize("name", ["degree 3", "diagonal"])
def test_the_engine_tends_to_the_closed_form_in_first_order(name):
    """|S(η) − S(0)| halves with η."""
    flow, _, _ = FLOWS[name]
    model, _ = engine_model(name)
    limit = flow.relative(1.5, (X[:5], Y[:5]), X[5:11])
    errors = [
        np.abs(engine_similarity(model, flow.w(1.5), (X[:5], Y[:5]), X[5:11], update=le.SGD(eta)) - limit).max()
        for eta in (1e-3, 5e-4, 2.5e-4)
    ]
    slopes = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.abs(slopes - 1).max() < SLOPE
