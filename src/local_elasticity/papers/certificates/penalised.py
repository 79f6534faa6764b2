"""Certificates of §3 of Dan et al.: penalised regression over features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from local_elasticity.papers.certificates.certificate import Certificate, Check, relative_error
from local_elasticity.papers.certificates.routes import Descent, Loss, PointLoss, along, gradient, tensor
from local_elasticity.theory import PenalisedFeatures, integrate
from local_elasticity.theory.flow import Array

TIMES = np.array([0.0, 0.3, 1.0, 3.0, 10.0])


def certificates() -> list[Certificate]:
    return [_constant(), _gradient(), _theorem_3_1(), _theorem_3_2(), _any_step(), _released_ratio(), _released_loss()]


def _flow(seed: int, reading: str = "as_defined", penalty: float = 1.5) -> PenalisedFeatures:
    rng = np.random.default_rng(seed)
    features, labels = rng.normal(size=(30, 4)), np.arange(30) % 3
    return PenalisedFeatures(features, labels, penalty, 0.4, rng.normal(size=(3, 4)), reading=reading)  # type: ignore[arg-type]


def _loss_of(flow: PenalisedFeatures) -> Loss:
    """Eq. 3, as it is printed."""
    h, k = tensor(flow.features), torch.as_tensor(np.asarray(flow.labels))
    one_hot = torch.eye(flow.classes, dtype=torch.float64)[k]
    return lambda w: (
        (one_hot - h @ w.T).square().sum() / (2 * len(h)) + flow.penalty / (2 * flow.classes) * w.square().sum()
    )


def _point_loss(penalty: float, classes: int) -> PointLoss:
    """One term of eq. 3, of which it is the mean."""

    def loss(w: Tensor, h: Tensor, k: Tensor) -> Tensor:
        one_hot = (torch.arange(classes) == k).double()
        return 0.5 * (one_hot - w @ h).square().sum() + penalty / (2 * classes) * w.square().sum()

    return loss


def _pairs(seed: int) -> tuple[tuple[Array, Array], Array]:
    rng = np.random.default_rng(seed + 100)
    return (rng.normal(size=(4, 4)), np.array([0, 1, 2, 1])), rng.normal(size=(5, 4))


def _outputs(w: Tensor, h: Tensor) -> Tensor:
    return w @ h


def _constant() -> Certificate:
    """Without the penalty, S_rel along the flow is |h·h′|/‖h‖² at all times."""
    worst, spread = 0.0, 0.0
    for seed in range(3):
        flow, (source, target) = _flow(seed, penalty=0.0), _pairs(seed)
        weights = Descent(_loss_of(flow), flow.rate, flow.start).w(TIMES)
        true = along(_outputs, _point_loss(0.0, 3), weights, source, target)
        worst = max(worst, relative_error(flow.relative(TIMES, source, target), true))
        spread = max(spread, relative_error(true, true[:1]))
    checks = [
        Check("the value at t = 0, along the flow (integrated numerically)", 300, spread),
        Check("a step of autograd", 300, worst),
    ]
    return Certificate("Dan et al.", "§3, opening", "S_rel is constant for linear f and l2 loss", "holds", checks)


def _gradient() -> Certificate:
    errors = {}
    for reading in ("as_printed", "as_defined"):
        flows = [_flow(seed, reading) for seed in range(5)]
        errors[reading] = max(
            relative_error(-flow.velocity(flow.start) / flow.rate, gradient(_loss_of(flow), flow.start))
            for flow in flows
        )
    return Certificate(
        "Dan et al.",
        "∂L/∂w_q, M and Definition 4",
        "the gradient of eq. 3 is M w − u with ridge Nλ/K in M",
        "holds with correction",
        [Check("autograd's gradient of eq. 3", 5, errors["as_printed"])],
        [Check("autograd's gradient of eq. 3", 5, errors["as_defined"])],
        "the ridge is λ/K: the penalty of eq. 3 is not inside the mean over data, so it is not multiplied by N",
        _gradient_counterexample(),
    )


def _gradient_counterexample() -> str:
    flow = PenalisedFeatures([[1.0], [1.0]], [0, 1], 1.0, 1.0, [[1.0], [1.0]], reading="as_printed")
    true, printed = gradient(_loss_of(flow), flow.start)[0, 0], -flow.velocity(flow.start)[0, 0]
    return f"h = 1 twice, K = 2, λ = 1, W = (1, 1): ∂L/∂w₁ is {true:g}, M w − u as printed {printed:g}"


def _theorem_3_1() -> Certificate:
    """Against the ODE of Definition 4 written out with M as printed, at t = 0 and late."""
    ode, first, late = 0.0, 0.0, 0.0
    for seed in range(4):
        flow = _flow(seed, "as_printed")
        ridge = len(np.asarray(flow.features)) * flow.penalty / flow.classes
        bound = ridge * np.eye(4) + sum(np.outer(h, h) for h in np.asarray(flow.features)) / 30
        u = np.stack([np.asarray(flow.features)[np.asarray(flow.labels) == q].sum(0) / 30 for q in range(3)])
        times = TIMES / 10
        loss = lambda w, m=bound, u=u: 0.5 * (w @ tensor(m) * w).sum() - (tensor(u) * w).sum()
        numbers = integrate(Descent(loss, flow.rate, flow.start), flow.start, times)
        ode = max(ode, relative_error(flow.w(times), numbers))
        first = max(first, relative_error(flow.w(0.0), flow.start))
        late = max(late, relative_error(flow.w(1e6), np.linalg.solve(bound, u.T).T))
    checks = [
        Check("the ODE of Definition 4 (integrated numerically)", 4 * len(TIMES), ode),
        Check("t = 0", 4, first),
        Check("t → ∞, M⁻¹u", 4, late),
    ]
    return Certificate("Dan et al.", "Theorem 3.1, eq. 17", "w_q(t), given M", "holds", checks)


def _theorem_3_2() -> Certificate:
    """Eq. 4 along the flow of eq. 3 (integrated numerically), against autograd's step on one term of eq. 3."""
    printed, defined, expanded = 0.0, 0.0, 0.0
    for seed in range(4):
        flow, (source, target) = _flow(seed), _pairs(seed)
        weights = Descent(_loss_of(flow), flow.rate, flow.start).w(TIMES)
        true = along(_outputs, _point_loss(flow.penalty, 3), weights, source, target)
        as_printed = _flow(seed, "as_printed").relative(TIMES, source, target)
        printed = max(printed, relative_error(as_printed, true))
        defined = max(defined, relative_error(flow.relative(TIMES, source, target), true))
        expanded = max(expanded, relative_error(np.sqrt(_eq_4(flow.ridge, weights, source, target)), true))
    return Certificate(
        "Dan et al.",
        "Theorem 3.2, eq. 4",
        "S_rel(t) with ridge Nλ/K in M, h̃ and T",
        "holds with correction",
        [Check("a step of autograd along the flow of eq. 3", 400, printed)],
        [
            Check("a step of autograd along the flow of eq. 3", 400, defined),
            Check("eq. 4 with its squares expanded, ridge λ/K", 400, expanded),
        ],
        "with λ/K in M, h̃ and T alike eq. 4 is exact",
        _theorem_3_2_counterexample(),
    )


