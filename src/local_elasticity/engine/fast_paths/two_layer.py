"""Two-layer nets: all pairs from a few matrix products, plus exact corrections for the units that flip.

f = V σ(W x + b) + c with σ = relu or identity, perhaps a sigmoid on top; plain SGD. A step on source i moves the hidden
units of target j by s_ij u_i, with s_ij = −η (x_i·x_j + 1) and u_i the loss gradient at the hidden units of the source.
With M = [Z > 0], H = relu(Z) and g = ∂ℓ/∂(V H + c) at the source, output k changes by

    Δ_ijk = s_ij Σ_r u_ir V_kr M_jr − η g_ik (H_i·H_j + 1) − η g_ik s_ij Σ_r H_ir u_ir M_jr + flips,
    flips = Σ_r (V_kr − η g_ik H_ir) relu(∓ s_ij u_ir − |Z_jr|),   − where the unit was on, + where it was off.

The two sums over M_jr are one product for each output, H_i·H_j is one more; a unit can flip only where
|Z_jr| ≤ max_i|s_ij| · max_i|u_ir|, a sparse set.
Parameters that do not step drop their term: x_i·x_j for W, the 1 beside it for b, H_i·H_j and H_ir u_ir for V, the
other 1 for c.

On a trained net the loss gradient, such as f − y, is a small difference. For sources where its rounding would matter,
it is computed from predictions in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine.fast_paths.flips import flips, tiles
from local_elasticity.engine.guard import FunctionMode
from local_elasticity.engine.inputs import take
from local_elasticity.engine.jacobian import symmetric_product
from local_elasticity.engine.job import Job, Runner
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.problem import Inputs, as_predictions
from local_elasticity.engine.replica import flatten_tree
from local_elasticity.engine.rows import Rows, own_change
from local_elasticity.engine.rules.elementwise import sigmoid_change

PRECISE_AT_ONCE = {"cpu": 1 << 12, "cuda": 1 << 16}
"""Hidden units of a forward pass in float64 at a time."""

UNITS_AT_ONCE = {"cpu": 1 << 11, "cuda": 1 << 14}
"""Hidden units whose share of the changes is computed at a time."""

OWN_AT_ONCE = 64
"""Sources in a block. All pairs of a block are computed if only the own changes of sources are needed."""

RIGHT = 1e-6
"""Relative rounding of a loss gradient that is accepted."""

FORWARD_ROUNDING = 4
"""Rounding of a prediction, in units of the root of the sum of squares of its terms."""

_RELUS = (torch.relu, torch.relu_, F.relu, Tensor.relu)
_SIGMOIDS = (torch.sigmoid, F.sigmoid, Tensor.sigmoid)
_RESHAPES = (torch.flatten, torch.reshape, torch.squeeze, Tensor.flatten, Tensor.reshape, Tensor.view, Tensor.squeeze)
_KINDS = {
    ("linear", "relu", "linear"): (True, False),
    ("linear", "linear"): (False, False),
    ("linear", "relu", "linear", "sigmoid"): (True, True),
    ("linear", "linear", "sigmoid"): (False, True),
}
"""The functions of a two-layer net in order → (whether it has ReLUs, whether it ends in a sigmoid)."""


class NotTwoLayersError(ValueError):
    """Not a net of two linear layers, or not one that steps by plain SGD on single examples."""


@dataclass(frozen=True)
class Pass:
    """A forward pass of b examples: inputs x [b, d], Z and H = σ(Z) [b, h], what the sigmoid gets [b, k], outputs."""

    x: Tensor
    Z: Tensor
    H: Tensor
    top: Tensor
    outputs: Tensor

    def some(self, rows: slice | Tensor) -> Pass:
        """The same of some of the examples."""
        return Pass(*(part[rows] for part in vars(self).values()))


@dataclass(frozen=True)
class HiddenStep:
    """Sources: inputs x, hidden activations H, and the loss gradients g at the top."""

    x: Tensor
    H: Tensor
    g: Tensor


class _Watch(FunctionMode):
    """Records the functions that act on activations, and the inputs and outputs of the linear ones."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.linear: list[tuple[Tensor, Tensor, Tensor | None, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = torch.relu(args[0]) if func in _RELUS else func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) for leaf in flatten_tree(result)) and func not in _RESHAPES:
            self.names.append(_name(func))
            if func is F.linear:
                self.linear.append((*_linear_arguments(*args, **(kwargs or {})), result))
        return result


