"""Figures 14 and 17: CIFAR-100, motorcycles, oranges and wardrobes, of which there are 500 training images each."""

from local_elasticity.papers.dan2021dynamics.classification import Classification


class CIFAR100(Classification):
    name = "dan2021dynamics/cifar100"
    title = "S_rel of class pairs while ResNet-18 learns CIFAR-100 motorcycle, orange, wardrobe: five panels"
    dataset = "cifar100"
    classes = {"motorcycle": 48, "orange": 53, "wardrobe": 94}  # noqa: RUF012 (read only)
    accuracy = 0.94
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"dataset": "digits", "per_class": 40, "points": 3, "width": 2, "epochs": 1, "probes": 1},
        "small": {"dataset": dataset, "per_class": None, "points": 10, "width": 12, "epochs": 16, "probes": 1},
        "paper": {"dataset": dataset, "per_class": None, "points": 20, "width": 64, "epochs": 35, "probes": 1},
    }
