"""Null steps: weights and functions rounded otherwise, to measure what rounding alone does to predictions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from local_elasticity.engine.guard import FunctionMode
from local_elasticity.engine.inputs import spread, take
from local_elasticity.engine.job import Job
from local_elasticity.engine.problem import BoundProblem, Inputs
from local_elasticity.engine.replica import Params
from local_elasticity.shapes import Float

NULL_SAMPLES = 32
"""The least number of examples times null steps from which the noise is estimated."""

PATTERN, SHORT_PATTERN = 65537, 1021
"""Lengths of the random patterns of weights and of results; prime, so that they do not align with rows or channels."""

WELL_CONDITIONED = 1e-4
"""Predictions that rounding moves by less than this share of them come from values that are known well enough."""

ROUNDING_FUNCTIONS = frozenset(
    {"sigmoid", "tanh", "softmax", "log_softmax", "logsigmoid", "softplus", "gelu", "silu", "mish", "selu", "elu"}
    | {"exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "logsumexp", "erf", "erfc", "sqrt", "rsqrt", "norm"}
    | {"sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "normalize"}
    | {"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "cosine_similarity"}
)
"""Functions whose results are rounded, by name. What is subtracted from a number that they give, as in 1 − p, may leave
few of its digits. Sums and products are rounded by the weights in them."""


class _Rounding(FunctionMode):
    """Moves results of functions up, down or not at all by one unit in the last place."""

    def __init__(self, device: torch.device, generator: torch.Generator) -> None:
        super().__init__()
        self.pattern = _pattern(SHORT_PATTERN, device, torch.float32, generator)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        rounds = getattr(func, "__name__", "") in ROUNDING_FUNCTIONS
        if not (rounds and isinstance(found, Tensor) and found.is_floating_point()):
            return found
        self.pattern = self.pattern.roll(1)
        return found * (1 + torch.finfo(found.dtype).eps * _repeated(self.pattern, found))


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
    rounding = _Rounding(before.device, generator)
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
        rounding = _Rounding(before.device, generator)
        noise = _rounded_otherwise(job, take(job.target_inputs, few), at_once, generator, rounding) - before
    finite = before.isfinite() & noise.isfinite()
    size, moved = (float(torch.where(finite, part, 0).double().norm()) for part in (before, noise))
    return moved / size if moved > WELL_CONDITIONED * size > 0 else 0.0


def _rounded_otherwise(
    job: Job, inputs: Inputs, at_once: int, generator: torch.Generator, rounding: _Rounding
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


def _pattern(length: int, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """−1, 0 and 1 at random."""
    return torch.randint(-1, 2, (length,), generator=generator, device=device, dtype=dtype)


def _repeated(pattern: Tensor, like: Tensor) -> Tensor:
    """A pattern, again and again, in the shape of a tensor."""
    repeats = -(-like.numel() // len(pattern))
    whole = pattern if repeats == 1 else pattern.repeat(repeats)
    return whole[: like.numel()].view(like.shape).to(like.dtype)


def alternating_signs(like: Tensor, pattern: int) -> Tensor:
    """+ − + − …, + + − − …, and so on, in the shape of a tensor: unlike random signs, no two patterns are equal."""
    places = torch.arange(like.numel(), device=like.device).view(like.shape)
    return 1.0 - 2.0 * ((places >> pattern) & 1).to(like.dtype)
