"""Structured: exact responses from differences passed through the network, with no copies of its weights.

All pairs go through the shared weights in large products, and nothing is subtracted, so that it is right in float32 at
any step size. It reads networks however they are written, as long as every function that a moving value goes into has a
rule (`rules/`) or is made of functions that have one; what it cannot read it names.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from local_elasticity.engine.composites import COMPOSITES
from local_elasticity.engine.coverage import Coverage
from local_elasticity.engine.difference import LINEAR, RULES, Difference
from local_elasticity.engine.fast_paths.two_layer import NotTwoLayersError, TwoLayerRunner
from local_elasticity.engine.inputs import count, spread, take
from local_elasticity.engine.job import Job, Runner
from local_elasticity.engine.looped import LoopedRunner
from local_elasticity.engine.memory import Live, may_be_passed_over
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.problem import Inputs
from local_elasticity.engine.products import SPLIT_ROUNDING, Splits, by_parts
from local_elasticity.engine.rows import Rows, own_change
from local_elasticity.engine.rules import elementwise, layers, products, shapes
from local_elasticity.engine.steps import LINEAR_SHARE, Steps
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.tape import ReusedParameterError
from local_elasticity.engine.update import SGD, Update

logger = logging.getLogger("local_elasticity")

READERS = {"elementwise": elementwise, "layers": layers, "products": products, "shapes": shapes}
"""The modules whose import registers the rules."""


def readable() -> dict[str, list[str]]:
    """The functions that can be read, by the module of their rule; those that are linear, and those that are made of
    others, by themselves."""
    found: dict[str, list[str]] = {kind: [] for kind in (*READERS, "linear", "recurrent")}
    for function, written in RULES.items():
        package, _, kind = written.__module__.rpartition(".")
        if package == elementwise.__package__:  # and not a rule of a user's
            found[kind].append(_name(function))
    found["linear"] = [_name(function) for function in LINEAR]
    found["recurrent"] = [_name(function) for function in COMPOSITES]
    return {kind: sorted(set(names)) for kind, names in found.items()}


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function)).strip("_")


TENSORS_A_PAIR = 16
"""How many tensors of the largest activation's size a pair of source and target takes, at most, while it passes a
layer."""

WRITTEN_OUT = 6
"""How many times a source's gradient of all parameters is there, where a rule other than SGD's makes a step of it."""

MEASURED_SHARE = 0.7
"""Of the memory, how much chunks may take by what a row was seen to take; the rest is for workspaces."""

TILE_BYTES = {"cpu": 1 << 27}
"""What a tile of pairs may take where caches are small; elsewhere half of the memory."""

MOST_TARGETS = 64
"""Targets of a tile. Where caches are small, or memory is, it has about as many of them as of sources, since either
brings work that the others share: the gradient of a source, and the values before the step at a target."""

LIMITS_SHARE = 10
"""As many times more rows than limits there are at least, where limits are found beside the rows."""

MOST_OUTPUTS = 256
"""Outputs up to which products by parts are precise enough to tell a change in all of them from its rounding."""

PROOF_SOURCES, PROOF_TARGETS, PROOF_STEP = 4, 8, 0.1
"""Before it is trusted, a few pairs are compared with `Looped` in float64, for a step that flips units. Sources and
targets are far apart in the order that they were given in."""

PROVED, PROOF_ROUNDING = 1e-9, 1e-13
"""By how much they may differ: of the row's norm, and of the largest prediction, which the loop subtracts. In float32,
where there is nothing finer, by as much more as its rounding is coarser, but not by more than a percent."""

PROVED_AT_ITS_OWN = 1e-6
"""By how much of the row's norm they may differ for a step of the asked size, where a large one drowns in its own
rounding: the gradients of a net that is about to diverge are huge."""


@dataclass(frozen=True)
class Structured:
    """Differences propagated layer by layer, for the steps of any update. Exact.

    Two-layer nets take a shorter way (`two_layer.py`). Whichever it is, a few pairs are compared with `Looped` first.

    Args:
        precision: of the products of differences in a float32 network: `"float32"`, or `"split_bf16"`, which a GPU
            computes on tensor cores, right to 2e-5. By default the latter on a GPU, where so much can be told apart.
    """

    precision: str | None = None

    def __post_init__(self) -> None:
        if self.precision not in (None, "float32", "split_bf16"):
            raise ValueError(f"precision: expected 'float32' or 'split_bf16', got {self.precision!r}")

    @property
    def exact(self) -> bool:
        return True

    def runner(self, job: Job) -> Runner:
        return two_layer_runner(job) or differences_runner(job, self.precision)


def two_layer_runner(job: Job) -> TwoLayerRunner | None:
    """A checked runner for a net that is one of two layers; None for any other."""
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
    """A checked runner for any net that can be read; an UnsupportedModelError says what cannot."""
    runner = StructuredRunner(job, precision)
    spot_check(job, StructuredRunner)
    return runner


class StructuredRunner(Runner):
    subtracts = False

    share = 1.0
    """Of a step, how much is taken; its effect is scaled up again."""

    room = 0
    """How many sources fit into memory at a time, more than there are perhaps."""

    def __init__(self, job: Job, precision: str | None = None) -> None:
        if job.bound.hooks:
            raise UnsupportedModelError("engine: Structured cannot run hooks on parameters; use engine='auto'")
        if job.bound.alters_gradients:
            raise UnsupportedModelError("engine: Structured cannot run backward hooks of modules; use engine='auto'")
        self.job = job
        by_default = "split_bf16" if job.bound.device.type == "cuda" and job.k <= MOST_OUTPUTS else "float32"
        self.splits = None
        if (precision or by_default) == "split_bf16" and _splits(job):
            self.splits = Splits([*job.bound.params.values(), *job.bound.constants.values()])
        self.coverage = Coverage.of(job.bound, job.target_inputs)
        fitting = max(1, job.memory // job.footprint.forward())
        self.target_before = job.predict(job.bound.params, job.target_inputs, min(job.m, fitting, 1024))
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
    def bytes(self) -> int:
        return self.fixed_bytes + self.chunk * self.row_bytes

    def _fitting(self, memory: int) -> int:
        """How many sources a time."""
        self.room = max(1, (memory - self.fixed_bytes) // self.row_bytes)
        return min(self.job.n, self.room)

    def _measured_bytes(self) -> tuple[int, int]:
        """What a few sources take, as a constant and so much for each: a pair is 4 to 17 tensors, as patches are many
        or few, and an estimate that holds for all would make chunks so small that a GPU waits for the next.
        """
        what = self.job.kind_of_targets, self.at_once, self.job.batch, self.job.bound.dtype
        known = _bytes_taken.get(self.job.bound, what)
        if known is None:
            many = min(self.job.n, max(2, self.chunk))
            few = many // 2
            each = -(-(self._live(many) - (less := self._live(few))) // (many - few))
            known = max(0, less - few * each), max(1, each)
            _bytes_taken.put(self.job.bound, what, known)
        return known

    def _live(self, sources: int) -> int:
        """The most bytes that are alive at a time while some sources are taken."""
        live = Live()
        with live:
            self.rows(0, sources)
        return live.most

    def shrink(self) -> bool:
        smaller = max(1, self.chunk // 2), max(1, self.at_once // (1 if self.chunk > 1 else 2))
        shrunk = smaller < (self.chunk, self.at_once)
        self.chunk, self.at_once = smaller
        self.room = self.chunk
        return shrunk

    def rows(self, start: int, stop: int) -> Rows:
        job, sampled = self.job, self._sampled(start, stop)
        try:
            steps = Steps.on(job, self.coverage, start, stop, self.share, sampled)
        except ReusedParameterError as error:
            self.coverage = self.coverage.without(error.names)
            return self.rows(start, stop)
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

    def _sampled(self, start: int, stop: int) -> list[int]:
        """The sources among these whose limits are found beside their rows, where that is little work."""
        job = self.job
        if job.sampled is None or not job.plain or self.share != 1 or job.n < LIMITS_SHARE * len(job.sampled.sources):
            return []
        found = [row for row in job.sampled.sources if start <= row < stop]
        return found if stop - start + len(found) <= self.room else []

    def _changes(self, steps: Steps, inputs: Inputs) -> Tensor:
        """[c, b, k], some targets at a time."""
        parts = [
            changes_at(self.job, steps, take(inputs, slice(i, i + self.at_once)))
            for i in range(0, count(inputs), self.at_once)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _own_changes(self, steps: Steps, start: int, stop: int) -> Tensor:
        """Each row's change at its own batch, [c, B, k]."""
        own = tree_map(lambda leaf: leaf.flatten(0, 1), take(self.job.source_inputs, slice(start, stop)))
        changes: Tensor = self._changes(steps, own).unflatten(1, (stop - start, self.job.batch))
        rows = torch.arange(stop - start, device=changes.device)
        return changes[rows, rows]


