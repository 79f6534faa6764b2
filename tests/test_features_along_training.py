"""Measures of features in a monitor: beside the similarities, on disk, in loggers, and without changing the run."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import local_elasticity as le
import local_elasticity.emergence as em
from local_elasticity.training.history import History

generator = torch.Generator().manual_seed(1)
x, y = torch.randn(30, 5, generator=generator), torch.arange(30) % 3
unseen = torch.randn(20, 5, generator=generator), torch.arange(20) % 2


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def all_measures(net):
    loader = DataLoader(TensorDataset(*unseen), batch_size=7)
    others, train = em.stream_features(net, loader, layer="2"), em.stream_features(net, [(x, y)], layer="2")
    return (
        em.FeatureMeasure("recall_at_1", others),
        em.FeatureMeasure("centred_alignment", others, name="alignment of unseen"),
        em.FeatureMeasure("elasticity", others),
        em.FeatureMeasure("train_unseen_similarity", others, train=train),
        em.FeatureMeasure(lambda features, labels: float(features.mean()), others, name="mean"),
    )


def train(net, steps=4, monitor=None, start=0):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(9)
    losses = []
    for step in range(start, start + steps):
        loss = nn.functional.cross_entropy(net(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if monitor:
            monitor.step(step)
    return losses


def monitored(net, **options):
    options = {"measure": ("kl", *all_measures(net)), "every": 1, "budget": None, **options}
    return le.Monitor(net, (x[:6], y[:6]), loss="cross_entropy", **options)


def test_numbers_are_those_of_the_features_at_each_step():
    net = network()
    start = em.feature_extractor(net, "2")(unseen[0])
    monitor = monitored(net)
    train(net, monitor=monitor)
    now, seen = em.feature_extractor(net, "2")(unseen[0]), em.feature_extractor(net, "2")(x)
    found = monitor.history[-1].numbers
    assert found["recall_at_1"] == em.recall_at_k(now, unseen[1])
    assert found["alignment of unseen"] == pytest.approx(em.alignment(now, unseen[1], form="centred_cosine"))
    assert found["elasticity"] == pytest.approx(em.elasticity(start, now))
    assert found["mean"] == pytest.approx(float(now.mean()))
    centre = seen.double().mean(0)
    by_class = [abs(em.train_unseen_similarity(seen - centre, y, now[unseen[1] == name] - centre)) for name in range(2)]
    assert found["train_unseen_similarity"] == pytest.approx(sum(by_class) / 2)


def test_the_run_does_not_notice():
    """A loader draws from the global generator each time it is gone through; that is put back."""
    plain, watched = network(), network()
    monitor = monitored(watched)
    assert train(plain) == train(watched, monitor=monitor)
    there, here = plain.state_dict(), watched.state_dict()
    assert all(torch.equal(value, here[name]) for name, value in there.items())
    assert watched.training


def test_the_frame_the_figure_and_the_loggers_have_them():
    net, seen = network(), []
    monitor = monitored(net, loggers=[lambda values, step: seen.append(values)])
    train(net, monitor=monitor)
    frame = monitor.frame()
    recall = frame[frame.measure == "recall_at_1"]
    assert recall.value.tolist() == [probe.numbers["recall_at_1"] for probe in monitor.history]
    assert set(recall.source_class) == {"all"}
    assert set(monitor.phases().measure) == {"kl", *monitor.history.numbers}
    titles = [axes.get_title() for axes in monitor.plot().axes]
    assert "recall_at_1" in titles
    assert "source: 0" in titles
    assert seen[-1]["local_elasticity/recall_at_1"] == recall.value.iloc[-1]
    assert monitor.history.dataset()["elasticity"].dims == ("step",)


def test_on_disk_and_resumed(tmp_path):
    """Elasticity goes on from where training began, not from where it was taken up again."""
    net = network()
    monitor = monitored(net, store=tmp_path / "run.zarr")
    train(net, steps=2, monitor=monitor)
    torch.save({"net": net.state_dict(), "monitor": monitor.state_dict()}, tmp_path / "checkpoint.pt")
    again = network()
    kept = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    again.load_state_dict(kept["net"])
    resumed = monitored(again, store=tmp_path / "run.zarr")
    resumed.load_state_dict(kept["monitor"])
    train(net, steps=2, monitor=monitor, start=2)
    whole = [dict(probe.numbers) for probe in monitor.history]
    with pytest.warns(le.training.MonitorWarning, match="another monitor writes to it"):
        train(again, steps=2, monitor=resumed, start=2)
    assert [dict(probe.numbers) for probe in resumed.history] == whole
    opened = History.open(tmp_path / "run.zarr")
    assert [dict(probe.numbers) for probe in opened] == whole
    with pytest.raises(ValueError, match="other numbers"):
        le.Monitor(again, (x[:6], y[:6]), loss="cross_entropy", measure=("kl",), every=1, store=tmp_path / "run.zarr")


def test_features_alone_take_no_step():
    net = network()
    recall = em.FeatureMeasure("recall_at_1", em.stream_features(net, [unseen]))
    monitor = monitored(net, measure=recall)
    train(net, monitor=monitor)
    assert monitor.history[0].engine == "features"
    assert set(monitor.frame().measure) == {"recall_at_1"}
    monitor.plot()


def test_a_run_that_diverges_goes_on():
    net = network()
    monitor = monitored(net, measure=all_measures(net))
    with torch.no_grad():
        net[0].weight.fill_(math.nan)
    with pytest.warns(le.training.MonitorWarning, match="measure: recall_at_1, .* failed at step 0 .ValueError"):
        assert monitor.step(0)
    assert monitor.step(1)
    assert all(math.isnan(value) for value in monitor.history[0].numbers.values())


def test_what_is_wrong_is_said_before_training():
    net = network()
    stream = em.stream_features(net, [unseen])
    with pytest.raises(ValueError, match="FeatureMeasure"):
        monitored(net, measure=("recall_at_1",))
    with pytest.raises(ValueError, match="recall_at_1"):
        em.FeatureMeasure("recal", stream)
    with pytest.raises(TypeError, match="FeatureStream"):
        em.FeatureMeasure("recall_at_1", unseen[0])
    with pytest.raises(ValueError, match="train"):
        em.FeatureMeasure("train_unseen_similarity", stream)
    with pytest.raises(ValueError, match="two are called"):
        monitored(net, measure=[em.FeatureMeasure("nmi", stream), em.FeatureMeasure("nmi", stream)])
    one_class = em.stream_features(net, [(unseen[0], torch.zeros(20))])
    with pytest.raises(ValueError, match="class"):
        monitored(net, measure=em.FeatureMeasure("nmi", one_class))
    torch.manual_seed(0)
    shuffled = DataLoader(TensorDataset(*unseen), batch_size=20, shuffle=True)
    with pytest.raises(ValueError, match="shuffle=False"):
        monitored(net, measure=em.FeatureMeasure("elasticity", em.stream_features(net, shuffled)))
