"""Certificates of Theorem 5.3 and Lemma C.1 of Dan et al."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from local_elasticity.papers.certificates.certificate import NEVER, Certificate, Check, relative_error
from local_elasticity.papers.certificates.diagonal import mean_loss, orthogonal_features, point_loss, predict
from local_elasticity.papers.certificates.routes import Descent, along
from local_elasticity.theory import SymmetricPair
from local_elasticity.theory.flow import Array

TIMES = np.array([0.0, 0.3, 1.0, 4.0])


def certificates() -> list[Certificate]:
    return [_eq_38(), _uncorrelated(), _theorem_5_3(), _lemma_c_1(), _special_case()]


def _sampled(seed: int, mixed: float = 0.0) -> tuple[SymmetricPair, Array, Array]:
    """Features of a sample and labels that give a₁, a₂ with one ratio b/a; `mixed` correlates the features."""
    rng = np.random.default_rng(seed + 60)
    alpha, beta = rng.uniform(0.5, 1.5, size=2)
    features = orthogonal_features(seed, size=2)
    features[:, 1] += mixed * features[:, 0]
    moments = features.T @ features / len(features)
    a = np.diag(moments) / alpha**2
    labels = features @ np.linalg.solve(moments, a)
    return SymmetricPair(a, alpha, beta, 0.3), features, labels


def _along(pair: SymmetricPair, features: Array, labels: Array) -> tuple[Array, tuple[Array, Array], Array]:
    """S_rel by autograd along the flow (integrated numerically)."""
    weights = Descent(mean_loss(features, labels), pair.rate, pair.start).w(TIMES)
    source, target = (features[:5] + 0.1, labels[:5] + 1.0), features[5:10]
    return along(predict, point_loss, weights, source, target), source, target


def _eq_38() -> Certificate:
    defined, printed = 0.0, 0.0
    for seed in range(4):
        pair, features, labels = _sampled(seed)
        true, source, target = _along(pair, features, labels)
        as_printed = replace(pair, reading="as_printed")
        defined = max(defined, relative_error(pair.relative(TIMES, source, target), true))
        printed = max(printed, relative_error(as_printed.relative(TIMES, source, target), true))
    right = SymmetricPair((1.0, 4.0), 1.0, 1.0, 1.0)
    shown = [float(one.relative(0.0, [1.0, 1.0], [1.0, 2.0])) for one in (right, replace(right, reading="as_printed"))]
    return Certificate(
        "Dan et al.",
        "eq. 38, k₁ and k₂",
        "S_rel(t), with β₂₂(x′)² in the denominator and in k₂",
        "holds with correction",
        [Check("steps of autograd along the flow (integrated numerically)", 400, printed)],
        [Check("steps of autograd along the flow (integrated numerically)", 400, defined)],
        "β₂₂(x)² for β₂₂(x′)², in the denominator, in k₂ and in the condition of Theorem 5.3",
        "a = (1, 4), α = β = θ = 1, β(x) = (1, 1), β(x′) = (1, 2), t = 0: "
        f"S_rel is {shown[0]:.3f}, as printed {shown[1]:.3f}",
    )


def _uncorrelated() -> Certificate:
    """The theorem's own conditions, but E[β₁₁β₂₂] ≠ 0."""
    pair, features, labels = _sampled(0, mixed=0.8)
    true, source, target = _along(pair, features, labels)
    ours = pair.relative(TIMES, source, target)
    plain, plain_features, plain_labels = _sampled(0)
    plain_true, plain_source, plain_target = _along(plain, plain_features, plain_labels)
    far = np.unravel_index(np.abs(ours - true).argmax(), true.shape)
    return Certificate(
        "Dan et al.",
        "Theorem 5.3, assumptions",
        "eq. 38 follows from the printed assumptions, which do not include E[β₁₁β₂₂] = 0",
        "holds with correction",
        [Check("the flow (integrated numerically), correlated features", true.size, relative_error(ours, true))],
        [
            Check(
                "the flow (integrated numerically), uncorrelated features",
                plain_true.size,
                relative_error(plain.relative(TIMES, plain_source, plain_target), plain_true),
            )
        ],
        "the two features must be uncorrelated, E[β₁₁β₂₂] = 0, as in Theorem 5.2, on which it depends",
        f"features with E[β₁₁β₂₂] = {(features[:, 0] * features[:, 1]).mean():.2f} that meet every printed condition, "
        f"t = {TIMES[far[0]]:g}: S_rel is {true[far]:.3f}, eq. 38 (with β₂₂(x)²) gives {ours[far]:.3f}",
    )


