"""Figures 2 and 16: CIFAR-10, planes, cars and ships.

The file holds 4000 of 5000 training images a class. The paper's 7 epochs are 322 steps here, and were 406 there, the
arm `steps`.
"""

from local_elasticity.papers.dan2021dynamics.classification import Classification, scales_of


class CIFAR10(Classification):
    name = "dan2021dynamics/cifar10"
    title = "S_rel of class pairs while ResNet-18 learns CIFAR-10 plane, car, ship: five panels"
    dataset = "cifar10-plane-car-ship"
    classes = {"plane": 0, "car": 1, "ship": 8}  # noqa: RUF012 (read only)
    accuracy = 0.78
    scales = scales_of(
        dataset,
        small={"per_class": 1000, "epochs": 8, "probes": 8},
        paper={"steps": 406, "probes": 21},
    )
