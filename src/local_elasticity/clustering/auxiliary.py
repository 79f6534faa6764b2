"""The auxiliary points that a network learns to tell the primary ones from (He & Su, Section 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_array

from local_elasticity.checks import check_choice

Array = np.ndarray


def auxiliary_points(auxiliary: Any, X: Array, random: np.random.RandomState) -> Array:
    """Points beside the primary X [n, …]: `"shuffle"` (each feature permuted across the samples, which leaves every
    feature as it is and undoes what they have in common), `"noise"` (normal, with each feature's mean and standard
    deviation), or an array of your own, [m, …].

    >>> import numpy as np
    >>> X = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    >>> np.sort(auxiliary_points("shuffle", X, np.random.RandomState(0)), axis=0).tolist()
    [[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]
    """
    if isinstance(auxiliary, str):
        check_choice("auxiliary", auxiliary, ("shuffle", "noise"))
        if auxiliary == "noise" and X.dtype.kind in "iu":
            raise ValueError('auxiliary: "noise" has no whole numbers; use "shuffle" or an array for such X')
        flat = X.reshape(len(X), -1)
        if auxiliary == "noise":
            drawn = random.standard_normal(flat.shape) * flat.std(0) + flat.mean(0)
        else:
            drawn = np.take_along_axis(flat, random.random_sample(flat.shape).argsort(0), 0)
        return np.asarray(drawn.reshape(X.shape))
    A = check_array(auxiliary, dtype="numeric", allow_nd=True, input_name="auxiliary")
    if X.dtype.kind in "iu" and A.dtype.kind not in "iu":
        raise ValueError(f"auxiliary: expected whole numbers (as in X), got {A.dtype}")
    if A.shape[1:] != X.shape[1:]:
        raise ValueError(f"auxiliary: expected samples of shape {X.shape[1:]} (as in X), got shape {A.shape[1:]}")
    return np.asarray(A, dtype=X.dtype)
