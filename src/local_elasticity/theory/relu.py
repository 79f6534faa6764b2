"""A ReLU before and after a step, without subtracting nearly equal numbers."""

from __future__ import annotations

import numpy as np

from local_elasticity.theory.flow import Array


def relu_change(before: Array, step: Array) -> Array:
    """max(0, u + d) − max(0, u), by the signs before and after: d, 0, −u or u + d.

    >>> import numpy as np
    >>> relu_change(np.array([1.0, -1.0, 1.0, -1.0]), np.array([1e-20, 0.5, -3.0, 1.5]))
    array([ 1.e-20,  0.e+00, -1.e+00,  5.e-01])
    """
    after = before + step
    return np.where(before > 0, np.where(after > 0, step, -before), np.where(after > 0, after, 0.0))


def relu_slope(before: Array, step: Array) -> Array:
    """The limit of relu_change(u, ηd)/η for η → 0, the one-sided derivative where u = 0.

    >>> import numpy as np
    >>> relu_slope(np.array([1.0, -1.0, 0.0, 0.0]), np.array([2.0, 2.0, 2.0, -2.0]))
    array([2., 0., 2., 0.])
    """
    return np.where(before > 0, step, np.where(before == 0, np.maximum(step, 0.0), 0.0))
