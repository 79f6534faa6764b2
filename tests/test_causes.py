"""Why nothing moved, in words: the true cause, not the size of the step."""

import logging
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import local_elasticity as le

x, y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


def classifier(scale=1.0):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    with torch.no_grad():
        net.weight *= scale
    return net


def resting(net):
    return torch.optim.AdamW(net.parameters(), lr=0.0)


def contrastive(outputs, labels):
    """Distances between examples of one class; of one example there is none."""
    return torch.cdist(outputs, outputs).square().mean()


def dead():
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        net[0].bias.fill_(-1e3)
    return le.Problem.of(net, "cross_entropy", params="^0")


def saturated():
    net = classifier(1e6)
    return net, (x, net(x).argmax(1))


def broken(value):
    net = classifier()
    with torch.no_grad():
        net.weight.fill_(value)
    return net


CAUSES = {
    "NaN weights": (lambda: (broken(torch.nan), (x, y)), "cross_entropy", "are NaN or infinite at 8 of 8 sources"),
    "inf weights": (lambda: (broken(torch.inf), (x, y)), "cross_entropy", "are NaN or infinite at 8 of 8 sources"),
    "lr 0": (lambda: (classifier(), (x, y)), "cross_entropy", "learning rate of the optimizer is 0"),
    "contrastive": (lambda: (classifier(), (x, y)), contrastive, "several examples, so pass source_batch_size"),
    "fitted": (lambda: (classifier(0), (x, classifier(0)(x).detach())), "mse", "they are fitted exactly"),
    "saturated": (saturated, "cross_entropy", "their outputs are saturated"),
    "dead": (lambda: (dead(), (x, y)), None, "reaches no parameter that steps"),
}


def asked(name):
    make, loss, words = CAUSES[name]
    model, sources = make()
    options = {"update": le.FromOptimizer(resting(model))} if name == "lr 0" else {}
    return model, sources, {"loss": loss, **options}, words


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_named(name, caplog, tmp_path):
    model, sources, options, words = asked(name)
    with pytest.warns(le.UnresolvedWarning, match=f"measure: 100% of the pairs of relative are unresolved: .*{words}"):
        S = le.similarity(model, sources, **options)
    assert S.attrs["unresolved"] == 1
    assert words in S.attrs["cause"]
    caplog.set_level(logging.WARNING, logger="local_elasticity")
    le.class_pairs(S, y.tolist(), y.tolist())
    assert words in caplog.text
    assert "A larger step" not in caplog.text
    with pytest.warns(le.UnresolvedWarning, match=words.replace("8 of 8", "6 of 6")):
        stored = le.similarity(model, sources, store=tmp_path / "s.zarr", **options)
    assert stored.attrs["cause"] == S.attrs["cause"].replace("8 of 8", "6 of 6")
    page = le.write_report(S, tmp_path / "page.html").read_text()
    assert words in page
    assert "Take a larger step" not in page


def test_what_moves_has_no_cause():
    assert "cause" not in le.similarity(classifier(), (x, y), loss="cross_entropy").attrs
    labels = classifier(0)(x).detach()
    labels[3:] += 1
    few = le.similarity(classifier(0), (x, labels), loss="mse")
    assert "cause" not in few.attrs
    assert np.isnan(few.values[:3]).all()


def test_batches_are_what_a_contrastive_loss_needs():
    S = le.similarity(classifier(), (x, y), x[:3], loss=contrastive, source_batch_size=2)
    assert S.attrs["unresolved"] == 0


def test_a_history_keeps_the_step_size(tmp_path, caplog):
    net = classifier()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.4)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: epoch / 2)
    monitor = le.Monitor(
        net,
        (x, y),
        loss="cross_entropy",
        update=le.FromOptimizer(optimizer),
        every=1,
        budget=None,
        store=tmp_path / "h.zarr",
    )
    with pytest.warns(le.UnresolvedWarning, match="learning rate of the optimizer is 0") as told:
        monitor.probe(0)
    assert told[0].filename == __file__
    assert "100% of the pairs of relative are unresolved: the learning rate" in monitor.history.notes[0]
    for step in range(1, 3):
        optimizer.step()
        warm_up.step()
        monitor.probe(step)
    rates = [0, 0.2, 0.4]
    assert [probe.facts["step_size"] for probe in monitor.history] == pytest.approx(rates)
    again = le.training.history.History.open(tmp_path / "h.zarr")
    assert again.dataset()["step_size"].values.tolist() == pytest.approx(rates)
    update = le.FromOptimizer(optimizer)
    other = le.Monitor(net, (x, y), loss="cross_entropy", update=update, every=1, budget=None)
    state = monitor.state_dict()
    other.load_state_dict({**state, "probes": again.state()})
    assert [probe.facts["step_size"] for probe in other.history] == pytest.approx(rates)
    monitor.frame()
    assert "learning rate of the optimizer is 0" in caplog.text


