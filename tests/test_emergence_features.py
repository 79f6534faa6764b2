"""Measures of features: pair by pair, streamed, tied, of real networks."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import local_elasticity as le
from tests.oracles import emergence as oracle
from tests.tolerances import SAME_IN_FLOAT64

em = le.emergence
FORMS = ["raw", "normalized", "cosine", "centred_cosine"]


def rows(n=14, p=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, p, generator=generator, dtype=torch.float64) + 1, torch.arange(n) % 3


@pytest.mark.parametrize("form", FORMS)
def test_alignment_is_the_mean_over_pairs(form):
    F, labels = rows()
    labels[-1] = 9  # a class with one member has no pairs
    assert em.alignment(F, labels, form=form) == pytest.approx(oracle.alignment(F, labels, form), rel=SAME_IN_FLOAT64)
    assert set(em.alignment_by_class(F, labels, form=form)) == {0, 1, 2}


def test_separability_is_the_mean_over_pairs():
    F, labels = rows()
    assert em.separability(F, labels) == pytest.approx(oracle.separability(F, labels), rel=SAME_IN_FLOAT64)


@pytest.mark.parametrize("form", FORMS)
def test_measures_stream_over_a_loader(form):
    F, labels = rows(50, 6)
    stream = em.stream_features(lambda x: x, DataLoader(TensorDataset(F, labels), batch_size=7))
    assert em.alignment(stream, form=form) == pytest.approx(em.alignment(F, labels, form=form), rel=SAME_IN_FLOAT64)
    assert em.separability(stream) == pytest.approx(em.separability(F, labels), rel=SAME_IN_FLOAT64)
    assert em.recall_at_k(stream) == em.recall_at_k(F, labels)
    assert em.cluster_agreement(stream) == em.cluster_agreement(F, labels)
    for of_task in (em.train_unseen_similarity, em.train_unseen_second_moment):
        assert of_task(stream, None, stream) == of_task(F, labels, F)
    moved = em.stream_features(lambda x: 2 * x, stream.loader)
    assert em.elasticity(stream, moved) == pytest.approx(float(F.square().mean()), rel=SAME_IN_FLOAT64)


def test_degenerate_features_have_the_stated_values():
    labels = torch.tensor([0, 0, 1, 1, 1])
    constant = torch.full((5, 3), 0.1)
    assert em.alignment(constant, labels, form="cosine") == pytest.approx(1)
    assert em.alignment(constant, labels, form="centred_cosine") == 0
    assert em.alignment(torch.zeros(5, 3), labels, form="cosine") == 0
    assert torch.tensor(em.alignment(torch.zeros(5, 3), labels, form="normalized")).isnan()
    chance = (2 * 1 / 4 + 3 * 2 / 4) / 5
    for distance in ("cosine", "euclidean"):
        assert em.recall_at_k(constant, labels, distance=distance) == pytest.approx(chance)
        assert em.recall_at_k(torch.zeros(5, 3), labels, distance=distance) == pytest.approx(chance)
    agreement = em.cluster_agreement(constant, labels)
    assert (agreement.accuracy, agreement.nmi) == (0.6, 0.0)


POINT = st.tuples(st.integers(-1, 1), st.integers(-1, 1), st.integers(0, 2), st.sampled_from([1, 1, 1, 2**13]))


@given(
    st.lists(POINT, min_size=5, max_size=9),
    st.integers(1, 3),
    st.sampled_from(["cosine", "euclidean"]),
    st.sampled_from([2.0**-83, 1.0, 2.0**83]),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
@settings(max_examples=200, deadline=None)
def test_recall_with_ties_is_the_mean_over_orders(points, k, distance, scale, dtype):
    """A lattice is full of ties, zero rows, and classes of one; some rows lie far out, and the scale is anything."""
    table = torch.tensor(points)
    F, labels = (table[:, :2] * table[:, 3:] * scale).to(dtype), table[:, 2]
    counts = labels.unique(return_counts=True)[1]
    if counts.max() < 2:
        with pytest.raises(ValueError, match="labels"):
            em.recall_at_k(F, labels, k=k, distance=distance)
        return
    expected = oracle.recall(F, labels, k, distance)
    assert em.recall_at_k(F, labels, k=k, distance=distance) == pytest.approx(expected, abs=SAME_IN_FLOAT64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_recall_without_ties_is_that_of_all_pairs(distance, dtype):
    """Rows far out, a common offset and a tiny scale: rounding makes no ties of what the features tell apart."""
    F, labels = rows(30, 6)
    F[0] *= 3000
    F[1] += 1e4
    for made in (F, F * 1e-25, F + 100):
        made = made.to(dtype)
        expected = oracle.recall(made, labels, 1, distance)
        assert em.recall_at_k(made, labels, distance=distance) == pytest.approx(expected, abs=SAME_IN_FLOAT64)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_rows_alike_but_for_rounding_are_ties(distance, k, monkeypatch):
    """No similarity is made of collapsed features; those that float64 tells apart are not collapsed."""
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    direction = torch.rand(16, dtype=torch.float64)
    lengths = torch.tensor([1, 3, 1 / 3, 1e-9, 7, 1e9] if distance == "cosine" else [1] * 6)
    alike = lengths[:, None] * direction
    expected = oracle.recall(torch.ones(6, 1), labels, k, distance)
    apart = direction + 1e-6 * torch.eye(6, 16)[labels]
    assert em.recall_at_k(apart, labels, distance=distance) == 1
    monkeypatch.delattr("local_elasticity.emergence.retrieval._nearness")
    assert em.recall_at_k(alike, labels, k=k, distance=distance) == pytest.approx(expected, abs=SAME_IN_FLOAT64)


def test_recall_is_not_shortened_by_autocast():
    F, labels = rows(200, 32)
    with torch.autocast("cpu", torch.bfloat16):
        assert em.recall_at_k(F.float(), labels) == em.recall_at_k(F, labels)


def test_recall_does_not_depend_on_how_it_is_cut(monkeypatch):
    F, labels = rows(60, 4)
    whole = em.recall_at_k(F, labels, k=2)
    monkeypatch.setattr("local_elasticity.emergence.retrieval.BLOCK", 60 * 7)
    assert em.recall_at_k(F, labels, k=2) == whole


def test_recall_and_losses_are_those_of_pytorch_metric_learning():
    pytest.importorskip("pytorch_metric_learning")
    F, labels = torch.randn(200, 16), torch.randint(0, 5, (200,))
    assert em.recall_at_k(F, labels) == pytest.approx(em.library_recall_at_1(F, labels))
    theirs = em.library_loss("triplet_margin", margin=0.2)
    assert float(em.triplet_loss(F, labels)) == pytest.approx(float(theirs(F, labels)), rel=1e-4)
    proxy = em.ProxyLoss(5, 16, temperature=0.1)
    softmax = em.library_loss("normalized_softmax", num_classes=5, embedding_size=16, temperature=0.1)
    softmax.W = nn.Parameter(proxy.proxies.detach().T.clone())
    assert proxy(F, labels).item() == pytest.approx(softmax(F, labels).item(), rel=1e-4)


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning.losses", None)
    with pytest.raises(ImportError, match=r"local-elasticity\[metric\]"):
        em.library_loss("contrastive")


def test_features_of_a_layer_leave_the_model_as_it_was():
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2)).train()
    net[1].eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x = torch.randn(6, 3)
    state = torch.get_rng_state()
    found = em.feature_extractor(net, "3")(x)
    assert torch.equal(found, torch.relu(net[1](net[0](x))).detach())
    assert not found.requires_grad
    assert net.training
    assert not net[1].training
    assert net[2].training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks for module in net.modules())


@pytest.mark.usefixtures("unchecked")  # the checks of annotations draw random numbers
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_loader_and_the_random_state_are_left_as_they_were(shuffled):
    torch.manual_seed(0)
    net, examples = nn.Linear(4, 6), TensorDataset(torch.randn(12, 4), torch.arange(12) % 3)
    own = torch.Generator().manual_seed(1)
    loaders = [DataLoader(examples, batch_size=5, shuffle=shuffled, generator=given) for given in (None, own)]
    before = torch.get_rng_state(), own.get_state()
    for loader in loaders:
        stream = le.emergence.stream_features(net, loader)
        le.emergence.alignment(stream, form="centred_cosine")
        le.emergence.recall_at_k(stream, k=1)
        le.emergence.elasticity(stream, stream)
        le.emergence.separability(loader)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert torch.equal(own.get_state(), before[1])


def test_a_stream_draws_on_where_it_was_between_batches():
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return torch.rand(2), index % 2

    torch.manual_seed(0)
    stream = le.emergence.stream_features(lambda rows: rows, DataLoader(Noisy(), batch_size=2))
    whole = stream.gathered()[0]
    assert len(whole.unique(dim=0)) == 6
    torch.manual_seed(0)
    drawn = [(rows, torch.rand(1)) for rows, _ in stream]
    assert torch.equal(torch.cat([rows for rows, _ in drawn]), whole)
    torch.manual_seed(0)
    assert torch.equal(torch.cat([one for _, one in drawn]), torch.cat([torch.rand(1) for _ in range(3)]))


def test_images_are_flattened_per_row():
    assert em.feature_extractor(nn.Conv2d(1, 4, 3))(torch.zeros(2, 1, 8, 8)).shape == (2, 4 * 36)


def test_measures_of_features_are_plain_callables():
    F, labels = rows(30, 4)
    values = {name: measure(F, labels) for name, measure in em.OF_FEATURES.items()}
    assert all(isinstance(value, float) for value in values.values())
    assert values["centred_alignment"] == em.alignment(F, labels, form="centred_cosine")


def test_train_unseen_similarity_is_the_covariance_with_the_mean():
    X, _ = rows(20, 4)
    y = torch.tensor([1.0, -1.0]).repeat(10).double()
    unseen = rows(7, 4, seed=1)[0]
    beta = oracle.covariance(X, y)
    assert em.train_unseen_similarity(X, y, unseen) == pytest.approx(float(beta @ unseen.mean(0)))
    assert em.train_unseen_second_moment(X, y, unseen) == pytest.approx(float((unseen @ beta).square().mean()))


def test_similarity_to_many_classes_is_that_to_two():
    """√2 ‖Cov(x, onehot)ᵀμ‖ = |βᵀμ| for two balanced classes: a third, empty one would change nothing."""
    X = rows(20, 4)[0]
    X = X - X.mean(0)
    y = torch.arange(20) % 2
    unseen = rows(7, 4, seed=1)[0]
    onehot = torch.nn.functional.one_hot(y, 2).double()
    B = torch.stack([oracle.covariance(X, column) for column in onehot.T], 1)
    many = 2**0.5 * float((B.T @ unseen.mean(0)).norm())
    assert many == pytest.approx(abs(em.train_unseen_similarity(X, y, unseen)))
    assert em.train_unseen_similarity(X, torch.arange(20) % 3, unseen) >= 0


def test_the_room_needs_neither_pandas_nor_plotting():
    script = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['pandas', 'xarray', 'zarr', 'matplotlib', 'typer', 'rich', 'mlxtend',"
        " 'pytorch_metric_learning']))\n"
        "import torch, local_elasticity as le\n"
        "F = torch.randn(20, 4); y = torch.arange(20) % 2\n"
        "print([measure(F, y) for measure in list(le.emergence.OF_FEATURES.values())[:6]])"
    )
    answer = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("form", ["cosine", "centred_cosine"])
def test_a_monitor_shows_alignment_along_training(form):
    """The mean over pairs of a class, in a monitor's table, is the class's alignment at that moment."""
    net = nn.Linear(4, 6).double()
    x, classes = torch.randn(12, 4).double(), torch.arange(12) % 3
    loss = em.ProxyLoss(3, 6).double()
    monitor = le.Monitor(
        le.Problem.of(net, loss),
        (x, classes),
        source_labels=classes,
        measure=(getattr(em, form),),
        every=1,
        budget=None,
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(3):
        assert monitor.step(step)
        S = getattr(em, form)(le.respond(le.Problem.of(net, loss), (x, classes)))
        means = le.class_pairs(S, classes, reduce="mean")
        within = means[means["source_class"] == means["target_class"]]["value"]
        expected = em.alignment_by_class(net(x).detach(), classes, form=form)
        assert within.tolist() == pytest.approx(list(expected.values()), rel=SAME_IN_FLOAT64)
        optimizer.zero_grad()
        loss(net(x), classes).backward()
        optimizer.step()
    assert set(monitor.frame()["step"]) == {0, 1, 2}
