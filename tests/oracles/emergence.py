"""Slow and obvious: pairs one by one, gradients by autograd, expectations by drawing."""

import itertools
import math
from fractions import Fraction

import torch


def gradient(network, X, y):
    """√N G = −√N ∂L/∂W by autograd."""
    W = network.W.clone().requires_grad_()
    outputs = network.activation.function(X @ W.T) @ network.a / math.sqrt(network.width)
    loss = (y - outputs).square().sum() / (2 * len(X))
    (found,) = torch.autograd.grad(loss, W)
    return -math.sqrt(network.width) * found


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm())) if a.norm() and b.norm() else 0.0


def alignment(F, labels, form):
    """Pair by pair."""
    if form == "centred_cosine":
        F = F - F.mean(0)
    values = []
    for name in labels.unique():
        rows = F[labels == name]
        if len(rows) < 2:
            continue
        pairs = list(itertools.permutations(range(len(rows)), 2))
        measure = cosine if "cosine" in form else lambda a, b: float(a @ b) / F.shape[1]
        value = sum(measure(rows[i], rows[j]) for i, j in pairs) / len(pairs)
        if form == "normalized":
            value /= float(rows.square().sum(1).mean()) / F.shape[1]
        values.append(value)
    return sum(values) / len(values)


def separability(F, labels):
    values = []
    for a, b in itertools.combinations(labels.unique(), 2):
        products = [float(x @ z) for x in F[labels == a] for z in F[labels == b]]
        values.append(-sum(products) / len(products) / F.shape[1])
    return sum(values) / len(values)


def nearness(a, b, distance):
    """As fractions, in which nothing is rounded: −‖a − b‖², or the square of the cosine with its sign."""
    a, b = ([Fraction(value) for value in row.tolist()] for row in (a, b))
    if distance == "euclidean":
        return -sum((x - z) ** 2 for x, z in zip(a, b, strict=True))
    product = sum(x * z for x, z in zip(a, b, strict=True))
    size = sum(x * x for x in a) * sum(z * z for z in b)
    return product * abs(product) / size if size else Fraction(0)


def recall(F, labels, k, distance):
    """Every order of the rows tied at the k-th place counts alike."""
    hits = []
    for i in range(len(F)):
        others = [j for j in range(len(F)) if j != i]
        if not any(labels[j] == labels[i] for j in others):
            continue
        near = {j: nearness(F[i], F[j], distance) for j in others}
        edge = sorted(near.values(), reverse=True)[k - 1]
        closer = [j for j in others if near[j] > edge]
        tied = [j for j in others if near[j] == edge]
        chosen = list(itertools.combinations(tied, k - len(closer)))
        hits.append(sum(any(labels[j] == labels[i] for j in [*closer, *some]) for some in chosen) / len(chosen))
    return sum(hits) / len(hits)


def covariance(X, y):
    total = torch.zeros(X.shape[1], dtype=X.dtype)
    for x, label in zip(X, y, strict=True):
        total += (x - X.mean(0)) * (label - y.mean())
    return total / len(X)


def theory_by_drawing(theory, mean_norm, s, draws, seed):
    """Alignment and elasticity of the theory's own random variables, drawn: units as draws of (m, r, g)."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda: torch.randn(draws, generator=generator, dtype=torch.float64)
    d, beta = theory.inputs, theory.beta_norm
    q, p, g = normal(), normal(), normal()
    r = beta / math.sqrt(d) * q
    m = s / (beta * math.sqrt(d)) * q + math.sqrt(mean_norm**2 / d - s**2 / (beta**2 * d)) * p
    gamma = theory.gamma
    V = 1 + 2 * gamma * g * r + g**2 * (gamma**2 * beta**2 + theory.rest_variance)
    M = m + gamma * g * s
    sigma = theory.activation.function
    products = sigma(M + V.clamp_min(1e-6).sqrt() * normal()) * sigma(M + V.clamp_min(1e-6).sqrt() * normal())
    h = math.sqrt(mean_norm**2 / d + 1) * normal()
    moments = theory.moments
    width = math.sqrt(beta**2 + moments.slope_variance * d / (theory.n * moments.c1**2))
    moved = (sigma(h + gamma * normal() * (s + width * normal())) - sigma(h)).square()
    return [(float(x.mean()), float(x.std()) / math.sqrt(draws)) for x in (products, moved)]
