"""Certificates of §4 of Dan et al.: a single ReLU gate."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from local_elasticity.papers.certificates.certificate import NEVER, Certificate, Check, relative_error
from local_elasticity.papers.certificates.routes import Descent, Loss, PointLoss, along, gradient, tensor
from local_elasticity.theory import ReluGate, modified_sgd
from local_elasticity.theory.flow import Array

TIMES = np.array([0.0, 0.5, 1.0, 2.0])
SEEDS = range(6)


def certificates() -> list[Certificate]:
    return [
        _flow_of_risk(),
        _theorem_4_1(),
        _algorithm(),
        _exact(),
        _order(),
        _lemma_4_2(),
        _theorem_4_3(),
        _monotone(),
    ]


def _inputs(seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=(60, 3)) + 0.3


def _gate(seed: int) -> ReluGate:
    rng = np.random.default_rng(seed + 50)
    return ReluGate.of_inputs(_inputs(seed), rng.normal(size=3) + 0.5, rng.normal(size=3), 0.7)


def _risk(gate: ReluGate, inputs: Array) -> Loss:
    """The mean of ℓ in eq. 8 over the inputs, with y from the gate w*."""
    x, star = tensor(inputs), tensor(gate.star)
    label = (x @ star).clamp_min(0)
    return lambda w: 0.5 * gate.rate * ((label > 0) * (label - x @ w).square()).mean()


def _point_loss(gate: ReluGate) -> PointLoss:
    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * gate.rate * (y - w @ x).square() * (y > 0)

    return loss


def _predict(w: Tensor, x: Tensor) -> Tensor:
    return torch.relu(w @ x)


def _pairs(gate: ReluGate, seed: int) -> tuple[tuple[Array, Array], Array]:
    """Sources on the side of w* where the gate is on and a step is asked for at all TIMES; any targets."""
    x = np.random.default_rng(seed + 200).normal(size=(400, 3))
    on = (x @ gate.star > 0.1) & (gate.w(TIMES) @ x.T > 0.1).all(0) & (abs(gate.missing(TIMES) @ x.T) > 1e-3).all(0)
    inputs = x[on][:4]
    return (inputs, inputs @ gate.star), x[-6:]


def _flow_of_risk() -> Certificate:
    worst = max(
        relative_error(_gate(s).velocity(_gate(s).start), -gradient(_risk(_gate(s), _inputs(s)), _gate(s).start))
        for s in SEEDS
    )
    checks = [Check("autograd's gradient of the risk", len(SEEDS), worst)]
    return Certificate("Dan et al.", "Definition 5, eqs 5, 6, 8", "the flow is that of a risk", "holds", checks)


def _theorem_4_1() -> Certificate:
    ode, first, late = 0.0, 0.0, 0.0
    for seed in SEEDS:
        gate = _gate(seed)
        numbers = Descent(_risk(gate, _inputs(seed)), 1.0, gate.start).w(TIMES)
        ode = max(ode, relative_error(gate.w(TIMES), numbers))
        first = max(first, relative_error(gate.w(0.0), gate.start))
        late = max(late, relative_error(gate.w(1e6), gate.star))
    checks = [
        Check("the flow of the risk (integrated numerically)", len(SEEDS) * len(TIMES), ode),
        Check("t = 0", len(SEEDS), first),
        Check("t → ∞, w*", len(SEEDS), late),
    ]
    return Certificate("Dan et al.", "Theorem 4.1, eq. 7", "w(t) and its limit w*", "holds", checks)


def _algorithm() -> Certificate:
    """The mean step of Algorithm 1 over all inputs is η/β times the velocity; many steps reach w*."""
    mean, reached = 0.0, 0.0
    for seed in SEEDS:
        gate, x = _gate(seed), _inputs(seed)
        steps = next(modified_sgd(np.tile(gate.start, (len(x), 1)), gate.star, [x], step_size=0.1)) - gate.start
        mean = max(mean, relative_error(steps.mean(0), 0.1 / gate.rate * gate.velocity(gate.start)))
        draws = x[np.random.default_rng(seed).integers(len(x), size=6000)]
        *_, last = modified_sgd(gate.start, gate.star, draws, step_size=0.1)
        reached = max(reached, relative_error(last, gate.star))
    checks = [
        Check("velocity, in the mean over inputs", len(SEEDS) * 60, mean),
        Check("w*, after 6000 steps", len(SEEDS), reached),
    ]
    return Certificate(
        "Dan et al.", "Algorithm 1", "its mean step follows Definition 5, and it reaches w*", "holds", checks
    )


def _exact() -> Certificate:
    worst, trials = 0.0, 0
    for seed in SEEDS:
        gate = _gate(seed)
        source, target = _pairs(gate, seed)
        for eta in (0.0, 0.05, 0.5):
            true = along(_predict, _point_loss(gate), gate.w(TIMES), source, target, eta)
            worst = max(worst, relative_error(gate.relative(TIMES, source[0], target, step_size=eta), true))
            trials += true.size
    checks = [Check("a step of autograd of size 0, 0.05 and 0.5 (eq. 9)", trials, worst)]
    says = "S_rel exactly, by the signs before and after"
    return Certificate("Dan et al.", "eqs 9, 19, 20", says, "holds", checks)


def _order() -> Certificate:
    """|S_rel(η) − S_rel(0)| is of first order where nothing crosses the kink: here it is 0; order is seen at a kink."""
    gate = ReluGate(np.eye(2), [1.0, 1.0], [0.4, 0.4], 1.0)
    x, v = np.array([1.0, 0.0]), np.array([1.0, -1.0 + 1e-3])
    steps = [0.4, 0.2, 0.1, 0.05]
    source = x[None], np.array([x @ gate.star])
    numbers = [along(_predict, _point_loss(gate), gate.w([0.0]), source, v[None], eta)[0, 0, 0] for eta in steps]
    limit = float(gate.relative(0.0, x, v))
    ours = [float(gate.relative(0.0, x, v, step_size=eta)) for eta in steps]
    checks = [
        Check("autograd's steps, while x′ crosses the kink", len(steps), relative_error(ours, numbers)),
        Check("the limit, while x′ stays on", len(steps), max(abs(one - limit) for one in numbers)),
    ]
    return Certificate(
        "Dan et al.", "eqs 19, 20, η → 0", "away from the kink S_rel does not depend on η", "holds", checks
    )


def _lemma_4_2() -> Certificate:
    worst, trials = -np.inf, 0
    rng = np.random.default_rng(1)
    for _ in range(200):
        gate = _gate(int(rng.integers(1000)))
        x, v = rng.normal(size=(2, 30, 3)) * 2
        eta, t = float(rng.exponential()), float(rng.exponential(3))
        w = gate.w(t)
        after = w + eta * gate.rate * ((x @ gate.star > 0) * (np.maximum(x @ gate.star, 0) - x @ w))[:, None] * x
        moved = np.abs(np.maximum(after @ v.T, 0) - np.maximum(w @ v.T, 0))
        bound = gate.change_bound(t, x, v, step_size=eta)
        worst, trials = max(worst, float(((moved - bound) / (1 + bound)).max())), trials + moved.size
    checks = [Check("explicit steps, by how much it is exceeded", trials, max(worst, 0.0), NEVER)]
    says = "the change at x′ is at most η β |⟨x, x′⟩| |⟨e^{−βMt}(w(0) − w*), x⟩|; its proof writes x once for x′"
    return Certificate("Dan et al.", "Lemma 4.2, eq. 18", says, "holds", checks)


def _theorem_4_3() -> Certificate:
    """From t* on: not only at least, but exactly |⟨x, x′⟩|/‖x‖²."""
    below, apart, trials = 0.0, 0.0, 0
    for seed in SEEDS:
        gate = _gate(seed)
        x = np.random.default_rng(seed + 300).normal(size=(80, 3))
        x = x[x @ gate.star > 0.05][:8]
        for eta in (0.0, 0.01, 0.3):
            late = gate.late_time(x, x, step_size=eta).max()
            times = late + np.array([1e-6, 1.0])
            true = along(_predict, _point_loss(gate), gate.w(times), (x, x @ gate.star), x, eta)
            value = gate.late_value(x, x)
            below = max(below, float(((value - true) / (1 + value)).max()))
            apart = max(apart, relative_error(true, np.broadcast_to(value, true.shape)))
            trials += true.size
    checks = [
        Check("steps of autograd after t*, by how much it is missed", trials, below, 1e-6),
        Check("equality once all four pre-activations are positive", trials, apart, 1e-6),
    ]
    says = "S_rel ≥ |⟨x, x′⟩|/‖x‖² from some t* on (in fact equal)"
    return Certificate("Dan et al.", "Theorem 4.3, eqs 21–23", says, "holds", checks)


def _monotone() -> Certificate:
    """The proof of Theorem 4.3 calls |⟨e^{−βMt}c, x⟩| decreasing; it need not be, and need not be for the theorem."""
    gate = ReluGate(np.diag([1.0, 0.1]), [1.0, 1.0], [0.0, 1.9], 1.0)
    times = np.linspace(0, 20, 201)
    size = np.abs(gate.missing(times) @ np.array([1.0, 1.0]))
    least = int(size[:60].argmin())
    rise = float(size[least:].max() - size[least])
    later = least + int(size[least:].argmax())
    return Certificate(
        "Dan et al.",
        "proof of Theorem 4.3",
        "anything weighted by e^{−βMt} decreases in absolute value",
        "holds with correction",
        [Check("its largest rise on a grid of times", len(times), rise)],
        [Check("0, its limit", 1, float(np.abs(gate.missing(1e4)).max()))],
        "it tends to 0, which is all that the proof needs; before that it may cross 0 and rise again",
        f"M = diag(1, 0.1), w* − w(0) = (1, −0.9), x = (1, 1): |⟨e^{{−Mt}}(w* − w(0)), x⟩| is {size[least]:.3f} at "
        f"t = {times[least]:g} and {size[later]:.3f} at t = {times[later]:g}",
    )
