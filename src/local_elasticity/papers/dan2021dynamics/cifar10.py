"""Figures 2 and 16: CIFAR-10, planes, cars and ships.

The file holds 4000 of 5000 training images a class. The paper's 7 epochs are 322 steps here, and were 406 there, the
arm `steps`.
"""

from local_elasticity.papers.dan2021dynamics.classification import Classification


class CIFAR10(Classification):
    name = "dan2021dynamics/cifar10"
    title = "S_rel of class pairs while ResNet-18 learns CIFAR-10 plane, car, ship: five panels"
    dataset = "cifar10-plane-car-ship"
    classes = {"plane": 0, "car": 1, "ship": 8}  # noqa: RUF012 (read only)
    accuracy = 0.78
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"dataset": "digits", "per_class": 40, "points": 3, "width": 2, "epochs": 1, "steps": 3, "probes": 1},
        "small": {
            "dataset": dataset,
            "per_class": 1000,
            "points": 10,
            "width": 12,
            "epochs": 8,
            "steps": 110,
            "probes": 8,
        },
        "paper": {
            "dataset": dataset,
            "per_class": None,
            "points": 20,
            "width": 64,
            "epochs": 7,
            "steps": 406,
            "probes": 21,
        },
    }
