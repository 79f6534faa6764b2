"""Similarities among primary points, read off a network: at frozen weights, or along the walk of Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from local_elasticity.clustering.from_similarity import UnusableSimilarityError
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.progress import ProgressOption
from local_elasticity.engine.response import Response
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.update import DEFAULT_UPDATE, SGD
from local_elasticity.measurement import Measurement
from local_elasticity.measures.kernel import KERNEL, kernel, self_kernel
from local_elasticity.measures.measure import Measure, Scores
from local_elasticity.measures.relative import RELATIVE

SOURCES_AT_ONCE = 128
"""Points whose own similarities are computed together; engines compute all pairs among them."""


def _kernel_with_diagonal(response: Response) -> Scores:
    return Scores(kernel(response), self_kernel(response))


KERNEL_WITH_DIAGONAL = Measure(KERNEL.name, KERNEL.words, _kernel_with_diagonal, signed=True)
"""S_ker, and that of every source with itself."""


@dataclass(frozen=True)
class SimilarityProbe:
    """How similarities are read: `relative` or `kernel`, from a step of `step_size` down the loss at the label 1, or
    from the limit of ever smaller steps where it is None.
    """

    relative: bool
    loss: str
    step_size: float | None
    progress: ProgressOption = None

    @property
    def measure(self) -> Measure:
        return RELATIVE if self.relative else KERNEL_WITH_DIAGONAL

    def frozen(self, net: nn.Module, x: Tensor) -> Tensor:
        """A step on each of n points, all from the same weights, read at all of them: [n, n], NaN in rows that did not
        move.

        >>> import torch
        >>> net, x = torch.nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> SimilarityProbe(False, "half_mse", None).frozen(net, x).round(decimals=4)  # a linear model: x·x′
        tensor([[1., 1.],
                [1., 2.]])
        """
        return self._scores(net, x, finite=True).values

    def in_sequence(self, net: nn.Module, x: Tensor, y: Tensor, *, orders: Tensor) -> Tensor:
        """Algorithm 1: a step on one point after another, in the given orders [passes, all], each from where the last
        one ended. What a step on primary i (those with y = 1 come first) did to all n of them is row i: [n, n]. Passes
        are averaged. A walk that rounding hides a row of is walked again in float64.

        >>> import torch
        >>> x, y = torch.eye(2), torch.tensor([1.0, -1.0])
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> SimilarityProbe(True, "half_mse", 1e-3).in_sequence(net, x, y, orders=torch.tensor([[1, 0]]))
        tensor([[1.]])
        """
        if self.step_size is None:
            raise ValueError("step_size: a sequence of steps needs one")
        n, stream, update = int((y == 1).sum()), orders.flatten(), SGD(self.step_size)
        problem, pair = Problem.of(net, self.loss), (x[stream], y[stream])

        def walked(problem: Problem) -> Tensor:
            measurement = Measurement.read(problem, pair, x[:n], measures=(self.measure,), update=update)
            walk = measurement.walk((stream < n).cpu(), self.progress)
            return measurement.score(self.measure, _finite(walk)).values

        S = walked(problem)
        if S.isnan().any():
            S = walked(problem.to(torch.float64))
        place = stream[stream < n].reshape(len(orders), n).argsort(1)
        rows = S.reshape(len(orders), n, n)
        return torch.stack([rows[i, place[i]] for i in range(len(orders))]).nanmean(0)

    def towards(self, net: nn.Module, few: Tensor, x: Tensor, *, memory: int | None = None) -> Tensor:
        """A step on each of a few points, read at x: [few, n]."""
        return self._scores(net, few, x, memory).values

    def own(self, net: nn.Module, x: Tensor, *, memory: int | None = None) -> Tensor:
        """The similarity of each point with itself, [n]; NaN for those that did not move."""
        parts = [self._scores(net, part, part[:1], memory, finite=True) for part in x.split(SOURCES_AT_ONCE)]
        return torch.cat([torch.where(part.values[:, 0].isfinite(), self._diagonal(part), torch.nan) for part in parts])

    def between(self, net: nn.Module, new: Tensor, x: Tensor, *, memory: int | None = None) -> tuple[Tensor, Tensor]:
        """The symmetrised similarities of new points with x, [m, n], and of each with itself, [m]. A direction that did
        not move is left out.
        """
        there, back = self._scores(net, new, x, memory), self._scores(net, x, new, memory)
        return torch.stack([there.values, back.values.T]).nanmean(0), self._diagonal(there)

    def _diagonal(self, scores: Scores) -> Tensor:
        assert scores.own is not None
        return torch.ones_like(scores.own) if self.relative else scores.own

    def _scores(
        self,
        net: nn.Module,
        sources: Tensor,
        targets: Tensor | None = None,
        memory: int | None = None,
        *,
        finite: bool = False,
    ) -> Scores:
        """By the linearized engine in the limit, else by the structured one, or the plain loop in float64 where that
        does not support the network. Engines do not race: another winner would change the last bits.
        """
        problem, pair = Problem.of(net, self.loss), (sources, torch.ones(len(sources), device=sources.device))

        def scores(problem: Problem, engine: str) -> Scores:
            update = DEFAULT_UPDATE if self.step_size is None else SGD(self.step_size)
            measurement = Measurement.read(
                problem, pair, targets, measures=(self.measure,), update=update, engine=engine, memory=memory
            )
            response = measurement.respond(self.progress)
            return measurement.score(self.measure, _finite(response) if finite else response)

        if self.step_size is None:
            return scores(problem, "linearized")
        try:
            return scores(problem, "structured")
        except UnsupportedModelError:
            return scores(problem.to(torch.float64), "looped")


def _finite(response: Response) -> Response:
    if not response.target_change.isfinite().all():
        raise UnusableSimilarityError(
            "X: predictions became infinite under the steps on its points; take a smaller step_size or learning_rate"
        )
    return response
