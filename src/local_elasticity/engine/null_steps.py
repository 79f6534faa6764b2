"""Null steps: weights and functions rounded otherwise, to measure what rounding alone does to predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from local_elasticity.engine.inputs import cast_floats, scattered, take
from local_elasticity.engine.job import Job, octaves_of, predictions
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.problem import BoundProblem, Inputs
from local_elasticity.engine.replica import Params
from local_elasticity.engine.rounding import Rounding, repeated, run_rounded
from local_elasticity.shapes import Float

NULL_SAMPLES = 16
"""The least number of examples times null steps from which the noise is estimated."""

PATTERN = 65537
"""The length of the random patterns of weights; a prime, so that they do not align with rows or channels."""

WELL_CONDITIONED = 5e-4
"""Predictions that rounding moves by less than this share of them come from values that are known well enough."""

LEAST_SPREAD = 1e-3
"""Predictions of different examples are taken to differ by at least this share of their size."""


class NullSteps:
    """Predictions of some examples, again and again, with weights and functions rounded otherwise."""

    def __init__(self, job: Job, inputs: Inputs, at_once: int, device: torch.device) -> None:
        self.job, self.inputs, self.at_once = job, inputs, at_once
        self.generator = torch.Generator(device).manual_seed(0)
        self.rounding = Rounding.at_random(device, self.generator)
        self.ways: list[Callable[[], Tensor]] = [
            lambda: self._rounded(weights=True, functions=True),
            self._in_float64,
            lambda: self._rounded(weights=True, functions=False),
            lambda: self._rounded(weights=False, functions=True),
        ]

    def predictions(self) -> Float[Tensor, "b k"] | None:
        """Of one null step. Where the network cannot be run so, as it checks its own numbers: those of float64, if it
        takes that, else with weights or functions alone; None where it cannot be run at all."""
        while self.ways:
            try:
                return self.ways[0]()
            except Exception as error:  # whatever a network raises whose numbers are not those that it expects
                if not may_be_passed_over(error):
                    raise
                del self.ways[0]
        return None

    def _rounded(self, *, weights: bool, functions: bool) -> Tensor:
        job, plain = self.job, self.job.bound.params
        moved = _rounded_weights(job.bound, self.generator) if weights else plain

        def predicted(params: Params = moved) -> Tensor:
            return job.predict(params, self.inputs, self.at_once)

        return run_rounded(self.rounding, predicted, lambda: predicted(plain)) if functions else predicted()

    def _in_float64(self) -> Tensor:
        dtype = self.job.bound.dtype
        if dtype == torch.float64:
            raise RuntimeError("there is no higher precision")
        with self.job.bound.problem.to(torch.float64).bound() as bound:
            bound.replica.effects = self.job.bound.replica.effects
            inputs = cast_floats(self.inputs, torch.float64)
            return predictions(bound, bound.params, inputs, self.at_once).to(dtype)


def null_noise(job: Job, inputs: Inputs, before: Float[Tensor, "b k"], at_once: int) -> Float[Tensor, "b k"]:
    """Standard deviation of predictions at weights that differ by rounding only.

    Few null steps give a rough figure for a single example, so it is never taken to be below the root mean square
    over all of them. Predictions that are not finite are left out; one that rounding makes so is all noise.
    """
    null_steps, squares = NullSteps(job, inputs, at_once, before.device), torch.zeros_like(before)
    steps = -(-NULL_SAMPLES // len(before))
    finite = before.isfinite()
    largest = torch.where(finite, before, 0).abs().amax()
    scale = largest.clamp_min(torch.finfo(before.dtype).tiny) * torch.finfo(before.dtype).eps
    for _ in range(steps):
        squares += torch.where(finite, _difference(null_steps, before) / scale, 0).square()
    own = (squares / steps).sqrt()
    typical = (squares.sum() / steps / finite.sum().clamp_min(1)).sqrt()
    return scale * own.clamp_min(typical)


@dataclass(frozen=True)
class OutputRounding:
    """What rounding does to predictions.

    Attributes:
        share: the share of them that it moves, 0 where they are well conditioned. Changes that are not subtracted are
            computed from the same activations, and are wrong by about this share. It is a share of how far a prediction
            is from the median over examples, or how far a typical one is if that is more, since a large bias says
            nothing about activations. Of the examples' shares it is the second largest, since they may differ in scale.
        typical: how far it moves one, the root mean square.
    """

    share: float = 0.0
    typical: float = 0.0

    @classmethod
    def of(cls, before: Float[Tensor, "b k"], noise: Float[Tensor, "b k"]) -> OutputRounding:
        """From predictions, and by how much rounding moves each."""
        finite = before.isfinite() & noise.isfinite()
        known, moved = (torch.where(finite, part, 0).double() for part in (before, noise))
        off = moved.norm(dim=1)
        size = known.norm(dim=1)
        if len(before) > 1:
            middle = _median(torch.where(finite, known, torch.nan))
            apart = torch.where(finite, known - middle, 0).norm(dim=1)
            size = apart.clamp_min(max(float(apart.median()), LEAST_SPREAD * float(size.median())))
        shares = torch.where(size > 0, off / size, 0).sort(descending=True).values
        share = float(shares[min(1, len(shares) - 1)])
        typical = float(moved.norm()) / max(1, int(finite.sum())) ** 0.5
        return cls(share if share > WELL_CONDITIONED else 0.0, typical)


def _median(values: Float[Tensor, "b k"]) -> Float[Tensor, " k"]:
    """Of the first axis, without NaN; 0 where there is nothing else. On a GPU torch has no deterministic median along
    an axis, and says so where it is asked to compute deterministically."""
    in_order = values.sort(0).values
    middle = ((~values.isnan()).sum(0) - 1).clamp_min(0) // 2
    return in_order.gather(0, middle[None])[0].nan_to_num(0.0)


def rounding_at_few(job: Job, before: Float[Tensor, "m k"]) -> OutputRounding:
    """Of the predictions at a few targets, by one null step. It is found once for a model and data, and again for
    other data, and where a weight, predictions or their spread grow or shrink by about two."""
    octaves = octaves_of([before, before - before.mean(0)])
    what = job.kind_of_targets, job.bound.dtype, job.bound.replica.coarsest, job.magnitudes, octaves
    found = _found.get(job.bound, what)
    if found is None:
        few = scattered(job.m, NULL_SAMPLES, job.bound.device)
        at_once = max(1, job.memory // job.footprint.forward())
        null_steps = NullSteps(job, take(job.target_inputs, few), at_once, before.device)
        found = OutputRounding.of(before[few], _difference(null_steps, before[few]))
        _found.put(job.bound, what, found)
    return found


_found: ModelCache[OutputRounding] = ModelCache()


def _difference(null_steps: NullSteps, before: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
    moved = null_steps.predictions()
    if moved is None:
        return torch.finfo(before.dtype).eps * before.abs()
    return torch.where(moved.isfinite(), moved - before, before.abs())


def _rounded_weights(bound: BoundProblem, generator: torch.Generator) -> Params:
    """Every weight moved up, down or not at all by one rounding unit: the coarsest of the weights and of what is
    computed from them."""
    floating = [p for p in (*bound.params.values(), *bound.constants.values()) if p.is_floating_point()]
    unit = max(*(torch.finfo(p.dtype).eps for p in floating), bound.replica.coarsest)
    lengths = [max(1, min(PATTERN, p.numel())) for p in bound.params.values()]
    pattern = torch.randint(-1, 2, (sum(lengths),), generator=generator, device=bound.device, dtype=bound.dtype)
    parts = (1 + unit * pattern).split(lengths)
    weights = list(bound.params.values())
    moved = torch._foreach_mul([repeated(part, p) for part, p in zip(parts, weights, strict=True)], weights)
    return dict(zip(bound.params, moved, strict=True))
