"""The tape: where parameters met inputs in a forward pass, so that one backward pass gives every example's gradient.

The tape records functions, not modules, so it does not matter how a network is written. If a function is known here,
and the gradient of its parameters follows from its inputs, the call is a `Use`. Parameters that go into any other
function are unsupported here, and are differentiated example by example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from local_elasticity.engine.composites import inside
from local_elasticity.engine.guard import DispatchMode, FunctionMode
from local_elasticity.engine.inputs import GOLDEN, count
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.order import Call, call_of, is_ragged, may_move
from local_elasticity.engine.problem import BoundProblem, Inputs, as_predictions, reached_gradients
from local_elasticity.engine.readers import READERS
from local_elasticity.engine.replica import Params, flatten_tree
from local_elasticity.engine.uses import Matrices, Meeting, Use

DERIVED = "#"
"""Prefix of the names of tensors that are derived from parameters."""


class ReusedParameterError(RuntimeError):
    """Parameters that a large batch uses otherwise than a few examples do: in pieces, or in another order. They must
    count as unsupported."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(
            f"model: it takes large batches in pieces or in another order, where it meets {', '.join(sorted(names))}"
        )
        self.names = names


@dataclass(frozen=True)
class Derived:
    """A tensor computed from parameters alone. `made_of` are its direct inputs, `roots` the parameters behind them."""

    tensor: Tensor
    made_of: tuple[str, ...]
    roots: tuple[str, ...]


@dataclass(frozen=True)
class Tape:
    """A forward pass of b examples: the outputs [b, …] with their graph, and the uses of the `leaves` and of the
    tensors that are `derived` from them."""

    outputs: Tensor
    uses: tuple[Use, ...]
    leaves: Params
    derived: dict[str, Derived]
    met: frozenset[str]
    """The names of everything that went into a function, whether that was a use or not."""
    unread: frozenset[str]
    """The parameters that went into a function that is not a use, directly or through a derived tensor."""
    ragged: bool
    """Whether examples may have parts of different sizes, because shapes depend on values."""
    calls: tuple[Call, ...]
    """The functions that were called."""
    moves: bool
    """Whether examples may have been put into another order."""

    @property
    def predictions(self) -> Tensor:
        return as_predictions(self.outputs)

    def gradients_at_uses(self, cotangents: Tensor) -> list[Tensor]:
        """The gradient q at the output of every use, [r, …], for r cotangents of the predictions, [b, r, k].

        Raises:
            ReusedParameterError: if an example is not at the place that a use records for it.
        """
        if not self.uses:
            return []
        if cotangents.shape[1] == 1:
            found = [q[None] for q in self._at_uses(cotangents[:, 0])]
        else:
            found = [torch.stack(q) for q in zip(*(self._at_uses(one) for one in cotangents.unbind(1)), strict=True)]
        if self.moves:
            weights = far_apart(cotangents.shape[1], cotangents)
            summed = [torch.tensordot(weights, q, 1) for q in found]
            self._check_places(torch.einsum("r,brk->bk", weights, cotangents), summed)
        return found

    def _at_uses(self, cotangents: Tensor) -> list[Tensor]:
        edges = [use.edge for use in self.uses]
        found = torch.autograd.grad(
            self.predictions, edges, cotangents.contiguous(), retain_graph=True, allow_unused=True
        )
        zero = self.outputs.new_zeros(())
        return [zero.expand(use.shape) if q is None else q for use, q in zip(self.uses, found, strict=True)]

    def _check_places(self, cotangents: Tensor, found: list[Tensor]) -> None:
        """Check the places of examples: if each example's cotangent is scaled by a number of its own, its part of q
        must be scaled by the same number.
        """
        numbers = far_apart(len(cotangents), cotangents)
        placed, off = [], []
        for use, q, other in zip(self.uses, found, self._at_uses(numbers[:, None] * cotangents), strict=True):
            if use.placement is not None:
                q, other = (use.placement.apart(one, use.examples).flatten(1) for one in (q, other))
                allowed = torch.finfo(q.dtype).eps ** 0.5 * other.norm(dim=1)
                placed.append(use)
                off.append(((other - numbers[:, None] * q).norm(dim=1) > allowed).any())
        elsewhere = torch.stack(off).tolist() if off else []
        strange = {name for use, is_off in zip(placed, elsewhere, strict=True) if is_off for name in use.names}
        if strange:
            raise ReusedParameterError(frozenset(self.roots(strange)))

    def reaches(self, names: Collection[str]) -> set[str]:
        """The parameters among these that gradients reach, zero gradients included."""
        leaves = {name: self.leaves[name] for name in names}
        if not leaves:
            return set()
        return set(reached_gradients(self.outputs, leaves, torch.zeros_like(self.outputs), retain=True))

    def pulled_back(self, gradients: Matrices) -> Matrices:
        """Gradients [b, r, p] of derived tensors turned into gradients of their parameters, and summed."""
        found = {name: part for name, part in gradients.items() if name not in self.derived}
        for name, part in gradients.items():
            if name in self.derived:
                for root, gradient in self._of_roots(self.derived[name], part).items():
                    found[root] = found[root] + gradient if root in found else gradient
        return found

    def roots(self, names: Collection[str]) -> set[str]:
        """The parameters that these are, or are derived from."""
        return _roots(names, self.derived)

    def _of_roots(self, derived: Derived, gradients: Tensor) -> Matrices:
        roots = [self.leaves[name] for name in derived.roots]
        along = gradients.flatten(0, 1).unflatten(1, derived.tensor.shape)

        def each(one: Tensor, *, batched: bool) -> Sequence[Tensor | None]:
            options = {"retain_graph": True, "allow_unused": True, "is_grads_batched": batched}
            return torch.autograd.grad(derived.tensor, roots, one, **options)

        try:
            found = each(along, batched=True)
        except RuntimeError as error:
            if not may_be_passed_over(error):
                raise
            parts = [each(one, batched=False) for one in along]
            found = [None if None in rows else torch.stack(rows) for rows in zip(*parts, strict=True)]
        b, r = gradients.shape[:2]
        named = zip(derived.roots, found, strict=True)
        return {name: part.reshape(b, r, -1) for name, part in named if part is not None}