class LimitRunner(StructuredRunner):
    """The limit η → 0 by differences: so small a share of each step that it is linear, scaled up again."""

    share = LINEAR_SHARE


def limits_of(job: Job) -> Tensor:
    """The limits η → 0 of a job with few pairs, [n, m, k], in the network's own precision."""
    steps = Steps.on(job, Coverage.of(job.bound, job.target_inputs), 0, job.n, LimitRunner.share)
    with torch.no_grad():
        return changes_at(job, steps, job.target_inputs) / LimitRunner.share


def changes_at(job: Job, steps: Steps, inputs: Inputs) -> Tensor:
    """How the predictions at `inputs` change with each step: [c, b, k]."""
    differences = tree_map(lambda leaf: Difference.of(leaf, None), inputs)
    try:
        out = job.bound.predict(steps.params, differences)
    except Exception as error:  # whatever a forward pass raises that was not made for differences
        if not may_be_passed_over(error):
            raise
        raise UnsupportedModelError(
            f"engine: Structured cannot read {error}{_where(job, error.__traceback__)}"
        ) from error
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
    decay = getattr(job.update, "weight_decay", 0.0)
    what = (kind, job.kind_of_targets, job.batch, bool(decay))
    at_its_own = (*what, job.update.step_size)
    try:
        if not (_proved.get(job.bound, what) or _proved.get(job.bound, at_its_own)):
            if _agrees(job, kind, SGD(PROOF_STEP, decay), PROVED, PROOF_ROUNDING):
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
    except UnsupportedModelError:
        raise
    except Exception as reason:  # whatever a forward pass raises that was not made for float64
        if not may_be_passed_over(reason):
            raise
        raise UnsupportedModelError(f"engine: {name} could not be checked against the loop ({reason})") from reason