def _eq_4(ridge: float, weights: Array, source: tuple[Array, Array], target: Array) -> Array:
    """S_rel² as printed, term by term, [t, n, m]."""
    rows = []
    for h, k in zip(*source, strict=True):
        spread = ridge * np.eye(len(h)) + np.outer(h, h)
        tilde, square = ridge + h @ h, h @ h
        above = (target @ h) ** 2 - 2 * (target @ h) * (weights[:, k] @ spread @ target.T)
        above = above + ((weights @ spread @ target.T) ** 2).sum(1)
        below = square**2 - 2 * tilde * square * (weights[:, k] @ h) + tilde**2 * ((weights @ h) ** 2).sum(1)
        rows.append(above / below[:, None])
    return np.stack(rows, axis=1)


def _theorem_3_2_counterexample() -> str:
    features, labels, w0 = np.eye(2), [0, 1], [[1.0, 0.0], [0.0, 0.0]]
    defined = PenalisedFeatures(features, labels, 1.0, 1.0, w0)
    values = [
        float(flow.relative(1.0, ([1.0, 0.0], 0), [0.6, 0.8]))
        for flow in (defined, replace(defined, reading="as_printed"))
    ]
    return (
        "h = e₁ and e₂, K = 2, λ = θ = 1, W(0) = e₁e₁ᵀ, source e₁, target (0.6, 0.8), t = 1: "
        f"S_rel is {values[0]:.3f}, with Nλ/K {values[1]:.3f}"
    )


