"""Similarities among primary points, read off a network: at frozen weights, or along the walk of Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from local_elasticity.clustering.checks import UnusableSimilarityError
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.progress import ProgressOption
from local_elasticity.engine.respond import respond
from local_elasticity.engine.response import Response
from local_elasticity.engine.sequential import respond_in_sequence
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.update import SGD
from local_elasticity.measures.kernel import kernel, self_kernel
from local_elasticity.measures.relative import relative

TOGETHER = 128
"""Points whose own similarities are read in a go; engines read them off all pairs among those."""


@dataclass(frozen=True)
class SimilarityProbe:
    """How similarities are read: `relative` or `kernel`, from a step of `step_size` down the loss at the label 1, or
    from the limit of ever smaller steps where it is None.
    """

    relative: bool
    loss: str
    step_size: float | None
    progress: ProgressOption = None

    def frozen(self, net: nn.Module, x: Tensor) -> Tensor:
        """A step on each of n points, all from the same weights, read at all of them: [n, n], NaN in rows that did not
        move.

        >>> import torch
        >>> net, x = torch.nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> SimilarityProbe(False, "half_mse", None).frozen(net, x).round(decimals=4)  # a linear model: x·x′
        tensor([[1., 1.],
                [1., 2.]])
        """
        return self._measure(_finite(self._respond(net, x, None)))

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
        n, stream = int((y == 1).sum()), orders.flatten()
        walk = partial(
            respond_in_sequence,
            stream=(x[stream], y[stream]),
            targets=x[:n],
            update=SGD(self.step_size),
            record=(stream < n).cpu(),
            progress=self.progress,
        )
        problem = Problem.of(net, self.loss)
        S = self._measure(_finite(walk(problem)))
        if S.isnan().any():
            S = self._measure(_finite(walk(problem.to(torch.float64))))
        place = stream[stream < n].reshape(len(orders), n).argsort(1)
        rows = S.reshape(len(orders), n, n)
        return torch.stack([rows[i, place[i]] for i in range(len(orders))]).nanmean(0)

    def towards(self, net: nn.Module, few: Tensor, x: Tensor, *, memory: int | None = None) -> Tensor:
        """A step on each of a few points, read at x: [few, n]."""
        return self._measure(self._respond(net, few, x, memory))

    def own(self, net: nn.Module, x: Tensor, *, memory: int | None = None) -> Tensor:
        """The similarity of each point with itself, [n]; NaN for those that did not move."""
        parts = (self._respond(net, part, part[:1], memory) for part in x.split(TOGETHER))
        return torch.cat([self._own(_finite(response)) for response in parts])

    def between(self, net: nn.Module, new: Tensor, x: Tensor, *, memory: int | None = None) -> tuple[Tensor, Tensor]:
        """The symmetrised similarities of new points with x, [m, n], and of each with itself, [m]. A direction that did
        not move is left out.
        """
        there, back = self._respond(net, new, x, memory), self._respond(net, x, new, memory)
        both = torch.stack([self._measure(there), self._measure(back).T]).nanmean(0)
        return both, both.new_ones(len(both)) if self.relative else self_kernel(there)

    def _own(self, response: Response) -> Tensor:
        own = torch.ones_like(response.step_size) if self.relative else self_kernel(response)
        return torch.where(self._measure(response)[:, 0].isfinite(), own, torch.nan)

    def _measure(self, response: Response) -> Tensor:
        return relative(response) if self.relative else kernel(response)

    def _respond(self, net: nn.Module, sources: Tensor, targets: Tensor | None, memory: int | None = None) -> Response:
        """By the linearized engine in the limit, else by the structured one, or the plain loop in float64 where that
        cannot read the network. There is no race of engines, which another one could win the next time and change the
        last bits.
        """
        problem, pair = Problem.of(net, self.loss), (sources, torch.ones(len(sources), device=sources.device))
        respond_to = partial(respond, sources=pair, targets=targets, memory=memory, progress=self.progress)
        if self.step_size is None:
            return respond_to(problem, engine="linearized")
        update = SGD(self.step_size)
        try:
            return respond_to(problem, update=update, engine="structured")
        except UnsupportedModelError:
            return respond_to(problem.to(torch.float64), update=update, engine="looped")


def _finite(response: Response) -> Response:
    if not response.target_change.isfinite().all():
        raise UnusableSimilarityError(
            "X: predictions became infinite under the steps on its points; take a smaller step_size or learning_rate"
        )
    return response
