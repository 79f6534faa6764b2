"""Structured: exact responses from differences passed through the network, with no copies of its weights.

All pairs pass through the shared weights in large products. Nothing is subtracted, so float32 is accurate at any step
size. It does not matter how a network is written. Every function that takes a changing value needs a rule (`rules/`),
or must be made of functions that have one. Unsupported functions are reported with their module.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from local_elasticity.engine.composites import COMPOSITES
from local_elasticity.engine.coverage import Coverage
from local_elasticity.engine.difference import (
    IN_PLACE,
    LINEAR,
    READ_AS,
    RULES,
    Difference,
    Writable,
    name_of,
)
from local_elasticity.engine.fast_paths.kernels import has_tensor_cores
from local_elasticity.engine.fast_paths.two_layer import NotTwoLayersError, TwoLayerRunner
from local_elasticity.engine.guard import WITHOUT_EFFECT
from local_elasticity.engine.inputs import count, spread, take
from local_elasticity.engine.job import Job, Runner, same_predictions
from local_elasticity.engine.looped import LoopedRunner
from local_elasticity.engine.memory import Live, may_be_passed_over
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.problem import Inputs, NoGradientError
from local_elasticity.engine.products import SPLIT_ROUNDING, Splits, by_parts
from local_elasticity.engine.rows import Rows, own_change
from local_elasticity.engine.rules import elementwise, in_place, layers, products, shapes
from local_elasticity.engine.steps import LINEAR_SHARE, Steps
from local_elasticity.engine.supported import ChangedChoiceError, UnsupportedModelError
from local_elasticity.engine.tape import ReusedParameterError
from local_elasticity.engine.update import SGD, Update

logger = logging.getLogger("local_elasticity")

READERS = {"elementwise": elementwise, "layers": layers, "products": products, "shapes": shapes, "in place": in_place}
"""The modules whose import registers the rules."""

_OPERATORS = {f"r{name}": name for name in ("add", "mul", "sub", "pow", "matmul", "div")} | {
    "getitem": "x[i]",
    "setitem": "x[i] = y",
    "rtruediv": "div",
    "truediv": "div",
    "iadd": "+=",
    "isub": "-=",
    "imul": "*=",
    "idiv": "/=",
    "itruediv": "/=",
}
"""Operators of Python by the names of their methods."""


def readable() -> dict[str, list[str]]:
    """The supported functions, by the module of their rule. Linear functions, those made of others, and those that
    write into a tensor have keys of their own."""
    found: dict[str, list[Any]] = {kind: [] for kind in ("elementwise", "layers", "products", "shapes")}
    for function, written in RULES.items():
        package, _, kind = str(written.__module__).rpartition(".")
        if package == elementwise.__package__:  # not a rule that a user added
            found[kind].append(function)
    found["linear"] = [*LINEAR, *READ_AS]
    found["composed"] = [function for function in COMPOSITES if function is not in_place.copied]
    found["in place"] = [*IN_PLACE, *WITHOUT_EFFECT]
    return {kind: sorted(set(map(_spelled, functions))) for kind, functions in found.items()}


def _spelled(function: Any) -> str:
    """How users write a function: a method or function by its name, a property as `.T`, an operator as in Python."""
    name = name_of(function)
    if name.startswith("Tensor."):
        return name.removeprefix("Tensor")
    inner = name.strip("_")
    if name.startswith("__"):
        return _OPERATORS.get(inner, inner)
    return re.sub("^(linalg|special)_", r"\1.", name.lstrip("_"))


TENSORS_A_PAIR = 16
"""The most tensors of the largest activation's size that a pair of source and target needs in a layer."""

WRITTEN_OUT = 6
"""Copies of a source's gradient of all parameters that are in memory if the update is not SGD."""

MEASURED_SOURCES = 8
"""Sources from which the size of a row is measured, at one tile of targets."""

MEASURED_SHARE = 0.7
"""The share of memory that chunks may take, from the measured size of a row; the rest is for workspaces."""

TILE_BYTES = {"cpu": 1 << 27}
"""Bytes of a tile of pairs on devices with small caches; on others, half of the memory."""

MOST_TARGETS = 64
"""The most targets in a tile. With small caches or little memory, a tile has about as many targets as sources: the
gradient of a source is shared by its targets, and the values before the step at a target by its sources."""

