"""The sum of flips.py as one GPU kernel: a target and a block of sources at a time, over the units within reach."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SOURCES = 256
"""Sources of one program."""


@triton.jit
def _sum_of_flips(HT, sT, gT, spreadT, V, z, unit, first, out, c, t, h, OUTPUTS: tl.constexpr, SOURCES: tl.constexpr):
    j, block, k = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i = block * SOURCES + tl.arange(0, SOURCES)
    inside = i < c
    s = tl.load(sT + j.to(tl.int64) * c + i, mask=inside, other=0.0)
    total = tl.zeros_like(s)
    spread = tl.load(spreadT + k * c + i, mask=inside, other=0.0)
    for e in range(tl.load(first + j), tl.load(first + j + 1)):
        r = tl.load(unit + e)
        at = tl.load(z + e)
        H = tl.load(HT + r * c + i, mask=inside, other=0.0)
        u = tl.zeros_like(s)
        for o in range(OUTPUTS):
            u += tl.load(gT + o * c + i, mask=inside, other=0.0) * tl.load(V + o * h + r)
        moved = tl.where(H > 0, s * u, 0.0)
        over = tl.maximum(tl.where(at > 0, -moved, moved) - tl.abs(at), 0.0)
        total += over * (tl.load(V + k.to(tl.int64) * h + r) - spread * H)
    tl.store(out + (k.to(tl.int64) * t + j) * c + i, total, mask=inside)


def flips_on_gpu(
    Z: Tensor, s: Tensor, H: Tensor, V: Tensor, g: Tensor, upper_rate: float, j: Tensor, r: Tensor
) -> Tensor:
    """As `flips`, for the candidates (j, r) in order of j."""
    c, t = s.shape
    k, h = V.shape
    first = torch.searchsorted(j, torch.arange(t + 1, device=j.device))
    out = s.new_empty(k, t, c)
    grid = (t, triton.cdiv(c, SOURCES), k)
    gT = g.T.contiguous()
    sources = H.T.contiguous(), s.T.contiguous(), gT, upper_rate * gT  # a plain number would be one in float32
    with torch.cuda.device(s.device):
        _sum_of_flips[grid](*sources, V.contiguous(), Z[j, r], r, first, out, c, t, h, k, SOURCES)
    return out.permute(2, 1, 0)
