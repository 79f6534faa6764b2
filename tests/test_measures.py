"""The measures on responses whose answers are known, and their properties."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from xarray.backends import BackendArray
from xarray.core import indexing

import local_elasticity as le
from tests.cases import CASE_OF, CASES
from tests.oracles.bootstrap import interval
from tests.oracles.loop import dense_ntk


def response_of(case, **options):
    return le.respond(case.problem(), case.sources, **options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("change", ["euclidean", "manhattan", "kl"])
def test_a_source_is_as_similar_to_itself_as_one(case, change):
    response = response_of(case, update=le.SGD(0.05))
    if change == "kl" and response.kind == "numbers":
        with pytest.raises(ValueError, match="plain numbers"):
            le.relative(response, change=le.kl)
        return
    S = le.relative(response, change=getattr(le, change))
    assert torch.equal(S.diagonal(), torch.ones(case.n).double())
    assert (S >= 0).all()


def test_relative_is_the_ratio_of_norms():
    response = response_of(CASE_OF["tanh net, three outputs"], update=le.SGD(0.05))
    for change, order in ((le.euclidean, 2), (le.manhattan, 1)):
        above = torch.linalg.vector_norm(response.target_change, order, dim=2)
        below = torch.linalg.vector_norm(response.source_change, order, dim=1)
        assert torch.allclose(le.relative(response, change=change), above / below[:, None])


def test_any_change_function_will_do():
    response = response_of(CASE_OF["tanh net, three outputs"], update=le.SGD(0.05))
    largest = lambda before, difference: difference.abs().amax(-1)
    S = le.relative(response, change=largest)
    assert torch.allclose(S, response.target_change.abs().amax(2) / response.source_change.abs().amax(1)[:, None])


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-3, 1e3))
def test_relative_does_not_see_a_common_scale(scale):
    response = response_of(CASE_OF["tanh net, three outputs"], update=le.SGD(0.05))
    scaled = replace(
        response,
        source_change=scale * response.source_change,
        target_change=scale * response.target_change,
        source_noise=scale * response.source_noise,
        target_noise=scale * response.target_noise,
    )
    assert torch.allclose(le.relative(scaled), le.relative(response))


def test_probabilities_are_those_after_the_softmax():
    response = response_of(CASE_OF["tanh net, three outputs"], update=le.SGD(0.5))
    soft = response.as_probabilities()
    assert torch.allclose(soft.target_after, response.target_after.softmax(-1), atol=1e-15)
    assert torch.allclose(soft.source_after, response.source_after.softmax(-1), atol=1e-15)
    assert soft.as_probabilities() is soft
    assert torch.allclose(le.relative(soft, change=le.kl), le.relative(response, change=le.kl))
    with pytest.raises(ValueError, match="softmax"):
        le.kernel(soft)
    with pytest.raises(ValueError, match="plain numbers"):
        response_of(CASE_OF["relu net, squared loss"]).as_probabilities()


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 50.0])
def test_changes_of_probabilities_do_not_cancel(size):
    """In float32, against float64, for steps of any size."""
    response = response_of(CASE_OF["tanh net, three outputs"], update=le.SGD(0.05))
    d = size * torch.randn_like(response.target_change)
    low, high = (
        replace(response, target_before=response.target_before.to(t), target_change=d.to(t)).as_probabilities()
        for t in (torch.float32, torch.float64)
    )
    assert ((low.target_change - high.target_change).norm() / high.target_change.norm()) < 1e-5


def test_binary_logits_become_sigmoid_outputs():
    """The response of a logit net after the sigmoid is that of the net that ends in one: f, ∂ℓ/∂f and the kernel."""
    logit_net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1)).double()
    x, y = torch.randn(6, 4).double(), (torch.arange(6) % 2).double()
    update = le.SGD(0.05)
    soft = le.respond(le.Problem.of(logit_net, "bce_logits"), (x, y), update=update).as_probabilities()
    plain = le.respond(le.Problem.of(nn.Sequential(logit_net, nn.Sigmoid()), "bce"), (x, y), update=update)
    assert torch.allclose(soft.target_change, plain.target_change)
    assert torch.allclose(soft.loss_gradient, plain.loss_gradient)
    assert torch.allclose(le.kernel(soft), le.kernel(plain))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernel_tends_to_the_ntk(case):
    """S_ker → gᵀ Θ g / ‖g‖² as the step goes to zero."""
    response = response_of(case, update=le.SGD(1e-6))
    theta = le.ntk(case.problem(), case.sources[0], reduce=None)
    g = response.loss_gradient
    limit = torch.einsum("nk,nmkl,nl->nm", g, theta.permute(0, 1, 3, 2), g) / g.square().sum(1)[:, None]
    assert torch.allclose(le.kernel(response), limit, rtol=1e-3, atol=1e-3 * float(limit.abs().max()))
    assert torch.allclose(le.self_kernel(response), le.kernel(response).diagonal())


def test_kernel_is_refused_where_it_has_no_meaning():
    case = CASE_OF["tanh net, three outputs"]
    for update in (le.Adam(1e-3), le.SGD(1e-3, weight_decay=0.1)):
        with pytest.raises(ValueError, match="plain SGD"):
            le.kernel(response_of(case, update=update))
    sources = torch.randn(4, 4).double(), torch.tensor([0, 1, 2, 0])
    with pytest.raises(ValueError, match="minibatch"):
        le.kernel(le.respond(case.problem(), sources, source_batch_size=2))
    optimizer = torch.optim.SGD(case.model.parameters(), lr=1e-3)
    live = le.kernel(response_of(case, update=le.FromOptimizer(optimizer)))
    assert torch.allclose(live, le.kernel(response_of(case, update=le.SGD(1e-3))))


def test_kernel_of_several_outputs_is_not_symmetric_but_the_ntk_is():
    case = CASE_OF["tanh net, three outputs"]
    K = le.kernel(response_of(case, update=le.SGD(1e-6)))
    assert (K - K.T).abs().max() > 1e-3
    theta = le.ntk(case.problem(), case.sources[0])
    assert torch.equal(theta, theta.T)


@pytest.mark.parametrize("memory", [None, 4000])
@pytest.mark.parametrize("name", ["relu net, squared loss", "tanh net, three outputs", "residual cnn", "attention"])
def test_ntk_is_jacobian_times_jacobian(name, memory):
    case = CASE_OF[name]
    x, x2 = case.sources[0], case.targets
    full = dense_ntk(case.model.eval(), x, x2)
    assert torch.allclose(le.ntk(case.problem(), x, x2, reduce=None, memory=memory), full)
    assert torch.allclose(le.ntk(case.problem(), x, x2, memory=memory), full.diagonal(dim1=2, dim2=3).sum(-1))
    square = le.ntk(case.problem(), x, memory=memory)
    assert torch.equal(square, square.T)
    assert torch.linalg.eigvalsh(square).min() > -1e-10 * square.diagonal().max()
    k = full.shape[-1]
    matrix = le.ntk(case.problem(), x, reduce=None, memory=memory).permute(0, 2, 1, 3).reshape(k * len(x), -1)
    assert torch.equal(matrix, matrix.T)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-10 * matrix.diagonal().max()


def test_normalized_has_ones_on_the_diagonal():
    K = le.ntk(CASE_OF["relu net, squared loss"].problem(), torch.randn(6, 4).double())
    N = le.normalized(K)
    assert torch.allclose(N.diagonal(), torch.ones(6).double())
    assert (N.abs() <= 1 + 1e-12).all()
    part = le.normalized(K[:2, 2:], source_diagonal=K.diagonal()[:2], target_diagonal=K.diagonal()[2:])
    assert torch.allclose(part, N[:2, 2:])
    with pytest.raises(ValueError, match="source_diagonal"):
        le.normalized(K[:2])
    with pytest.raises(ValueError, match="both"):
        le.normalized(K, target_diagonal=K.diagonal())
    assert torch.isnan(le.normalized(torch.tensor([[-1.0, 0.5], [0.5, 2.0]]))[0]).all()


def test_stiffness_is_the_cosine_of_loss_gradients():
    case = CASE_OF["tanh net, three outputs"]
    inputs, labels = case.sources
    gradients = []
    for x, y in zip(inputs, labels, strict=True):
        loss = case.oracle_loss(case.model.eval()(x[None]), y[None])
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(case.model.parameters()))]))
    G = torch.stack(gradients)
    cosine = torch.nn.functional.cosine_similarity(G[:, None], G[None], dim=2)
    for memory in (None, 4000):
        assert torch.allclose(le.stiffness(case.problem(), case.sources, memory=memory), cosine)
        assert torch.equal(le.stiffness(case.problem(), case.sources, form="sign", memory=memory), cosine.sign())
    other = le.stiffness(case.problem(), case.sources, (inputs[:2], labels[:2]))
    assert torch.allclose(other, cosine[:, :2])


@pytest.mark.parametrize("form", ["cos", "sign"])
def test_stiffness_is_not_known_where_squares_of_gradients_underflow(form):
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(30 * torch.eye(2))
    problem = le.Problem.of(net, "cross_entropy")
    sources = torch.tensor([[2.2, 0.44], [0.1, 0.05], [0.05, 0.1]]), torch.tensor([0, 0, 1])
    found = le.stiffness(problem, sources, form=form)
    exact = le.stiffness(problem.to(torch.float64), sources, form=form).float()
    assert found.isnan().tolist() == [[True] * 3, [True, False, False], [True, False, False]]
    assert exact.isfinite().all()
    assert torch.allclose(found[1:, 1:], exact[1:, 1:])


def test_activation_counts_the_units_that_are_on():
    net = le.models.FullyConnectedResNet(4, width=12).double()
    x, x2 = torch.randn(6, 4).double(), torch.randn(3, 4).double()

    def pattern(x):
        first = torch.relu(net.first(x))
        return torch.cat([first > 0, net.second(first) > 0], 1).double()

    cosine = torch.nn.functional.cosine_similarity(pattern(x)[:, None], pattern(x2)[None], dim=2)
    assert torch.allclose(le.activation(net, x, x2), cosine)
    assert torch.equal(le.activation(le.Problem.of(net, "mse"), x).diagonal(), torch.ones(6).double())
    with pytest.raises(ValueError, match="no ReLU"):
        le.activation(nn.Linear(4, 2).double(), x)


def test_small_steps_have_the_known_limits():
    """Definition 1 → |⟨∇f, ∇f′⟩|/‖∇f‖²; Definition 2 → the ratio of Σ p (δ − p·δ)² (spec, stable forms 1 to 3)."""
    case = CASE_OF["relu net, squared loss"]
    theta = le.ntk(case.problem(), case.sources[0])
    S = le.relative(response_of(case, update=le.SGD(1e-7)))
    assert torch.allclose(S, theta.abs() / theta.diagonal()[:, None], rtol=1e-4)

    case = CASE_OF["tanh net, three outputs"]
    linear = le.respond(case.problem(), case.sources, update=le.SGD(1e-7), engine="linearized")
    p = linear.target_before.softmax(-1)
    delta = linear.target_change
    Q = (p * (delta - (p * delta).sum(-1, keepdim=True)).square()).sum(-1)
    S = le.relative(response_of(case, update=le.SGD(1e-4)), change=le.kl)
    assert torch.allclose(S, Q / Q.diagonal()[:, None], rtol=1e-2)


def test_class_pairs_reduces_each_block():
    rng = np.random.default_rng(0)
    S = rng.uniform(size=(8, 6))
    rows, columns = np.array(list("aabbabab")), np.array([1, 2, 1, 2, 1, 1])
    weights = rng.uniform(1, 2, 8)
    S[0, 0] = np.nan
    block = S[np.ix_(rows == "a", columns == 1)]
    expected = {
        "mean": np.nanmean(block),
        "median": np.nanmedian(block),
        "trimmed": np.sort(block[np.isfinite(block)])[1:-1].mean(),
        "ratio_of_sums": np.nansum(block * weights[rows == "a"][:, None])
        / (np.isfinite(block) * weights[rows == "a"][:, None]).sum(),
    }
    for reduce, value in expected.items():
        table = le.class_pairs(torch.tensor(S), rows, columns, reduce=reduce, source_change=weights)
        first = table.iloc[0]
        assert (first.source_class, first.target_class) == ("a", 1)
        assert first.value == pytest.approx(value)
        assert first.low <= first.value <= first.high
        assert first.pairs == 15
        assert first.unresolved == pytest.approx(1 / 16)
        assert len(table) == 4
    assert list(table.columns) == ["source_class", "target_class", "value", "low", "high", "pairs", "unresolved"]


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40),
    m=st.integers(1, 40),
    digits=st.integers(0, 8),
    missing=st.floats(0, 0.9),
    spread=st.floats(0, 3),
    square=st.booleans(),
    seed=st.integers(0, 9),
)
def test_intervals_are_those_of_resamples_written_out(n, m, digits, missing, spread, square, seed):
    rng = np.random.default_rng(seed)
    m = n if square else m
    S = (rng.lognormal(sigma=spread, size=(n, 1)) * rng.normal(size=(n, m))).round(digits)
    S[rng.random((n, m)) < missing] = np.nan
    if square:
        np.fill_diagonal(S, np.nan)
    weights, classes = rng.uniform(1, 2, n), ["a" if square else "b"] * m
    for reduce in ("median", "mean", "trimmed", "ratio_of_sums"):
        row = le.class_pairs(S, ["a"] * n, classes, reduce=reduce, source_change=weights, resamples=20, seed=seed)
        ours = np.random.default_rng(seed)
        expected = interval(S, reduce, weights, ours, 20, square=square) if row.pairs[0] else (np.nan,) * 3
        np.testing.assert_allclose(row[["value", "low", "high"]].to_numpy()[0], expected, rtol=1e-10, atol=1e-12)


def test_what_is_trimmed_leaves_no_trace():
    rng = np.random.default_rng(0)
    S = rng.normal(size=(60, 50))
    S[rng.random(S.shape) < 0.02] = -1e30
    S[rng.random(S.shape) < 0.02] = 1e30
    row = le.class_pairs(S, ["a"] * 60, ["b"] * 50, reduce="trimmed", seed=1)
    expected = interval(S, "trimmed", np.ones(60), np.random.default_rng(1), 200)
    np.testing.assert_allclose(row[["value", "low", "high"]].to_numpy()[0], expected, rtol=1e-10, atol=1e-12)


def test_many_pairs_are_read_class_by_class():
    """Of a result on disk no more is in memory than the sources of a class."""
    rng = np.random.default_rng(0)
    S, read = rng.normal(size=(60, 60)).astype("float32"), []

    class OnDisk(BackendArray):
        shape, dtype = S.shape, S.dtype

        def __getitem__(self, key):
            return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

        def _read(self, key):
            read.append(S[key].size)
            return S[key]

    classes = np.arange(60) % 3
    coords = {"source_class": ("source", classes), "target_class": ("target", classes)}
    lazy = xr.DataArray(indexing.LazilyIndexedArray(OnDisk()), coords, ("source", "target"))
    lazy.attrs["targets_are_sources"] = True
    assert le.class_pairs(lazy).equals(le.class_pairs(S, classes))
    assert read == [20 * 60] * 3


def test_self_pairs_count_only_when_asked():
    S = np.array([[1.0, 0.2, 0.3], [0.4, 1.0, 0.5], [0.6, 0.7, 1.0]])
    labels = ["a", "a", "b"]
    out = le.class_pairs(S, labels, reduce="mean")
    assert out.value[0] == pytest.approx(0.3)
    assert np.isnan(out.value[3])
    assert out.pairs.tolist() == [2, 2, 2, 0]
    inside = le.class_pairs(S, labels, reduce="mean", self_pairs="include")
    assert inside.value[0] == pytest.approx(2.6 / 4)
    assert inside.pairs.tolist() == [4, 2, 2, 1]


def test_class_pairs_is_the_same_for_a_seed_and_says_what_is_wrong():
    S = np.random.default_rng(0).uniform(size=(6, 6))
    labels = [0, 0, 0, 1, 1, 1]
    assert le.class_pairs(S, labels).equals(le.class_pairs(S, labels))
    assert not le.class_pairs(S, labels, seed=1).low.equals(le.class_pairs(S, labels).low)
    for options, words in (
        ({"reduce": "max"}, "reduce"),
        ({"reduce": "ratio_of_sums"}, "source_change"),
        ({"self_pairs": "maybe"}, "self_pairs"),
        ({"target_labels": [1, 2]}, "target_labels"),
    ):
        with pytest.raises(ValueError, match=words):
            le.class_pairs(S, labels, **options)
    with pytest.raises(ValueError, match="source_labels"):
        le.class_pairs(S)


def test_bootstrap_intervals_cover():
    """A z-test over draws: of 95 % intervals for a mean, about 95 % hold the truth (pairs share sources)."""
    rng = np.random.default_rng(1)
    hits = 0
    for seed in range(200):
        S = 1 + rng.normal(size=(30, 1)) + rng.normal(size=(1, 30)) + rng.normal(size=(30, 30))
        row = le.class_pairs(S, [0] * 30, [1] * 30, reduce="mean", seed=seed, resamples=100).iloc[0]
        hits += row.low <= 1 <= row.high
    z = (hits / 200 - 0.95) / (0.95 * 0.05 / 200) ** 0.5
    assert abs(z) < 4


LONG = {
    "ntk": lambda problem, x, y, **options: le.ntk(problem, x, **options),
    "stiffness": lambda problem, x, y, **options: le.stiffness(problem, (x, y), **options),
    "activation": lambda problem, x, y, **options: le.activation(problem, x, **options),
    "by name": lambda problem, x, y, **options: le.similarity(problem, (x, y), measure="stiffness_sign", **options),
    "another": lambda problem, x, y, **options: le.similarity(problem, (x, y), measure="activation", **options),
}


@pytest.mark.parametrize("measure", LONG)
def test_long_measures_show_their_progress(measure):
    net, seen = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), []
    problem, x, y = le.Problem.of(net, "cross_entropy"), torch.randn(9, 3), torch.arange(9) % 2
    LONG[measure](problem, x, y, memory=300, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) > 1
    assert seen[-1] == (9, 9)
