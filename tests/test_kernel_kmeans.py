"""Kernel K-means against the plain definition, all partitions, scikit-learn's K-means; agreement; baselines."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.utils.estimator_checks import parametrize_with_checks

import local_elasticity as le
from local_elasticity.clustering import autoencoder_features, kmeans, pca_kmeans, pretrained_features
from local_elasticity.clustering.partition import Partitions, move_singly
from tests.oracles import partition
from tests.tolerances import SAME_IN_FLOAT64

NOT_SQUARE = {"check_clustering": "it hands in points instead of their kernel, whatever the tags say"}


def points(seed=0, n=60, d=4, centers=3):
    return make_blobs(n, d, centers=centers, cluster_std=4.0, random_state=seed)[0]


def indefinite(seed, n=30):
    K = np.random.default_rng(seed).normal(size=(n, n))
    return (K + K.T) / 2


@parametrize_with_checks([le.KernelKMeans()], expected_failed_checks=lambda estimator: NOT_SQUARE)
def test_it_is_an_estimator(estimator, check):
    check(estimator)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("algorithm", ["lloyd", "hartigan"])
def test_the_objective_is_the_double_sum(seed, algorithm):
    for K in (points(seed) @ points(seed).T, indefinite(seed)):
        model = le.KernelKMeans(3, algorithm=algorithm, random_state=seed).fit(K)
        assert model.inertia_ == pytest.approx(partition.inertia(K, model.labels_), rel=SAME_IN_FLOAT64)
        assert model.inertia_ == model.inertias_.min()
        assert set(model.labels_) == {0, 1, 2}


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_all_partitions_is_found(seed):
    for K in (points(seed, n=8) @ points(seed, n=8).T, indefinite(seed, n=8)):
        found = le.KernelKMeans(3, n_init=20, random_state=0).fit(K).inertia_
        assert found == pytest.approx(partition.best_inertia(K, 3), rel=SAME_IN_FLOAT64)


def test_a_random_start_is_walked_as_released():
    """labels = RandomState(0).randint(clusters, size=n), then Lloyd's iterations."""
    for X in (points(1), points(2)):
        model = le.KernelKMeans(2, init="random", algorithm="lloyd", n_init=1, random_state=0).fit(X @ X.T)
        start = np.random.RandomState(0).randint(2, size=len(X))
        assert model.labels_.tolist() == partition.lloyd(X @ X.T, start, 2, 100)


@pytest.mark.parametrize("clusters", [2, 5])
def test_with_the_linear_kernel_it_is_kmeans(clusters):
    X = points(n=200, d=6, centers=5)
    ours = le.KernelKMeans(clusters, random_state=0).fit(X @ X.T)
    theirs = KMeans(clusters, n_init=10, random_state=0).fit(X)
    assert ours.inertia_ <= theirs.inertia_ * (1 + SAME_IN_FLOAT64)
    new = points(seed=3, d=6)
    nearest = KMeans(clusters, init=np.stack([X[ours.labels_ == c].mean(0) for c in range(clusters)]), n_init=1).fit(X)
    assert (ours.predict(new @ X.T) == nearest.predict(new)).all()
    distances = ours.distances(new @ X.T, diagonal=(new**2).sum(1))
    np.testing.assert_allclose(distances, nearest.transform(new), rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), clusters=st.integers(1, 6), semidefinite=st.booleans())
def test_single_moves_never_raise_the_inertia(seed, clusters, semidefinite):
    random = np.random.default_rng(seed)
    K = indefinite(seed, n=12)
    K = K @ K if semidefinite else K
    labels = np.stack([random.permutation(np.arange(12) % clusters) for _ in range(3)])
    after = move_singly(K, labels, clusters, max_moves=100)
    for one, other in zip(labels, after, strict=True):
        assert partition.inertia(K, other) <= partition.inertia(K, one) + SAME_IN_FLOAT64 * np.abs(K).sum()
        assert set(other) == set(range(clusters))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), clusters=st.integers(1, 5))