LIMITS_SHARE = 10
"""Limits are computed together with the rows if there are at least this many times as many rows."""

MOST_OUTPUTS = 256
"""The most outputs for which split products can distinguish a change from its rounding."""

TORCHS = os.path.dirname(torch.__file__) + os.sep
"""The folder of torch's own code."""

PROOF_SOURCES, PROOF_TARGETS, PROOF_STEP = 4, 8, 0.1
"""The spot check compares a few pairs with `Looped` in float64, for a step that flips units. Its sources and targets
are evenly spaced."""

PROVED, PROOF_ROUNDING = 1e-9, 1e-13
"""Allowed errors in float64: shares of the row's norm, and of the largest prediction, which the loop subtracts. On
devices without float64 they grow with the rounding unit, up to 1 %."""

PROVED_AT_ITS_OWN = 1e-6
"""Allowed error, as a share of the row's norm, for a step of the size asked for. It is used if gradients are so large
that rounding hides the larger step, or if that step changes choices."""


@dataclass(frozen=True)
class Structured:
    """Differences propagated layer by layer, for the steps of any update. Exact.

    Two-layer nets have a faster path (`two_layer.py`). On either path, a few pairs are compared with `Looped` first.

    Args:
        precision: of the products of differences in a float32 network: `"float32"`, or `"split_bf16"`, which a GPU
            computes on tensor cores, accurate to 2e-5. The default on a GPU is `"split_bf16"` for up to 256 outputs.
            Elsewhere the same products are computed in plain float32, which takes longer. Two-layer nets have products
            in float32.
    """

    precision: str | None = None
    exact = True

    def __post_init__(self) -> None:
        if self.precision not in (None, "float32", "split_bf16"):
            raise ValueError(f"precision: expected 'float32' or 'split_bf16', got {self.precision!r}")

    def runner(self, job: Job) -> Runner:
        return two_layer_runner(job) or differences_runner(job, self.precision)


def two_layer_runner(job: Job) -> TwoLayerRunner | None:
    """A checked runner for a two-layer net; None for any other."""
    what = job.kind_of_targets, job.plain, job.batch
    if _not_two_layers.get(job.bound, what):
        return None
    try:
        runner = TwoLayerRunner(job)
    except NotTwoLayersError:
        _not_two_layers.put(job.bound, what, True)
        return None
    spot_check(job, TwoLayerRunner)
    return runner


def differences_runner(job: Job, precision: str | None = None) -> StructuredRunner:
    """A checked runner for any supported net; an UnsupportedModelError names what is not supported."""
    runner = StructuredRunner(job, precision)
    spot_check(job, StructuredRunner)
    return runner