def _any_step() -> Certificate:
    worst = 0.0
    for seed, eta in ((0, 1e-3), (1, 0.1), (2, 2.0)):
        flow, (source, target) = _flow(seed), _pairs(seed)
        true = along(_outputs, _point_loss(flow.penalty, 3), flow.w(TIMES), source, target, eta)
        worst = max(worst, relative_error(flow.relative(TIMES, source, target, step_size=eta), true))
    checks = [Check("steps of autograd of size 0.001, 0.1 and 2", 300, worst)]
    return Certificate(
        "Dan et al.", "proof of Theorem 3.2", "η cancels: S_rel is the same for any step", "holds", checks
    )


def _released_ratio() -> Certificate:
    """The notebook's ratio of a source with itself is not 1."""
    own = {}
    for reading in ("as_released", "as_defined"):
        flow = _flow(0, reading)
        h, k = _pairs(0)[0]
        own[reading] = np.stack([flow.relative(TIMES, (one, label), one) for one, label in zip(h, k, strict=True)])
    far = own["as_released"].ravel()[np.abs(own["as_released"] - 1).argmax()]
    return Certificate(
        "Dan et al.",
        "Figs 6–9 (released notebook)",
        "what is plotted is S_rel, so that S_rel(x, x) = 1",
        "holds with correction",
        [Check("S_rel(x, x) against 1", own["as_released"].size, relative_error(own["as_released"], 1.0))],
        [Check("S_rel(x, x) against 1", own["as_defined"].size, relative_error(own["as_defined"], 1.0))],
        "the notebook has a factor 1/N before h hᵀ in T, in the numerator only; its smoothing divides a sum over n "
        "pairs by n²; its “intra-class” pairs are of two classes; its first class has standard deviation 2, not "
        "variance 2",
        f"random features, N = 30: the notebook's S_rel(x, x) reaches {far:.3g}",
    )


def _released_loss() -> Certificate:
    errors = {}
    for reading in ("as_released", "as_defined"):
        flow = _flow(1, reading)
        loss = _loss_of(flow)
        errors[reading] = relative_error(flow.loss(TIMES), [float(loss(tensor(w))) for w in flow.w(TIMES)])
    flow = _flow(1, "as_released")
    swapped = PenalisedFeatures(
        flow.features, (np.asarray(flow.labels) + 1) % 3, flow.penalty, flow.rate, flow.w0, reading="as_released"
    )
    return Certificate(
        "Dan et al.",
        "Figs 6–9, loss panels (released notebook)",
        "what is plotted is eq. 3",
        "holds with correction",
        [Check("eq. 3 at W(t)", len(TIMES), errors["as_released"])],
        [Check("eq. 3 at W(t)", len(TIMES), errors["as_defined"])],
        "arrays of shape (2,) and (2, 1, 1) are subtracted and broadcast: every output is compared with every entry of "
        "e_k, and the labels drop out",
        f"all labels exchanged, same W: the notebook's loss is {float(flow.loss(0.0)):.3f} before and "
        f"{float(swapped.loss(0.0)):.3f} after",
    )
