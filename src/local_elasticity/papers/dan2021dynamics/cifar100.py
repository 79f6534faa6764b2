"""Figures 14 and 17: CIFAR-100, motorcycles, oranges and wardrobes, of which there are 500 training images each.

These are all the images, so the paper's 7 epochs are 35 steps in its setting too. The arm `steps` goes on to the 406
steps that the notebooks take on CIFAR-10: after 35 the net has hardly begun to learn.
"""

from local_elasticity.papers.dan2021dynamics.classification import Classification


class CIFAR100(Classification):
    name = "dan2021dynamics/cifar100"
    title = "S_rel of class pairs while ResNet-18 learns CIFAR-100 motorcycle, orange, wardrobe: five panels"
    dataset = "cifar100"
    classes = {"motorcycle": 48, "orange": 53, "wardrobe": 94}  # noqa: RUF012 (read only)
    accuracy = 0.94
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"dataset": "digits", "per_class": 40, "points": 3, "width": 2, "epochs": 1, "steps": 3, "probes": 1},
        "small": {
            "dataset": dataset,
            "per_class": None,
            "points": 10,
            "width": 12,
            "epochs": 7,
            "steps": 110,
            "probes": 7,
        },
        "paper": {
            "dataset": dataset,
            "per_class": None,
            "points": 20,
            "width": 64,
            "epochs": 7,
            "steps": 406,
            "probes": 14,
        },
    }