class TwoLayerRunner(Runner):
    """A chunk of sources against a block of targets at a time."""

    subtracts = False

    def __init__(self, job: Job) -> None:
        self.job = job
        one = take(job.target_inputs, slice(0, 1))
        with torch.no_grad(), _Watch() as seen:
            job.bound.outputs(job.bound.params, one)
        kind = _KINDS.get(tuple(seen.names))
        if (
            kind is None
            or not job.plain
            or job.bound.alters_gradients
            or job.batch > 1
            or any(x.ndim != 2 for x, *_ in seen.linear)
        ):
            raise NotTwoLayersError
        self.relu, self.sigmoid = kind
        (_, self.W, self.b, _), (_, self.V, self.c, _) = seen.linear
        if self.W is self.V or (self.b is not None and self.b is self.c):
            raise NotTwoLayersError
        stepping = {id(p) for p in job.bound.params.values()}
        self.W_steps, self.b_steps, self.V_steps, self.c_steps = (
            id(part) in stepping for part in (self.W, self.b, self.V, self.c)
        )
        if self.W_steps + self.b_steps + self.V_steps + self.c_steps < len(stepping):
            raise NotTwoLayersError
        self.per_example: int = (6 + len(self.V)) * self.V.shape[1] * self.V.element_size()
        fitting = max(1, job.memory // 2 // self.per_example)
        self.at_once, self.chunk = min(job.m, fitting), min(job.n, fitting)
        self.kept: Pass | None = None
        with torch.no_grad():
            outputs = [self._target(slice(i, i + self.at_once)).outputs for i in range(0, job.m, self.at_once)]
        self.target_before = as_predictions(torch.cat(outputs))

    @property
    def bytes(self) -> int:
        return int(self.per_example * (self.at_once + self.chunk))

    def shrink(self) -> bool:
        smaller = max(1, self.chunk // 2), max(1, self.at_once // 2)
        shrunk = smaller < (self.chunk, self.at_once)
        (self.chunk, self.at_once), self.kept = smaller, None
        return shrunk

    def rows(self, start: int, stop: int) -> Rows:
        job = self.job
        with torch.no_grad():
            source = self._source(start, stop)
            loss_gradient, g = self._gradients(source, job.source_labels[start:stop])
            step = HiddenStep(source.x, source.H, g)
            parts = [
                self._changes(step, self._target(slice(i, i + self.at_once))) for i in range(0, job.m, self.at_once)
            ]
            target_change = parts[0][0] if len(parts) == 1 else torch.cat([part for part, _ in parts], dim=1)
            rough = torch.stack([part for _, part in parts]).amax(0)
            if job.targets_are_sources:
                own = own_change(target_change, start)
            else:
                own, of_own = self._own_changes(step, source)
                rough = torch.maximum(rough, of_own)
            size = own.flatten(1).norm(dim=1).clamp_min(torch.finfo(own.dtype).tiny)
        return Rows.of(own, target_change, loss_gradient, 1 + rough / size, subtracted=False)

    def _own_changes(self, step: HiddenStep, source: Pass) -> tuple[Tensor, Tensor]:
        """Each source's change at itself, [c, 1, k], from the pairs among a few sources at a time, and its rounding."""
        parts, rough = [], []
        for i in range(0, len(step.x), OWN_AT_ONCE):
            some = slice(i, i + OWN_AT_ONCE)
            few = HiddenStep(*(part[some] for part in (step.x, step.H, step.g)))
            at = source.some(some)
            found, rounding = self._changes(few, at)
            parts.append(own_change(found, 0))
            rough.append(rounding)
        return torch.cat(parts), torch.cat(rough)

    def _target(self, rows: slice) -> Pass:
        """The forward pass of a block of targets; cached if there is one block only."""
        if self.kept is None or self.at_once < self.job.m:
            self.kept = self.run(take(self.job.target_inputs, rows))
        return self.kept

    def _source(self, start: int, stop: int) -> Pass:
        if self.job.targets_are_sources and self.at_once == self.job.m:
            kept = self._target(slice(None))
            if stop - start == self.job.n:
                return kept
            return kept.some(slice(start, stop))
        return self.run(self.job.examples(slice(start, stop)))

    def run(self, inputs: Inputs) -> Pass:
        """A forward pass, with its functions recorded."""
        with _Watch() as seen:
            outputs = self.job.bound.outputs(self.job.bound.params, inputs)
        if len(seen.linear) != 2 or tuple(seen.names) not in _KINDS:
            raise NotTwoLayersError  # a large batch is taken in pieces
        (x, _, _, Z), (H, _, _, top) = seen.linear
        return Pass(x, Z, H, top, outputs)

    def _gradients(self, source: Pass, labels: Tensor) -> tuple[Tensor, Tensor]:
        """∂ℓ/∂f [c, 1, k] and g = ∂ℓ/∂(V H + c) [c, k], from predictions in float64 if rounding would matter. It counts
        as noise where a loss of the user's, such as one with weights in float32, does not take those."""
        loss_gradient, g = self._gradients_at(source.top, labels)
        if g.dtype == torch.float64 or g.device.type == "mps":
            return loss_gradient, g
        squares = self.V.square().sum(0)
        summed = torch.cat([source.H[rows].square() @ squares for rows in tiles(source.H)]).sqrt()
        rounding = FORWARD_ROUNDING * torch.finfo(g.dtype).eps * summed
        small = ~(rounding < RIGHT * g.norm(dim=1))
        rows = torch.nonzero(small if self.job.bound.problem.loss_is_named else torch.ones_like(small)).flatten()
        if len(rows):
            try:
                precise = self._gradients_at(self._precise_top(source.x[rows]), labels[rows])
            except Exception as error:  # any error of a loss that was written for one precision
                if self.job.bound.problem.loss_is_named or not may_be_passed_over(error):
                    raise
                return loss_gradient, g
            loss_gradient, g = (
                rough.index_copy(0, rows, part.to(g.dtype))
                for rough, part in zip((loss_gradient, g), precise, strict=True)
            )
        return loss_gradient, g

    def _gradients_at(self, top: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        outputs = torch.sigmoid(top) if self.sigmoid else top
        labels = labels.to(top.dtype) if labels.is_floating_point() else labels
        loss_gradient = self.job.bound.loss_gradients(outputs.reshape(-1, *self.job.output_shape), labels)
        g = loss_gradient[:, 0]
        return loss_gradient, g * outputs * (1 - outputs) if self.sigmoid else g

    def _precise_top(self, x: Tensor) -> Tensor:
        """V σ(W x + b) + c in float64, some hidden units at a time."""
        x = x.double()
        top = x.new_zeros(len(x), len(self.V)) if self.c is None else self.c.double().repeat(len(x), 1)
        at_once = PRECISE_AT_ONCE.get(x.device.type, PRECISE_AT_ONCE["cpu"])
        for r in range(0, len(self.W), at_once):
            units = slice(r, r + at_once)
            bias = None if self.b is None else self.b[units].double()
            Z = F.linear(x, self.W[units].double(), bias)
            top.addmm_(Z.relu_() if self.relu else Z, self.V[:, units].double().T)
        return top

    def _changes(self, step: HiddenStep, target: Pass) -> tuple[Tensor, Tensor]:
        """Δ [c, t, k] of the predictions at a block of targets, and the rounding [c] of the correction for units that
        flip. If a large step turns units off, this correction cancels with the change that was counted first."""
        rate = self.job.update.step_size
        shape = len(step.x), len(target.x)
        rough = step.x.new_zeros(len(step.x))
        top = _product(step.H, target.H) if self.V_steps else step.x.new_zeros(shape)
        delta = -rate * step.g[:, None] * (top + 1 if self.c_steps else top)[:, :, None]
        if self.W_steps or self.b_steps:
            met = step.x @ target.x.T if self.W_steps else step.x.new_zeros(shape)
            s = -rate * (met + 1 if self.b_steps else met)
            delta += s[:, :, None] * self._through_hidden(step, target)
            if self.relu:
                flipped = flips(target.Z, s, step.H, self.V, step.g, rate if self.V_steps else 0.0)
                rough = torch.finfo(delta.dtype).eps * flipped.abs().flatten(1).amax(1)
                delta += flipped
        return sigmoid_change(target.top, delta) if self.sigmoid else delta, rough

    def _through_hidden(self, step: HiddenStep, target: Pass) -> Tensor:
        """Σ_r (V_kr − η g_ik H_ir) u_ir M_jr, [c, t, k], some hidden units at a time; without ReLUs all are on."""
        through = step.H.new_zeros(len(self.V), len(step.x), len(target.x) if self.relu else 1)
        at_once = UNITS_AT_ONCE.get(step.H.device.type, UNITS_AT_ONCE["cpu"])
        for r in range(0, self.V.shape[1], at_once):
            units = slice(r, r + at_once)
            on = torch.sign(target.H[:, units]).T if self.relu else None
            for of_output, moved in zip(through, self._moved(step, units), strict=True):
                if on is None:
                    of_output += moved.sum(1, keepdim=True)
                else:
                    of_output.addmm_(moved, on)
        return through.permute(1, 2, 0).expand(-1, len(target.x), -1)

    def _moved(self, step: HiddenStep, units: slice) -> Iterator[Tensor]:
        """(V_kr − η g_ik H_ir) u_ir of some hidden units, [c, units], for each output k."""
        rate = self.job.update.step_size if self.V_steps else 0.0
        H, V = step.H[:, units], self.V[:, units]
        u = step.g @ V
        if self.relu:
            u.mul_(H > 0)
        for k in range(len(V)):
            yield torch.addcmul(V[k], H, step.g[:, k, None], value=-rate).mul_(u)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left rightᵀ; only half of it is computed if both are the same."""
    return symmetric_product(left) if left is right else left @ right.T


def _name(func: Any) -> str:
    if func is F.linear:
        return "linear"
    return "relu" if func in _RELUS else "sigmoid" if func in _SIGMOIDS else "other"


def _linear_arguments(
    input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias
