"""The points that a network is trained on: scaled inputs, and the auxiliary points that it learns to tell them from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import check_array

from local_elasticity.checks import check_choice

Array = np.ndarray


@dataclass(frozen=True)
class Scaling:
    """(x − centre) / spread, read from one set of points and used for others.

    Columns are brought to mean 0 and standard deviation 1, each on its own; images to [−1, 1], all pixels alike, as the
    papers do it. What is constant becomes 0.
    """

    centre: Array
    spread: Array

    @classmethod
    def of(cls, X: Array) -> Scaling:
        """Read from X [n, d] or images [n, …].

        >>> import numpy as np
        >>> X = np.array([[1.0, 5.0], [3.0, 5.0]])
        >>> Scaling.of(X)(X).tolist(), Scaling.of(255 * np.eye(2)[None])(255 * np.eye(2)).tolist()
        ([[-1.0, 0.0], [1.0, 0.0]], [[1.0, -1.0], [-1.0, 1.0]])
        """
        if X.ndim > 2:
            low, high = X.min(), X.max()
            centre, spread = np.asarray(low / 2 + high / 2), np.asarray(high / 2 - low / 2)
        else:
            size = np.maximum(np.abs(X).max(0), np.finfo(np.float64).tiny)
            unit = X / size
            centre, spread = unit.mean(0) * size, unit.std(0) * size
            spread = np.where(spread > 1e-12 * np.abs(centre), spread, 0)
        if not spread.any():
            raise ValueError("X: expected features that vary, got constant ones only")
        return cls(centre, np.where(spread > 0, spread, 1))

    def __call__(self, X: Array) -> Array:
        """Scaled, in float32; what is constant where the scaling was read is left at its distance from there."""
        return np.asarray((X - self.centre) / self.spread, dtype=np.float32)


class AsTheyAre:
    """Whole numbers [n, d] that are names rather than amounts, such as token ids.

    >>> import numpy as np
    >>> AsTheyAre()(np.array([[3, 1]], dtype=np.uint8))
    array([[3, 1]])
    """

    def __call__(self, X: Array) -> Array:
        """In int64, as embeddings take them."""
        if X.dtype.kind not in "iu":
            raise ValueError(f"X: expected whole numbers (as it was fitted on), got {X.dtype}")
        return X.astype(np.int64)


def auxiliary_points(auxiliary: Any, X: Array, random: np.random.RandomState) -> Array:
    """Auxiliary points for the primary X [n, …] (He & Su, Section 3).

    `"shuffle"` permutes each feature across the samples, which keeps every feature's distribution and removes what they
    have in common. `"noise"` is normal with each feature's mean and standard deviation. An array of your own is [m, …].

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
