"""The units of a two-layer ReLU net that a step turns on or off: exact corrections, over a sparse set.

A unit r of target j that moves by s_ij u_ir crosses zero only where |Z_jr| < |s_ij u_ir|. For those, the change that
was counted with the unit's present state is short of relu(∓ s_ij u_ir − |Z_jr|), − where the unit was on, + where off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from local_elasticity.shapes import Float, Int

AT_ONCE = {"cpu": 1 << 19, "cuda": 1 << 27}
"""Units of targets that are looked at in one go: what caches hold, or what keeps a GPU busy."""

GROUPS = 2
"""Sources are taken in groups of similar loss gradient: few units are within reach of the small ones."""


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
        out: Tensor = kernel(Z, s, H, V, g, upper_rate, j, r)
        return out
    order = g.abs().sum(1).argsort()
    units, of = torch.unique(r, return_inverse=True)
    HT, VT = H[order][:, units].T.contiguous(), V[:, units].T.contiguous()
    total = s.new_zeros(len(V), len(Z), len(s))
    for some in torch.arange(len(s), device="cpu").chunk(GROUPS):
        at = slice(int(some[0]), int(some[-1]) + 1)
        sources = order[at]
        near = Z[j, r].abs() <= s[sources].abs().amax(0)[j] * _largest(g[sources], V)[r]
        z = Z[j[near], r[near]]
        group = _Group(s[sources].T.contiguous(), g[sources].T.contiguous(), HT[:, at], VT, upper_rate)
        group.add_to(total[:, :, at], z, j[near], of[near])
    return torch.empty_like(total).index_copy_(2, order, total).permute(2, 1, 0)


def within_reach(
    Z: Float[Tensor, "t h"], s: Float[Tensor, " t"], u: Float[Tensor, " h"]
) -> tuple[Int[Tensor, " e"], Int[Tensor, " e"]]:
    """Targets j and units r with |Z_jr| ≤ s_j u_r, ordered by target; found in blocks that caches hold."""
    rows = max(1, units_at_once(Z) // Z.shape[1])
    found = [
        torch.nonzero(Z[i : i + rows].abs() <= s[i : i + rows, None] * u) + Z.new_tensor([i, 0]).long()
        for i in range(0, len(Z), rows)
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
        """Put the flips of these sources into total [k, t, c], a target at a time, which stays in the cache."""
        sign, size = torch.where(z > 0, -1, 1).to(z.dtype)[:, None], z.abs()[:, None]
        targets, counts = torch.unique_consecutive(j, return_counts=True)
        ends = counts.cumsum(0)
        for target, start, end in zip(targets.tolist(), (ends - counts).tolist(), ends.tolist(), strict=True):
            some = slice(start, end)
            H, V = self.H[r[some]], self.V[r[some]]
            over = torch.addmm(size[some], V * sign[some], self.g * self.s[target], beta=-1).relu_().mul_(H > 0)
            total[:, target] = V.T @ over
            if self.upper_rate:
                total[:, target] -= self.upper_rate * self.g * H.mul_(over).sum(0)


def _largest(g: Tensor, V: Tensor) -> Tensor:
    """A bound of |u_ir| over the sources, [h]."""
    return g.abs().amax(0) @ V.abs()


def units_at_once(tensor: Tensor) -> int:
    """Units that are looked at in one go."""
    return AT_ONCE.get(tensor.device.type, AT_ONCE["cpu"])


def _on_gpu() -> Any:
    """The Triton kernel, where Triton is installed, as it is beside torch for CUDA."""
    try:
        from local_elasticity.engine.flips_triton import flips_on_gpu
    except ImportError:
        return None
    return flips_on_gpu
