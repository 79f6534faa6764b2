"""Certificates of §5 of Dan et al. for any degree: Definitions 6 and 7, eqs 10–12 and 24–32, Theorem 5.1."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from local_elasticity.papers.certificates.certificate import NEVER, ORDER, Certificate, Check, order_of, relative_error
from local_elasticity.papers.certificates.routes import (
    Descent,
    Loss,
    PointLoss,
    Predict,
    along,
    gradient,
    stepped,
    tensor,
)
from local_elasticity.theory import HomogeneousFeatures
from local_elasticity.theory.flow import Array

DEGREES = (1, 2, 3, 4)
TIMES = np.array([0.0, 0.5, 2.0])


def certificates() -> list[Certificate]:
    return [_flow_of_loss(), _finite(), _limit(), _order(), _theorem_5_1(), _not_constant(), _linearised()]


def _alpha(x: Array) -> Array:
    return np.sin(x).sum(1)


def _beta(x: Array) -> Array:
    """Three features of two inputs for each of two rows, [n, 2, 3]."""
    one = np.stack([x[:, 0], x[:, 1], x[:, 0] * x[:, 1]], axis=1)
    return np.stack([one, np.cos(one) + 0.5], axis=1)


def _alpha_torch(x: Tensor) -> Tensor:
    return torch.sin(x).sum(-1)


def _beta_torch(x: Tensor) -> Tensor:
    one = torch.stack([x[..., 0], x[..., 1], x[..., 0] * x[..., 1]], dim=-1)
    return torch.stack([one, torch.cos(one) + 0.5], dim=-2)


def _flow(degree: int, seed: int = 0) -> HomogeneousFeatures:
    rng = np.random.default_rng(seed + 10 * degree)
    x = rng.normal(size=(30, 2))
    w0 = rng.uniform(0.4, 0.9, size=(2, 3))
    return HomogeneousFeatures(degree, _alpha, _beta, x, rng.normal(size=30), w0, 0.2)


def _predict(degree: int) -> Predict:
    """Definition 6, in torch."""
    return lambda w, x: _alpha_torch(x) + (_beta_torch(x) * w**degree).sum((-2, -1))


def _point_loss(degree: int) -> PointLoss:
    return lambda w, x, y: 0.5 * (y - _predict(degree)(w, x)).square()


def _loss_of(flow: HomogeneousFeatures) -> Loss:
    x, y = tensor(flow.inputs), tensor(flow.labels)
    return lambda w: 0.5 * (y - _predict(flow.degree)(w, x)).square().mean()


def _pairs(seed: int = 0) -> tuple[tuple[Array, Array], Array]:
    rng = np.random.default_rng(seed + 77)
    return (rng.normal(size=(4, 2)), rng.normal(size=4)), rng.normal(size=(5, 2))


def _flow_of_loss() -> Certificate:
    flows = [_flow(degree, seed) for degree in DEGREES for seed in range(3)]
    worst = max(relative_error(f.velocity(f.start), -f.rate * gradient(_loss_of(f), f.start)) for f in flows)
    whole = max(relative_error(f.w(TIMES), Descent(_loss_of(f), f.rate, f.start).w(TIMES)) for f in flows[::3])
    checks = [
        Check("autograd's gradient of the mean loss, d = 1 … 4", len(flows), worst),
        Check("the flow (integrated numerically), d = 1 … 4", 4 * len(TIMES), whole),
    ]
    return Certificate("Dan et al.", "Definitions 6, 7, eqs 10, 12, 24", "the gradient flow", "holds", checks)


def _finite() -> Certificate:
    worst, trials = 0.0, 0
    source, target = _pairs()
    for degree in DEGREES:
        flow = _flow(degree)
        for eta in (1e-3, 0.05):
            true = along(_predict(degree), _point_loss(degree), flow.w(TIMES), source, target, eta)
            worst = max(worst, relative_error(flow.relative(TIMES, source, target, step_size=eta), true))
            trials += true.size
    checks = [Check("a step of autograd of size 0.001 and 0.05, d = 1 … 4", trials, worst)]
    return Certificate("Dan et al.", "eqs 11, 25–28", "S_rel of a finite step", "holds", checks)


def _limit() -> Certificate:
    worst, trials = 0.0, 0
    source, target = _pairs()
    for degree in DEGREES:
        flow = _flow(degree)
        true = along(_predict(degree), _point_loss(degree), flow.w(TIMES), source, target)
        worst, trials = max(worst, relative_error(flow.relative(TIMES, source, target), true)), trials + true.size
    checks = [Check("autograd's derivative along the step, d = 1 … 4", trials, worst)]
    return Certificate("Dan et al.", "eqs 29–31", "the limit η → 0", "holds", checks)


def _order() -> Certificate:
    """Autograd's steps of sizes halved again and again come nearer to eq. 31 by halves."""
    worst = 0.0
    source, target = _pairs()
    for degree in DEGREES[1:]:
        flow = _flow(degree)
        w, limit = flow.w(1.0), flow.relative(1.0, source, target)
        steps = (4e-3, 2e-3, 1e-3)
        errors = [
            np.abs(stepped(_predict(degree), _point_loss(degree), w, source, target, eta) - limit).max()
            for eta in steps
        ]
        worst = max(worst, abs(order_of(errors) - 1))
    checks = [Check("order 1, in autograd's steps of 0.004, 0.002, 0.001, d = 2 … 4", 180, worst, ORDER)]
    return Certificate("Dan et al.", "eqs 29–31, order in η", "S_rel(η) = S_rel(0) + O(η)", "holds", checks)


