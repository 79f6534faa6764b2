"""What the paper says of classification (§1.3, §2, §2.1, §6), and the verdicts, with effects over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from local_elasticity.papers.experiment import Claim, Measured
from local_elasticity.statistics.change_point import half_life, last_quarter
from local_elasticity.statistics.verdicts import geometric_mean, z_score

CONSTANT = 0.25
"""A curve is relatively constant where it ends within this share of where it began."""

DECREASES = 0.05
"""A curve decreases where it ends lower than it began by more than this share."""

SAME = 0.1
"""Two norms are indistinguishable where they differ by less than this share at every pair and time."""

SATURATED = 0.95
"""The share of its final value at which the accuracy counts as saturated."""

NEAR_ONE = 0.05

START = 1.0
"""Where the published curves of all pairs begin, read off Figures 1, 2 and 14."""

JUDGED = {"as defined (SGD, Definition 2)": ("sgd", "kl"), "as released (fresh Adam)": ("adam", "released_kl")}

CLAIMS = (
    Claim("intra_larger", "For all pairs the intra-class value is larger than the inter-class ones (§1.3, §2.1)"),
    Claim("intra_larger_released", "The same, by the released formula"),
    Claim("intra_constant", "The intra-class value remains relatively constant through training (§1.3, §2.1)"),
    Claim("intra_constant_released", "The same, by the released formula"),
    Claim("inter_decreases", "The inter-class value decreases as training progresses (§2.1)"),
    Claim("inter_decreases_released", "The same, by the released formula"),
    Claim("not_by_definition_1", "Such a separation is not seen for Definition 1 (§2.1)"),
    Claim("not_by_definition_1_released", "The same, by the released formula"),
    Claim("sharper", "The new definition detects locality more sharply than Definition 1 (abstract, §2.1)"),
    Claim("softmax_better", "Softmax outputs serve Definition 1 better than the network's own outputs (§2)"),
    Claim("norms_alike", "Definition 1 in the L1 and the L2 norm is essentially indistinguishable (§2)"),
    Claim("early", "Locality sets in well before the accuracy saturates (§6)"),
    Claim(
        "starts_at_one",
        "By the released formula all pairs begin at about 1.00, as published (Figs. 1, 2, 14)",
    ),
)


@dataclass(frozen=True)
class Runs:
    """The runs of all seeds as arrays: [seeds, t, classes, classes] for each step, measure and reduction."""

    classes: Sequence[str]
    steps: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray
    found: Sequence[Measured]

    @classmethod
    def of(cls, found: Sequence[Measured]) -> Runs:
        first = found[0]
        loss, accuracy = (np.array([one[name] for one in found], dtype=float) for name in ("loss", "accuracy"))
        return cls(first["classes"], np.array(first["steps"]), loss, accuracy, found)

    def values(self, step: str, measure: str, reduction: str, points: str = "training") -> np.ndarray:
        probes = [one["probes"][points][step]["similarity"][measure] for one in self.found]
        return np.array([probe[reduction] for probe in probes], dtype=float)

    def intra_inter(self, step: str, measure: str, reduction: str) -> tuple[np.ndarray, np.ndarray]:
        """The means over pairs of the same and of different classes, [seeds, t]."""
        values = self.values(step, measure, reduction)
        own = np.eye(values.shape[-1], dtype=bool)
        return np.nanmean(values[..., own], -1), np.nanmean(values[..., ~own], -1)

    def late(self, step: str, measure: str, reduction: str) -> dict[str, np.ndarray]:
        """Intra- and inter-class values over the last quarter of training, one for each seed."""
        intra, inter = self.intra_inter(step, measure, reduction)
        return {"intra": late(intra), "inter": late(inter)}

    def contrast(self, step: str, measure: str, reduction: str = "median apart") -> np.ndarray:
        """log(intra/inter) late in training, one for each seed: how sharply classes are separated."""
        values = self.late(step, measure, reduction)
        contrast: np.ndarray = np.log(values["intra"] / values["inter"])
        return contrast


def late(curves: np.ndarray, reduce: Callable[..., np.ndarray] = np.nanmean) -> np.ndarray:
    """The mean, or the median, over the last quarter, [seeds]."""
    return reduce(last_quarter(curves), axis=1)


def judge(runs: Runs) -> list[Claim]:
    """All claims, in the order of CLAIMS."""
    made: dict[str, Claim] = {}
    for ending, (title, where) in zip(("", "_released"), JUDGED.items(), strict=True):
        made[f"intra_larger{ending}"] = _intra_larger(runs, f"intra_larger{ending}", title, where)
        made[f"intra_constant{ending}"] = _intra_constant(runs, f"intra_constant{ending}", title, where)
        made[f"inter_decreases{ending}"] = _inter_decreases(runs, f"inter_decreases{ending}", title, where)
    made |= {
        "not_by_definition_1": _not_by_definition_1(runs, "not_by_definition_1", "SGD, softmax, L1", ("sgd", "l1")),
        "not_by_definition_1_released": _not_by_definition_1(
            runs, "not_by_definition_1_released", "as released (fresh Adam)", ("adam", "released_l1")
        ),
        "sharper": _sharper(runs),
        "softmax_better": _softmax_better(runs),
        "norms_alike": _norms_alike(runs),
        "early": _early(runs),
        "starts_at_one": _starts_at_one(runs),
    }
    return [made[claim.id] for claim in CLAIMS]


READINGS = {"mean": "Definition 3", "median apart": "medians without self-pairs"}


def separated(values: np.ndarray) -> np.ndarray:
    """Whether every class's own value is above all its others late in training, one for each seed."""
    last = np.stack([late(values[:, :, i, j]) for i, j in np.ndindex(values.shape[2:])], -1)
    last = last.reshape(len(values), *values.shape[2:])
    own = np.eye(values.shape[-1], dtype=bool)
    others = np.where(own, -np.inf, last).max(-1)
    return np.asarray((last[:, own] > others).all(-1))


