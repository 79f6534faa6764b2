"""What one step on each of c sources does to every parameter, from one backward pass over the sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine.changes import LowRank, TokenRows, WeightChange
from local_elasticity.engine.coverage import Coverage
from local_elasticity.engine.difference import Difference
from local_elasticity.engine.jacobian import summed
from local_elasticity.engine.job import Job
from local_elasticity.engine.left_over import left_over_gradients
from local_elasticity.engine.replica import Params
from local_elasticity.engine.tape import Tape
from local_elasticity.engine.update import SGD, FromOptimizer
from local_elasticity.engine.uses import EmbeddingUse, LinearUse, Use
from local_elasticity.shapes import Float

PLACES = 16
"""Places are padded to multiples of this on a GPU, as its fast kernels require."""

LINEAR_SHARE = 1e-6
"""Of a step, a share so small that changes are linear in it."""


@dataclass(frozen=True)
class Steps:
    """The parameters with the changes that steps on c sources make to them, the loss gradients they come from, and the
    predictions at the sources before the steps."""

    params: Params
    loss_gradient: Float[Tensor, "c batch k"]
    predictions: Float[Tensor, "b k"]

    @classmethod
    def on(
        cls, job: Job, coverage: Coverage, start: int, stop: int, share: float = 1.0, again: Sequence[int] = ()
    ) -> Steps:
        """One backward pass over the sources start … stop − 1; the parameters change by this share of a step. The
        sources `again`, which are among them, follow with `LINEAR_SHARE` of theirs: of the gradient with a plain rule,
        and of the displacement with any other."""
        bound, c = job.bound, stop - start
        twice = again if job.plain else ()
        rows = torch.tensor([*range(start, stop), *twice], device=bound.device) if twice else slice(start, stop)
        inputs = job.examples(rows)
        tape = coverage.record(bound, inputs)
        loss_gradient = bound.loss_gradients(tape.outputs, job.source_labels[rows])
        if twice:
            loss_gradient[c:] *= LINEAR_SHARE
        cotangents = loss_gradient.flatten(0, 1)
        uses = list(zip(tape.uses, tape.gradients_at_uses(cotangents[:, None]), strict=True))
        with torch.no_grad():
            gradients = _Gradients(job, tape, uses, slice(start, stop + len(twice)), share)
            if coverage.unsupported:
                gradients.add(left_over_gradients(bound, coverage.unsupported, inputs, cotangents))
            if job.plain or isinstance(job.update, SGD):
                made = gradients.stepped()
            else:
                made = gradients.moved([row - start for row in again])
        return cls(made, loss_gradient[:c], tape.predictions.detach()[: c * job.batch])


class _Gradients:
    """∇_w ℓ of c sources: as vectors where a weight has those, else written out."""

    def __init__(self, job: Job, tape: Tape, uses: list[tuple[Use, Tensor]], rows: slice, share: float) -> None:
        self.job, self.start, self.c, self.share = job, rows.start, rows.stop - rows.start, share
        self.vectors: dict[str, list[LowRank | TokenRows]] = {}
        self.written: Params = {}
        for use, q in uses:
            direct = use.weight is not None and use.weight not in tape.derived
            if use.weight is not None and direct and (use.outer or isinstance(use, EmbeddingUse)):
                self.vectors.setdefault(use.weight, []).append(self._vectors(use, q))
                use = replace(use, weight=None)
            self.add(tape.pulled_back(use.gradients(q)))

    def add(self, gradients: Params) -> None:
        """Of single examples, [c · B, 1, p]; those of a batch are summed."""
        for name, part in gradients.items():
            shape = self.job.bound.params[name].shape
            summed = part.reshape(self.c, self.job.batch, *shape)
            summed = summed[:, 0] if self.job.batch == 1 else summed.sum(1)
            self.written[name] = self.written[name] + summed if name in self.written else summed

    def stepped(self) -> Params:
        """The change that a step of SGD makes: −η (g + λ w)."""
        rate = self.share * self.job.update.step_size
        decay = rate * getattr(self.job.update, "weight_decay", 0.0)
        made: Params = {}
        for name, p in self.job.bound.params.items():
            if name not in self.vectors and name not in self.written and not decay:
                made[name] = Difference.of(p, None)
            elif name in self.vectors and name not in self.written:
                parts = tuple(_times(-rate, part) for part in _joined(self.vectors[name]))
                made[name] = Difference.of(p, None, WeightChange(parts, decay))
            else:
                moved = -rate * self._whole(name)
                made[name] = Difference.of(p, moved - decay * p if decay else moved)
        return made

    def moved(self, again: list[int]) -> Params:
        """The change that any other rule makes of the gradients, followed by `LINEAR_SHARE` of those of some rows. An
        optimizer skips what no source reaches."""
        job, params = self.job, self.job.bound.params
        skips = isinstance(job.update, FromOptimizer)
        reached = [name for name in params if name in self.vectors or name in self.written or not skips]
        changes = job.displacements({name: self._whole(name) for name in reached}, self.start)
        moved = {name: self.share * part for name, part in changes.items()}
        if again:
            moved = {name: torch.cat([part, LINEAR_SHARE * part[again]]) for name, part in moved.items()}
        return {name: Difference.of(p, moved.get(name)) for name, p in params.items()}

    def _whole(self, name: str) -> Tensor:
        p = self.job.bound.params[name]
        parts = [part.dense(p.shape) for part in self.vectors.get(name, [])]
        parts += [self.written[name]] if name in self.written else []
        if not parts:
            return p.new_zeros(self.c, *p.shape)
        return summed(parts)

    def _vectors(self, use: Use, q: Tensor) -> LowRank | TokenRows:
        if isinstance(use, EmbeddingUse):
            tokens, at = use.tokens(q)
            return TokenRows(tokens.reshape(self.c, -1), at.reshape(self.c, -1, at.shape[-1]))
        a, at = (part.reshape(self.c, -1, part.shape[-1]) for part in use.places(q, channels_last=True))
        odd = -a.shape[1] % PLACES if a.is_cuda else 0
        a, at = (F.pad(part, (0, 0, 0, odd)) if odd else part for part in (a, at))
        return LowRank(a, at, isinstance(use, LinearUse) and use.transposed)


def _times(rate: float, part: LowRank | TokenRows) -> LowRank | TokenRows:
    if isinstance(part, TokenRows):
        return TokenRows(part.tokens, rate * part.g)
    return LowRank(part.a, rate * part.q, part.transposed)


def _joined(parts: list[LowRank | TokenRows]) -> Iterator[LowRank | TokenRows]:
    """The same; outer products of several uses are joined into those of one use with more places."""
    for transposed in (False, True):
        alike = [part for part in parts if isinstance(part, LowRank) and part.transposed is transposed]
        if len(alike) > 1:
            a, q = (torch.cat([getattr(part, side) for part in alike], 1) for side in ("a", "q"))
            alike = [LowRank(a, q, transposed)]
        yield from alike
    yield from (part for part in parts if isinstance(part, TokenRows))