class StructuredRunner(Runner):
    subtracts = False

    share = 1.0
    """The share of each step that is taken; its effect is scaled up again."""

    capacity = 0
    """How many sources fit into memory at a time; it may exceed the number of sources."""

    def __init__(self, job: Job, precision: str | None = None) -> None:
        job.refuse_hooks("Structured")
        self.job = job
        self.splits = _splits(job, precision)
        self._before: Tensor | None = None
        self._at_sources: Tensor | None = None
        self.coverage = Coverage.of(job.bound, job.target_inputs)
        tile, pair = _tile_bytes(job), TENSORS_A_PAIR * job.footprint.largest
        pairs = max(1, tile // pair)
        most, balanced = min(job.m, pairs, MOST_TARGETS), max(pairs // job.n, math.isqrt(pairs))
        scarce = job.bound.device.type in TILE_BYTES or pairs < 2 * most
        self.at_once = min(most, balanced) if scarce else most
        written_out = not (job.plain or isinstance(job.update, SGD))
        self.fixed_bytes = 0
        self.row_bytes = self.at_once * pair + (WRITTEN_OUT * job.footprint.parameters if written_out else 0)
        self.chunk = self._fitting(tile)
        if self.chunk < job.n and job.bound.device.type not in TILE_BYTES:
            self.fixed_bytes, self.row_bytes = self._measured_bytes()
            self.chunk = max(self.chunk, self._fitting(int(MEASURED_SHARE * job.memory)))

    @property
    def target_before(self) -> Tensor:  # type: ignore[override]
        """Those of the sources' pass, where all targets are in it and gradients make no difference to the forward pass;
        else of a pass of its own."""
        job = self.job
        if self._before is None and self._at_sources is not None and job.alone is not None:
            ends = self._at_sources[[0, -1]]
            same = same_predictions(job.alone.to(ends.dtype), ends, job.bound.replica.coarsest)
            self._before = self._at_sources if same else None
        if self._before is None:
            fitting = max(1, job.memory // job.footprint.forward())
            self._before = job.predict(job.bound.params, job.target_inputs, min(job.m, fitting, 1024))
        return self._before

    @property
    def bytes(self) -> int:
        return self.fixed_bytes + self.chunk * self.row_bytes

    def _fitting(self, memory: int) -> int:
        """How many sources are computed at a time within this memory. Chunks are equally long, which leaves room for
        the sources whose limits are computed beside the rows."""
        self.capacity = max(1, (memory - self.fixed_bytes) // self.row_bytes)
        chunks = -(-self.job.n // self.capacity)
        return -(-self.job.n // chunks)

    def _measured_bytes(self) -> tuple[int, int]:
        """The memory of a few sources, as a constant and an amount for each, measured. A pair needs 4 to 17 tensors,
        depending on its patches; with the largest of these for all, chunks would be too small to fill a GPU.
        """
        what = self.job.kind_of_targets, self.at_once, self.job.batch, self.job.bound.dtype
        known = _bytes_taken.get(self.job.bound, what)
        if known is None:
            many = min(self.job.n, max(2, min(self.chunk, MEASURED_SOURCES)))
            few = many // 2
            each = -(-(self._live(many) - (less := self._live(few))) // (many - few))
            known = max(0, less - few * each), max(1, each)
            _bytes_taken.put(self.job.bound, what, known)
        return known

    def _live(self, sources: int) -> int:
        """The peak of bytes in use while some sources are computed at a tile of targets."""
        live, tile = Live(), take(self.job.target_inputs, slice(0, self.at_once))
        with live:
            steps = self._steps(0, sources, [])
            with torch.no_grad(), by_parts(self.splits):
                changes_at(self.job, steps, tile)
        return live.most

    def shrink(self) -> bool:
        smaller = max(1, self.chunk // 2), max(1, self.at_once // (1 if self.chunk > 1 else 2))
        shrunk = smaller < (self.chunk, self.at_once)
        self.chunk, self.at_once = smaller
        self.capacity = self.chunk
        return shrunk

    def rows(self, start: int, stop: int) -> Rows:
        job, sampled = self.job, self._sampled(start, stop)
        steps = self._steps(start, stop, sampled)
        if job.targets_are_sources and stop - start == job.n:
            self._at_sources = steps.predictions
        with torch.no_grad(), by_parts(self.splits):
            target_change = self._changes(steps, job.target_inputs)
            for place, row in enumerate(sampled, stop - start):
                assert job.sampled is not None
                job.sampled.limits[row] = target_change[place, job.sampled.targets] / LINEAR_SHARE
            target_change = target_change[: stop - start]
            if job.targets_are_sources:
                source_change = own_change(target_change, start)
            else:
                source_change = self._own_changes(steps, start, stop)
        if self.share != 1:
            source_change, target_change = source_change / self.share, target_change / self.share
        rounding = 0.0 if self.splits is None else SPLIT_ROUNDING
        realized = torch.full_like(steps.loss_gradient[:, 0, 0], 1 + rounding)
        return Rows.of(source_change, target_change, steps.loss_gradient, realized, subtracted=False)

    def _steps(self, start: int, stop: int, sampled: list[int]) -> Steps:
        try:
            return Steps.on(self.job, self.coverage, start, stop, self.share, sampled)
        except ReusedParameterError as error:
            self.coverage = self.coverage.without(error.names)
            return self._steps(start, stop, sampled)

    def _sampled(self, start: int, stop: int) -> list[int]:
        """The sources among these whose limits are computed together with their rows, if that adds little work. With a
        plain rule they are then twice in the batch, which a network that orders its batch by values may not take."""
        job = self.job
        has_limits = job.plain or not (isinstance(job.update, SGD) or job.removes_drift)
        if job.sampled is None or not has_limits or self.share != 1 or self.coverage.may_order:
            return []
        if job.n < LIMITS_SHARE * len(job.sampled.sources):
            return []
        found = [row for row in job.sampled.sources if start <= row < stop]
        return found if stop - start + len(found) <= self.capacity else []

    def _changes(self, steps: Steps, inputs: Inputs) -> Tensor:
        """[c, b, k], some targets at a time."""
        parts = [
            changes_at(self.job, steps, take(inputs, slice(i, i + self.at_once)))
            for i in range(0, count(inputs), self.at_once)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _own_changes(self, steps: Steps, start: int, stop: int) -> Tensor:
        """Each row's change at its own batch, [c, B, k]."""
        own = self.job.examples(slice(start, stop))
        changes: Tensor = self._changes(steps, own).unflatten(1, (stop - start, self.job.batch))
        rows = torch.arange(stop - start, device=changes.device)
        return changes[rows, rows]


class LimitRunner(StructuredRunner):
    """The limit η → 0 by differences: so small a share of each step that it is linear, scaled up again."""

    share = LINEAR_SHARE


def limits_of(job: Job) -> Tensor:
    """The limits η → 0 of a job with few pairs, [n, m, k], by the products that rows have: those of another precision
    would be compiled for these pairs alone."""
    steps = Steps.on(job, Coverage.of(job.bound, job.target_inputs), 0, job.n, LimitRunner.share)
    with torch.no_grad(), by_parts(_splits(job)):
        return changes_at(job, steps, job.target_inputs) / LimitRunner.share


def changes_at(job: Job, steps: Steps, inputs: Inputs) -> Tensor:
    """How the predictions at `inputs` change with each step: [c, b, k]."""
    differences = tree_map(lambda leaf: Difference.of(leaf, None), inputs)
    try:
        with Writable():
            out = job.bound.predict(steps.params, differences)
    except Exception as error:  # a forward pass may raise anything on differences
        if not may_be_passed_over(error):
            raise
        kind = ChangedChoiceError if isinstance(error, ChangedChoiceError) else UnsupportedModelError
        raise kind(f"engine: Structured cannot read {error}{_where(job, error.__traceback__)}") from error
    delta = out.delta if isinstance(out, Difference) else None
    if delta is None:
        return torch.zeros(len(steps.loss_gradient), *out.shape, dtype=out.dtype, device=out.device)
    return delta


_proved: ModelCache[bool] = ModelCache()
_bytes_taken: ModelCache[tuple[int, int]] = ModelCache()
_not_two_layers: ModelCache[bool] = ModelCache()


def spot_check(job: Job, kind: Callable[[Job], Runner], name: str = "Structured") -> None:
    """Compare a few pairs with the loop, in float64 where that is possible. Raise an UnsupportedModelError if they
    differ."""
    decay, problem = getattr(job.update, "weight_decay", 0.0), job.bound.problem
    loss = None if problem.loss_is_named else getattr(problem.loss, "__code__", type(problem.loss))
    few = min(job.n, 2), min(job.m, 2)  # one example alone may hide which axis is whose
    what = (kind, job.kind_of_targets, few, job.batch, bool(decay), loss)
    at_its_own = (*what, job.update.step_size)
    try:
        if not (_proved.get(job.bound, what) or _proved.get(job.bound, at_its_own)):
            if _agrees_at_the_trial_step(job, kind, decay):
                _proved.put(job.bound, what, True)
            elif _agrees(job, kind, SGD(job.update.step_size, decay), PROVED_AT_ITS_OWN, 0.0):
                _proved.put(job.bound, at_its_own, True)
            else:
                raise UnsupportedModelError(f"engine: {name} differs from the loop on this model; use engine='auto'")
        by_rule = (*what, type(job.update))
        if not (job.plain or isinstance(job.update, SGD) or _proved.get(job.bound, by_rule)):
            if not _agrees(job, kind, job.update, PROVED_AT_ITS_OWN, PROOF_ROUNDING):
                rule = type(job.update).__name__
                raise UnsupportedModelError(f"engine: {name} differs from the loop for steps of {rule} on this model")
            _proved.put(job.bound, by_rule, True)
    except (UnsupportedModelError, NoGradientError):
        raise
    except Exception as reason:  # a forward pass may raise anything in float64
        if not may_be_passed_over(reason):
            raise
        raise UnsupportedModelError(f"engine: {name} could not be checked against the loop ({reason})") from reason


def _agrees_at_the_trial_step(job: Job, kind: Callable[[Job], Runner], decay: float) -> bool:
    """Whether a few pairs are those of the loop for a step that flips units. It may change choices that smaller steps
    do not change."""
    try:
        return _agrees(job, kind, SGD(PROOF_STEP, decay), PROVED, PROOF_ROUNDING)
    except ChangedChoiceError:
        return False


def _agrees(job: Job, kind: Callable[[Job], Runner], update: Update, of_norm: float, of_largest: float) -> bool:
    """Whether a few pairs differ from the loop's by less than these shares of the row's norm and of the largest
    prediction, in float64 where the device and a loss of the user's take that.
    """
    if job.bound.device.type == "mps":
        return _agrees_in(torch.float32, job, kind, update, of_norm, of_largest)
    try:
        return _agrees_in(torch.float64, job, kind, update, of_norm, of_largest)
    except UnsupportedModelError:
        raise
    except Exception as error:  # a loss that creates tensors in float32 may raise anything
        if job.bound.problem.loss_is_named or not may_be_passed_over(error):
            raise
        return _agrees_in(job.bound.dtype, job, kind, update, of_norm, of_largest)


def _agrees_in(
    dtype: torch.dtype, job: Job, kind: Callable[[Job], Runner], update: Update, of_norm: float, of_largest: float
) -> bool:
    device = job.bound.device
    rows, some = spread(job.n, PROOF_SOURCES, device), spread(job.m, PROOF_TARGETS, device)
    with job.bound.problem.to(dtype).bound() as bound:
        few = job.few(bound, update, rows, some)
        unit = max(torch.finfo(dtype).eps, few.rounding_inside())
        looped = LoopedRunner(few)
        expected = looped.rows(0, len(rows)).target_change.flatten(1)
        found = kind(few).rows(0, len(rows)).target_change.flatten(1)
        expected, found = (torch.where(expected.isfinite(), part, 0) for part in (expected, found))
        largest = looped.target_before.nan_to_num(0, 0, 0).abs().max()
    norm, error = (torch.linalg.vector_norm(part, dim=1) for part in (expected, found - expected))
    coarser = unit / torch.finfo(torch.float64).eps
    allowed = min(1e-2, of_norm * coarser) * norm + of_largest * coarser * largest
    share = float((error / allowed.clamp_min(torch.finfo(allowed.dtype).tiny)).max())
    logger.info("structured: differs from the loop on a few pairs by %.0e of what is allowed", share)
    return share <= 1


def _splits(job: Job, precision: str | None = None) -> Splits | None:
    """The parts of weights for split products; None where products are computed in float32. The default is split
    products on a GPU with tensor cores for bfloat16, except while a graph is recorded, because parts are cached."""
    bound = job.bound
    if precision == "float32" or (precision is None and job.k > MOST_OUTPUTS) or bound.dtype != torch.float32:
        return None
    tensor_cores = has_tensor_cores(bound.device)
    if (precision is None and not tensor_cores) or (tensor_cores and torch.cuda.is_current_stream_capturing()):
        return None
    return Splits([*bound.params.values(), *bound.constants.values()], tensor_cores=tensor_cores)


def _tile_bytes(job: Job) -> int:
    return min(TILE_BYTES.get(job.bound.device.type, job.memory // 2), job.memory // 2)


def _where(job: Job, trace: TracebackType | None) -> str:
    """The innermost module in a traceback by its name in the model, and the line in its code unless it is of torch."""
    names, found = job.bound.replica.module_names(), ""
    while trace is not None:
        code = trace.tb_frame.f_code
        module = trace.tb_frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(module, nn.Module) and id(module) in names:
            found = f" in {names[id(module)] or 'the model'} ({type(module).__name__})"
            if not code.co_filename.startswith(TORCHS):
                found += f", {os.path.basename(code.co_filename)} line {trace.tb_lineno}"
        trace = trace.tb_next
    return found
