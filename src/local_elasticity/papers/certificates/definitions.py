"""Certificates of the definitions that all sections share: eqs 1 and 2 of Dan et al., in the engine and in theory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import local_elasticity as le
from local_elasticity.papers.certificates.certificate import Certificate, Check, relative_error
from local_elasticity.papers.certificates.routes import stepped, tensor
from local_elasticity.theory import DiagonalQuadratic, PenalisedFeatures
from local_elasticity.theory.flow import Array

TIMES = (0.0, 1.0, 5.0)


def certificates() -> list[Certificate]:
    return [_definition_1(), _definition_2(), _released_divergence(), _definition_3()]


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
    return le.relative(response).numpy()


def engine_quadratic(w: Array, source: tuple[Array, Array], target: Array, eta: float) -> Array:
    """S_rel by the engine of f = Σ β w²."""
    model = lambda params, beta: (beta @ params["w"] ** 2)[:, None]
    problem = le.Problem.of(model, "half_mse", params={"w": tensor(w)})
    given = tensor(source[0]), tensor(source[1])
    response = le.respond(problem, given, tensor(target), update=le.SGD(eta), progress=False)
    return le.relative(response).numpy()


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
        Check("the engine, a direct implementation of the definition", 90, words),
    ]
    return Certificate("Dan et al.", "Definition 1, eq. 1", "S_rel", "holds", checks)


def _logits(w: Tensor, x: Tensor) -> Tensor:
    """A net with one hidden layer and three classes, all weights in one vector."""
    return w[24:].reshape(3, 6) @ torch.tanh(w[:24].reshape(6, 4) @ x)


def _cross_entropy(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    chosen: Tensor = torch.nn.functional.one_hot(y.long(), 3).double()
    return -torch.log_softmax(_logits(w, x), 0) @ chosen


def _distribution(w: Tensor, x: Array) -> Tensor:
    return torch.softmax(_logits(w, tensor(x)), 0)


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p.log() - q.log())).sum()


def _drawn() -> tuple[Array, tuple[Array, Array], Array]:
    """Weights, sources with labels, targets."""
    rng = np.random.default_rng(2)
    return rng.normal(size=42), (rng.normal(size=(5, 4)), np.arange(5.0) % 3), rng.normal(size=(6, 4))


def _divergences(eta: float) -> tuple[Tensor, Tensor, Tensor]:
    """Distributions at the targets before and after steps of autograd, [m, k] and [n, m, k]; and S_rel by Definition 2
    word for word, KL(after ‖ before) at the target over the same at the source, [n, m]."""
    w, (x, y), v = _drawn()
    now, after, S = tensor(w), [], []
    before = torch.stack([_distribution(now, one) for one in v])
    for one, label in zip(x, y, strict=True):
        moved_to = now - eta * torch.func.grad(_cross_entropy)(now, tensor(one), tensor(label))
        moved = torch.stack([_distribution(moved_to, other) for other in v])
        own = _divergence(_distribution(moved_to, one), _distribution(now, one))
        after.append(moved)
        S.append(torch.stack([_divergence(p, q) / own for p, q in zip(moved, before, strict=True)]))
    return before, torch.stack(after), torch.stack(S)


def _definition_2() -> Certificate:
    """The engine's KL of a step is that of the definition."""
    w, (x, y), v = _drawn()
    model = lambda params, inputs: torch.func.vmap(_logits, (None, 0))(params["w"], inputs)
    problem = le.Problem.of(model, "cross_entropy", params={"w": tensor(w)})
    given = tensor(x), torch.as_tensor(y).long()
    worst = 0.0
    for eta in (0.05, 0.5):
        response = le.respond(problem, given, tensor(v), update=le.SGD(eta), progress=False)
        worst = max(worst, relative_error(le.relative(response, change=le.kl).numpy(), _divergences(eta)[2].numpy()))
    checks = [Check("the engine at η = 0.05 and 0.5, a direct implementation of the definition", 60, worst)]
    return Certificate("Dan et al.", "Definition 2", "S_rel by KL(after ‖ before)", "holds", checks)


def _released_divergence() -> Certificate:
    """The notebooks give probabilities to F.kl_div, which expects the logarithms of its first argument."""
    q, p, _ = _divergences(0.5)
    q = q.expand_as(p)
    true = (p * (p.log() - q.log())).sum(-1).numpy()
    released = torch.nn.functional.kl_div(p, q, reduction="none").mean(-1).numpy()
    corrected = torch.nn.functional.kl_div(q.log(), p, reduction="none").sum(-1).numpy()
    entropies = (-(torch.special.entr(q).sum(-1) + (q * p).sum(-1)) / 3).numpy()
    uniform = -(np.log(3) + 1 / 3) / 3
    return Certificate(
        "Dan et al.",
        "Definition 2 in the released notebooks",
        "F.kl_div(softmax(after), softmax(before)) is the divergence of Definition 2",
        "holds with correction",
        [Check("KL(after ‖ before)", 30, relative_error(released, true))],
        [
            Check(
                "KL(after ‖ before), by F.kl_div(log softmax(before), softmax(after)), summed",
                30,
                relative_error(corrected, true),
            ),
            Check("what the notebooks compute: −(H(q) + ⟨q, p⟩)/k", 30, relative_error(released, entropies)),
        ],
        "F.kl_div expects the logarithm of its first argument, the distribution before; as released it is "
        "−(H(q) + ⟨q, p⟩)/k, with q before and p after, which is not 0 if nothing moves",
        f"three classes, uniform predictions, no step: KL is 0, the notebooks compute {uniform:.3f}",
    )


def _definition_3() -> Certificate:
    """The mean over pairs of two classes, self-pairs included."""
    flow, source, _ = _penalised()
    S, classes = flow.relative(1.0, source, source[0]), source[1]
    table = le.class_pairs(S, classes, classes, reduce="mean", self_pairs="include", resamples=0)
    by_hand = [S[np.ix_(classes == a, classes == b)].mean() for a in range(3) for b in range(3)]
    checks = [Check("a mean by hand", 9, relative_error(table["value"].to_numpy(), by_hand))]
    return Certificate("Dan et al.", "Definition 3, eq. 2", "the smoothed S_rel of two classes", "holds", checks)
