"""Null steps: weights and functions rounded otherwise, to measure what rounding alone does to predictions."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from local_elasticity.engine.inputs import spread, take
from local_elasticity.engine.job import Job
from local_elasticity.engine.problem import BoundProblem, Inputs
from local_elasticity.engine.replica import Params
from local_elasticity.shapes import Float

NULL_SAMPLES = 16
"""The least number of examples times null steps from which the noise is estimated."""

PATTERN, SHORT_PATTERN = 65537, 4099
"""Lengths of the random patterns of weights and of results; prime, so that they do not align with rows or channels."""

STRIDE = 1009
"""How far the pattern is moved from one result to the next."""

WELL_CONDITIONED = 1e-4
"""Predictions that rounding moves by less than this share of them come from values that are known well enough."""

EXACT_FUNCTIONS = frozenset(
    {"clone", "copy", "_to_copy", "lift", "lift_fresh", "cat", "stack", "pad", "constant_pad_nd", "repeat", "roll"}
    | {"squeeze", "unsqueeze", "t", "transpose", "as_strided", "_unsafe_view", "unsafe_split", "set", "resize"}
    | {"unsafe_split_with_sizes", "index", "index_select", "index_put", "_index_put_impl", "gather", "scatter", "take"}
    | {"where", "masked_fill", "masked_select", "masked_scatter", "tril", "triu", "sort", "topk", "flip", "embedding"}
    | {"select_scatter", "slice_scatter", "im2col", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"}
    | {"fill", "zero", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "empty", "empty_like", "eye"}
    | {"new_zeros", "new_ones", "new_full", "new_empty", "empty_strided", "new_empty_strided", "arange"}
    | {"relu", "threshold", "hardtanh", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "max", "min", "amax"}
    | {"amin", "abs", "neg", "sign", "round", "floor", "ceil", "trunc", "scalar_tensor"}
    | {"max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d"}
)
"""Kernels that choose, move or fill and so do not round, by name without a final underscore."""

ROUNDED_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Rounding(TorchDispatchMode):
    """Moves every number that a kernel computes by a unit in its last place, as rounding does (Monte Carlo arithmetic).

    A sum that is large beside its parts is then seen to lose their digits, and so is a difference of nearly equal
    numbers. What a kernel rounds inside is not seen.
    """

    def __init__(self, pattern: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pattern, self.length = pattern.repeat(2), len(pattern)
        self.units: dict[Any, Tensor] = {}
        self.offset = 0

    @classmethod
    def at_random(cls, device: torch.device, generator: torch.Generator) -> Rounding:
        """Each result moved up, down or not at all."""
        return cls(_pattern(SHORT_PATTERN, device, torch.float32, generator))

    @classmethod
    def alternating(cls, device: torch.device, pattern: int) -> Rounding:
        """Neighbours moved in opposite directions: few tries are enough to see what that does."""
        return cls(alternating_signs(torch.ones(1 << (pattern + 10), device=device), pattern))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if _computes(func):
            for one in found if isinstance(found, (tuple, list)) else (found,):
                if isinstance(one, Tensor) and one.dtype in ROUNDED_TYPES and one.layout == torch.strided:
                    self._round(one)
        return found

    def _round(self, found: Tensor) -> None:
        if 0 in found.stride():  # one number in several places cannot be moved in place
            return
        most = torch.finfo(found.dtype).max / 16  # masks of −∞ or of the largest number stay what they are
        units = self.units.get((found.dtype, found.device))
        if units is None:
            units = (torch.finfo(found.dtype).eps / 2 * self.pattern).to(found)
            self.units[found.dtype, found.device] = units
        self.offset = (self.offset + STRIDE) % self.length
        moved = found.clamp(-most, most).mul_(_repeated(units[self.offset : self.offset + self.length], found))
        found.add_(moved)


def null_noise(job: Job, inputs: Inputs, before: Float[Tensor, "b k"], at_once: int) -> Float[Tensor, "b k"]:
    """Standard deviation of predictions at weights that differ by rounding only.

    Few null steps give a rough figure for a single example, so it is never taken to be below the root mean square
    over all of them. Predictions that are not finite are left out.
    """
    generator = torch.Generator(before.device).manual_seed(0)
    squares = torch.zeros_like(before)
    steps = -(-NULL_SAMPLES // len(before))
    finite = before.isfinite()
    largest = torch.where(finite, before, 0).abs().amax()
    scale = largest.clamp_min(torch.finfo(before.dtype).tiny) * torch.finfo(before.dtype).eps
    rounding = Rounding.at_random(before.device, generator)
    for _ in range(steps):
        moved = _rounded_otherwise(job, inputs, at_once, generator, rounding)
        squares += torch.where(finite, (moved - before) / scale, 0).square()
    own = (squares / steps).sqrt()
    typical = (squares.sum() / steps / finite.sum().clamp_min(1)).sqrt()
    return scale * own.clamp_min(typical)


def forward_rounding(job: Job, before: Float[Tensor, "m k"], noise: Float[Tensor, "m k"] | None = None) -> float:
    """By which share rounding moves the predictions at the targets, 0 where they are well conditioned. Changes that are
    not subtracted are computed from the same activations, and are wrong by about this share. Where their `noise` is not
    known, a few targets are looked at."""
    if before.is_cuda and torch.cuda.is_current_stream_capturing():
        return 0.0
    if noise is None:
        few = spread(job.m, NULL_SAMPLES, job.bound.device)
        before, generator = before[few], torch.Generator(before.device).manual_seed(0)
        at_once = max(1, job.memory // job.footprint.forward())
        rounding = Rounding.at_random(before.device, generator)
        noise = _rounded_otherwise(job, take(job.target_inputs, few), at_once, generator, rounding) - before
    finite = before.isfinite() & noise.isfinite()
    size, moved = (float(torch.where(finite, part, 0).double().norm()) for part in (before, noise))
    return moved / size if moved > WELL_CONDITIONED * size > 0 else 0.0


def _rounded_otherwise(
    job: Job, inputs: Inputs, at_once: int, generator: torch.Generator, rounding: Rounding
) -> Tensor:
    with rounding:
        return job.predict(_rounded_weights(job.bound, generator), inputs, at_once)


def _rounded_weights(bound: BoundProblem, generator: torch.Generator) -> Params:
    """Every weight moved up, down or not at all by one rounding unit: the coarsest of the weights and of what is
    computed from them."""
    floating = [p for p in (*bound.params.values(), *bound.constants.values()) if p.is_floating_point()]
    unit = max(*(torch.finfo(p.dtype).eps for p in floating), bound.replica.coarsest)
    moved = {}
    for name, p in bound.params.items():
        pattern = _pattern(max(1, min(PATTERN, p.numel())), p.device, p.dtype, generator)
        moved[name] = p * (1 + unit * _repeated(pattern, p))
    return moved


@cache
def _computes(func: Any) -> bool:
    """Whether a kernel makes numbers that have to be rounded."""
    return not (func.is_view or func.overloadpacket.__name__.removesuffix("_") in EXACT_FUNCTIONS)


def _pattern(length: int, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """−1, 0 and 1 at random."""
    return torch.randint(-1, 2, (length,), generator=generator, device=device, dtype=dtype)


def _repeated(pattern: Tensor, like: Tensor) -> Tensor:
    """A pattern, again and again, in the shape of a tensor."""
    repeats = -(-like.numel() // len(pattern))
    whole = pattern if repeats <= 1 else pattern.repeat(repeats)
    return whole[: like.numel()].view(like.shape).to(like.dtype)


def alternating_signs(like: Tensor, pattern: int) -> Tensor:
    """+ − + − …, + + − − …, and so on, in the shape of a tensor: unlike random signs, no two patterns are equal."""
    places = torch.arange(like.numel(), device=like.device).view(like.shape)
    return 1.0 - 2.0 * ((places >> pattern) & 1).to(like.dtype)
