"""Landmarks and sketches against the full kernel: unbiased, as near as they say, and as good to cluster by."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from torch import nn

import local_elasticity as le
from local_elasticity.engine.coverage import Coverage
from local_elasticity.engine.jacobian import jacobian_factors
from local_elasticity.scale.sketch import Sketch

NETWORKS = {
    "two layers": (lambda: nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3)), (6,)),
    "no bias": (lambda: nn.Sequential(nn.Linear(6, 40, bias=False), nn.Tanh(), nn.Linear(40, 1)), (6,)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)),
        (2, 6, 6),
    ),
}


def problem_and_points(name, n=24):
    torch.manual_seed(3)
    make, shape = NETWORKS[name]
    return le.Problem.of(make().double(), "mse", kind="numbers"), torch.randn(n, *shape).double()


@pytest.mark.parametrize("name", NETWORKS)
def test_sketches_are_unbiased_and_as_near_as_said(name):
    """Over seeds the squared z-scores of the mean are near 1, and the spread falls with the root of the dimension."""
    problem, x = problem_and_points(name)
    K = le.ntk(problem, x)
    size = K.diagonal().sqrt()

    def errors(dimension):
        found = [le.gradient_sketch(problem, x, dimension=dimension, seed=seed) for seed in range(24)]
        return torch.stack([(phi @ phi.T - K) / (size[:, None] * size) for phi in found])

    coarse, fine = errors(64), errors(1024)
    z = fine.mean(0) / (fine.std(0) / 24**0.5).clamp_min(1e-12)
    assert z.pow(2).mean() < 2
    assert 2 < coarse.std() / fine.std() < 8
    assert fine.std() < 3 / 1024**0.5


@pytest.mark.parametrize("function", [le.gradient_sketch, le.landmark_features])
def test_a_bare_model_needs_no_loss(function):
    net, x = torch.nn.Linear(4, 3), torch.randn(6, 4)
    assert torch.equal(function(net, x), function(le.Problem.of(net, "cross_entropy"), x))
    with pytest.raises(TypeError, match=r"^problem: expected le.Problem.of"):
        function(x, net)


def test_a_sketch_is_linear_and_kept_by_its_seed():
    problem, x = problem_and_points("two layers")
    with problem.bound() as bound:
        factors = jacobian_factors(bound, Coverage.of(bound, x), x)[1]
        whole = Sketch(128, 5)(factors)
        doubled = Sketch(128, 5)(factors.along(torch.full((24, 3), 2.0).double()).take(slice(0, 4)))
        single = Sketch(128, 5)(factors.along(torch.ones(24, 3).double()).take(slice(0, 4)))
    assert torch.allclose(whole, le.gradient_sketch(problem, x, dimension=128, seed=5))
    assert torch.allclose(doubled, 2 * single)
    assert not torch.allclose(whole, le.gradient_sketch(problem, x, dimension=128, seed=6))


@pytest.mark.parametrize("name", NETWORKS)
def test_in_parts_it_is_the_same(name):
    problem, x = problem_and_points(name)
    for features in (le.gradient_sketch, le.landmark_features):
        whole, parts = (phi @ phi.T for phi in (features(problem, x), features(problem, x, memory=1 << 20)))
        assert torch.allclose(whole, parts, rtol=1e-5, atol=1e-6 * float(whole.max()))


@pytest.mark.parametrize("name", NETWORKS)
def test_landmarks_are_exact_where_they_lie_and_never_above(name):
    problem, x = problem_and_points(name)
    K = le.ntk(problem, x)
    all_of_them = le.landmark_features(problem, x, landmarks=99)
    assert torch.allclose(all_of_them @ all_of_them.T, K, rtol=1e-4, atol=1e-5 * float(K.max()))
    phi = le.landmark_features(problem, x, landmarks=6)
    left = torch.linalg.eigvalsh(K - phi @ phi.T)
    assert left.min() > -1e-6 * float(K.max())
    assert phi.shape[1] <= 6


@pytest.mark.parametrize(
    ("function", "option"), [(le.gradient_sketch, "dimension"), (le.landmark_features, "landmarks")]
)
@pytest.mark.parametrize("value", [0, -1, 2.5])
def test_senseless_numbers_are_refused(function, option, value):
    problem, x = problem_and_points("two layers")
    with pytest.raises((ValueError, TypeError), match=option):
        function(problem, x, **{option: value})


every_approximation = pytest.mark.parametrize(
    ("approximation", "similarity"),
    [
        ("landmarks", "kernel"),
        ("landmarks", "normalized_kernel"),
        ("landmarks", "relative"),
        ("sketch", "kernel"),
        ("sketch", "normalized_kernel"),
    ],
)


def blobs(n=240):
    return make_blobs(n, centers=3, n_features=5, cluster_std=1.0, random_state=4)


def approximated(model, approximation, *, landmarks, sketch):
    count = {"landmarks": landmarks, "sketch": sketch}[approximation]
    return clone(model).set_params(approximation=approximation, n_components=count)


@every_approximation
def test_clusters_are_those_of_the_full_kernel(approximation, similarity):
    X, kinds = blobs()
    full = le.LocalElasticityClustering(3, similarity=similarity, epochs=5, random_state=0)
    near = approximated(full, approximation, landmarks=64, sketch=4096)
    ours, theirs = (le.best_match_accuracy(model.fit(X).labels_, kinds) for model in (near, full))
    assert ours > theirs - 0.03
    assert 0 < near.approximation_error_ < 0.3
    assert near.features_.shape[0] == len(X)
    assert not hasattr(near, "similarity_")
    assert (near.predict(X) == near.labels_).mean() > 0.99
    assert near.score(X) > 0.3
    assert (clone(near).fit(X).labels_ == near.labels_).all()


def test_the_error_falls_with_more_components():
    X, _ = blobs()
    for approximation, few, many in (("landmarks", 4, 128), ("sketch", 64, 8192)):
        errors = [
            le.LocalElasticityClustering(3, epochs=3, random_state=0, approximation=approximation, n_components=count)
            .fit(X)
            .approximation_error_
            for count in (few, many)
        ]
        assert errors[1] < errors[0] / 2


@every_approximation
def test_inertias_can_be_compared(approximation, similarity):
    """16 landmarks see 0.8 to 0.86 of the kernels' objective, and the features of relative similarities 1/240 of it."""
    X, _ = blobs()
    full = le.LocalElasticityClustering(3, similarity=similarity, init="random", random_state=0).fit(X)
    near = approximated(full, approximation, landmarks=16, sketch=1024).fit(X)
    assert le.best_match_accuracy(near.labels_, full.labels_) == 1
    assert near.inertia_ == pytest.approx(full.inertia_, rel=0.12)
    if (approximation, similarity) == ("landmarks", "kernel"):
        assert near.inertia_ > full.inertia_