def test_sums_are_kept_up_to_date(seed, clusters):
    random = np.random.default_rng(seed)
    K = indefinite(seed, n=10)
    first, then = (np.stack([random.permutation(np.arange(10) % clusters) for _ in range(2)]) for _ in range(2))
    moved, fresh = Partitions(K, first, clusters), Partitions(K, then, clusters)
    moved.reassign(then)
    for name in ("labels", "sizes", "sums", "squares", "inertia"):
        np.testing.assert_allclose(getattr(moved, name), getattr(fresh, name), atol=SAME_IN_FLOAT64)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), shift=st.floats(-1e3, 1e3))
def test_a_constant_added_to_the_kernel_changes_nothing(seed, shift):
    X = points(seed, n=20)
    one, other = (le.KernelKMeans(3, random_state=0).fit(X @ X.T + c) for c in (0, shift))
    assert one.inertia_ == pytest.approx(other.inertia_, rel=SAME_IN_FLOAT64)


def test_equal_points_fill_every_cluster():
    model = le.KernelKMeans(4, random_state=0).fit(np.ones((6, 6)))
    assert sorted(set(model.labels_)) == [0, 1, 2, 3]
    assert model.inertia_ == pytest.approx(0, abs=SAME_IN_FLOAT64)


BAD_KERNELS = {
    "not square": (np.ones((3, 2)), {}, "X: expected a square kernel"),
    "not symmetric": (np.triu(np.ones((3, 3))), {}, "X: the kernel is not symmetric"),
    "not finite": (np.full((3, 3), np.nan), {}, "NaN"),
    "too few": (np.eye(2), {"n_clusters": 3}, "n_samples=2 should be >= n_clusters=3"),
    "no clusters": (np.eye(2), {"n_clusters": 0}, "n_clusters: expected a whole number"),
    "half a start": (np.eye(2), {"n_init": 0.5}, "n_init: expected a whole number"),
    "unknown start": (np.eye(2), {"init": "farthest"}, "init: expected one of .*, got 'farthest'"),
    "unknown algorithm": (np.eye(2), {"algorithm": "elkan"}, "algorithm: expected one of .*, got 'elkan'"),
}


@pytest.mark.parametrize("name", BAD_KERNELS)
def test_bad_kernels_are_refused(name):
    K, options, message = BAD_KERNELS[name]
    with pytest.raises(ValueError, match=message):
        le.KernelKMeans(**options).fit(K)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), min_size=1, max_size=12))
def test_the_best_match_is_the_best_of_all_namings(pairs):
    labels, truth = zip(*pairs, strict=True)
    assert le.best_match_accuracy(labels, truth) == pytest.approx(partition.best_match(labels, truth))


def test_agreement_does_not_depend_on_names():
    found = le.agreement([0, 0, 1, 1, 2, 2], ["b", "b", "c", "c", "a", "a"])
    assert found == pytest.approx({"accuracy": 1, "ari": 1, "nmi": 1})
    assert le.best_match_accuracy([0] * 6, [0, 1] * 3) == 0.5


def test_agreement_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        le.agreement([0, 1], [0, 1, 1])
    with pytest.raises(ValueError, match="labels: expected at least one point, got none"):
        le.best_match_accuracy([], [])


def test_baselines_see_what_is_plain_to_see():
    x, y = le.data.load("mnist").take([0, 1], per_class=40)
    for labels in (kmeans(x, 2, random_state=0), pca_kmeans(x, 2, n_components=20, random_state=0)):
        assert le.best_match_accuracy(labels, y) > 0.95
    features = autoencoder_features(x, epochs=5, batch_size=16)
    assert features.shape == (80, 32)
    assert le.best_match_accuracy(kmeans(features, 2, random_state=0), y) > 0.7
    assert (autoencoder_features(x[:8], epochs=2) == autoencoder_features(x[:8], epochs=2)).all()


def test_pretrained_features_tell_digits_apart():
    pytest.importorskip("efficientnet_lite_pytorch")
    x, y = le.data.load("mnist").take([0, 1], per_class=5)
    features = pretrained_features(x)
    assert features.shape == (10, 1280)
    assert le.best_match_accuracy(kmeans(features, 2, random_state=0), y) == 1


def test_features_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match="1×28×28"):
        autoencoder_features(np.zeros((2, 3, 32, 32)))
    with pytest.raises(ValueError, match="images: "):
        autoencoder_features(np.zeros((2, 784)))
    with pytest.raises(ValueError, match="network: expected one of .*, got 'vgg'"):
        pretrained_features(np.zeros((2, 28, 28)), "vgg")
