"""The units of a two-layer ReLU net that a step turns on or off: exact corrections, over a sparse set.

A unit r of target j that moves by s_ij u_ir crosses zero only where |Z_jr| < |s_ij u_ir|. For those, the change that
was counted with the unit's present state is short of relu(∓ s_ij u_ir − |Z_jr|), − where the unit was on, + where off.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from local_elasticity.shapes import Float, Int

AT_ONCE = {"cpu": 1 << 21, "cuda": 1 << 27}
"""Pairs of a source and a unit that may flip, in one go: what caches hold, or what keeps a GPU busy."""

GROUPS = 4
"""Sources are taken in groups of similar size of step: few units are within reach of the small ones."""


def flips(
    Z: Float[Tensor, "t h"],
    s: Float[Tensor, "c t"],
    u: Float[Tensor, "c h"],
    V: Float[Tensor, "k h"],
    spread: Float[Tensor, "c k"] | None = None,
    H: Float[Tensor, "c h"] | None = None,
) -> Float[Tensor, "c t k"]:
    """Σ_r (V_kr − spread_ik H_ir) relu(∓ s_ij u_ir − |Z_jr|) over the units that may flip.

    Args:
        Z: pre-activations of the targets.
        s, u: the hidden units of target j move by s_ij u_ir with the step on source i.
        V: the upper weights; they move by −spread_ik H_ir, where they move at all.
    """
    j, r = within_reach(Z, s.abs().amax(0), u.abs().amax(0))
    if not len(j):
        return s.new_zeros(*s.shape, len(V))
    kernel = _on_gpu() if Z.is_cuda else None
    if kernel is not None:
        out: Tensor = kernel(Z, s, u, V, spread, H, j, r)
        return out
    total = s.new_zeros(len(V), len(Z), len(s))
    order = u.abs().amax(1).argsort()
    for group in order.chunk(GROUPS):
        chosen = (s[group], u[group], None if spread is None else spread[group], None if H is None else H[group])
        total[:, :, group] = _of_group(Z, V, *chosen, j, r)
    return total.permute(2, 1, 0)


def within_reach(
    Z: Float[Tensor, "t h"], s: Float[Tensor, " t"], u: Float[Tensor, " h"]
) -> tuple[Int[Tensor, " e"], Int[Tensor, " e"]]:
    """Targets j and units r with |Z_jr| ≤ s_j u_r, ordered by target; found in blocks that caches hold."""
    rows = max(1, _at_once(Z) // Z.shape[1])
    found = [
        torch.nonzero(Z[i : i + rows].abs() <= s[i : i + rows, None] * u) + Z.new_tensor([i, 0]).long()
        for i in range(0, len(Z), rows)
    ]
    j, r = torch.cat(found).T.contiguous()
    return j, r


def _of_group(
    Z: Tensor, V: Tensor, s: Tensor, u: Tensor, spread: Tensor | None, H: Tensor | None, j: Tensor, r: Tensor
) -> Tensor:
    """The flips of some sources, [k, t, c], of the units that those sources reach."""
    reached = Z[j, r].abs() <= s.abs().amax(0)[j] * u.abs().amax(0)[r]
    j, r = j[reached], r[reached]
    units, of = torch.unique(r, return_inverse=True)
    uT, sT = u[:, units].T.contiguous(), s.T.contiguous()
    HT = None if H is None else H[:, units].T.contiguous()
    total = s.new_zeros(len(V), len(Z), len(s))
    at_once = max(1, _at_once(s) // len(s))
    for i in range(0, len(j), at_once):
        some = slice(i, i + at_once)
        z = Z[j[some], r[some]][:, None]
        over = (sT[j[some]] * torch.where(z > 0, -1, 1)).mul_(uT[of[some]]).sub_(z.abs()).relu_()
        for out in range(len(V)):
            weight = V[out, r[some]][:, None]
            if spread is not None and HT is not None:
                weight = torch.addcmul(weight, HT[of[some]], spread[:, out], value=-1)
            total[out].index_add_(0, j[some], over * weight)
    return total


def _at_once(tensor: Tensor) -> int:
    return AT_ONCE.get(tensor.device.type, AT_ONCE["cpu"])


def _on_gpu() -> Any:
    """The Triton kernel, where Triton is installed, as it is beside torch for CUDA."""
    try:
        from local_elasticity.engine.flips_triton import flips_on_gpu
    except ImportError:
        return None
    return flips_on_gpu
