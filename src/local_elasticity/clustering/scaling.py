"""Bringing inputs to the size that networks are made for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
