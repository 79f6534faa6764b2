"""The papers' networks: shapes, sizes, and the public weights."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import local_elasticity as le

DATA = os.environ.get("LOCAL_ELASTICITY_DATA")


def test_feed_forward_nets_have_the_papers_sizes():
    assert [tuple(p.shape) for p in le.models.fnn(784).parameters()] == [(40960, 784), (40960,), (1, 40960), (1,)]
    deep = le.models.fnn(3, width=8, layers=3, outputs=2)
    assert [tuple(p.shape) for p in deep.parameters()][::2] == [(8, 3), (8, 8), (2, 8)]
    x = torch.randn(5, 1, 28, 28)
    linear = le.models.fnn(784, width=16, activation="linear").double()
    x1, x2 = x.double(), torch.randn(5, 1, 28, 28).double()
    assert torch.allclose(linear(x1 + x2) + linear(0 * x1), linear(x1) + linear(x2))
    probable = le.models.fnn(784, width=16, probability=True)(x)
    assert ((probable > 0) & (probable < 1)).all()
    for activation, kind in (("sigmoid", nn.Sigmoid), ("tanh", nn.Tanh), ("relu", nn.ReLU)):
        assert any(isinstance(m, kind) for m in le.models.fnn(3, width=4, activation=activation))
    with pytest.raises(ValueError, match="activation"):
        le.models.fnn(3, activation="swish")
    with pytest.raises(ValueError, match="layers"):
        le.models.fnn(3, layers=0)


def test_cnn_has_the_papers_size():
    shapes = [tuple(p.shape) for p in le.models.cnn().parameters()]
    assert shapes == [(20, 1, 5, 5), (20,), (50, 20, 5, 5), (50,), (500, 800), (500,), (1, 500), (1,)]
    assert le.models.cnn(3, channels=3, size=32)(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
    assert isinstance(le.models.cnn(probability=True)[-1], nn.Sigmoid)


def test_resnet18_has_no_norm_and_he_normal_convolutions():
    net = le.models.ResNet18(3)
    assert not any("Norm" in type(m).__name__ for m in net.modules())
    weight = net.stages[3][1].second.weight.detach()
    assert weight.std() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.02)
    assert sum(p.numel() for p in net.parameters()) == 11168451


@pytest.mark.parametrize(
    ("make", "file", "parameters"),
    [
        (le.models.resnet20, "resnet20-12fca82f.th", 269722),
        (le.models.resnet56, "resnet56-4bfd9763.th", 853018),
    ],
)
def test_the_public_weights_fit_and_classify(make, file, parameters):
    net = make().eval()
    assert sum(p.numel() for p in net.parameters()) == parameters
    if not DATA or not (Path(DATA) / file).exists():
        pytest.skip(f"{file} is missing: name its folder in LOCAL_ELASTICITY_DATA")
    le.models.load_public_weights(net, Path(DATA) / file)
    data = le.data.load("cifar10")
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        right = net((data.x_test[:200] / 255 - mean) / deviation).argmax(1) == data.y_test[:200]
    assert right.float().mean() > 0.85
