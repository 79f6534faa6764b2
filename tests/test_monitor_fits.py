"""A monitor that fits its budget, and what its history tells of the sources."""

import numpy as np
import pytest
import torch

import local_elasticity as le


def classifier():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def points(n=12):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(1)), torch.arange(n) % 3


def train(net, monitor, steps, pause=None):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = points(60)
    for step in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if pause is not None:
            pause()
        monitor.step(step)


def test_the_history_knows_the_loss_and_accuracy_of_its_sources(tmp_path):
    net, (x, y) = classifier(), points()
    expected = []

    class Told:
        def log(self, values, step):
            outputs = net(x)
            loss = torch.nn.functional.cross_entropy(outputs, y).item()
            expected.append((loss, (outputs.argmax(1) == y).double().mean().item()))

    options = {"loss": "cross_entropy", "every": 5, "budget": None, "loggers": [Told()], "store": tmp_path / "h.zarr"}
    monitor = le.Monitor(net, (x, y), **options)
    train(net, monitor, 11)
    for history in (monitor.history, le.training.History.open(tmp_path / "h.zarr")):
        found = [(probe.facts["source_loss"], probe.facts["source_accuracy"]) for probe in history]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    dataset = monitor.history.dataset()
    assert dataset.source_loss.dims == ("step",)
    assert dataset.sources_measured.values.tolist() == [12, 12, 12]


@pytest.mark.parametrize(
    ("loss", "labels", "accuracy"),
    [("mse", torch.zeros(6, 1), np.nan), ("bce_logits", torch.ones(6, 1), 1.0), ("half_mse", torch.ones(6), np.nan)],
)
def test_accuracy_is_told_where_there_are_classes(loss, labels, accuracy):
    net = torch.nn.Linear(4, 1)
    torch.nn.init.zeros_(net.weight)
    torch.nn.init.ones_(net.bias)
    monitor = le.Monitor(net, (torch.randn(6, 4), labels), loss=loss, every=1, budget=None)
    monitor.step(0)
    np.testing.assert_equal(monitor.history[0].facts["source_accuracy"], accuracy)
    assert np.isfinite(monitor.history[0].facts["source_loss"])


@pytest.mark.parametrize(("probes", "concludes"), [(3, False), (4, True)])
def test_nothing_is_concluded_from_fewer_than_four_probes(probes, concludes, caplog, tmp_path):
    net = classifier()
    monitor = le.Monitor(net, points(), loss="cross_entropy", every=1, budget=None)
    train(net, monitor, probes)
    (row,) = monitor.phases().itertuples()
    assert np.isfinite(row.first)
    assert np.isfinite(row.late) == concludes
    assert ("nothing is concluded from fewer than 4 probes" in caplog.text) != concludes
    page = le.write_report(monitor, tmp_path / "page.html").read_text(encoding="utf-8")
    assert ("3 probes are too few to conclude how learning developed" in page) != concludes


def test_a_monitor_says_what_it_does():
    net = classifier()
    monitor = le.Monitor(net, points(), loss="cross_entropy", measures=("kl", "relative"), every=2, budget=None)
    train(net, monitor, 3)
    assert repr(monitor) == (
        "<Monitor: kl, relative; 12 sources × 12 targets; SGD(step_size=0.001, weight_decay=0.0); Every(n=2); "
        "no budget; 2 probes, the last at step 2>"
    )