def far_apart(count: int, like: Tensor) -> Tensor:
    """Numbers between 1 and 2, no two of them close."""
    return 1 + (GOLDEN * torch.arange(count, device=like.device, dtype=like.dtype)) % 1


def _roots(names: Collection[str], derived: dict[str, Derived]) -> set[str]:
    """The parameters that these are, or are derived from."""
    return {root for name in names for root in (derived[name].roots if name in derived else (name,))}


class _Recorder(FunctionMode):
    """Records every function that takes a parameter, or a tensor that is derived from parameters alone."""

    def __init__(
        self, params: Params, examples: int, constants: Collection[Meeting], *, keep: bool, follow: bool
    ) -> None:
        super().__init__()
        self.examples, self.follow = examples, follow
        self.names = {id(p): name for name, p in params.items()}
        self.constants, self.keep = constants, keep
        self.met: Counter[str] = Counter()
        self.read: Counter[str] = Counter()
        self.uses: list[Use] = []
        self.derived: dict[str, Derived] = {}
        self.calls: list[Call] = []
        self.ragged = self.moves = self.calling = False
        self._times: Counter[tuple[str, str | None, str | None]] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calling = True
        try:
            return self._recorded(func, args, kwargs or {})
        finally:
            self.calling = False

    def _recorded(self, func: Any, args: Any, kwargs: Any) -> Any:
        leaves = flatten_tree((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.ragged |= is_ragged(func, args, kwargs)
        names = [self.names[id(leaf)] for leaf in tensors if id(leaf) in self.names]
        body = inside(func) if names and func not in READERS else None
        if body is not None:
            self.calling = False
            with self:
                return body(*args, **kwargs)
        result = func(*args, **kwargs)
        self.calls.append(call_of(func, leaves))
        if self.follow and not self.moves:
            self.moves = may_move(func, (args, kwargs), result, self.examples, self.name)
        if not names:
            return result
        out = [leaf for leaf in flatten_tree(result) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        if out and not torch.is_grad_enabled():  # inside an autograd function, whose gradients cannot be seen
            self.met.update(names)
            return result
        made = [leaf for leaf in out if leaf.requires_grad]
        if all(id(leaf) in self.names for leaf in made):
            return result
        self.met.update(names)
        if func in READERS:
            if result._is_view():  # a later in-place write to a view would bypass its gradient edge
                result = torch.ops.aten._unsafe_view(result, result.shape)
            self._use(result, READERS[func](self, result, *args, **kwargs), names)
        elif len(names) == len(tensors):
            self._derive(made, names)
        return result

    def _use(self, result: Tensor, use: Use | None, names: list[str]) -> None:
        if use is None or not use.names:
            return
        key = type(use).__name__, use.weight, use.bias
        meeting = (*key, self._times[key])
        self._times[key] += 1
        if meeting in self.constants:
            self._derive([result], names)
        else:
            self.read.update(use.names)
            self.uses.append(replace(use, meeting=meeting))

    def _derive(self, made: list[Tensor], names: list[str]) -> None:
        """Record tensors that are computed from parameters alone; they are treated like parameters."""
        roots = _roots(names, self.derived)
        self.read.update(names)
        for tensor in made:
            name = f"{DERIVED}{len(self.derived)}"
            self.names[id(tensor)], self.derived[name] = name, Derived(tensor, tuple(names), tuple(roots))

    def understood(self) -> set[str]:
        """The names that went into uses alone, as did everything that is derived from them."""
        found = {name for name, times in self.met.items() if times == self.read[name]}
        for name, one in reversed(self.derived.items()):
            if self.met[name] and name not in found:
                found -= set(one.made_of)
        return found

    def name(self, p: Any) -> str | None:
        return self.names.get(id(p))

    def common(self, result: Tensor) -> dict[str, Any]:
        """The arguments that all uses share."""
        output = result.detach() if self.keep else None
        return {"edge": get_gradient_edge(result), "output": output, "shape": result.shape}


class _Unseen(DispatchMode):
    """Finds operations that come from no function that a recorder saw, as those of TorchScript, which may put examples
    into another order."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.recorder.moves |= not self.recorder.calling
        return func(*args, **(kwargs or {}))


def record(
    bound: BoundProblem,
    leaves: Params,
    inputs: Inputs,
    known: Collection[str] | None = None,
    *,
    constants: Collection[Meeting] = (),
    keep: bool = False,
    follow: bool = False,
) -> Tape:
    """Run the network on a batch and record its uses.

    Args:
        bound, leaves, inputs: the network, its parameters, and the batch.
        known: the parameters whose uses are kept; by default all that go into uses alone.
        constants: uses whose outputs are the same for all examples.
        keep: whether to keep the outputs of uses.
        follow: whether to find out if a function may put examples into another order.

    Returns:
        The tape.
    """
    recorder = _Recorder(leaves, count(inputs), constants, keep=keep, follow=follow)
    with torch.enable_grad(), recorder, _Unseen(recorder) if follow else nullcontext():
        outputs = bound.outputs(leaves, inputs)
    read = recorder.understood()
    if known is not None:
        read = {name for name in read if set(known) >= _roots([name], recorder.derived)}

    def only(name: str | None) -> str | None:
        return name if name in read else None

    uses = [replace(use, examples=len(outputs), weight=only(use.weight), bias=only(use.bias)) for use in recorder.uses]
    unread = _roots(set(recorder.met) - recorder.understood(), recorder.derived)
    return Tape(
        outputs,
        tuple(use for use in uses if use.names),
        leaves,
        recorder.derived,
        frozenset(recorder.met),
        frozenset(unread),
        recorder.ragged,
        tuple(recorder.calls),
        recorder.moves,
    )
