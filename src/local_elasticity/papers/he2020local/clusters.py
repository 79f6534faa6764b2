"""From a trained net's similarities, or from a baseline's features, to the accuracies of a table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

import local_elasticity as le
from local_elasticity.clustering.agreement import best_match_accuracy
from local_elasticity.clustering.baselines import autoencoder_features, kmeans, pca_kmeans, pretrained_features
from local_elasticity.clustering.kernel_kmeans import KernelKMeans
from local_elasticity.papers.experiment import Reading
from local_elasticity.papers.he2020local.probe import kernel_of_small_steps, relative_of_small_steps
from local_elasticity.papers.he2020local.task import Samples
from local_elasticity.papers.he2020local.warm_up import Learned
from local_elasticity.statistics.correlation import pearson

PROBE = 1e-6
"""Step size of the released probe."""

PROBED = 50
"""Examples on which S_ker of a real step is compared with its limit."""

BEST, DRAWN, RELEASED = "best of ten starts", "one random start", "the released start"
WAYS = {"as_defined": (BEST, DRAWN), "as_released": (RELEASED, BEST, DRAWN)}
"""How kernel K-means starts: a reading's own way, then the others that stand below it."""

SHUFFLED = 666
"""Seed with which the released code shuffles its examples before kernel K-means draws their start with seed 0."""


@dataclass(frozen=True)
class Similarities:
    """What clustering needs: S_rel and S_ker of the primary examples, [n, n], before symmetrising."""

    relative: np.ndarray
    kernel: np.ndarray


def similarities_of(learned: Learned, samples: Samples, *, probabilities: bool) -> Similarities:
    """In the limit of small steps, of probabilities where the net ends in a sigmoid."""
    K = kernel_of_small_steps(learned.net, learned.x[: len(samples.classes)], probabilities=probabilities)
    return Similarities(relative_of_small_steps(K).cpu().numpy(), K.cpu().numpy())


def similarities_along(
    learned: Learned, samples: Samples, y: torch.Tensor, *, step_size: float, seed: int
) -> Similarities:
    """Algorithm 1 to the letter: one pass of SGD over all examples in random order, a row for every primary one."""
    n = len(samples.classes)
    order = torch.randperm(len(samples.x), generator=torch.Generator().manual_seed(seed))
    stream = order.to(learned.x.device)
    walk = le.respond_in_sequence(
        le.Problem.of(learned.net, "mse"),
        (learned.x[stream], y.to(learned.x)[stream]),
        learned.x[:n],
        update=le.SGD(step_size),
        record=order < n,
        progress=False,
    )
    rows = order[order < n].argsort()
    return Similarities(*(S.double().cpu()[rows].numpy() for S in (le.relative(walk), le.kernel(walk))))


