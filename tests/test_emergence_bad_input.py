"""Bad input to the emergence room gets an error that names the argument and says what to do."""

import pytest
import torch
from torch import nn

import local_elasticity as le

pytestmark = pytest.mark.usefixtures("unchecked")
em = le.emergence

X = torch.randn(8, 4, dtype=torch.float64)
y = torch.tensor([1.0, -1.0]).repeat(4).double()
network = em.TwoLayer.random(4, 6)
F = torch.randn(6, 3)
labels = torch.tensor([0, 0, 1, 1, 2, 2])
bad = F.clone()
bad[0, 0] = torch.nan
v = torch.ones(4, dtype=torch.float64)
net = nn.Linear(3, 2)


def theory(**options):
    settings = {"step_size": 1.0, "n": 8, "inputs": 4, "width": 6, "beta_norm": 2.0}
    return em.Theory(em.ACTIVATIONS["relu"], **(settings | options))


BAD = {
    "single-class labels": (lambda: em.one_step(network, X, torch.ones(8)), "y: expected two classes"),
    "unbalanced labels": (lambda: em.one_step(network, X, torch.tensor([1.0] * 5 + [-1.0] * 3)), "y - y.mean"),
    "step of zero": (lambda: em.one_step(network, X, y, 0.0), "step_size: expected a positive number"),
    "negative step": (lambda: em.one_step(network, X, y, -1.0), "step_size: expected a positive number"),
    "step of NaN": (lambda: em.one_step(network, X, y, float("nan")), "step_size: expected a positive number"),
    "NaN in X": (lambda: em.one_step(network, X * torch.nan, y), "X: it holds NaN"),
    "wrong width": (lambda: em.one_step(network, X[:, :2], y), "X: expected shape"),
    "wrong count": (lambda: em.one_step(network, X, y[:3]), "y: expected one label"),
    "unknown activation": (
        lambda: em.TwoLayer.random(4, 6, activation="gelu"),
        "activation: expected one of .*, got 'gelu'",
    ),
    "no units": (lambda: em.TwoLayer.random(4, 0), "inputs, width"),
    "unknown noise": (lambda: em.noise("pink", 3, 3), "kind: expected one of .*, got 'pink'"),
    "unknown training noise": (lambda: em.training_data(4, 4, kind="pink"), "kind: expected one of .*, got 'pink'"),
    "odd n": (lambda: em.training_data(7, 4), "n: expected an even number"),
    "unknown design": (lambda: em.unseen_classes("IV", 0.5, v), "design: expected one of .*, got 'IV'"),
    "t beyond 1": (lambda: em.unseen_classes("II", 1.5, v), "t: expected a number from 0 to 1, got 1.5"),
    "one dimension": (lambda: em.unseen_classes("II", 0.5, v[:1]), "v: a direction across"),
    "NaN features": (lambda: em.alignment(bad, labels), "features: it holds NaN"),
    "NaN in recall": (lambda: em.recall_at_k(bad, labels), "features: it holds NaN"),
    "only single members": (lambda: em.alignment(F, torch.arange(6)), "labels: no class has two rows"),
    "single members in recall": (lambda: em.recall_at_k(F, torch.arange(6)), "labels: no class has two rows"),
    "unknown form": (lambda: em.alignment(F, labels, form="fancy"), "form: expected one of .*, got 'fancy'"),
    "one class apart": (lambda: em.separability(F, labels * 0), "labels: separability needs"),
    "one class clustered": (
        lambda: em.cluster_agreement(F, labels * 0),
        "labels: expected two classes or more, got one",
    ),
    "k too large": (lambda: em.recall_at_k(F, labels, k=6), "k: expected from 1 to 5"),
    "k zero": (lambda: em.recall_at_k(F, labels, k=0), "k: expected from 1 to 5"),
    "unknown distance": (lambda: em.recall_at_k(F, labels, distance="far"), "distance: "),
    "labels missing": (lambda: em.recall_at_k(F), "labels: expected a class for each row"),
    "labels too few": (lambda: em.recall_at_k(F, labels[:2]), "labels: expected one class for each of the 6 rows"),
    "labels not whole": (lambda: em.alignment(F, labels + 0.5), "labels: classes are whole numbers"),
    "features of images": (lambda: em.alignment(F[:, :, None], labels), "features: expected shape"),
    "other rows after": (lambda: em.elasticity(F, F[:3]), "after: it must hold the same rows"),
    "labels beside a stream": (lambda: em.alignment([(F, labels)], labels), "labels: a stream brings its own"),
    "task labels beside a stream": (
        lambda: em.train_unseen_similarity([(F, labels)], labels, F),
        "y: a stream brings its own",
    ),
    "similarity of one class": (lambda: em.train_unseen_similarity(F, labels * 0, F), "y: expected two classes"),
    "real labels of many values": (lambda: em.train_unseen_similarity(F, labels.double(), F), "must be whole numbers"),
    "unknown layer": (lambda: em.feature_extractor(net, "fc"), "layer: 'fc' is not one of"),
    "layer of a callable": (lambda: em.feature_extractor(len, "fc"), "layer: only an nn.Module"),
    "negative mean": (lambda: em.operator_norm_bound(3, 3, -1.0), "mean_norm: expected a number of at least 0"),
    "mean of NaN": (lambda: em.operator_norm_bound(3, 3, float("nan")), "mean_norm: expected a number of at least 0"),
    "theory of a negative step": (lambda: theory(step_size=-1.0), "step_size: expected a number of at least 0"),
    "theory of NaN": (lambda: theory(beta_norm=float("nan")), "beta_norm: expected a number of at least 0"),
    "theory of no examples": (lambda: theory(n=0), "n: expected a positive number"),
    "s beyond the norms": (lambda: theory().alignment(2.0, 4.5), "s: expected at most .* = 4, got 4.5"),
    "s of NaN": (lambda: theory().elasticity(2.0, float("nan")), "s: expected at most"),
    "leading s beyond": (lambda: theory().leading_elasticity(2.0, -4.5), "s: expected at most"),
    "means beyond their norms": (lambda: theory().product((1.0, 0.0), (1.0, 0.0), 1.5), "inner: expected at most"),
    "no direction": (lambda: em.unseen_classes("II", 0.5, 0 * v), "v: its norm: expected a positive number"),
    "distance of NaN": (lambda: em.unseen_classes("II", 0.5, v, distance=float("nan")), "distance: expected a number"),
    "flat values": (lambda: em.rise_curve([1.0]), "values: expected at least two"),
    "NaN values": (lambda: em.rise_curve([1.0, float("nan")]), "values: they hold NaN"),
    "s falls": (lambda: em.half_rise([1.0, 0.0], [0.0, 1.0]), "s: expected as many rising numbers"),
    "unknown loss": (lambda: em.library_loss("magic"), "name: expected one of .*, got 'magic'"),
    "one unseen class": (lambda: em.relative_on_unseen(network, X, torch.zeros(8)), "labels: within and between"),
    "no labels to step to": (lambda: em.relative_on_unseen(network, X, torch.arange(8) % 3), "y: say what"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name):
    work, words = BAD[name]
    with pytest.raises(ValueError, match=words):
        work()


def test_wrong_kinds_are_refused():
    with pytest.raises(TypeError, match="loader: this can be gone through only once"):
        em.stream_features(net, iter([(F, labels)]))
    with pytest.raises(TypeError, match="model: expected an nn.Module or a callable"):
        em.feature_extractor(3)
    with pytest.raises(TypeError, match="features: expected a tensor"):
        em.alignment([("a", labels)])
    for measure in (em.alignment, em.recall_at_k, em.cluster_agreement):
        with pytest.raises(TypeError, match="features: expected a tensor .* got ndarray"):
            measure(F.numpy(), labels)
    with pytest.raises(TypeError, match="X: expected a tensor .* got ndarray"):
        em.train_unseen_similarity(F.numpy(), labels, F)
    with pytest.raises(TypeError, match="unseen: expected a tensor .* got ndarray"):
        em.train_unseen_similarity(F, labels, F.numpy())


def test_a_shuffling_loader_is_noticed():
    with pytest.raises(ValueError, match="must not shuffle"):
        em.elasticity([(F, labels)], [(F, labels.flip(0))])


def test_precision_is_the_networks():
    x = torch.randn(8, 4)
    assert torch.equal(network(x), network(x.double()))
    classes = torch.arange(8) % 2
    assert em.relative_on_unseen(network, x, classes) == em.relative_on_unseen(network, x.double(), classes)


def test_more_inputs_than_examples_are_fine():
    step = em.one_step(em.TwoLayer.random(40, 6), torch.randn(8, 40), y)
    assert torch.isfinite(step.after.W).all()
    assert em.Theory.of_step(step, 8).elasticity(2.0, 1.0) > 0