def _intra_larger(runs: Runs, name: str, title: str, where: tuple[str, str]) -> Claim:
    outcomes = {reduction: separated(runs.values(*where, reduction)) for reduction in READINGS}
    effects = {reduction: runs.contrast(*where, reduction) for reduction in READINGS}
    said = "; ".join(
        f"{READINGS[r]}: all pairs in {outcomes[r].sum()} of {len(outcomes[r])} runs, intra/inter "
        f"{np.exp(np.mean(effects[r])):.2f} {z_said(effects[r])}"
        for r in READINGS
    )
    every, ratios = np.concatenate(list(outcomes.values())).tolist(), np.exp(effects["median apart"])
    return _claim(name).judged(every, ratios, f"{title}, late: {said}", average=geometric_mean)


def _intra_constant(runs: Runs, name: str, title: str, where: tuple[str, str]) -> Claim:
    changes = {r: relative_change(runs.intra_inter(*where, r)[0]) for r in READINGS}
    outcomes = np.concatenate([np.abs(change) < CONSTANT for change in changes.values()])
    return _claim(name).judged(
        outcomes.tolist(),
        changes["mean"],
        f"{title}, change of the intra-class value from first to late, {_said(changes)}; within {CONSTANT:.0%} counts "
        "as constant",
    )


def _inter_decreases(runs: Runs, name: str, title: str, where: tuple[str, str]) -> Claim:
    changes = {r: relative_change(runs.intra_inter(*where, r)[1]) for r in READINGS}
    outcomes = np.concatenate([change < -DECREASES for change in changes.values()])
    evidence = f"{title}, change of the inter-class value from first to late, {_said(changes)}"
    return _claim(name).judged(outcomes.tolist(), changes["mean"], evidence)


def _not_by_definition_1(runs: Runs, name: str, title: str, where: tuple[str, str]) -> Claim:
    outcomes = {r: ~separated(runs.values(*where, r)) for r in READINGS}
    said = "; ".join(
        f"{READINGS[r]}: all pairs are separated in {(~outcomes[r]).sum()} of {len(outcomes[r])} runs, intra/inter "
        f"{np.exp(np.mean(runs.contrast(*where, r))):.3g}"
        for r in READINGS
    )
    every, ratios = np.concatenate(list(outcomes.values())).tolist(), np.exp(runs.contrast(*where))
    return _claim(name).judged(every, ratios, f"{title}, late: {said}", average=geometric_mean)