def accuracies(S: Similarities, samples: Samples, *, seed: int, reading: Reading) -> dict[str, float | None]:
    """Percent right, by measure. K-means clusters the rows of the symmetrised relative similarity; kernel K-means the
    kernels, as the reading does it and in other ways.
    """
    relative, K = _symmetrized(S.relative), _symmetrized(S.kernel)
    classes = samples.classes
    scale = np.sqrt(K.diagonal().clip(min=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        normalized = K / scale[:, None] / scale
    found = {
        "relative": _right(kmeans(relative, 2, random_state=seed), classes) if np.isfinite(relative).all() else None
    }
    for name, kernel in (("kernelized", K), ("normalized-kernelized", normalized)):
        own, *others = WAYS[reading]
        right = _kernel_kmeans(kernel, samples, seed)
        found |= {name: right[own], **{f"{name}, {way}": right[way] for way in others}}
    return found


def geometry(learned: Learned, K: np.ndarray) -> dict[str, float]:
    """Section 5: how far S_ker of real steps is from ⟨φ, φ′⟩, how unequal the norms ‖φ‖² are, and how the similarity
    goes with the distance d = ‖φ − φ′‖.
    """
    x = learned.x[: min(PROBED, len(K))]
    problem = le.Problem.of(learned.net, "mse")
    update = le.SGD(PROBE)
    response = le.respond(problem, (x, x.new_full((len(x),), 2.0)), update=update, progress=False)
    stepped, limit = le.kernel(response).double().cpu().numpy(), K[: len(x), : len(x)]
    norms = K.diagonal()
    distance = np.sqrt((norms[:, None] + norms - 2 * K).clip(min=0))
    pairs = np.triu_indices(len(K), 1)
    return {
        "step against limit": float(np.linalg.norm(stepped - limit) / np.linalg.norm(limit)),
        "spread of norms": float(norms.std() / norms.mean()),
        "similarity against distance": pearson(K[pairs], distance[pairs]),
    }


def simple_baselines(samples: Samples, seed: int, reading: Reading) -> dict[str, float | None]:
    """K-means and PCA + K-means on pixels, and linear regression, whose kernel is x·x′ + 1 (footnote 3), clustered as
    the nets are.
    """
    pixels = samples.primary.flatten(1).double().numpy()
    K = pixels @ pixels.T + 1
    regression = accuracies(Similarities(np.abs(K) / K.diagonal()[:, None], K), samples, seed=seed, reading=reading)
    components = min(100, len(pixels))
    return {
        "K-means": _right(kmeans(pixels, 2, random_state=seed), samples.classes),
        "PCA + K-means": _right(pca_kmeans(pixels, 2, n_components=components, random_state=seed), samples.classes),
        **{f"regression-{measure}": value for measure, value in regression.items()},
    }


def autoencoder_baseline(samples: Samples, epochs: int, seed: int, device: str) -> dict[str, float]:
    """K-means on 32 features of an autoencoder of all primary and auxiliary images."""
    features = autoencoder_features(samples.x, epochs=epochs, random_state=seed, device=device)
    return {"features": _right(kmeans(features[: len(samples.classes)], 2, random_state=seed), samples.classes)}


def pretrained_baseline(samples: Samples, network: str, seed: int, device: str) -> dict[str, float | str]:
    """K-means on a pretrained network's features; a network that is not on this machine is reported as missing."""
    try:
        features = pretrained_features(samples.primary, network, device=device)
    except (ImportError, OSError) as error:
        return {"missing": str(error)}
    return {"features": _right(kmeans(features, 2, random_state=seed), samples.classes)}


def _kernel_kmeans(K: np.ndarray, samples: Samples, seed: int) -> dict[str, float | None]:
    """By way: the best of ten starts by objective; one random start and plain iterations; and the very start of the
    released code. One start is a draw among local optima which may lie far apart (5 vs 9: 56 and 93 percent even for a
    linear net).
    """
    if not np.isfinite(K).all():
        return dict.fromkeys((BEST, DRAWN, RELEASED))
    order, classes = released_order(samples), samples.classes
    best = KernelKMeans(2, random_state=seed)
    one = KernelKMeans(2, init="random", algorithm="lloyd", n_init=1, max_iter=100, random_state=seed)
    return {
        BEST: _right(best.fit_predict(K), classes),
        DRAWN: _right(one.fit_predict(K), classes),
        RELEASED: _right(one.set_params(random_state=0).fit_predict(K[np.ix_(order, order)]), classes[order]),
    }


def released_order(samples: Samples) -> np.ndarray:
    """The primary examples as they stand after all examples were shuffled as released, [n].

    >>> released_order(Samples(torch.zeros(6, 1), torch.arange(4)))
    array([1, 3, 0, 2])
    """
    places = np.random.RandomState(SHUFFLED).permutation(len(samples.x))
    return np.asarray(places[: len(samples.classes)].argsort())


def _symmetrized(S: np.ndarray) -> np.ndarray:
    return np.asarray((S + S.T) / 2)


def _right(labels: np.ndarray, classes: torch.Tensor) -> float:
    return round(100 * best_match_accuracy(labels, classes.numpy()), 2)
