"""Certificates of the definitions that all sections share: eqs 1 and 2 of Dan et al., in the engine and in theory."""

from __future__ import annotations

import numpy as np
import torch

import local_elasticity as le
from local_elasticity.papers.certificates.certificate import Certificate, Check, relative_error
from local_elasticity.papers.certificates.routes import stepped, tensor
from local_elasticity.theory import DiagonalQuadratic, PenalisedFeatures
from local_elasticity.theory.flow import Array

TIMES = (0.0, 1.0, 5.0)


def certificates() -> list[Certificate]:
    return [_definition_1(), _definition_3()]


def _penalised() -> tuple[PenalisedFeatures, tuple[Array, Array], Array]:
    rng = np.random.default_rng(0)
    flow = PenalisedFeatures(rng.normal(size=(30, 4)), np.arange(30) % 3, 1.5, 0.4, rng.normal(size=(3, 4)))
    return flow, (rng.normal(size=(6, 4)), np.arange(6.0) % 3), rng.normal(size=(6, 4))


def engine_penalised(
    flow: PenalisedFeatures, w: Array, source: tuple[Array, Array], target: Array, eta: float
) -> Array:
    """S_rel by the engine at weights w: half the squared error, and the penalty as weight decay λ/K."""
    model = lambda params, h: h @ params["w"].T
    problem = le.Problem.of(model, "half_mse", params={"w": tensor(w)})
    labels = torch.eye(flow.classes, dtype=torch.float64)[tensor(source[1]).long()]
    update = le.SGD(eta, weight_decay=flow.penalty / flow.classes)
    response = le.respond(problem, (tensor(source[0]), labels), tensor(target), update=update, progress=False)
    found: Array = le.relative(response).numpy()
    return found


def engine_quadratic(w: Array, source: tuple[Array, Array], target: Array, eta: float) -> Array:
    """S_rel by the engine of f = Σ β w²."""
    model = lambda params, beta: (beta @ params["w"] ** 2)[:, None]
    problem = le.Problem.of(model, "half_mse", params={"w": tensor(w)})
    given = tensor(source[0]), tensor(source[1])
    response = le.respond(problem, given, tensor(target), update=le.SGD(eta), progress=False)
    found: Array = le.relative(response).numpy()
    return found


def _definition_1() -> Certificate:
    """The engine, the closed forms, and the definition taken word for word are the same thing."""
    flow, source, target = _penalised()
    linear = max(
        relative_error(flow.relative(t, source, target), engine_penalised(flow, flow.w(t), source, target, 0.1))
        for t in TIMES
    )
    rng = np.random.default_rng(1)
    quadratic = DiagonalQuadratic([1.0, -0.5], [1.0, 2.0], [0.7, 1.2], 0.2)
    given, others = (rng.normal(size=(5, 2)), rng.normal(size=5)), rng.normal(size=(6, 2))
    theory, words = 0.0, 0.0
    for t in TIMES:
        found = engine_quadratic(quadratic.w(t), given, others, 0.05)
        theory = max(theory, relative_error(quadratic.relative(t, given, others, step_size=0.05), found))
        predict = lambda w, beta: (beta * w**2).sum(-1)
        loss = lambda w, beta, y: 0.5 * (y - (beta * w**2).sum(-1)).square()
        words = max(words, relative_error(stepped(predict, loss, quadratic.w(t), given, others, 0.05), found))
    checks = [
        Check("the engine, PenalisedFeatures with penalty as weight decay", 108, linear),
        Check("the engine, DiagonalQuadratic at η = 0.05", 90, theory),
        Check("the engine, the definition word for word", 90, words),
    ]
    return Certificate("Dan et al.", "Definition 1, eq. 1", "S_rel", "holds", checks)


def _definition_3() -> Certificate:
    """The mean over pairs of two classes, self-pairs included."""
    flow, source, _ = _penalised()
    S, classes = flow.relative(1.0, source, source[0]), source[1]
    table = le.class_pairs(S, classes, classes, reduce="mean", self_pairs="include")
    by_hand = [S[np.ix_(classes == a, classes == b)].mean() for a in range(3) for b in range(3)]
    checks = [Check("a mean by hand", 9, relative_error(table["value"].to_numpy(), by_hand))]
    return Certificate("Dan et al.", "Definition 3, eq. 2", "the smoothed S_rel of two classes", "holds", checks)