def _agrees(job: Job, kind: Callable[[Job], Runner], update: Update, of_norm: float, of_largest: float) -> bool:
    """Whether a few pairs differ from the loop's by less than these shares of the row's norm and of the largest
    prediction, in float64 where that is possible.
    """
    device = job.bound.device
    rows, some = spread(job.n, PROOF_SOURCES, device), spread(job.m, PROOF_TARGETS, device)
    dtype = torch.float32 if job.bound.device.type == "mps" else torch.float64
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


def _splits(job: Job) -> bool:
    """Whether products by parts can be had: on a GPU with tensor cores for bfloat16, and not while it records, since
    the parts of weights are kept."""
    if job.bound.dtype != torch.float32 or job.bound.device.type != "cuda" or torch.version.hip is not None:
        return False
    has_cores = torch.cuda.get_device_capability(job.bound.device) >= (8, 0)
    return has_cores and not torch.cuda.is_current_stream_capturing()


def _tile_bytes(job: Job) -> int:
    return min(TILE_BYTES.get(job.bound.device.type, job.memory // 2), job.memory // 2)


def _where(job: Job, trace: TracebackType | None) -> str:
    """The innermost module in a traceback, by its name in the model."""
    names, found = job.bound.replica.module_names(), ""
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in names:
            found = f" in {names[id(module)] or 'the model'} ({type(module).__name__})"
        trace = trace.tb_next
    return found