class HalfOff(nn.Sequential):
    """A net of two units, which are both off for about half of the points."""

    def __init__(self, shape):
        super().__init__(nn.Linear(*shape, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
        with torch.no_grad():
            self[0].weight.copy_(torch.eye(2, *shape) / 4 + torch.eye(1, *shape))
            self[2].weight.fill_(1.0)


@every_approximation
def test_points_that_do_not_move_are_counted_as_without_approximation(approximation, similarity, caplog):
    X, _ = blobs(80)
    full = le.LocalElasticityClustering(2, similarity=similarity, network=HalfOff, init="random", random_state=3).fit(X)
    caplog.clear()
    near = approximated(full, approximation, landmarks=30, sketch=1024).fit(X)
    assert near.unresolved_ == full.unresolved_ > 20
    assert f"{near.unresolved_} of 80 points did not move" in caplog.text
    assert le.best_match_accuracy(near.labels_, full.labels_) > 0.95
    assert near.inertia_ == pytest.approx(full.inertia_, rel=0.1)
    assert (near.predict(X) == near.labels_).all()


class Still(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x[:, :1] * 0 + 0 * self.weight


@pytest.mark.parametrize("approximation", ["landmarks", "sketch"])
def test_where_nothing_moves_there_is_an_error_that_says_why(approximation):
    X, _ = blobs(20)
    with pytest.raises(ValueError, match="X: only 0 of 20 points moved.*gradients vanish"):
        le.LocalElasticityClustering(2, network=Still, init="random", approximation=approximation).fit(X)


@pytest.mark.parametrize("approximation", ["landmarks", "sketch"])
def test_components_may_be_counted_by_numpy(approximation):
    X, _ = blobs(30)
    model = le.LocalElasticityClustering(2, epochs=1, approximation=approximation, n_components=np.int64(8)).fit(X)
    assert model.features_.shape == (30, 8)


def test_a_step_size_is_kept_to_by_landmarks():
    X, _ = blobs(80)
    model = le.LocalElasticityClustering(3, epochs=3, random_state=0, approximation="landmarks", step_size=1e-3).fit(X)
    assert model.step_size_ == 1e-3
    assert model.approximation_error_ < 0.2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"approximation": "magic"}, "approximation: expected one of landmarks, sketch, got 'magic'"),
        ({"approximation": "sketch", "similarity": "relative"}, "use approximation='landmarks'"),
        ({"approximation": "sketch", "step_size": 1e-3}, "use approximation='landmarks'"),
        ({"approximation": "landmarks", "protocol": "sequential"}, "expected protocol='frozen', got 'sequential'"),
        ({"approximation": "landmarks", "n_components": 0}, "n_components: expected a whole number of at least 1"),
        ({"approximation": "sketch", "n_components": 1}, "n_components: expected a whole number of at least 2"),
    ],
)
def test_what_cannot_be_approximated_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        le.LocalElasticityClustering(2, **options).fit(np.random.default_rng(0).normal(size=(20, 3)))
