"""Figures 14 and 17: CIFAR-100, motorcycles, oranges and wardrobes, of which there are 500 training images each.

These are all the images, so the paper's 7 epochs are 35 steps in its setting too, and its sentences are judged there.
The arm `steps` goes on to the 406 steps that the notebooks take on CIFAR-10. After 35 steps the net has hardly begun to
learn, and it has the accuracy that the paper prints in the longer arm only, so some sentences are judged there too, as
our own.
"""

from dataclasses import replace

from local_elasticity.papers.dan2021dynamics.claims import claims_of
from local_elasticity.papers.dan2021dynamics.classification import Classification, scales_of
from local_elasticity.statistics.claims import Claim

LONGER = ("definition_3", "pooled", "intra_constant_definition_3", "inter_decreases_definition_3")
"""Sentences that are judged in the longer arm as well."""


def _in_the_longer_arm() -> list[Claim]:
    judged = {claim.id: claim for claim in claims_of(["steps"])}
    named = {name: f"{judged[name].sentence} (in training almost twelve times as long)" for name in LONGER}
    return [replace(judged[name], id=f"{name}_longer", sentence=named[name], ours=True) for name in LONGER]


class CIFAR100(Classification):
    name = "dan2021dynamics/cifar100"
    title = "S_rel of class pairs while ResNet-18 learns CIFAR-100 motorcycle, orange, wardrobe: five panels"
    dataset = "cifar100"
    classes = {"motorcycle": 48, "orange": 53, "wardrobe": 94}  # noqa: RUF012 (read only)
    accuracy = 0.94
    claims = (*claims_of(["epochs"]), *_in_the_longer_arm())
    scales = scales_of(
        dataset,
        small={"per_class": None, "epochs": 7, "probes": 7},
        paper={"steps": 406, "probes": 14},
    )
