"""Linearized: the limit η → 0, from Jacobians; n + m backward passes instead of n·m forward passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from local_elasticity.engine.inputs import take
from local_elasticity.engine.jacobian import (
    Factors,
    contract,
    explicit_columns,
    gradient_factors,
    inner,
    jacobian_factors,
    loss_cotangents,
)
from local_elasticity.engine.job import Job, Rows, own_change
from local_elasticity.engine.problem import Inputs, Params
from local_elasticity.engine.tape import Layout, Matrices


@dataclass(frozen=True)
class Linearized:
    """First order in the step: δ(x′) = J(x′)(w⁺ − w). Not exact: it differs from the loop by a share of order η.

    It needs no subtraction of nearly equal numbers, so that it is right in float32 at any step size.
    """

    @property
    def exact(self) -> bool:
        return False

    def runner(self, job: Job) -> LinearizedRunner:
        return LinearizedRunner(job)


class LinearizedRunner:
    """Plain steps are inner products of gradients, layer by layer; other rules need each displacement written out.

    What the targets' Jacobians are made of is kept where half the memory holds it, and made anew in blocks where not.
    """

    subtracts = False

    def __init__(self, job: Job) -> None:
        self.job = job
        self.layout = Layout.of(job.moment, job.target_inputs)
        self.target_before = job.predict(job.moment.params, job.target_inputs, min(job.m, 1024))
        k = self.target_before.shape[1]
        columns = job.footprint.parameters
        if job.update.plain:
            size = self.target_before.element_size()
            columns = size * explicit_columns(job.moment, self.layout, job.target_inputs)
        self.per_example = 3 * k * columns + 2 * job.footprint.backward(k)
        fitting = max(1, job.memory // 2 // self.per_example)
        self.block = min(job.m, fitting)
        self.chunk = max(1, min(job.n, fitting // job.batch))
        self.kept: Factors | None = None

    @property
    def bytes(self) -> int:
        return self.per_example * (self.block + self.chunk * self.job.batch)

    def shrink(self) -> bool:
        smaller = max(1, self.block // 2), max(1, self.chunk // 2)
        shrunk = smaller < (self.block, self.chunk)
        (self.block, self.chunk), self.kept = smaller, None
        return shrunk

    def rows(self, start: int, stop: int) -> Rows:
        job = self.job
        inputs, labels = take(job.source_inputs, slice(start, stop)), job.source_labels[start:stop]
        examples = tree_map(lambda leaf: leaf.flatten(0, 1), inputs)
        with torch.no_grad():
            outputs = job.moment.outputs(job.moment.params, examples)
        loss_gradient = loss_cotangents(job.moment, outputs, labels)
        gradients = gradient_factors(job.moment, self.layout, examples, loss_gradient.flatten(0, 1))
        along: Callable[[Factors], Tensor]
        if job.update.plain:
            along = partial(self._plain_change, gradients)
        else:
            along = partial(contract, self._moved(gradients))
        target_change = self._target_change(along)
        if job.targets_are_sources:
            source_change = own_change(target_change, start)
        else:
            source_change = self._source_change(along, examples, stop - start)
        return Rows(source_change, target_change, loss_gradient, torch.ones_like(loss_gradient[:, 0, 0]), False)

    def _plain_change(self, gradients: Factors, of: Factors) -> Tensor:
        """−η ⟨∇ℓ of each row, J of each example⟩, the gradients of a row's batch summed: [c, b, k]."""
        products: Tensor = inner(gradients, of)[:, 0].unflatten(0, (-1, self.job.batch)).sum(1)
        return -self.job.update.step_size * products

    def _moved(self, gradients: Factors) -> Matrices:
        """The displacement that each row's gradient makes under a rule, [c, p_name]."""
        job, params = self.job, self.job.moment.params
        summed = {
            name: part[:, 0].unflatten(0, (-1, job.batch)).sum(1).reshape(-1, *params[name].shape)
            for name, part in gradients.matrices().items()
        }
        if job.update.vectorizes:
            moved: Params = vmap(job.rule, in_dims=(None, 0))(params, summed)
        else:
            rows = range(len(next(iter(summed.values()))))
            each = [job.rule(params, {name: part[i] for name, part in summed.items()}) for i in rows]
            moved = {name: torch.stack([one[name] for one in each]) for name in params}
        return {name: part.reshape(len(part), -1) for name, part in moved.items()}

    def _target_change(self, along: Callable[[Factors], Tensor]) -> Tensor:
        parts = [along(self._jacobian_of(slice(i, i + self.block))) for i in range(0, self.job.m, self.block)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _source_change(self, along: Callable[[Factors], Tensor], examples: Inputs, rows: int) -> Tensor:
        """Each row's change at its own batch, [c, B, k]."""
        own = jacobian_factors(self.job.moment, self.layout, examples)
        changes: Tensor = along(own).unflatten(1, (rows, self.job.batch))
        return changes[torch.arange(rows), torch.arange(rows)]

    def _jacobian_of(self, targets: slice) -> Factors:
        if self.block < self.job.m:
            return jacobian_factors(self.job.moment, self.layout, take(self.job.target_inputs, targets))
        if self.kept is None:
            self.kept = jacobian_factors(self.job.moment, self.layout, self.job.target_inputs)
        return self.kept
