"""Figures 1 and 15: SVHN, digits 0, 2 and 4.

The file holds 2500 of the some 7700 training images a digit. The paper's 7 epochs are 203 steps here; its 22,991 images
make 89 batches, so its 7 epochs were 623 steps, the arm `steps`.
"""

from local_elasticity.papers.dan2021dynamics.classification import Classification, scales_of


class SVHN(Classification):
    name = "dan2021dynamics/svhn"
    title = "S_rel of class pairs while ResNet-18 learns SVHN 0, 2, 4: five panels"
    dataset = "svhn-0-2-4"
    classes = {"0": 0, "2": 2, "4": 4}  # noqa: RUF012 (read only)
    accuracy = 0.87
    scales = scales_of(
        dataset,
        small={"per_class": 1000, "epochs": 7, "probes": 8},
        paper={"steps": 623, "probes": 21},
    )