def _sharper(runs: Runs) -> Claim:
    one, root, two = (runs.contrast("sgd", measure) for measure in ("l1", "root_kl", "kl"))
    sharper = {name: values > np.maximum(one, 0) for name, values in {"Definition 2": two, "its root": root}.items()}
    ratios = ", ".join(
        f"{name} {np.exp(np.mean(values)):.2f}"
        for name, values in {"Definition 2": two, "√Definition 2": root, "Definition 1": one}.items()
    )
    said = ", ".join(f"{name} in {found.sum()}" for name, found in sharper.items())
    evidence = (
        f"SGD, late, intra/inter of medians without self-pairs: {ratios}; KL is quadratic, so that its root is the "
        f"fair comparison. Runs that show locality at all (intra above inter), and more of it than Definition 1: "
        f"{said} of {len(one)} {z_said(root - one)}"
    )
    return _claim("sharper").judged(np.concatenate(list(sharper.values())).tolist(), root - one, evidence)


def _softmax_better(runs: Runs) -> Claim:
    soft, plain = ({r: runs.contrast("sgd", measure, r) for r in READINGS} for measure in ("l1", "logits"))
    better = {r: soft[r] > np.maximum(plain[r], 0) for r in READINGS}
    apart = {r: [separated(runs.values("sgd", measure, r)).sum() for measure in ("l1", "logits")] for r in READINGS}
    said = "; ".join(
        f"{READINGS[r]}: intra/inter {np.exp(np.mean(soft[r])):.2f} and {np.exp(np.mean(plain[r])):.2f} "
        f"{z_said(soft[r] - plain[r])}, all pairs separated in {apart[r][0]} and {apart[r][1]}, locality, and more "
        f"of it, after the softmax in {better[r].sum()} of {len(better[r])} runs"
        for r in READINGS
    )
    return _claim("softmax_better").judged(
        np.concatenate(list(better.values())).tolist(),
        soft["median apart"] - plain["median apart"],
        f"SGD, L1, late, softmax and logits: {said}",
    )


def _norms_alike(runs: Runs) -> Claim:
    one, two = (runs.values("sgd", measure, "median apart") for measure in ("l1", "l2"))
    apart = np.nanmax(np.abs(one / two - 1), axis=(1, 2, 3))
    evidence = (
        f"SGD, softmax: the largest difference over pairs and times is {np.mean(apart):.1%} in the mean over runs"
    )
    return _claim("norms_alike").judged((apart < SAME).tolist(), apart, evidence)


def _early(runs: Runs) -> Claim:
    intra, inter = runs.intra_inter("sgd", "kl", "median apart")
    ratio = inter / intra
    falls = late(ratio, np.nanmedian) < ratio[:, 0]
    enough = runs.accuracy >= SATURATED * late(runs.accuracy)[:, None]
    saturated = runs.steps[enough.argmax(1)]
    local = np.array([half_life(runs.steps, curve) for curve in ratio])
    evidence = f"inter/intra (SGD, Definition 2, medians) falls in {falls.sum()} of {len(falls)} runs"
    if falls.any():
        evidence += (
            f"; where it falls, half of that is reached at step {np.median(local[falls]):.0f}, {SATURATED:.0%} of the "
            f"final accuracy at step {np.median(saturated[falls]):.0f} (medians over runs)"
        )
    ratios = local[falls] / np.maximum(saturated[falls], 1)
    return _claim("early").judged((falls & (local < saturated)).tolist(), ratios, evidence, average=median)


def _starts_at_one(runs: Runs) -> Claim:
    start = runs.values("adam", "released_kl", "mean")[:, 0]
    outcomes = np.abs(start - 1).max((1, 2)) < NEAR_ONE
    spread = f"{np.nanmin(start):.3f} to {np.nanmax(start):.3f}"
    evidence = (
        f"released formula, fresh Adam, before training: {spread} over pairs and runs, because it compares the entropy "
        "of two predictions, not how far they moved"
    )
    return _claim("starts_at_one").judged(outcomes.tolist(), np.nanmean(start, axis=(1, 2)), evidence, START)


def relative_change(curves: np.ndarray) -> np.ndarray:
    """(late − first)/first, one for each seed."""
    change: np.ndarray = late(curves) / curves[:, 0] - 1
    return change


def z_said(effects: np.ndarray) -> str:
    """The mean over its standard error, in words; nothing for one seed."""
    z = z_score(effects)
    return "" if np.isnan(z) else f"(z over seeds {z:.1f})"


def _said(changes: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{READINGS[r]}: {np.mean(change):+.0%}" for r, change in changes.items())


def _claim(name: str) -> Claim:
    return next(claim for claim in CLAIMS if claim.id == name)
