"""Figures 14 and 17: CIFAR-100, motorcycles, oranges and wardrobes, of which there are 500 training images each.

These are all the images, so the paper's 7 epochs are 35 steps in its setting too, and its sentences are judged there.
The arm `steps` goes on to the 406 steps that the notebooks take on CIFAR-10: after 35 the net has hardly begun to
learn.
"""

from local_elasticity.papers.dan2021dynamics.claims import claims_of
from local_elasticity.papers.dan2021dynamics.classification import Classification, scales_of


class CIFAR100(Classification):
    name = "dan2021dynamics/cifar100"
    title = "S_rel of class pairs while ResNet-18 learns CIFAR-100 motorcycle, orange, wardrobe: five panels"
    dataset = "cifar100"
    classes = {"motorcycle": 48, "orange": 53, "wardrobe": 94}  # noqa: RUF012 (read only)
    accuracy = 0.94
    claims = claims_of(["epochs"])
    scales = scales_of(
        dataset,
        small={"per_class": None, "epochs": 7, "probes": 7},
        paper={"steps": 406, "probes": 14},
    )