def _theorem_5_1() -> Certificate:
    worst, trials = 0.0, 0
    rng = np.random.default_rng(3)
    for degree in DEGREES:
        for seed in range(20):
            flow, w = _flow(degree, seed), rng.normal(size=(2, 3)) * 2
            x, v = rng.normal(size=(2, 20, 2)) * 2
            source = (x, rng.normal(size=20))
            true = stepped(_predict(degree), _point_loss(degree), w, source, v[:5], 0.0)
            bound = flow.bound(w, x, v[:5])
            worst, trials = max(worst, float(((true - bound) / (1 + bound)).max())), trials + true.size
    checks = [Check("autograd's derivative, by how much the bound is exceeded", trials, worst, NEVER)]
    return Certificate("Dan et al.", "Theorem 5.1, eq. 32", "an upper bound on the limit", "holds", checks)


def _not_constant() -> Certificate:
    """The factor beside P(x, x′) moves with w where d > 1."""
    nothing, same = lambda x: np.zeros(len(x)), lambda x: x[:, None, :]
    x, v = np.array([[1.0, 0.2]]), np.array([[1.0, 1.0]])
    moved = {}
    for d in (1, 2):
        flow = HomogeneousFeatures(d, nothing, same, np.eye(2), [1.0, 4.0], [[1.0, 0.5]], 1.0)
        first, last = (flow.bound(flow.w(t), x, v)[0, 0] for t in (0.0, 50.0))
        moved[d] = abs(last - first), first, last
    return Certificate(
        "Dan et al.",
        "“time-independent” bound (before Theorem 5.1)",
        "the bound of Theorem 5.1 does not depend on time",
        "holds with correction",
        [Check("its value at t = 0 and t = 50, d = 2", 1, moved[2][0])],
        [Check("its value at t = 0 and t = 50, d = 1", 1, moved[1][0])],
        "P(x, x′) does not depend on time, but for d > 1 the factor beside it contains w(t); only for d = 1 is the "
        "bound constant",
        f"d = 2, β(x) = x, x = (1, 0.2), x′ = (1, 1): the bound is {moved[2][1]:.3f} at the start and "
        f"{moved[2][2]:.3f} in the end",
    )


def _linearised() -> Certificate:
    """A small net, linearised at W₀ as in the remark: Definition 6 with d = 1 is its first-order Taylor polynomial."""
    rng = np.random.default_rng(5)
    w0, out = rng.normal(size=(3, 3)), tensor(rng.normal(size=3))

    def net(w: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(x @ w.T) @ out

    def beta(x: Array) -> Array:
        return torch.func.vmap(torch.func.grad(net), (None, 0))(tensor(w0), tensor(x)).numpy()

    def alpha(x: Array) -> Array:
        return net(tensor(w0), tensor(x)).numpy() - (beta(x) * w0).sum((1, 2))

    x = rng.normal(size=(12, 3))
    flow = HomogeneousFeatures(1, alpha, beta, x, rng.normal(size=12), w0, 0.1)
    w = w0 + rng.normal(size=(3, 3))
    slope = torch.func.jvp(lambda q: net(q, tensor(x)), (tensor(w0),), (tensor(w - w0),))[1]
    taylor = (net(tensor(w0), tensor(x)) + slope).numpy()
    source, target = (x[:4], rng.normal(size=4)), x[4:]
    near = stepped(net, lambda q, one, y: 0.5 * (y - net(q, one)).square(), w0, source, target, 0.0)
    checks = [
        Check("the Taylor polynomial by forward differentiation", 12, relative_error(flow.predict(w, x), taylor)),
        Check(
            "S_rel of the net itself at W₀, at all times",
            96,
            relative_error(flow.relative([0.0, 1.0, 10.0], source, target), np.stack([near] * 3)),
        ),
    ]
    return Certificate(
        "Dan et al.", "remark after Definition 6", "the linearised net is the case d = 1", "holds", checks
    )
