"""Retrieval on classes never trained on: is the nearest other example of the same class?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.linalg import vector_norm

from local_elasticity.checks import check_choice
from local_elasticity.emergence.checks import check_finite, checked_labels
from local_elasticity.emergence.features import Batches, gathered
from local_elasticity.engine.guard import isolated

Distance = Literal["cosine", "euclidean"]
BLOCK = 2**23
"""Entries of the similarity matrix that are held at a time."""

AT_A_LOOK = 2**10
"""Rows that are compared with the first at a time; those of most features differ at the first look."""

TIE = 8
"""Units in the last place that rounding may cost a product of short rows; the root of their length is added."""

Rows = Callable[[Tensor], Tensor]
"""Which rows of a similarity matrix, [b] → those rows, [b, n], in memory of their own."""


def recall_at_k(
    features: Tensor | Batches, labels: Tensor | None = None, *, k: int = 1, distance: Distance = "cosine"
) -> float:
    """Recall@k, leave-self-out: the share of rows among whose k nearest others there is one of their own class.

    Ties at the k-th place are broken at random, and the expectation over that is returned: constant features give
    chance, not whatever comes first. Rows whose class has no other member are not asked, though others may find them;
    where there is no class with two members, that is an error. A zero row has cosine 0 with all others.

    Rows of the similarity matrix are made a block at a time, so that memory stays at n·p however large n is. They are
    made in float32 for features up to that precision; where it cannot tell the neighbours of a row apart, that row is
    made again in float64, and a tie is what float64 cannot tell. Neither the scale of the features nor a few rows far
    out change what the others find.

    Args:
        features: [n, p], or a `FeatureStream`.
        labels: a class for each row.
        k: how many neighbours are looked at, at most n − 1.
        distance: `"cosine"` or `"euclidean"`.

    >>> F = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]])
    >>> recall_at_k(F, torch.tensor([0, 0, 1, 1]))
    0.75
    """
    features, labels = _read(features, labels)
    check_choice("distance", distance, ("cosine", "euclidean"))
    vectors = _unit(features.double()) if distance == "cosine" else _centred(features.double())
    precisions = (torch.float64,) if features.dtype == torch.float64 else (torch.float32, torch.float64)
    with isolated(features.device, None), torch.no_grad():
        finer = [] if _alike(vectors) else [_nearness(vectors.to(dtype), distance) for dtype in precisions]
        return _recall(finer, labels, k)


def recall_of_rows(rows: Rows, labels: Tensor, *, k: int = 1, tolerance: float = 0.0) -> float:
    """Recall@k, leave-self-out, for any similarity whose rows can be made a block at a time (larger is nearer).

    >>> K = torch.tensor([[9.0, 2.0, 1.0], [2.0, 9.0, 3.0], [1.0, 3.0, 9.0]])
    >>> recall_of_rows(lambda chosen: K[chosen], torch.tensor([0, 0, 1]))
    0.5
    """
    nearness = Nearness(rows, lambda chosen, near: torch.full_like(chosen, tolerance, dtype=torch.float64))
    return _recall([nearness], labels, k)


@dataclass(frozen=True)
class Nearness:
    """A similarity, and how far apart two values of chosen rows may be and yet be equal, [b], given a neighbour of
    each row about which they lie, [b].
    """

    rows: Rows
    rounding: Callable[[Tensor, Tensor], Tensor]


def _recall(finer: Sequence[Nearness], labels: Tensor, k: int) -> float:
    """By a similarity in several precisions, each finer than the one before: rows whose neighbours one cannot tell
    apart are left to the next, and what the last cannot tell are ties. Without any, all rows are.
    """
    n = len(labels)
    if not 1 <= k < n:
        raise ValueError(f"k: expected from 1 to {n - 1} other rows, got {k}")
    _, index, counts = labels.unique(return_inverse=True, return_counts=True)
    asked = torch.nonzero(counts[index] > 1).flatten()
    if not len(asked):
        raise ValueError("labels: no class has two rows, so nothing can be retrieved")
    hits = _found_by_chance(counts[index] - 1, torch.full_like(labels, n - 1), torch.full_like(labels, k), k)
    left = asked
    for nearness in finer:
        unclear = []
        for chosen in left.split(max(1, BLOCK // n)):
            hits[chosen], tied = _hits(nearness, index, chosen, k, guess=nearness is finer[-1])
            unclear.append(chosen[tied])
        left = torch.cat(unclear)
    return float(hits[asked].mean())


def _nearness(vectors: Tensor, distance: Distance) -> Nearness:
    """⟨x, x′⟩, less ‖x′‖²/2 for the Euclidean distance; both are right to some units in the last place of ‖x‖² + ‖x′‖²,
    of x′ as near as the nearest.
    """
    squares = vector_norm(vectors, dim=1).square()
    precision = torch.finfo(vectors.dtype)
    units = (TIE + math.sqrt(vectors.shape[1])) * precision.eps

    def rows(chosen: Tensor) -> Tensor:
        products = vectors[chosen] @ vectors.T
        return products if distance == "cosine" else products.sub_(squares / 2)

    return Nearness(rows, lambda chosen, near: units * (squares[chosen] + squares[near]) + precision.tiny)


def _unit(rows: Tensor) -> Tensor:
    """Rows of length 1, or 0; first divided by their largest entry, so that no square leaves the range of floats."""
    scaled = rows / _or_one(vector_norm(rows, torch.inf, dim=1, keepdim=True))
    return scaled.div_(_or_one(vector_norm(scaled, dim=1, keepdim=True)))


def _centred(rows: Tensor) -> Tensor:
    """Around the median, which a few rows far out do not move, and with 1 as the largest entry."""
    centred = rows - rows.median(0).values
    return centred.div_(_or_one(vector_norm(centred, torch.inf)))


def _alike(vectors: Tensor) -> bool:
    """Whether all rows are so near the first that the similarities of any two are within rounding of its own."""
    nearby = TIE * torch.finfo(vectors.dtype).eps * vector_norm(vectors[0]).square()
    return all(bool((rows - vectors[0]).square().sum(1).le(nearby).all()) for rows in vectors.split(AT_A_LOOK))


def _or_one(sizes: Tensor) -> Tensor:
    """To divide by: nothing is 0."""
    return torch.where(sizes > 0, sizes, 1)


def _hits(nearness: Nearness, labels: Tensor, chosen: Tensor, k: int, *, guess: bool) -> tuple[Tensor, Tensor]:
    """Whether each of the chosen rows finds its class, [b], and which of them rounding leaves open; where we are to
    guess, those have the chance that they find it.
    """
    block = nearness.rows(chosen)
    block[torch.arange(len(chosen), device=block.device), chosen] = -torch.inf
    top, nearest = block.topk(k + 1) if k > 1 else _first_two(block)
    own = labels[chosen]
    hits = (labels[nearest[:, :k]] == own[:, None]).any(1).double()
    rounding = nearness.rounding(chosen, nearest[:, k - 1])
    unclear = torch.nonzero(top[:, k - 1] - top[:, -1] <= rounding).flatten()
    if guess and len(unclear):
        hits[unclear] = _chance(block[unclear], labels, own[unclear], k, top[unclear, k - 1], rounding[unclear])
    return hits, unclear


def _first_two(block: Tensor) -> tuple[Tensor, Tensor]:
    """The two largest values of each row and where the first is; far quicker than topk. The block stays as it was."""
    first, where = block.max(1, keepdim=True)
    block.scatter_(1, where, -torch.inf)
    second = block.amax(1, keepdim=True)
    block.scatter_(1, where, first)
    return torch.cat([first, second], 1), where


def _chance(block: Tensor, labels: Tensor, own: Tensor, k: int, edge: Tensor, rounding: Tensor) -> Tensor:
    """The chance that one of k neighbours is of the class, where those at the edge are drawn at random."""
    same = labels == own[:, None]
    above = block > (edge + rounding)[:, None]
    tied = (block >= (edge - rounding)[:, None]) & ~above
    places = k - above.sum(1)
    found = _found_by_chance((tied & same).sum(1), tied.sum(1), places, k)
    return torch.where((above & same).any(1), 1.0, found)


def _found_by_chance(good: Tensor, among: Tensor, places: Tensor, most: int) -> Tensor:
    """The chance that one of the good is drawn where places, at most so many, are filled from among equals."""
    good, among = good.double(), among.double()
    miss = torch.ones_like(among)
    for taken in range(most):
        share = ((among - good - taken) / (among - taken).clamp_min(1)).clamp_min(0)
        miss = torch.where(taken < places, miss * share, miss)
    return 1 - miss


def _read(features: Tensor | Batches, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    features, labels = gathered(features, labels)
    if features.ndim != 2 or not features.numel():
        raise ValueError(f"features: expected shape [n, p], got {tuple(features.shape)}")
    check_finite("features", features)
    floating = features.detach() if features.is_floating_point() else features.double()
    return floating, checked_labels(labels, len(features)).to(features.device)