def test_several_step_sizes_are_told():
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    groups = [{"params": net[0].parameters(), "lr": 0.1}, {"params": net[1].parameters(), "lr": 0.01}]
    S = le.similarity(net, (x, y), loss="cross_entropy", update=le.FromOptimizer(torch.optim.SGD(groups)))
    assert S.attrs["step_sizes"] == [0.1, 0.01]
    assert np.isnan(S.attrs["step_size"])


def test_probabilities_that_do_not_move():
    """Logits move, and probabilities of a sure network do not."""
    net = classifier(200)
    sources = x, net(x).argmax(1)
    problem = le.Problem.of(net, "cross_entropy")
    with pytest.warns(le.UnresolvedWarning, match='are saturated .*measure="relative" reads the logits'):
        le.similarity(problem, sources, measure="relative_l1", engine="looped", update=le.SGD(1e-6))


def test_without_a_cause_it_is_rounding():
    net = nn.Sequential(nn.Linear(4, 50), nn.Tanh(), nn.Linear(50, 3))
    with pytest.warns(le.UnresolvedWarning, match="less than rounding does; take a larger step") as told:
        le.similarity(net, (x, y), loss="cross_entropy", update=le.SGD(1e-9), engine="looped")
    assert len(told) == 1
    assert told[0].filename == __file__


def test_some_unresolved_pairs_are_no_reason_to_warn():
    labels = classifier(0)(x).detach()
    labels[3:] += 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert le.similarity(classifier(0), (x, labels), loss="mse").attrs["unresolved"] == 3 / 8


PREDICTED = {
    "cross_entropy": lambda outputs: outputs.argmax(1),
    "bce_logits": lambda outputs: (outputs > 0).float(),
    "bce": lambda outputs: (outputs > 0.5).float(),
}


@pytest.mark.parametrize("loss", PREDICTED)
def test_predicted_labels_are_the_models_own(loss, tmp_path):
    net = nn.Sequential(classifier(), nn.Sigmoid()) if loss == "bce" else classifier()
    labels = PREDICTED[loss](net(x).detach())
    options = {"loss": loss, "update": le.SGD(0.1), "engine": "looped"}  # auto may take another in a later call
    expected = le.similarity(net, (x, labels), **options)
    for sources in (x, (x, None)):
        S = le.similarity(net, sources, labels="predicted", **options)
        assert np.array_equal(S.values, expected.values)
        assert S.attrs["labels"] == "predicted"
        assert set(S.coords) == set(expected.coords)
    stored = le.similarity(net, x, labels="predicted", store=tmp_path / "s.zarr", **options)
    assert np.allclose(stored.values, expected.values)
    response = le.respond(net, x, labels="predicted", **options)
    assert torch.equal(response.source_labels, labels)
    monitor = le.Monitor(net, x, labels="predicted", every=1, budget=None, **options)
    monitor.step(0)
    assert np.allclose(monitor.history[0].similarity["relative"], expected.values, rtol=1e-4)


def test_targets_without_labels_get_predicted_ones_too():
    net, options = classifier(), {"loss": "cross_entropy", "measure": "loss", "engine": "looped"}
    S = le.similarity(net, x, x[:3].clone(), labels="predicted", **options)
    labels = net(x).argmax(1)
    expected = le.similarity(net, (x, labels), (x[:3].clone(), labels[:3]), **options)
    assert np.array_equal(S.values, expected.values)
    given = le.similarity(net, x, (x[:3].clone(), y[:3]), labels="predicted", **options)
    assert not np.array_equal(given.values, expected.values)


@pytest.mark.parametrize("call", [le.similarity, le.respond, le.Monitor])
def test_labels_that_are_none(call):
    with pytest.raises(ValueError, match="labels: expected one of given, predicted, got"):
        call(classifier(), x, loss="cross_entropy", labels="guessed")
    with pytest.raises(ValueError, match="sources: they have labels already"):
        call(classifier(), (x, y), loss="cross_entropy", labels="predicted")
    with pytest.raises(ValueError, match='labels: "predicted" needs outputs that are classes'):
        call(classifier(), x, loss="mse", labels="predicted")
    with pytest.raises(TypeError, match="sources: expected a pair"):
        call(classifier(), x, loss="cross_entropy")
