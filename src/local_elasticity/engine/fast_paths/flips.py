"""The units of a two-layer ReLU net that a step turns on or off: exact corrections, over a sparse set.

A unit r of target j that moves by s_ij u_ir crosses zero only if |Z_jr| < |s_ij u_ir|. For these units, the change
that was computed with the unit's present state lacks relu(∓ s_ij u_ir − |Z_jr|); − if the unit was on, + if it was off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from local_elasticity.shapes import Float, Int

AT_ONCE = {"cpu": 1 << 19, "cuda": 1 << 27}
"""Activations in a block: as many as fit into caches, or keep a GPU busy."""

CANDIDATES = 256
"""Units in a block that may flip, of one target or several."""

ONE_IN = 4
"""If fewer than one unit in this many may flip, only the columns of these units are copied."""

LAID_OUT = 512
"""Units whose activations are transposed at a time."""

GROUPS = 2
"""Sources are grouped by the size of their loss gradient, since small gradients can flip few units."""


def flips(
    Z: Float[Tensor, "t h"],
    s: Float[Tensor, "c t"],
    H: Float[Tensor, "c h"],
    V: Float[Tensor, "k h"],
    g: Float[Tensor, "c k"],
    upper_rate: float,
) -> Float[Tensor, "c t k"]:
    """Σ_r (V_kr − η g_ik H_ir) relu(∓ s_ij u_ir − |Z_jr|) over units that may flip; u_ir = [H_ir > 0] Σ_k g_ik V_kr.

    Args:
        Z: pre-activations of the targets.
        s: the hidden units of target j move by s_ij u_ir with the step on source i.
        H, g: hidden activations of the sources, and the loss gradients above V.
        V, upper_rate: the upper weights, and η where they step, 0 where they do not.
    """
    j, r = within_reach(Z, s.abs().amax(0), _largest(g, V))
    if not len(j):
        return s.new_zeros(*s.shape, len(V))
    kernel = _on_gpu() if Z.is_cuda else None
    if kernel is not None:
        return kernel(Z, s, H, V, g, upper_rate, j, r)
    z, units = Z[j, r], torch.unique(r)
    if ONE_IN * len(units) < H.shape[1]:
        H, V, r = H[:, units], V[:, units], torch.searchsorted(units, r)
    order = g.abs().sum(1).argsort()
    HT = torch.cat([H[:, i : i + LAID_OUT][order].T.contiguous() for i in range(0, H.shape[1], LAID_OUT)])
    total = s.new_zeros(len(V), len(Z), len(s))
    for some in torch.arange(len(s), device="cpu").chunk(GROUPS):
        at = slice(int(some[0]), int(some[-1]) + 1)
        sources = order[at]
        near = z.abs() <= s[sources].abs().amax(0)[j] * _largest(g[sources], V)[r]
        group = _Group(s[sources].T.contiguous(), g[sources].T.contiguous(), HT[:, at], V.T.contiguous(), upper_rate)
        group.add_to(total[:, :, at], z[near], j[near], r[near])
    return torch.empty_like(total).index_copy_(2, order, total).permute(2, 1, 0)


def within_reach(
    Z: Float[Tensor, "t h"], s: Float[Tensor, " t"], u: Float[Tensor, " h"]
) -> tuple[Int[Tensor, " e"], Int[Tensor, " e"]]:
    """Targets j and units r with |Z_jr| ≤ s_j u_r, ordered by target; found in blocks that fit into caches."""
    found = [
        torch.nonzero(Z[rows].abs() <= s[rows, None] * u) + Z.new_tensor([rows.start, 0]).long() for rows in tiles(Z)
    ]
    j, r = torch.cat(found).T.contiguous()
    return j, r


@dataclass(frozen=True)
class _Group:
    """Some sources: s [t, c], g [k, c], the units H [e, c] and V [e, k] that are within reach, and η of V."""

    s: Tensor
    g: Tensor
    H: Tensor
    V: Tensor
    upper_rate: float

    def add_to(self, total: Tensor, z: Tensor, j: Tensor, r: Tensor) -> None:
        """Add the flips of these sources to total [k, t, c], in blocks of targets that fit into caches."""
        V, size = self.V[r], z.abs()[:, None]
        outward = V * torch.where(z > 0, -1, 1).to(z.dtype)[:, None]
        targets, counts = torch.unique_consecutive(j, return_counts=True)
        for some, of in _gathered(counts.tolist()):
            at, H = targets[of], self.H[r[some]]
            moves = self.s[at if len(at) == 1 else j[some]]
            over = (outward[some] @ self.g).mul_(moves).sub_(size[some]).relu_().mul_(H > 0)
            belongs = (at[:, None] == j[some]).to(z.dtype)
            moved = (V[some].T[:, None] * belongs) @ over
            if self.upper_rate:
                moved -= self.upper_rate * self.g[:, None] * (belongs @ H.mul_(over))
            total[:, at] = moved


def _gathered(counts: list[int]) -> Iterator[tuple[slice, slice]]:
    """Slices of candidates, about `CANDIDATES` each or those of one target, and of the targets that they belong to."""
    start = first = end = 0
    for target, count in enumerate(counts):
        if target > first and end + count - start > CANDIDATES:
            yield slice(start, end), slice(first, target)
            start, first = end, target
        end += count
    if counts:
        yield slice(start, end), slice(first, len(counts))


def _largest(g: Tensor, V: Tensor) -> Tensor:
    """A bound of |u_ir| over the sources, [h]."""
    return g.abs().amax(0) @ V.abs()


def tiles(of: Float[Tensor, "b h"]) -> Iterator[slice]:
    """Blocks of rows of the activations of b examples that fit into caches."""
    at_once = max(1, AT_ONCE.get(of.device.type, AT_ONCE["cpu"]) // of.shape[1])
    return (slice(i, i + at_once) for i in range(0, len(of), at_once))


def _on_gpu() -> Any:
    """The Triton kernel; None without Triton, which comes with torch for CUDA."""
    try:
        from local_elasticity.engine.fast_paths.flips_triton import flips_on_gpu
    except ImportError:
        return None
    return flips_on_gpu
