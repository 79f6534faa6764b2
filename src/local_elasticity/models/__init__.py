"""The papers' networks."""

from local_elasticity.models.cifar_resnet import load_public_weights, resnet20, resnet56
from local_elasticity.models.resnet18 import ResNet18
from local_elasticity.models.small import FullyConnectedResNet, cnn, fnn

__all__ = ["FullyConnectedResNet", "ResNet18", "cnn", "fnn", "load_public_weights", "resnet20", "resnet56"]
