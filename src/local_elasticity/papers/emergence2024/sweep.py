"""One step on one task, then unseen classes that turn from across the task (t = 0) to along it (t = 1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

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
    """A network before and after its step (or steps), the theory of the step, and v."""

    step: em.Step
    after: em.TwoLayer
    theory: em.Theory
    task: em.TrainingData


def trained(variant: Variant, settings: Settings, seed: int) -> Trained:
    """Draw a task and a network, and take the step; of several steps each has the full size."""
    n, d, width = settings["n"], settings["d"], settings["width"]
    task = em.training_data(n, d, mean_norm=MEAN_NORM, kind=variant.kind, seed=seed, shuffled=variant.shuffled)
    network = em.TwoLayer.random(d, width, activation=variant.activation, seed=seed)
    step_size = em.usual_step_size(n, alpha=variant.alpha)
    step = em.one_step(network, task.X, task.y, step_size)
    after = step.after
    for _ in range(variant.steps - 1):
        after = em.one_step(after, task.X, task.y, step_size).after
    return Trained(step, after, em.Theory.of_step(step, n), task)


def turning(
    variant: Variant, settings: Settings, found: Trained, seed: int
) -> Iterator[tuple[float, em.UnseenClasses]]:
    """The unseen classes at every t; the same noise throughout, so that only the means turn."""
    for t in np.linspace(0, 1, settings["values"]):
        yield (
            float(t),
            em.unseen_classes(variant.design, float(t), found.task.v, per_class=settings["per_class"], seed=seed),
        )


Row = dict[str, float]


def sides(found: Trained, classes: em.UnseenClasses) -> Row:
    """|s| and E b², the mean of the two classes."""
    s = (classes.means @ found.step.beta).abs().mean()
    b = (classes.x @ found.step.beta).square().mean()
    return {"s": float(s), "second moment": float(b)}


def features_row(found: Trained, classes: em.UnseenClasses) -> Row:
    """Alignment in all its forms, elasticity and separability."""
    before, after = found.step.before.features(classes.x), found.after.features(classes.x)
    return {
        "alignment before": em.alignment(before, classes.labels),
        "alignment": em.alignment(after, classes.labels),
        "normalized alignment": em.alignment(after, classes.labels, form="normalized"),
        "cosine": em.alignment(after, classes.labels, form="cosine"),
        "centred cosine": em.alignment(after, classes.labels, form="centred_cosine"),
        "elasticity": em.elasticity(before, after),
        "separability": em.separability(after, classes.labels),
    }


def theory_row(found: Trained, classes: em.UnseenClasses) -> Row:
    """What theory says for each class, the mean of the two."""
    theory = found.theory
    norms = classes.means.norm(dim=1).tolist()
    s = (classes.means @ found.step.beta).tolist()
    inner = float(classes.means[0] @ classes.means[1])
    each = list(zip(norms, s, strict=True))
    return {
        "theory alignment": _mean(theory.alignment(*one) for one in each),
        "theory elasticity": _mean(theory.elasticity(*one) for one in each),
        "theory separability": -theory.product(each[0], each[1], inner),
        "leading rise": _mean(theory.leading_alignment_rise(*one) for one in each),
        "leading elasticity": _mean(theory.leading_elasticity(*one) for one in each),
    }


def retrieval_row(found: Trained, classes: em.UnseenClasses) -> Row:
    """Recall@1 before and after the step, cosine and Euclidean, and in the equivalent kernel."""
    before, after = found.step.before.features(classes.x), found.after.features(classes.x)
    theory = found.theory
    predicted = em.equivalent_recall(
        classes.x, classes.labels, found.step.beta, gamma=theory.gamma, moments=theory.moments
    )
    return {
        "recall before": em.recall_at_k(before, classes.labels),
        "recall": em.recall_at_k(after, classes.labels),
        "recall euclidean": em.recall_at_k(after, classes.labels, distance="euclidean"),
        "recall predicted": predicted,
    }


def clusters_row(found: Trained, classes: em.UnseenClasses, seed: int) -> Row:
    """K-means against the classes, after the step and before it."""
    after = em.cluster_agreement(found.after.features(classes.x), classes.labels, seed=seed)
    before = em.cluster_agreement(found.step.before.features(classes.x), classes.labels, seed=seed)
    return {"accuracy": after.accuracy, "nmi": after.nmi, "accuracy before": before.accuracy}


def relative_row(found: Trained, classes: em.UnseenClasses) -> Row:
    """He & Su's S_rel after a step on one unseen example, within over between, in the net before and after."""
    half = len(classes.x) // 2
    rows = [*range(min(PROBES, half)), *range(half, half + min(PROBES, half))]
    x, labels = classes.x[rows], classes.labels[rows]
    return {
        "S_rel ratio before": em.relative_on_unseen(found.step.before, x, labels).ratio,
        "S_rel ratio": em.relative_on_unseen(found.after, x, labels).ratio,
    }


def columns(rows: list[Row]) -> dict[str, list[float]]:
    """A list for every name."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def _mean(values: Iterator[float]) -> float:
    return float(np.mean(list(values)))
