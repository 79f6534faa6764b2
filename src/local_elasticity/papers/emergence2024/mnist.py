"""The two-layer net on MNIST: one step on a pair of digits, the other eight unseen; every pair in turn.

Images are centred around the mean of all digits, noise is added so that Recall@1 is off its ceiling, and they are
scaled to E‖x‖² = d. The step is scaled so that the shift of a unit, γ g b, is of order 1. Clean images are the control:
there Recall@1 is near its ceiling before the step, and nothing can be gained. The abstract names no data, so every
sentence here is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

import local_elasticity.emergence as em
from local_elasticity.data.images import load
from local_elasticity.emergence.designs import generator_for
from local_elasticity.emergence.retrieval import recall_of_rows
from local_elasticity.papers.experiment import (
    Cell,
    Experiment,
    Findings,
    Measured,
    Reading,
    Settings,
    Unit,
    Values,
    runs_of,
)
from local_elasticity.papers.smallest_effects import ANY, NO_RISE
from local_elasticity.statistics.claims import Alternatives, Claim
from local_elasticity.statistics.correlation import pearson, spearman

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISES = {"clean": 0.0, "noisy": 4.0}
"""Standard deviation of the noise on a pixel, in units in which the digits themselves have an average pixel of 1."""

SHIFT = 1.0
"""γ times the root mean square of b over the unseen digits."""

PAIRS = list(combinations(range(10), 2))

RANK_A, RANK_LE = "Spearman of |s| with rise of alignment", "Spearman of |s| with elasticity"
GAIN_RANK = "Pearson of |s₁ − s₂| with gain of Recall@1"
LOW, HIGH, TOGETHER = "gain, lowest quarter of |s₁ − s₂|", "gain, highest quarter", "gain, together on one side"


def _of(part: str, name: str) -> Callable[[Values], Alternatives]:
    return lambda values: [{part: values.of(part, name)}]


def _rank(name: str, part: str, sentence: str) -> Claim:
    column = RANK_A if name.startswith("alignment") else RANK_LE
    statistic = f"{column} over the eight unseen digits, mean over tasks"
    return Claim(name, sentence, "abstract", statistic, _of(part, column), ANY, scale="fisher", ours=True)


def _recall_gain(part: str) -> Callable[[Values], Alternatives]:
    return lambda values: [{part: values.of(part, HIGH) - values.of(part, LOW)}]


CLAIMS = (
    _rank("alignment", "noisy", "Alignment improves as the train-unseen similarity increases (noisy MNIST)"),
    _rank("alignment_clean", "clean", "The same on clean MNIST"),
    _rank("elasticity", "noisy", "So does Local Elasticity (noisy MNIST)"),
    _rank("elasticity_clean", "clean", "The same on clean MNIST"),
    Claim(
        "recall",
        "Higher train-unseen similarity improves Recall@1 (noisy MNIST, pairs of unseen digits)",
        "abstract",
        "gain of Recall@1 in the highest quarter of |s₁ − s₂| less that in the lowest",
        _recall_gain("noisy"),
        ours=True,
    ),
    Claim(
        "recall_clean",
        "The same on clean MNIST",
        "abstract",
        "gain of Recall@1 in the highest quarter of |s₁ − s₂| less that in the lowest",
        _recall_gain("clean"),
        ours=True,
    ),
    Claim(
        "same_side",
        "Limit: pairs on one side of the task do not gain Recall@1",
        "ours",
        TOGETHER,
        _of("noisy", TOGETHER),
        NO_RISE,
        "below",
        ours=True,
    ),
    Claim(
        "clean",
        "Control: on clean MNIST the quarter of pairs with the largest |s₁ − s₂| gains no Recall@1 on average",
        "ours",
        HIGH,
        _of("clean", HIGH),
        NO_RISE,
        "below",
        ours=True,
    ),
)


@dataclass(frozen=True)
class Digits:
    """Prepared images [b, 784] and their digits, to train on and to measure on."""

    train: Tensor
    train_labels: Tensor
    unseen: Tensor
    unseen_labels: Tensor


class Mnist(Experiment):
    name = "emergence2024/mnist"
    title = "One step on a pair of digits, and what it does to the other eight: MNIST clean and noisy"
    claims = CLAIMS
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"n": 64, "width": 64, "per_class": 20, "pairs": 3},
        "small": {"n": 256, "width": 256, "per_class": 50, "pairs": 45},
        "paper": {"n": 1024, "width": 512, "per_class": 150, "pairs": 45},
    }

    def parts(self, settings: Settings) -> list[str]:
        return list(NOISES)

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        digits = prepared(settings, NOISES[unit.part], unit.seed)
        network = em.TwoLayer.random(digits.train.shape[1], settings["width"], seed=unit.seed, dtype=torch.float32)
        before = network.features(digits.unseen)
        chosen = PAIRS[:: len(PAIRS) // settings["pairs"]]
        kernel = _cosines(before)
        recall = {pair: _recall(kernel, digits.unseen_labels, pair) for pair in PAIRS}
        rows = [_after_step(network, digits, before, recall, pair) for pair in chosen]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        return Findings(_cells(measured), figures={"mnist": _draw(measured)})


def prepared(settings: Settings, noise: float, seed: int) -> Digits:
    """Draw images, centre, add noise, and scale to E‖x‖² = d."""
    images = load("mnist")
    x, y = images.take(range(10), settings["n"] // 2, seed=seed, low=0.0)
    unseen, labels = images.take(range(10), settings["per_class"], split="test", seed=seed, low=0.0)
    x, unseen = x.flatten(1), unseen.flatten(1)
    centre = x.mean(0)
    size = (x - centre).square().mean().sqrt()
    generator = generator_for("pixels", seed)
    made = [
        ((part - centre) / size + noise * torch.randn(part.shape, generator=generator)) / math.sqrt(1 + noise**2)
        for part in (x, unseen)
    ]
    return Digits(made[0], y, made[1], labels)


def _after_step(
    network: em.TwoLayer, digits: Digits, before: Tensor, recall: Mapping[tuple[int, int], float], pair: tuple[int, int]
) -> dict[str, list[float]]:
    """One step on a pair: s, ΔA and LE of the eight other digits, and Recall@1 of each pair of them."""
    rows = (digits.train_labels == pair[0]) | (digits.train_labels == pair[1])
    X = digits.train[rows]
    y = torch.where(digits.train_labels[rows] == pair[1], 1.0, -1.0)
    others = [digit for digit in range(10) if digit not in pair]
    beta = em.train_covariance(X, y)
    kept = ~torch.isin(digits.unseen_labels, torch.tensor(pair))
    b = digits.unseen @ beta
    size = float(b[kept].square().mean().sqrt())
    step_size = SHIFT * math.sqrt(network.width) / (network.activation.moments().c1 * size)
    after = em.one_step(network, X, y, step_size).after.features(digits.unseen)
    kernel = _cosines(after)
    s = {digit: float(b[digits.unseen_labels == digit].mean()) / size for digit in others}
    pairs = list(combinations(others, 2))
    gains = em.alignment_by_class(after, digits.unseen_labels), em.alignment_by_class(before, digits.unseen_labels)
    return {
        "s": _rounded(s[digit] for digit in others),
        "second moment": _rounded(
            float(b[digits.unseen_labels == digit].square().mean()) / size**2 for digit in others
        ),
        "rise": _rounded(gains[0][digit] - gains[1][digit] for digit in others),
        "elasticity": _rounded(
            em.elasticity(before[digits.unseen_labels == digit], after[digits.unseen_labels == digit])
            for digit in others
        ),
        "gap": _rounded(abs(s[a] - s[b]) for a, b in pairs),
        "together": _rounded(abs(s[a] + s[b]) / 2 for a, b in pairs),
        "recall before": _rounded(recall[one] for one in pairs),
        "recall": _rounded(_recall(kernel, digits.unseen_labels, one) for one in pairs),
    }


def _cosines(features: Tensor) -> Tensor:
    unit = torch.nn.functional.normalize(features, dim=1)
    return unit @ unit.T


def _recall(cosines: Tensor, labels: Tensor, pair: tuple[int, int]) -> float:
    """Recall@1 among the images of two digits, from the cosines of all."""
    rows = torch.nonzero((labels == pair[0]) | (labels == pair[1])).flatten()
    block = cosines[rows][:, rows]
    return recall_of_rows(lambda chosen: block[chosen], labels[rows], tolerance=1e-6)


def _rounded(values: object) -> list[float]:
    return [round(float(value), 6) for value in values]  # type: ignore[attr-defined]


def _within(run: Measured, name: str, by: str = "s") -> float:
    """Rank correlation with |s| (or E b²) over the eight unseen digits, the mean over tasks."""
    ranks = [spearman(np.abs(s), values) for s, values in zip(run[by], run[name], strict=True)]
    return float(np.mean(ranks))


def _gain(run: Measured) -> np.ndarray:
    return np.asarray(np.array(run["recall"]) - np.array(run["recall before"]))


def _quartiles(run: Measured) -> tuple[float, float]:
    """The mean gain of Recall@1 of pairs in the lowest and the highest quarter of |s₁ − s₂|."""
    gap, gain = np.array(run["gap"]).ravel(), _gain(run).ravel()
    low, high = np.quantile(gap, [0.25, 0.75])
    return float(gain[gap <= low].mean()), float(gain[gap >= high].mean())


def _one_side(run: Measured) -> float:
    """The mean gain of pairs that lie together (lowest quarter of |s₁ − s₂|) and far out (upper half of |s|)."""
    gap, out, gain = np.array(run["gap"]).ravel(), np.array(run["together"]).ravel(), _gain(run).ravel()
    return float(gain[(gap <= np.quantile(gap, 0.25)) & (out >= np.median(out))].mean())


def _cells(measured: Mapping[Unit, Measured]) -> list[Cell]:
    cells = []
    for part in NOISES:
        runs = runs_of(measured, part)
        found = {
            RANK_A: [_within(run, "rise") for run in runs],
            RANK_LE: [_within(run, "elasticity") for run in runs],
            "Spearman of E b² with elasticity": [_within(run, "elasticity", "second moment") for run in runs],
            GAIN_RANK: [pearson(np.ravel(run["gap"]), _gain(run).ravel()) for run in runs],
            "Recall@1 before": [float(np.mean(run["recall before"])) for run in runs],
            LOW: [_quartiles(run)[0] for run in runs],
            HIGH: [_quartiles(run)[1] for run in runs],
            TOGETHER: [_one_side(run) for run in runs],
        }
        cells += [Cell(part, name, None, tuple(values)) for name, values in found.items()]
    return cells


def _draw(measured: Mapping[Unit, Measured]) -> Figure:
    """Rise of alignment and elasticity against |s|, gain of Recall@1 against |s₁ − s₂|: noisy above, clean below."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 4.2)
        panels = made.subplots(2, 3)
        for row, part in enumerate(("noisy", "clean")):
            run = runs_of(measured, part)[0]
            s = np.abs(np.ravel(run["s"]))
            points = {
                "rise of alignment": (s, np.ravel(run["rise"])),
                "elasticity": (s, np.ravel(run["elasticity"])),
                "gain of Recall@1": (np.ravel(run["gap"]), _gain(run).ravel()),
            }
            for axes, (name, (x, y)) in zip(panels[row], points.items(), strict=True):
                axes.scatter(x, y, s=3, alpha=0.4, linewidths=0, color=COLOURS[row], rasterized=True)
                axes.set(ylabel=name, xlabel="$|s_1 - s_2|$" if "gain" in name else "|s|", title=f"{part} MNIST")
            panels[row, 2].axhline(0, color="0.6", linewidth=0.6)
    return made
