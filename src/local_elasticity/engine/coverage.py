"""Coverage: which parameters of a network the tape supports, found on a few examples and checked against autograd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from local_elasticity.engine.inputs import count, spread, take
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.order import Call, same_calls
from local_elasticity.engine.problem import BoundProblem, Inputs, gradient, leaves_of
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.tape import ReusedParameterError, Tape, record
from local_elasticity.engine.uses import Meeting, Placement, Use

T = TypeVar("T")

MOST_PLACES = 8
"""Inner products over pairs of places take memory that grows with their square."""

CANDIDATES = 8
"""Examples from which those are chosen that coverage is found on."""

FOLLOWED = 11
"""Examples that are followed through a network to see whether they keep their places: a prime, so that few other axes
are as long, or a multiple of it."""

COMPARED = 1 << 20
"""Entries of a weight's gradient that are compared with autograd's before a layer counts as supported."""


ROUNDING = 8
"""Allowed error of a gradient that is nearly zero, in units of rounding of the products that are summed in it."""


@dataclass(frozen=True)
class Coverage:
    """Which parameters of this network the tape supports, and which it does not. Found and checked on examples."""

    understood: tuple[str, ...]
    unsupported: tuple[str, ...]
    low_rank: frozenset[str]
    """Parameters whose gradients are kept as vectors, because there are few places or the matrices are large."""
    placements: dict[Meeting, Placement]
    """The axis of examples in the output of each use."""
    constants: frozenset[Meeting]
    """Uses whose outputs are the same for all examples."""
    calls: tuple[Call, ...]
    """The functions that `FOLLOWED` examples go through, where none can put them into another order; else nothing. A
    batch that goes another way may be put into another order."""
    ambiguous: bool = False
    """Whether several axes of a use may be the one of the examples, because the sampled examples have zeros there."""
    keeps_vectors: bool = False
    """Whether the gradients of all linear layers are kept as vectors, and multiplied out when products are taken."""

    @classmethod
    def of(cls, bound: BoundProblem, inputs: Inputs) -> Coverage:
        """The coverage of this network for such inputs; it is cached."""
        found = _coverages.get(bound, _kind(bound, inputs))
        if found is None:
            try:
                found = cls._found(bound, inputs)
            except RuntimeError as error:
                if "vmapped" not in str(error) or not may_be_passed_over(error):
                    raise
                raise UnsupportedModelError(
                    "model: its forward pass uses torch.func, where gradients cannot be recorded; use le.respond and "
                    "measures of a response instead"
                ) from error
            _coverages.put(bound, _kind(bound, inputs), found)
        return found

    @classmethod
    def _found(cls, bound: BoundProblem, inputs: Inputs) -> Coverage:
        """Compare two things on a few examples: the gradients of one of three examples with autograd's, and the outputs
        of uses for a batch with those for each example alone.

        This catches inputs whose first axis is not the examples, functions that mix examples, and networks that sort
        their batch.
        """
        if bound.replica.effects is None:
            bound.watched(take(inputs, slice(0, 1)))
        effects = bound.replica.effects
        if effects is not None and effects.coarsest > torch.finfo(torch.float32).eps:
            raise UnsupportedModelError(
                "model: its forward pass computes in half precision, as under autocast, so that its gradients are "
                "inaccurate; pass problem.to(torch.float64), which autocast does not change"
            )
        some = _finite(bound, inputs)
        placements, constants, ambiguous = _placements(bound, inputs, some)
        leaves = leaves_of(bound.params)
        tape = record(bound, leaves, take(inputs, _three(some)), constants=constants)
        tape = replace(tape, uses=tuple(replace(use, placement=placements.get(use.meeting)) for use in tape.uses))
        predictions = tape.predictions
        cotangents = torch.zeros_like(predictions)
        cotangents[1] = torch.linspace(1, 2, cotangents.shape[1], dtype=cotangents.dtype, device=cotangents.device)
        right = gradient(predictions, leaves, cotangents, retain=True)
        at_uses = list(zip(tape.uses, tape.gradients_at_uses(cotangents[:, None]), strict=True))
        known = () if tape.ragged else leaves
        understood = [name for name in known if _is_right(name, tape, at_uses, right[name])]
        used = Counter(root for use in tape.uses for root in tape.roots(use.names))
        low_rank = [
            name
            for use, q in at_uses
            if use.outer and all(used[name] == 1 and name in understood for name in use.names)
            if _better_as_vectors(use, q, predictions.shape[1])
            for name in use.names
        ]
        unsupported = tuple(name for name in leaves if name not in understood)
        calls = _calls(bound, take(inputs, some.repeat(FOLLOWED)[:FOLLOWED]), constants)
        return cls(tuple(understood), unsupported, frozenset(low_rank), placements, constants, calls, ambiguous)

    def without(self, names: frozenset[str]) -> Coverage:
        """The same with these parameters unsupported."""
        understood = tuple(name for name in self.understood if name not in names)
        unsupported = (*self.unsupported, *names)
        return replace(self, understood=understood, unsupported=unsupported, low_rank=self.low_rank - names)

    def record(self, bound: BoundProblem, inputs: Inputs) -> Tape:
        """Run the network on a batch and record its uses.

        Raises:
            ReusedParameterError: if they are not the uses that were found.
        """
        tape = record(bound, leaves_of(bound.params), inputs, self.understood, constants=self.constants)
        met = {use.meeting for use in tape.uses}
        strange = {name for use in tape.uses if not self._places(use) for name in use.names}
        missing = {name for meeting in self.placements if meeting not in met for name in meeting[1:3] if name}
        otherwise = (tape.roots(strange | missing) | tape.unread) & set(self.understood)
        otherwise |= set(self.understood) if tape.ragged else set()
        used = {root for use in tape.uses for root in tape.roots(use.names)}
        otherwise |= tape.reaches([name for name in self.understood if name not in used])
        if otherwise:
            raise ReusedParameterError(frozenset(otherwise))
        uses = tuple(replace(use, placement=self.placements[use.meeting]) for use in tape.uses)
        b = count(inputs)
        may_move = self.may_order or not same_calls(tape.calls, self.calls, b, FOLLOWED)
        return replace(tape, uses=uses, moves=may_move and b > 1)

    @property
    def may_order(self) -> bool:
        """Whether the network may put the examples of any batch into another order."""
        return self.ambiguous or not self.calls

    def _places(self, use: Use) -> bool:
        """Whether a use was there when coverage was found, and its axis of examples has a fitting length."""
        at = self.placements.get(use.meeting)
        return at is not None and at.axis < len(use.shape) and use.shape[at.axis] % use.examples == 0


def with_coverage(bound: BoundProblem, inputs: Inputs, work: Callable[[Coverage], T]) -> T:
    """The result of `work` with the coverage of this network. If a batch uses some parameters otherwise, `work` runs
    again with these unsupported.
    """
    coverage = Coverage.of(bound, inputs)
    while True:
        try:
            return work(coverage)
        except ReusedParameterError as error:
            coverage = coverage.without(error.names)
            _coverages.put(bound, _kind(bound, inputs), coverage)


_coverages: ModelCache[Coverage] = ModelCache()


def _kind(bound: BoundProblem, inputs: Inputs) -> Any:
    """What coverage is cached by: the precision, the shapes and types of inputs, and whether there are several."""
    return bound.dtype, count(inputs) > 1, *((tuple(leaf.shape[1:]), leaf.dtype) for leaf in tree_leaves(inputs))


def _finite(bound: BoundProblem, inputs: Inputs) -> Tensor:
    """A few examples, far apart, with finite predictions if there are any."""
    with torch.no_grad():
        some = spread(count(inputs), CANDIDATES, bound.device)
        finite = some[bound.predict(bound.params, take(inputs, some)).isfinite().all(1)]
    some = finite if len(finite) else some
    return some.repeat(3) if len(some) == 1 else some


def _three(some: Tensor) -> Tensor:
    return some[torch.linspace(0, len(some) - 1, 3, device=some.device).round().long()]


def _calls(bound: BoundProblem, inputs: Inputs, constants: frozenset[Meeting]) -> tuple[Call, ...]:
    """The functions that a pass calls; nothing if one of them may put examples into another order, or if the network
    does not take so many."""
    try:
        followed = record(bound, leaves_of(bound.params), inputs, constants=constants, follow=True)
    except Exception as error:  # whatever a forward pass raises
        if not may_be_passed_over(error):
            raise
        return ()
    return () if followed.moves else followed.calls


def _placements(
    bound: BoundProblem, inputs: Inputs, some: Tensor
) -> tuple[dict[Meeting, Placement], frozenset[Meeting], bool]:
    """Compare a few examples in a batch with each of them alone.

    Returns:
        The placement of each use, without those where an example's part depends on the others in its batch.
        The constant uses, whose outputs are the same for all examples; these outputs are treated like parameters.
        Whether a use may have its examples in several places.
    """
    constants: frozenset[Meeting] = frozenset()
    while True:
        found, same = _placements_beside(bound, inputs, some, constants)
        if not same or same <= constants:
            placed = {meeting: left[0] for meeting, left in found.items()}
            return placed, constants, any(len(left) > 1 for left in found.values())
        constants |= same


def _placements_beside(
    bound: BoundProblem, inputs: Inputs, some: Tensor, constants: frozenset[Meeting]
) -> tuple[dict[Meeting, list[Placement]], frozenset[Meeting]]:
    """The places where each use may have its examples, and the uses that are the same for all examples."""
    leaves = leaves_of(bound.params)
    together = record(bound, leaves, take(inputs, some), constants=constants, keep=True).uses
    found: dict[Meeting, list[Placement]] = {}
    same = {use.meeting for use in together}
    for place, i in enumerate(some.tolist()):
        tape = record(bound, leaves, take(inputs, slice(i, i + 1)), constants=constants, keep=True)
        alone = {use.meeting: use for use in tape.uses}
        for use in together:
            one = alone.get(use.meeting)
            left = found.get(use.meeting) if place else _candidates(use, one)
            found[use.meeting] = [at for at in left or [] if one is not None and _holds(use, at, place, one)]
            if one is None or not _like(use.output, one.output):
                same.discard(use.meeting)
    placed = {meeting: left for meeting, left in found.items() if left}
    return placed, frozenset(same - placed.keys())


def _candidates(use: Use, alone: Use | None) -> list[Placement]:
    """The axes of an output that are b times as long for b examples as for one."""
    if alone is None or len(use.shape) != len(alone.shape):
        return []
    b, (many, one) = use.examples, (use.shape, alone.shape)
    axes = [
        i for i in range(len(one)) if many[i] == b * one[i] and many[:i] == one[:i] and many[i + 1 :] == one[i + 1 :]
    ]
    return [Placement(axis, inner) for axis in axes for inner in ((False, True) if one[axis] > 1 else (False,))]


def _holds(use: Use, at: Placement, place: int, alone: Use) -> bool:
    assert use.output is not None
    return _like(at.apart(use.output, use.examples)[place], alone.output)


def _like(row: Tensor | None, alone: Tensor | None) -> bool:
    if row is None or alone is None or row.shape != alone.shape:
        return False
    return bool((row - alone).norm() <= torch.finfo(row.dtype).eps ** 0.5 * (1 + alone.norm()))


def _better_as_vectors(use: Use, q: Tensor, k: int) -> bool:
    """Whether inner products over pairs of places, l² (d + k o), are cheaper than those of whole matrices, k d o."""
    a, at = use.places(q)
    (places, d), o = a.shape[1:], at.shape[-1]
    return places == 1 or (places <= MOST_PLACES and 2 * places**2 * (d + k * o) < k * d * o)


def _is_right(name: str, tape: Tape, at_uses: Sequence[tuple[Use, Tensor]], wanted: Tensor) -> bool:
    """Whether the second of three examples has the whole gradient and the others none; large weights are compared in
    their first rows only.
    """
    mine = [(use, q, part) for use, q in at_uses for part in use.names if name in tape.roots([part])]
    if not mine:
        return name not in tape.met and not tape.reaches([name])
    if any(use.placement is None for use, _, _ in mine):
        return False
    total, floor = None, 0.0
    for use, q, part in mine:
        rows = max(1, COMPARED // wanted[0].numel()) if wanted.ndim and len(mine) == 1 and part == name else None
        use, q = (use, q) if rows is None else use.some(q, rows)
        try:
            found = tape.pulled_back(use.only(part).gradients(q))[name][:, 0]
        except (ValueError, RuntimeError) as error:  # shapes do not fit, because the axis is another one
            if not may_be_passed_over(error):
                raise
            return False
        total = found if total is None else total + found
        floor = floor + float(q.norm() * (1 + use.a.to(q.dtype).norm()))
    assert total is not None
    right = wanted.flatten()[: total.shape[1]]
    expected = torch.stack([torch.zeros_like(right), right, torch.zeros_like(right)])
    if total.shape != expected.shape:
        return False
    eps = torch.finfo(total.dtype).eps
    return bool((total - expected).norm() <= eps**0.5 * expected.norm() + ROUNDING * eps * floor)
