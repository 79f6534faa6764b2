"""One step on one task, then unseen classes that turn from across the task (t = 0) to along it (t = 1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

import local_elasticity.emergence as em
from local_elasticity.papers.experiment import Settings

MEAN_NORM = 2.0
"""‖v‖ of the training data."""

PROBES = 20
"""Unseen examples of each class that He & Su's S_rel steps on."""


@dataclass(frozen=True)
class Variant:
    """What is varied around the main setting."""

    design: str = "II"
    activation: str = "relu"
    kind: str = "gaussian"
    shuffled: bool = False
    steps: int = 1
    alpha: float = 0.5


@dataclass(frozen=True)
class Trained:
    """A network before and after its step (or steps), how many they were, the theory of the first step, and v."""

    step: em.Step
    after: em.TwoLayer
    theory: em.Theory
    task: em.TrainingData
    steps: int = 1

    def continued(self, steps: int) -> Trained:
        """The same after so many steps in all, each of the full size."""
        after = self.after
        for _ in range(steps - self.steps):
            after = em.one_step(after, self.task.X, self.task.y, self.step.step_size).after
        return replace(self, after=after, steps=steps)


def trained(variant: Variant, settings: Settings, seed: int) -> Trained:
    """Draw a task and a network, and take the step; of several steps each has the full size."""
    n, d, width = settings["n"], settings["d"], settings["width"]
    task = em.training_data(n, d, mean_norm=MEAN_NORM, kind=variant.kind, seed=seed, shuffled=variant.shuffled)
    network = em.TwoLayer.random(d, width, activation=variant.activation, seed=seed)
    step_size = em.usual_step_size(n, alpha=variant.alpha)
    step = em.one_step(network, task.X, task.y, step_size)
    return Trained(step, step.after, em.Theory.of_step(step, n), task).continued(variant.steps)


@dataclass(frozen=True)
class Watched:
    """Two unseen classes at some t, and their features before and after the step."""

    t: float
    classes: em.UnseenClasses
    before: Tensor
    after: Tensor

    @property
    def labels(self) -> Tensor:
        return self.classes.labels


def turning(variant: Variant, settings: Settings, found: Trained, seed: int) -> Iterator[Watched]:
    """The unseen classes at every t; the same noise throughout, so that only the means turn."""
    for t in np.linspace(0, 1, settings["values"]).tolist():
        classes = em.unseen_classes(variant.design, t, found.task.v, per_class=settings["per_class"], seed=seed)
        yield Watched(t, classes, found.step.before.features(classes.x), found.after.features(classes.x))


Row = dict[str, float]


def sides(found: Trained, seen: Watched) -> Row:
    """t, |s| and E b², the mean of the two classes."""
    s = (seen.classes.means @ found.step.beta).abs().mean()
    b = (seen.classes.x @ found.step.beta).square().mean()
    return {"t": seen.t, "s": float(s), "second moment": float(b)}


def features_row(seen: Watched) -> Row:
    """Alignment in all its forms, elasticity and separability."""
    return {
        "alignment before": em.alignment(seen.before, seen.labels),
        "alignment": em.alignment(seen.after, seen.labels),
        "normalized alignment": em.alignment(seen.after, seen.labels, form="normalized"),
        "cosine": em.alignment(seen.after, seen.labels, form="cosine"),
        "centred cosine": em.alignment(seen.after, seen.labels, form="centred_cosine"),
        "elasticity": em.elasticity(seen.before, seen.after),
        "separability": em.separability(seen.after, seen.labels),
    }


def theory_row(found: Trained, seen: Watched) -> Row:
    """What theory says for each class, the mean of the two; it knows s by its size alone."""
    theory, means = found.theory, seen.classes.means
    s = (means @ found.step.beta).tolist()
    each = list(zip(means.norm(dim=1).tolist(), s, strict=True))
    different = {(round(norm, 9), round(abs(similarity), 9)) for norm, similarity in each}
    return {
        "theory alignment": _mean(theory.alignment(*one) for one in different),
        "theory elasticity": _mean(theory.elasticity(*one) for one in different),
        "theory separability": -theory.product(each[0], each[1], float(means[0] @ means[1])),
        "leading rise": _mean(theory.leading_alignment_rise(*one) for one in different),
        "leading elasticity": _mean(theory.leading_elasticity(*one) for one in different),
    }


def retrieval_row(found: Trained, seen: Watched) -> Row:
    """Recall@1 before and after the step, cosine and Euclidean, and in the equivalent kernel."""
    theory = found.theory
    predicted = em.equivalent_recall(
        seen.classes.x, seen.labels, found.step.beta, gamma=theory.gamma, moments=theory.moments
    )
    return {
        "recall before": em.recall_at_k(seen.before, seen.labels),
        "recall": em.recall_at_k(seen.after, seen.labels),
        "recall euclidean": em.recall_at_k(seen.after, seen.labels, distance="euclidean"),
        "recall predicted": predicted,
    }


def clusters_row(seen: Watched, seed: int) -> Row:
    """K-means against the classes, after the step and before it."""
    after = em.cluster_agreement(seen.after, seen.labels, seed=seed)
    before = em.cluster_agreement(seen.before, seen.labels, seed=seed)
    return {"accuracy": after.accuracy, "nmi": after.nmi, "accuracy before": before.accuracy}


def relative_row(found: Trained, seen: Watched, probes: int = PROBES) -> Row:
    """He & Su's S_rel after a step on one unseen example, within over between, in the net before and after."""
    half = len(seen.labels) // 2
    rows = [*range(min(probes, half)), *range(half, half + min(probes, half))]
    x, labels = seen.classes.x[rows], seen.labels[rows]
    return {
        "S_rel ratio before": 1 / em.relative_on_unseen(found.step.before, x, labels).locality,
        "S_rel ratio": 1 / em.relative_on_unseen(found.after, x, labels).locality,
    }


def columns(rows: list[Row]) -> dict[str, list[float]]:
    """A list for every name."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def _mean(values: Iterator[float]) -> float:
    return float(np.mean(list(values)))
