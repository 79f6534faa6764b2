"""The two-layer model, its one step, and the theory, against autograd, drawing and simulation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import local_elasticity as le
from local_elasticity.emergence.activation import hermite_rule
from tests.oracles import emergence as oracle
from tests.tolerances import FINITE_SIZE, QUADRATURE, ROUNDING, SAME_IN_FLOAT32, SAME_IN_FLOAT64, STANDARD_ERRORS

em = le.emergence
ACTIVATIONS = list(em.ACTIVATIONS)


def step_of(activation="relu", *, n=64, d=32, width=48, seed=0, **options):
    task = em.training_data(n, d, seed=seed)
    network = em.TwoLayer.random(d, width, activation=activation, seed=seed)
    return task, em.one_step(network, task.X, task.y, **options)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(64, 32, 48), (10, 40, 7)], ids=["n>d", "d>n"])
def test_the_gradient_is_autograds(activation, shape):
    n, d, width = shape
    task, step = step_of(activation, n=n, d=d, width=width)
    expected = oracle.gradient(step.before, task.X, task.y)
    assert torch.allclose(step.gradient, expected, rtol=SAME_IN_FLOAT64, atol=SAME_IN_FLOAT64)
    assert torch.allclose(step.after.W, step.before.W + math.sqrt(n) * expected, rtol=0, atol=SAME_IN_FLOAT64)
    assert torch.allclose(step.beta, oracle.covariance(task.X, task.y), rtol=0, atol=ROUNDING)


def test_parts_of_the_step_add_up_and_their_norms_are_numpys():
    _, step = step_of()
    assert torch.equal(step.rank_one + step.rest, step.rank_one + (step.gradient - step.rank_one))
    assert np.linalg.matrix_rank(step.rank_one.numpy()) == 1
    for name, matrix in {"gradient": step.gradient, "rank_one": step.rank_one, "rest": step.rest}.items():
        assert step.norms[name].operator == pytest.approx(np.linalg.norm(matrix.numpy(), 2), rel=SAME_IN_FLOAT64)
        assert step.norms[name].frobenius == pytest.approx(np.linalg.norm(matrix.numpy()), rel=SAME_IN_FLOAT64)


def test_a_network_is_drawn_as_the_model_says():
    network = em.TwoLayer.random(64, 4096, seed=3)
    assert torch.allclose(network.W.norm(dim=1), torch.ones(4096, dtype=torch.float64))
    assert float(network.a.square().sum()) == pytest.approx(1, abs=STANDARD_ERRORS * math.sqrt(2 / 4096))
    x = torch.randn(5, 64, dtype=torch.float64)
    assert torch.allclose(network.module()(x)[:, 0], network(x))
    assert [name for name, p in network.module().named_parameters() if p.requires_grad] == ["hidden.weight"]


def test_the_same_seed_draws_different_numbers_for_different_purposes():
    """The direction across v must not come from the numbers that made v."""
    for seed in range(3):
        task = em.training_data(20, 30, seed=seed)
        classes = em.unseen_classes("II", 0.0, task.v, per_class=3, seed=seed)
        assert float(classes.means[0] @ task.v) == pytest.approx(0, abs=ROUNDING)
        assert float(classes.means[0].norm()) == pytest.approx(2)


@pytest.mark.parametrize("kind", list(em.NOISES))
def test_noises_have_mean_zero_and_unit_covariance(kind):
    n, d = 20_000, 6
    rows = em.noise(kind, n, d, seed=1)
    assert float(rows.mean(0).abs().max()) < STANDARD_ERRORS / math.sqrt(n)
    apart = rows.T @ rows / n - torch.eye(d, dtype=torch.float64)
    assert float(apart.abs().max()) < STANDARD_ERRORS * math.sqrt(2 / n)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_designs_place_the_means_as_they_say(t):
    v = em.training_data(10, 40, seed=2).v
    along = v / v.norm()
    means = {design: em.unseen_classes(design, t, v, per_class=2, seed=5).means for design in em.DESIGNS}
    assert torch.allclose(means["II"].norm(dim=1), torch.full((2,), 2.0, dtype=torch.float64))
    assert torch.allclose(means["II"] @ along, torch.tensor([2 * t, -2 * t], dtype=torch.float64))
    assert torch.allclose(means["I"], 2 * t * torch.stack([along, -along]))
    assert torch.allclose(means["IIIb"] @ along, torch.full((2,), 2 * t, dtype=torch.float64))
    assert float((means["IIIb"][0] - means["IIIb"][1]).norm()) == pytest.approx(4)


def test_shuffled_labels_have_nothing_to_do_with_the_data():
    task = em.training_data(4000, 20, seed=0, shuffled=True)
    assert float(task.y.sum()) == 0
    assert float(em.train_covariance(task.X, task.y) @ task.v) == pytest.approx(0, abs=STANDARD_ERRORS * 4.5 / 63)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_moments_and_derivatives(name):
    activation = em.ACTIVATIONS[name]
    z = torch.linspace(-3, 3, 61, dtype=torch.float64)[1:] + 1e-3
    z.requires_grad_()
    (slope,) = torch.autograd.grad(activation.function(z).sum(), z)
    assert torch.allclose(activation.derivative(z.detach()), slope)
    moments = activation.moments()
    closed = {"relu": (0.5, 0.5, 0.5 / math.sqrt(2 * math.pi)), "linear": (1.0, 1.0, 0.0)}
    if name in closed:
        assert (moments.c1, moments.m2, moments.c2) == pytest.approx(closed[name], abs=1e-12)
    else:
        nodes, weights = hermite_rule(150)
        assert moments.c1 == pytest.approx(float(weights @ activation.derivative(nodes)), rel=1e-4)
    assert moments.mean == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", ACTIVATIONS)
@given(mean=st.floats(-3, 3), variance=st.floats(0.05, 9))
@settings(max_examples=25, deadline=None)
def test_smoothed_activations_are_expectations(name, mean, variance):
    activation = em.ACTIVATIONS[name]
    kink = -mean / math.sqrt(variance)
    z = torch.cat([torch.linspace(-12, kink, 4001), torch.linspace(kink, 12, 4001)]).double()
    values = activation.function(mean + math.sqrt(variance) * z) * torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    m, v = torch.tensor([mean], dtype=torch.float64), torch.tensor([variance], dtype=torch.float64)
    assert float(activation.smoothed(m, v)) == pytest.approx(float(torch.trapezoid(values, z)), abs=2e-3)


@given(s=st.floats(-4, 4), step_size=st.floats(0.1, 40))
@settings(max_examples=25, deadline=None)
def test_theory_of_the_linear_net_is_its_closed_form(s, step_size):
    theory = em.Theory(em.ACTIVATIONS["linear"], step_size, n=512, inputs=256, width=512, beta_norm=2.1)
    gamma = step_size / math.sqrt(512)
    assert theory.alignment(2.0, s) == pytest.approx(4 / 256 + gamma**2 * s**2, rel=QUADRATURE)
    assert theory.product((2.0, s), (2.0, -s), -4.0) == pytest.approx(-4 / 256 - gamma**2 * s**2, rel=QUADRATURE)
    assert theory.elasticity(2.0, s) == pytest.approx(gamma**2 * (s**2 + 2.1**2), rel=QUADRATURE)
    assert theory.leading_elasticity(2.0, s) == pytest.approx(gamma**2 * (s**2 + 2.1**2), rel=QUADRATURE)


@pytest.mark.parametrize("name", ["relu", "tanh", "erf"])
def test_quadrature_is_the_expectation_it_says(name):
    theory = em.Theory(em.ACTIVATIONS[name], 20.0, n=512, inputs=256, width=512, beta_norm=2.1)
    aligned, moved = oracle.theory_by_drawing(theory, 2.0, 3.0, draws=400_000, seed=0)
    assert abs(theory.alignment(2.0, 3.0) - aligned[0]) < STANDARD_ERRORS * aligned[1]
    assert abs(theory.elasticity(2.0, 3.0) - moved[0]) < STANDARD_ERRORS * moved[1]


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_small_steps_follow_the_leading_order(name):
    """The error of the leading order falls at least as fast as the step itself."""
    errors = []
    for step_size in (2.0, 1.0, 0.5):
        theory = em.Theory(em.ACTIVATIONS[name], step_size, n=4000, inputs=2000, width=4000, beta_norm=2.1)
        rise = theory.alignment(2.0, 3.0) - theory.before.alignment(2.0, 3.0)
        base = theory.alignment(2.0, 0.0) - theory.before.alignment(2.0, 0.0)
        errors.append(abs((rise - base) / theory.leading_alignment_rise(2.0, 3.0) - 1))
        assert theory.elasticity(2.0, 3.0) == pytest.approx(theory.leading_elasticity(2.0, 3.0), rel=0.1 * step_size)
    assert errors[2] < errors[0] < 0.1


def test_theory_meets_simulation():
    """Design II at half size, eight seeds: the mean of the simulations lies on the theory."""
    found = []
    for seed in range(8):
        task, step = step_of(n=256, d=128, width=256, seed=seed)
        theory = em.Theory.of_step(step, 256)
        classes = em.unseen_classes("II", 0.8, task.v, per_class=100, seed=seed)
        s = float(step.beta @ classes.means[0])
        before, after = step.before.features(classes.x), step.after.features(classes.x)
        measured = em.alignment(after, classes.labels), em.elasticity(before, after)
        found.append([*measured, theory.alignment(2.0, s), theory.elasticity(2.0, s)])
    A, LE, theory_A, theory_LE = np.mean(found, axis=0)
    assert pytest.approx(theory_A, rel=FINITE_SIZE) == A
    assert pytest.approx(theory_LE, rel=FINITE_SIZE) == LE


def test_expected_theory_knows_the_size_of_beta():
    norms = [float(step_of(n=256, d=128, seed=seed)[1].beta.norm()) for seed in range(8)]
    theory = em.Theory.expected(em.ACTIVATIONS["relu"], step_size=16.0, n=256, inputs=128, width=256, mean_norm=2.0)
    assert theory.beta_norm == pytest.approx(np.mean(norms), rel=FINITE_SIZE)


def test_rank_one_rest_shrinks_in_operator_norm_only():
    """Four times the size: the operator norm halves, give or take; the Frobenius share stays."""
    shares = {}
    for d in (64, 256):
        steps = [step_of(n=2 * d, d=d, width=2 * d, seed=seed)[1].norms for seed in range(3)]
        shares[d] = [
            np.mean([getattr(one["rest"], norm) / getattr(one["rank_one"], norm) for one in steps])
            for norm in ("operator", "frobenius")
        ]
    assert shares[256][0] / shares[64][0] == pytest.approx(0.5, abs=0.1)
    assert shares[256][1] / shares[64][1] == pytest.approx(1.0, abs=0.1)


def test_large_outer_weights_break_the_rank_one_picture():
    task = em.training_data(256, 128, seed=0)
    rest = {}
    for deviation in (None, 1.0):
        network = em.TwoLayer.random(128, 256, seed=0, outer_deviation=deviation)
        norms = em.one_step(network, task.X, task.y).norms
        rest[deviation] = norms["rest"].operator / norms["rank_one"].operator
    assert rest[1.0] > 1.5 * rest[None]


def test_equivalent_kernel_retrieves_as_the_features_do():
    differences = []
    for seed in range(4):
        task, step = step_of(n=512, d=256, width=512, seed=seed)
        theory = em.Theory.of_step(step, 512)
        classes = em.unseen_classes("II", 0.6, task.v, per_class=200, seed=seed)
        predicted = em.equivalent_recall(
            classes.x, classes.labels, step.beta, gamma=theory.gamma, moments=theory.moments
        )
        differences.append(predicted - em.recall_at_k(step.after.features(classes.x), classes.labels))
    assert abs(np.mean(differences)) < 0.03


def test_classes_that_were_aligned_are_locally_elastic():
    """S_rel after a step on one unseen example, through the engine: more within than between, more so along β."""
    ratios = {}
    for t in (0.0, 1.0):
        task, step = step_of(n=256, d=128, width=256)
        classes = em.unseen_classes("II", t, task.v, per_class=12)
        found = em.relative_on_unseen(step.after, classes.x, classes.labels)
        assert found.unresolved == 0
        ratios[t] = 1 / found.locality
    assert ratios[1.0] > 1.2 * ratios[0.0]


def test_relative_similarity_takes_any_problem():
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    x, labels = torch.randn(9, 4), torch.arange(9) % 3
    found = em.relative_on_unseen(le.Problem.of(net, "cross_entropy"), x, labels, y=labels, update=le.SGD(1e-2))
    S = le.relative(le.respond(le.Problem.of(net, "cross_entropy"), (x, labels), update=le.SGD(1e-2)))
    same = (labels[:, None] == labels) & ~torch.eye(9, dtype=torch.bool)
    assert found.within == pytest.approx(float(S[same].quantile(0.5)), rel=SAME_IN_FLOAT32)


@pytest.mark.parametrize("kind", list(em.NOISES))
def test_the_operator_norm_bound_holds_and_needs_its_mean_term(kind):
    task = em.training_data(400, 200, mean_norm=3.0, kind=kind, seed=0)
    norm = em.operator_norm(task.X)
    assert norm <= em.operator_norm_bound(400, 200, 3.0)
    assert norm > em.operator_norm_bound(400, 200, 0.0)


def test_rise_curves():
    assert em.rise_curve([2.0, 3.0, 6.0]).tolist() == [0.0, 0.25, 1.0]
    assert np.isnan(em.rise_curve([2.0, 3.0, 2.0])).all()
    assert em.half_rise([0, 1, 2], [0.0, 0.5, 1.0]) == 1.0
    assert math.isnan(em.half_rise([0, 1], [1.0, 1.0]))
    assert em.half_rise([0, 1, 2, 3], [4.0, 3.0, 1.0, 0.0]) == pytest.approx(1.5)
