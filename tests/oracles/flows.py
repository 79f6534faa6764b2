"""Gradient flows and S_rel the slow, obvious way: sums over examples written out, an implicit ODE solver, mpmath."""

import mpmath
import numpy as np
from scipy.integrate import solve_ivp


def flow_by_numbers(velocity, w0, t):
    """w(t), [t, …], by an implicit method of order 5, unlike the package's explicit one."""
    start = np.asarray(w0, dtype=float)
    solution = solve_ivp(
        lambda _, w: velocity(w.reshape(start.shape)).ravel(),
        (0, t[-1]),
        start.ravel(),
        method="Radau",
        t_eval=t,
        rtol=1e-11,
        atol=1e-13,
    )
    return solution.y.T.reshape(len(t), *start.shape)


def penalised_velocity(features, labels, penalty, rate):
    """−rate ∂L/∂W of eq. 3, example by example."""

    def velocity(w):
        gradient = penalty / len(w) * w
        for h, k in zip(features, labels, strict=True):
            gradient = gradient - np.outer(np.eye(len(w))[k] - w @ h, h) / len(features)
        return -rate * gradient

    return velocity


def gate_velocity(inputs, star, rate):
    """Definition 5 as an average over inputs."""
    return lambda w: sum(rate * (star @ x > 0) * (star @ x - w @ x) * x for x in inputs) / len(inputs)


def homogeneous_velocity(degree, alpha, beta, inputs, labels, rate):
    """Eq. 12 as an average over inputs."""

    def velocity(w):
        total = np.zeros_like(w)
        for x, y in zip(inputs, labels, strict=True):
            features = beta(x[None])[0]
            error = y - alpha(x[None])[0] - (features * w**degree).sum()
            total += error * degree * features * w ** (degree - 1)
        return rate * total / len(inputs)

    return velocity


def two_layer_velocity(signs, inputs, labels, rate):
    """The gradient flow of the first layer, example by example."""

    def velocity(w):
        total = np.zeros_like(w)
        for x, y in zip(inputs, labels, strict=True):
            promoted = np.append(x, 1.0)
            error = y - signs @ np.maximum(w @ promoted, 0)
            total += error * np.outer(signs * (w @ promoted >= 0), promoted)
        return rate * total / len(inputs)

    return velocity


def quadratic_square(a, b, first, rate, t):
    """Eq. 36 with 60 digits, in its printed form."""
    with mpmath.workdps(60):
        a, b, first = mpmath.mpf(a), mpmath.mpf(b), mpmath.mpf(first)
        return float(a / (b + (-b + a / first) * mpmath.exp(-4 * mpmath.mpf(rate) * a * mpmath.mpf(t))))


def penalised_relative(w, ridge, h, k, v):
    """Eq. 4 with its squares expanded, with 60 digits, at weights w."""
    with mpmath.workdps(60):
        w, h, v = mpmath.matrix(w.tolist()), mpmath.matrix(h.tolist()), mpmath.matrix(v.tolist())
        ridge = mpmath.mpf(ridge)
        dot = lambda a, b: (a.T * b)[0]
        spread = lambda u: ridge * u + h * dot(h, u)
        above = dot(h, v) ** 2 - 2 * dot(h, v) * (w * spread(v))[k] + sum(x**2 for x in w * spread(v))
        tilde = ridge + dot(h, h)
        below = dot(h, h) ** 2 - 2 * tilde * dot(h, h) * (w * h)[k] + tilde**2 * sum(x**2 for x in w * h)
        return float(mpmath.sqrt(above / below))