def _theorem_5_3() -> Certificate:
    """Eq. 39: the bound is below S_rel from t* on, positive, and rises."""
    missed, falls, least, trials = 0.0, 0.0, np.inf, 0
    rng = np.random.default_rng(4)
    for _ in range(200):
        alpha, beta = rng.uniform(0.3, 2, size=2)
        pair = SymmetricPair(rng.uniform(0.2, 3, size=2), alpha, beta, 0.3)
        x, v = rng.normal(size=(2, 2))
        times = float(pair.late_from(x, v)) + np.linspace(0, 20, 30)
        w = pair.w(times) ** 2
        true = np.abs(w @ (x * v)) / (w @ x**2)
        bound = pair.late_bound(times, x, v)
        missed = max(missed, float(((bound - true) / true).max()))
        falls, least, trials = max(falls, float(-np.diff(bound).min())), min(least, float(bound.min())), trials + 30
    checks = [
        Check("eq. 31 at w(t), by how much it is missed", trials, missed, NEVER),
        Check("its largest fall in time", trials, falls, NEVER),
        Check("being positive", trials, 0.0 if least > 0 else 1.0, NEVER),
    ]
    says = "a positive lower bound that rises, for x′ not orthogonal to x (with the corrections above)"
    return Certificate("Dan et al.", "Theorem 5.3, eqs 16, 39", says, "holds", checks)


def _lemma_c_1() -> Certificate:
    worst, trials = 0.0, 0
    rng = np.random.default_rng(6)
    for _ in range(2000):
        alpha2, beta2, b1, b2 = rng.exponential(size=4) + 1e-3
        p2, q2 = rng.exponential(size=2) + 0.05
        t2 = max(0.0, np.log(b1 / alpha2) / q2) + rng.exponential() * 0.1 + 1e-6
        times = t2 + np.linspace(0, 10, 50)
        ep, eq = np.exp(-p2 * times), np.exp(-q2 * times)
        below = alpha2 + b2 * ep + (beta2 - b2) * eq
        defined = np.flip(np.logical_and.accumulate(np.flip(below > 0)))
        value = np.abs(alpha2 + b1 * ep + (beta2 - b1) * eq) / np.abs(below)
        bound = (alpha2 - b1 * np.exp(-q2 * t2)) / (alpha2 + b2 * ep + beta2 * eq)
        worst = max(worst, float(((bound - value) / np.maximum(value, 1e-3))[defined].max(initial=0.0)))
        trials += int(defined.sum())
    checks = [Check("the ratio itself, by how much it is missed", trials, worst, NEVER)]
    return Certificate("Dan et al.", "Lemma C.1, eq. 40", "a lower bound on the ratio", "holds", checks)


def _special_case() -> Certificate:
    rng = np.random.default_rng(9)
    printed, right = 0.0, 0.0
    for _ in range(100):
        x, v = rng.normal(size=(2, 2))
        true = abs(x @ v) / (x @ x)
        late = float(SymmetricPair((1.0, 2.0), 1.0, 1.0, 1.0).relative(1e3, x, v))
        printed = max(printed, abs(abs(x @ v) / (x[0] ** 2 + v[1] ** 2) - true) / true)
        right = max(right, abs(late - true) / true)
    return Certificate(
        "Dan et al.",
        "remark after Theorem 5.3",
        "for β(z) = z the condition is |⟨x′, x⟩|/‖x‖² > 0",
        "holds with correction",
        [Check("the printed left-hand side, with β₂₂(x′)²", 100, printed)],
        [Check("S_rel late in training", 100, right)],
        "the displayed equality is right only with β₂₂(x)², which is also what makes it the late value of S_rel",
        "x = (1, 1), x′ = (1, 2): the left-hand side as printed is 3/5, the right-hand side 3/2",
    )
