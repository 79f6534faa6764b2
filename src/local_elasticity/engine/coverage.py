"""The layout: which parameters of a network the tape understands, found on examples and checked against autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from local_elasticity.engine.inputs import count, take
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.problem import BoundProblem, Inputs, gradient
from local_elasticity.engine.replica import Params
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.tape import Tape, Use, leaves_of, record

T = TypeVar("T")

MOST_PLACES = 8
"""Inner products over pairs of places take memory that grows with their square."""

CANDIDATES = 8
"""Examples among which those that a layout is found on are chosen."""

COMPARED = 1 << 20
"""Entries of a weight's gradient that are compared with autograd's before a layer is believed to be understood."""


@dataclass(frozen=True)
class Coverage:
    """Which parameters the tape understands in this network, and which are left over. Found and checked on examples."""

    understood: tuple[str, ...]
    unsupported: tuple[str, ...]
    low_rank: frozenset[str]
    """Those whose gradients are kept as vectors, because there are few places or they are large."""

    @classmethod
    def of(cls, bound: BoundProblem, inputs: Inputs) -> Coverage:
        """The layout of this network for such inputs, found once and remembered."""
        shapes = _shapes(inputs)
        found = _coverages.get(bound, shapes)
        if found is None:
            try:
                found = cls._found(bound, inputs)
            except RuntimeError as error:
                if "vmapped" not in str(error) or not may_be_passed_over(error):
                    raise
                raise UnsupportedModelError(
                    "model: its forward pass uses torch.func, inside of which gradients cannot be recorded; only "
                    "le.respond and measures of a response can take it"
                ) from error
            _coverages.put(bound, shapes, found)
        return found

    @classmethod
    def _found(cls, bound: BoundProblem, inputs: Inputs) -> Coverage:
        """Record three examples, and compare the gradients of the middle one with autograd's own; and a few together
        with each of them alone.

        This catches inputs whose first axis is not the examples, functions that mix examples, and networks that sort
        their batch.
        """
        if bound.replica.effects is None:
            bound.watched(take(inputs, slice(0, 1)))
        if bound.replica.effects is not None and bound.replica.effects.coarsest:
            raise UnsupportedModelError(
                "model: its forward pass computes in half precision, as under autocast, so that gradients are rough; "
                "pass problem.to(torch.float64), which autocast leaves alone"
            )
        some = _finite(bound, inputs)
        leaves = leaves_of(bound.params)
        tape = record(bound, leaves, take(inputs, _three(some)))
        misplaced = _misplaced(bound, inputs, some)
        predictions = tape.predictions
        cotangents = torch.zeros_like(predictions)
        cotangents[1] = torch.linspace(1, 2, cotangents.shape[1], dtype=cotangents.dtype, device=cotangents.device)
        right = gradient(predictions, leaves, cotangents, retain=True)
        at_uses = tape.gradients_at_uses(cotangents[:, None])
        in_place = [(use, q) for use, q in zip(tape.uses, at_uses, strict=True) if misplaced.isdisjoint(use.names)]
        read = [(use, q) for use, q in in_place if _is_right(use, q, right)]
        understood = [name for use, _ in read for name in use.names]
        low_rank = [name for use, q in read if _better_as_vectors(use, q, predictions.shape[1]) for name in use.names]
        unsupported = tuple(name for name in leaves if name not in understood)
        return cls(tuple(understood), unsupported, frozenset(low_rank))

    def without(self, names: frozenset[str]) -> Coverage:
        """The same with some parameters left over."""
        understood = tuple(name for name in self.understood if name not in names)
        return Coverage(understood, (*self.unsupported, *names), self.low_rank - names)

    def record(self, bound: BoundProblem, inputs: Inputs) -> Tape:
        """Run the network on a batch and keep what its gradients need."""
        tape = record(bound, leaves_of(bound.params), inputs, self.understood)
        in_pieces = frozenset(self.understood) - {name for use in tape.uses for name in use.names}
        if in_pieces:
            raise ReusedParameterError(in_pieces)
        return tape


class ReusedParameterError(RuntimeError):
    """Parameters that a few examples meet once, and a larger batch in pieces: they must be left over."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(f"model: it takes large batches in pieces, and meets {', '.join(sorted(names))} in each")
        self.names = names


def with_coverage(bound: BoundProblem, inputs: Inputs, work: Callable[[Coverage], T]) -> T:
    """What `work` makes with the layout of this network; again with fewer parameters where it meets some in pieces."""
    coverage = Coverage.of(bound, inputs)
    while True:
        try:
            return work(coverage)
        except ReusedParameterError as error:
            coverage = coverage.without(error.names)
            _coverages.put(bound, _shapes(inputs), coverage)


_coverages: ModelCache[Coverage] = ModelCache()


def _shapes(inputs: Inputs) -> Any:
    """What inputs are like, but for how many there are."""
    return tuple((tuple(leaf.shape[1:]), leaf.dtype) for leaf in tree_leaves(inputs))


def _finite(bound: BoundProblem, inputs: Inputs) -> Tensor:
    """A few examples, far apart, whose predictions are finite, where there are such."""
    n = count(inputs)
    with torch.no_grad():
        some = torch.linspace(0, n - 1, min(n, CANDIDATES), device=bound.device).round().long()
        finite = some[bound.predict(bound.params, take(inputs, some)).isfinite().all(1)]
    return finite if len(finite) else some


def _three(some: Tensor) -> Tensor:
    return some[torch.linspace(0, len(some) - 1, 3, device=some.device).round().long()]


def _misplaced(bound: BoundProblem, inputs: Inputs, some: Tensor) -> set[str]:
    """The parameters whose layer gets examples in another order than they came in."""
    together = record(bound, leaves_of(bound.params), take(inputs, some)).uses
    found: set[str] = set()
    for place, i in enumerate(some.tolist()):
        alone = record(bound, leaves_of(bound.params), take(inputs, slice(i, i + 1))).uses
        one = {name: use.a[0] for use in alone for name in use.names}
        for use in together:
            found |= {name for name in use.names if name not in one or not _like(use.a[place], one[name])}
    return found


def _like(row: Tensor, alone: Tensor) -> bool:
    if row.shape != alone.shape:
        return False
    return bool((row - alone).norm() <= torch.finfo(row.dtype).eps ** 0.5 * (1 + alone.norm()))


def _better_as_vectors(use: Use, q: Tensor, k: int) -> bool:
    """Whether inner products over pairs of places, l² (d + k o), are cheaper than those of whole matrices, k d o."""
    if use.kind == "scale":
        return False
    a, at = use.places(q)
    (places, d), o = a.shape[1:], at.shape[-1]
    return places == 1 or (places <= MOST_PLACES and 2 * places**2 * (d + k * o) < k * d * o)


def _is_right(use: Use, q: Tensor, gradients: Params) -> bool:
    """Whether the second of three examples has all of the gradient and the others none; seen on the first outputs."""
    if use.kind != "scale":
        size = max(gradients[name][0].numel() for name in use.names)
        channels = 2 if use.kind == "conv2d" else -1
        q = q.narrow(channels, 0, max(1, min(q.shape[channels], COMPARED // size)))
    for name, found in use.gradients(q).items():
        wanted = gradients[name].flatten()[: found.shape[2]]
        expected = torch.stack([torch.zeros_like(wanted), wanted, torch.zeros_like(wanted)])
        if found[:, 0].shape != expected.shape:
            return False
        if not (found[:, 0] - expected).norm() <= torch.finfo(found.dtype).eps ** 0.5 * expected.norm():
            return False
    return True
