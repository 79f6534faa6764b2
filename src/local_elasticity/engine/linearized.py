"""Linearized: the limit η → 0, from Jacobians; n + m backward passes instead of n·m forward passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from local_elasticity.engine.coverage import Coverage
from local_elasticity.engine.inputs import spread, take
from local_elasticity.engine.jacobian import (
    Factors,
    columns_at_once,
    contract,
    every_output,
    explicit_columns,
    gram,
    inner,
    inner_own,
    jacobian_factors,
    layers_along,
    summed,
)
from local_elasticity.engine.job import Job, Runner
from local_elasticity.engine.looped import LoopedRunner
from local_elasticity.engine.memory import is_out_of_memory, may_be_passed_over
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.problem import as_predictions
from local_elasticity.engine.rows import Rows, own_change
from local_elasticity.engine.structured import WRITTEN_OUT, LimitRunner, StructuredRunner, spot_check
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.tape import ReusedParameterError
from local_elasticity.engine.update import SGD, rule_of
from local_elasticity.engine.uses import Matrices

FEW_SOURCES, FEW_TARGETS, SMALL_STEP = 2, 8, 1e-6
"""The pairs on which it is compared with a loop in float64, for steps that change predictions by so much."""

SOURCES_AN_OUTPUT = {"cpu": 2, "cuda": 10}
"""Sources for each output, up to which differences take less time than Jacobians. On a CPU both take the same time at
1.0 to 4.5 sources, the median is 2.1 (five networks with 10 and 40 outputs, benchmarks/linear.py). The figure for a GPU
is an estimate: a pass of a pair on tensor cores costs about as much as a backward pass of a target along four outputs.
"""

ALLOWED = 0.01
"""Deviations above this share are reported in the notes."""


@dataclass(frozen=True)
class Linearized:
    """First order in the step: δ(x′) = J(x′)(w⁺ − w). Not exact: it differs from the loop by a share of order η.

    It needs no subtraction of nearly equal numbers, so that it is right in float32 at any step size.
    """

    exact = False

    def runner(self, job: Job) -> Runner:
        notes = notes_on_the_limit(job)
        runner = None if notes else _forwards(job)
        if runner is not None:
            return runner
        backwards = LinearizedRunner(job)
        backwards.notes = notes
        return backwards


def notes_on_the_limit(job: Job) -> tuple[str, ...]:
    """A note if products of gradients are not the limit of small steps; an UnsupportedModelError if they cannot be."""
    if job.bound.alters_gradients:
        raise UnsupportedModelError("engine: Linearized cannot follow backward hooks of modules; use engine='auto'")
    effects = job.bound.replica.effects
    if effects is not None and effects.tensors & set(job.bound.params):
        raise UnsupportedModelError("engine: Linearized cannot follow a forward pass that writes its weights")
    off = deviation_from_the_limit(job)
    if off <= ALLOWED:
        return ()
    return (
        f"linearized: {off:.0%} off the limit of small steps on a few pairs; gradients are not the derivative "
        "of what the model computes (detach, hooks, straight-through), or units are exactly at a kink",
    )


def _forwards(job: Job) -> LimitRunner | None:
    """Differences of a small share of each step, in float32, if there are so many outputs that this is faster than
    Jacobians: differences take a pass for each pair, Jacobians a backward pass for each target and output."""
    most = SOURCES_AN_OUTPUT.get(job.bound.device.type, 0) * job.k
    if job.bound.dtype != torch.float32 or job.n * job.batch > most:
        return None
    try:
        runner = LimitRunner(job)
        spot_check(job, StructuredRunner)
    except UnsupportedModelError:
        return None
    return runner


class LinearizedRunner(Runner):
    """Plain steps are inner products of gradients, layer by layer; other rules need each displacement written out.

    What the targets' Jacobians are made of is kept if half of the memory holds it. If not, the sources' gradients are
    kept, and the Jacobians of some targets at a time meet them layer by layer.
    Where the targets are the sources, their gradients are combinations of the same Jacobians; with one output the
    kernel is symmetric besides, and half of it is enough.
    """

    subtracts = False

    def __init__(self, job: Job) -> None:
        self.job = job
        coverage = Coverage.of(job.bound, job.target_inputs)
        self.coverage = replace(coverage, keeps_vectors=job.plain and job.k > 1)
        size = torch.finfo(job.bound.dtype).bits // 8
        columns = size * explicit_columns(job.bound, self.coverage) if job.plain else job.footprint.parameters
        passes = job.footprint.backward() + job.k * job.footprint.activations
        self.per_example = 3 * job.k * columns + passes
        fitting = max(1, job.memory // 2 // self.per_example)
        if fitting < job.m or fitting < job.n * job.batch:
            # the sources' gradients are kept, and meet the targets' Jacobians layer by layer
            self.per_example = 3 * job.k * size * columns_at_once(job.bound, self.coverage) + passes
            fitting = max(1, job.memory // 2 // self.per_example)
            copies = 3 if job.plain else WRITTEN_OUT
            kept = max(1, job.memory // 2 // (copies * columns + 2 * job.footprint.backward()))
            self.block, self.chunk = min(job.m, fitting), max(1, min(job.n, kept // job.batch))
            self.streams = True
        else:
            self.block, self.chunk, self.streams = job.m, job.n, False
        self.kept: Factors | None = None
        self.kernel: Tensor | None = None

    @property
    def bytes(self) -> int:
        return self.per_example * (self.block + self.chunk * self.job.batch)

    @property
    def keeps(self) -> bool:
        """Whether the Jacobians of all targets are kept."""
        return self.block == self.job.m and not self.streams

    @property
    def shared(self) -> bool:
        """Whether the sources' gradients come from the Jacobians that are kept for the targets."""
        return self.job.targets_are_sources and self.keeps

    def shrink(self) -> bool:
        smaller = max(1, self.block // 2), max(1, self.chunk // 2)
        shrunk = smaller < (self.block, self.chunk)
        (self.block, self.chunk), self.kept, self.kernel = smaller, None, None
        return shrunk

    def rows(self, start: int, stop: int) -> Rows:
        try:
            found = (self._shared_rows if self.shared else self._rows)(start, stop)
        except ReusedParameterError as error:
            self.coverage, self.kept, self.kernel = self.coverage.without(error.names), None, None
            return self.rows(start, stop)
        loss_gradient, target_change, source_change = found
        return Rows.of(source_change, target_change, loss_gradient, subtracted=False)

    @cached_property
    def target_before(self) -> Tensor:  # type: ignore[override]
        """Predictions at the targets, with their Jacobians where those are kept; in smaller blocks if memory ends."""
        while self.keeps:
            try:
                outputs, self.kept = jacobian_factors(self.job.bound, self.coverage, self.job.target_inputs)
            except ReusedParameterError as error:
                self.coverage = self.coverage.without(error.names)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or not self.shrink():
                    raise
            else:
                return as_predictions(outputs)
        return self.job.predict(self.job.bound.params, self.job.target_inputs, self.block)

    def _shared_rows(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        job, jacobians = self.job, self._jacobian_of(slice(None))
        loss_gradient = job.bound.loss_gradients(self._outputs(start, stop), job.source_labels[start:stop])
        g = loss_gradient[:, 0]
        if job.plain and g.shape[1] == 1:
            if self.kernel is None:
                self.kernel = gram(jacobians)
            change = (-job.update.step_size * g * self.kernel[start:stop])[:, :, None]
        else:
            some = jacobians.take(slice(start, stop)).along(g)
            change = self._along(list(some.by_layer()), start)(jacobians.by_layer())
        return loss_gradient, change, own_change(change, start)

    def _rows(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        job = self.job
        examples = job.examples(slice(start, stop))
        tape = self.coverage.record(job.bound, examples)
        loss_gradient = job.bound.loss_gradients(tape.outputs, job.source_labels[start:stop])
        cotangents = loss_gradient.flatten(0, 1)[:, None]
        layers = self._arranged(layers_along(job.bound, self.coverage, tape, examples, cotangents))
        sources = list(layers)
        along = self._along(sources, start)
        blocks = range(0, job.m, self.block)
        target_change = torch.cat([along(self._layers_of(slice(i, i + self.block))) for i in blocks], dim=1)
        if job.targets_are_sources:
            return loss_gradient, target_change, own_change(target_change, start)
        own = self._arranged(layers_along(job.bound, self.coverage, tape, examples, every_output(tape)))
        if job.plain and job.batch == 1:
            met = summed(inner_own(one, other) for one, other in zip(sources, own, strict=True))
            return loss_gradient, target_change, -job.update.step_size * met[:, None]
        changes = along(own)
        rows = torch.arange(stop - start, device=changes.device)
        return loss_gradient, target_change, changes.reshape(len(rows), len(rows), job.batch, -1)[rows, rows]

    def _arranged(self, layers: Iterable[Factors]) -> Iterable[Factors]:
        """Layer by layer, or parameter by parameter where the Jacobians are kept."""
        return Factors.of_layers(layers).by_layer() if self.keeps else layers

    def _layers_of(self, targets: slice) -> Iterable[Factors]:
        """The Jacobians of some targets, a layer at a time."""
        if self.keeps:
            return self._jacobian_of(targets).by_layer()
        inputs = take(self.job.target_inputs, targets)
        tape = self.coverage.record(self.job.bound, inputs)
        return layers_along(self.job.bound, self.coverage, tape, inputs, every_output(tape))

    def _along(self, sources: list[Factors], start: int) -> Callable[[Iterable[Factors]], Tensor]:
        """What a step along each row's gradient does to the predictions that Jacobians belong to: [c, b, k]."""
        if self.job.plain:
            return partial(self._plain_change, sources)
        moved = self._moved(Factors.of_layers(sources), start)
        return lambda of: summed(contract(moved, layer) for layer in of)

    def _plain_change(self, sources: list[Factors], of: Iterable[Factors]) -> Tensor:
        """−η ⟨∇ℓ of each row, J of each example⟩, the gradients of a row's batch summed."""
        met = summed(inner(one, other) for one, other in zip(sources, of, strict=True))
        products: Tensor = met[:, 0].unflatten(0, (-1, self.job.batch)).sum(1)
        return -self.job.update.step_size * products

    def _moved(self, gradients: Factors, start: int) -> Matrices:
        """The displacement that each row's gradient makes under a rule, [c, p_name]."""
        job, params = self.job, self.job.bound.params
        of_rows = {
            name: part[:, 0].unflatten(0, (-1, job.batch)).sum(1).reshape(-1, *params[name].shape)
            for name, part in gradients.matrices().items()
        }
        moved = job.displacements(of_rows, start)
        return {name: part.reshape(len(part), -1) for name, part in moved.items()}

    def _outputs(self, start: int, stop: int) -> Tensor:
        """The sources' outputs in the shape that the loss reads."""
        with torch.no_grad():
            one = self.job.bound.outputs(self.job.bound.params, take(self.job.target_inputs, slice(0, 1)))
        return self.target_before[start:stop].reshape(-1, *one.shape[1:])

    def _jacobian_of(self, targets: slice) -> Factors:
        if self.kept is None:
            self.kept = jacobian_factors(self.job.bound, self.coverage, self.job.target_inputs)[1]
        return self.kept if targets == slice(None) else self.kept.take(targets)


_deviations: ModelCache[float] = ModelCache()


def deviation_from_the_limit(job: Job) -> float:
    """By how much of the row's norm a few rows differ from those of a loop with a small step, in float64; 0 if there
    is no float64. Found once for a model."""
    what = job.kind_of_targets, job.batch, *job.bound.sizes
    found = _deviations.get(job.bound, what)
    if found is None:
        try:
            found = 0.0 if job.bound.device.type == "mps" else _deviation(job)
        except Exception as error:  # whatever a forward pass raises that was not made for float64
            if not may_be_passed_over(error):
                raise
            found = 0.0
        _deviations.put(job.bound, what, found)
    return found


def _deviation(job: Job) -> float:
    few, some = (spread(size, many, job.bound.device) for size, many in ((job.n, FEW_SOURCES), (job.m, FEW_TARGETS)))
    with job.bound.problem.to(torch.float64).bound() as bound:
        part = job.few(bound, SGD(1.0), few, some)
        runner = LinearizedRunner(part)
        if runner.bytes > job.memory:
            return 0.0
        unit = runner.rows(0, len(few)).target_change.flatten(1)
        largest = float(unit.abs().max())
        if not 0 < largest < math.inf or part.rounding_inside():
            return 0.0
        step = SGD(SMALL_STEP / largest)
        small = replace(part, update=step, rule=rule_of(step, bound))
        limit = LoopedRunner(small).rows(0, len(few)).target_change.flatten(1) / step.step_size
    off, sizes = (unit - limit).norm(dim=1), limit.norm(dim=1)
    return float((off / sizes.clamp_min(ALLOWED * largest)).max())
