"""Retrieval on classes never trained on: is the nearest other example of the same class?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from local_elasticity.emergence.checks import check_finite, checked_labels
from local_elasticity.emergence.features import Batches, FeatureStream

Distance = Literal["cosine", "euclidean"]
BLOCK = 2**23
"""Entries of the similarity matrix that are held at a time."""

TIE = 8
"""Similarities within this many units in the last place, of the largest one possible, are ties."""

Rows = Callable[[slice], Tensor]
"""Rows of a similarity matrix, [b, n]."""


def recall_at_k(
    features: Tensor | Batches, labels: Tensor | None = None, *, k: int = 1, distance: Distance = "cosine"
) -> float:
    """Recall@k, leave-self-out: the share of rows among whose k nearest others there is one of their own class.

    Ties at the k-th place are broken at random, and the expectation over that is returned: constant features give
    chance, not whatever comes first. Rows whose class has no other member are not asked, though others may find them;
    where there is no class with two members, that is an error. A zero row has cosine 0 with all others.

    Rows of the similarity matrix are made a block at a time, so that memory stays at n·p however large n is.

    Args:
        features: [n, p], or a `FeatureStream`; compared in their own precision (float32 stays float32).
        labels: a class for each row.
        k: how many neighbours are looked at, at most n − 1.
        distance: `"cosine"` or `"euclidean"`.

    >>> F = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]])
    >>> recall_at_k(F, torch.tensor([0, 0, 1, 1]))
    0.75
    """
    features, labels = _read(features, labels)
    if distance not in ("cosine", "euclidean"):
        raise ValueError(f'distance: "cosine" or "euclidean", not {distance!r}')
    if distance == "cosine":
        norms = features.norm(dim=1, keepdim=True)
        vectors, offset, largest = torch.where(norms > 0, features / norms, 0), None, 1.0
    else:
        vectors = features - features.mean(0)
        offset = vectors.square().sum(1) / 2
        largest = float(offset.max()) * 2

    def rows(chosen: slice) -> Tensor:
        products = vectors[chosen] @ vectors.T
        return products if offset is None else products.sub_(offset)

    return recall_of_rows(rows, labels, k=k, tolerance=TIE * torch.finfo(vectors.dtype).eps * largest)


def recall_of_rows(rows: Rows, labels: Tensor, *, k: int = 1, tolerance: float = 0.0) -> float:
    """Recall@k, leave-self-out, for any similarity whose rows can be made a block at a time (larger is nearer).

    >>> K = torch.tensor([[9.0, 2.0, 1.0], [2.0, 9.0, 3.0], [1.0, 3.0, 9.0]])
    >>> recall_of_rows(lambda chosen: K[chosen].clone(), torch.tensor([0, 0, 1]))
    0.5
    """
    n = len(labels)
    if not 1 <= k < n:
        raise ValueError(f"k: from 1 to {n - 1} other rows, not {k}")
    _, index, counts = labels.unique(return_inverse=True, return_counts=True)
    asked = counts[index] > 1
    if not bool(asked.any()):
        raise ValueError("labels: no class has two rows, so nothing can be retrieved")
    height = max(1, BLOCK // n)
    hits = torch.zeros(n, dtype=torch.float64, device=labels.device)
    for start in range(0, n, height):
        chosen = slice(start, min(start + height, n))
        block = rows(chosen)
        own = torch.arange(chosen.start, chosen.stop, device=block.device)
        block[own - start, own] = -torch.inf
        hits[chosen] = _hits(block, index, index[chosen], k, tolerance)
    return float(hits[asked].mean())


def _hits(block: Tensor, labels: Tensor, own: Tensor, k: int, tolerance: float) -> Tensor:
    """Whether each row finds its class, or with which chance where there are ties, [b]."""
    top, nearest = block.topk(min(k + 1, block.shape[1])) if k > 1 else _first_two(block)
    hits = (labels[nearest[:, :k]] == own[:, None]).any(1).double()
    unclear = torch.nonzero(top[:, k - 1] - top[:, -1] <= tolerance).flatten() if top.shape[1] > k else own[:0]
    if len(unclear):
        hits[unclear] = _chance(block[unclear], labels, own[unclear], k, top[unclear, k - 1], tolerance)
    return hits


def _first_two(block: Tensor) -> tuple[Tensor, Tensor]:
    """The two largest values of each row and where the first is; far quicker than topk. The block stays as it was."""
    first, where = block.max(1, keepdim=True)
    block.scatter_(1, where, -torch.inf)
    second = block.amax(1, keepdim=True)
    block.scatter_(1, where, first)
    return torch.cat([first, second], 1), where


def _chance(block: Tensor, labels: Tensor, own: Tensor, k: int, edge: Tensor, tolerance: float) -> Tensor:
    """The chance that one of k neighbours is of the class, where those at the edge are drawn at random."""
    same = labels == own[:, None]
    above = block > edge[:, None] + tolerance
    tied = (block >= edge[:, None] - tolerance) & ~above
    places = k - above.sum(1)
    among, good = tied.sum(1).double(), (tied & same).sum(1).double()
    miss = torch.ones_like(among)
    for taken in range(k):
        share = ((among - good - taken) / (among - taken).clamp_min(1)).clamp_min(0)
        miss = torch.where(taken < places, miss * share, miss)
    return torch.where((above & same).any(1), 1.0, 1 - miss)


def _read(features: Tensor | Batches, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    if not isinstance(features, Tensor):
        if labels is not None:
            raise ValueError("labels: a stream brings its own; leave them out")
        stream = features if isinstance(features, FeatureStream) else FeatureStream(lambda rows: rows, features)
        features, labels = stream.gathered()
    if labels is None:
        raise ValueError("labels: a class for each row is wanted")
    if features.ndim != 2 or not features.numel():
        raise ValueError(f"features: shape [n, p] is wanted, not {tuple(features.shape)}")
    check_finite("features", features)
    floating = features.detach() if features.is_floating_point() else features.double()
    return floating, checked_labels(labels, len(features)).to(features.device)
