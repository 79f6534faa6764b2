"""Gradients of single examples, and inner products between them, layer by layer.

`Factors` holds what gradients are made of: for a linear layer, and a convolution with few places, the vectors a and q
whose outer products they are, so that ⟨q aᵀ, q′ a′ᵀ⟩ = (q·q′)(a·a′) needs no matrix of p columns; for other
convolutions and normalisations the gradients of that layer; for parameters that the tape does not understand the
gradients by vmap, or one by one where vmap fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from local_elasticity.engine.coverage import Coverage
from local_elasticity.engine.left_over import left_over_gradients, left_over_jacobian
from local_elasticity.engine.problem import BoundProblem, Inputs
from local_elasticity.engine.tape import Tape
from local_elasticity.engine.uses import LinearUse, Matrices, Use, joined, outer_sums
from local_elasticity.shapes import Float

WORTH_HALVING = 256
"""Examples from which on blocks of a symmetric kernel are large enough to be fast."""

SYMMETRIC_BLOCKS = 4
"""Strips into which a symmetric product is cut, so that only 10 of 16 blocks are computed."""

UNITS_BYTES = {"cpu": 1 << 22}
"""Bytes of the matrices that are multiplied out at a time on devices with small caches."""


@dataclass(frozen=True)
class Outer:
    """Weight gradients Σ_l q_l a_lᵀ and bias gradients Σ_l q_l over l places, for b examples along r cotangents."""

    weight: str | None
    bias: str | None
    a: Float[Tensor, "b l d"]
    q: Float[Tensor, "b r l o"]
    transposed: bool = False
    """Whether the weight has its inputs on the first axis."""
    many_places: bool = False
    """Whether products are those of the multiplied matrices, instead of sums over pairs of places."""

    def inner(self, other: Outer) -> Float[Tensor, "bl rl br rr"]:
        """Σ_ll′ (a_l·a′_l′)(q_l·q′_l′) between every example and cotangent of both."""
        (bl, rl, l1, _), (br, rr, l2, _) = self.q.shape, other.q.shape
        if self.many_places:
            return self._by_units(other, 2).reshape(bl, rl, br, rr)
        products = _products(self.q, other.q).reshape(bl, rl, l1, br, rr, l2)
        return (products * self._meets(other)[:, None, :, :, None]).sum((2, 5))

    def inner_trace(self, other: Outer) -> Float[Tensor, "bl br"]:
        """The same, summed over equal cotangents."""
        if self.many_places:
            return self._by_units(other, 1)
        one, two = (part.q.transpose(1, 2).flatten(2) for part in (self, other))
        (bl, l1), (br, l2) = one.shape[:2], two.shape[:2]
        return (_products(one, two).reshape(bl, l1, br, l2) * self._meets(other)).sum((1, 3))

    def inner_own(self, other: Outer) -> Float[Tensor, "b rr"]:
        """Between the one gradient of every example here and those of the same example there."""
        one = self.q[:, 0]
        along = one.sum(1, keepdim=True) if self.bias else one.new_zeros(())
        if self.weight is not None:
            matrix = outer_sums(self.a, self.q)[:, 0] if self.many_places else None
            along = along + (other.a @ self.a.mT @ one if matrix is None else other.a @ matrix.mT)
        return torch.bmm(other.q.flatten(2), along.expand_as(other.q[:, 0]).flatten(1)[:, :, None])[:, :, 0]

    def _by_units(self, other: Outer, axes: int) -> Tensor:
        """Products of the matrices, with those of some output units multiplied out at a time: all of them take k times
        the memory of a gradient for each example. The first axes, of examples and perhaps of cotangents, are kept."""

        def rows(part: Tensor) -> Tensor:
            return part.flatten(axes).flatten(0, axes - 1)

        d, o = self.a.shape[2], self.q.shape[3]
        each = max(part.q.shape[0] * part.q.shape[1] for part in (self, other)) * d * self.a.element_size()
        some = max(1, UNITS_BYTES.get(self.a.device.type, 1 << 28) // each)
        sums = [rows(part.q.sum(2)) for part in (self, other)]
        total = sums[0] @ sums[1].T if self.bias else sums[0].new_zeros(len(sums[0]), len(sums[1]))
        for i in range(0, o if self.weight else 0, some):
            one, two = (rows(outer_sums(part.a, part.q[..., i : i + some])) for part in (self, other))
            total.addmm_(one, two.T)
        return total

    def squares(self) -> Float[Tensor, "b r"]:
        """‖∇‖² of every example and cotangent."""
        met = self.a @ self.a.transpose(1, 2) if self.weight else self.a.new_zeros(1)
        met = met + 1 if self.bias else met
        return ((self.q @ self.q.transpose(2, 3)) * met[:, None]).sum((2, 3))

    def along(self, cotangents: Float[Tensor, "b r"]) -> Outer:
        """The gradients combined with one weight for each cotangent."""
        return replace(self, q=torch.bmm(cotangents[:, None], self.q.flatten(2)).view_as(self.q[:, :1]))

    def take(self, rows: slice) -> Outer:
        return replace(self, a=self.a[rows], q=self.q[rows])

    def matrices(self) -> Matrices:
        found = {}
        if self.weight is not None:
            weight = outer_sums(self.a, self.q)
            found[self.weight] = (weight.transpose(2, 3) if self.transposed else weight).flatten(2)
        if self.bias is not None:
            found[self.bias] = self.q.sum(2)
        return found

    def _meets(self, other: Outer) -> Tensor:
        """a_l·a′_l′ where the weight steps, and 1 more where the bias does: [b, l, b′, l′]."""
        sizes = (*self.a.shape[:2], *other.a.shape[:2])
        met = _products(self.a, other.a).reshape(sizes) if self.weight else self.a.new_zeros(sizes)
        return met + 1 if self.bias else met


@dataclass(frozen=True)
class Factors:
    """The gradients of b examples along r cotangents each, not yet multiplied out."""

    outer: tuple[Outer, ...]
    explicit: Matrices

    @classmethod
    def of_layers(cls, layers: Iterable[Factors]) -> Factors:
        """The gradients of several layers together."""
        layers = list(layers)
        explicit = {name: part for layer in layers for name, part in layer.explicit.items()}
        return cls(tuple(outer for layer in layers for outer in layer.outer), explicit)

    def by_layer(self) -> Iterator[Factors]:
        """The same, parameter by parameter."""
        yield from (Factors((outer,), {}) for outer in self.outer)
        yield from (Factors((), {name: part}) for name, part in self.explicit.items())

    @property
    def count(self) -> int:
        """How many examples there are."""
        return len(self.outer[0].q if self.outer else next(iter(self.explicit.values())))

    def matrices(self) -> Matrices:
        """All of them multiplied out: name → [b, r, p_name]."""
        multiplied = dict(self.explicit)
        for layer in self.outer:
            multiplied |= layer.matrices()
        return multiplied

    def take(self, rows: slice) -> Factors:
        """The gradients of some of the examples."""
        explicit = {name: part[rows] for name, part in self.explicit.items()}
        return Factors(tuple(layer.take(rows) for layer in self.outer), explicit)

    def along(self, cotangents: Float[Tensor, "b r"]) -> Factors:
        """One gradient for each example, combined of its r with these weights."""
        explicit = {name: torch.bmm(cotangents[:, None], part) for name, part in self.explicit.items()}
        return Factors(tuple(layer.along(cotangents) for layer in self.outer), explicit)

    def squares(self) -> Float[Tensor, "b r"]:
        """‖∇‖² of every gradient."""
        return summed([layer.squares() for layer in self.outer] + [p.square().sum(2) for p in self.explicit.values()])


def jacobian_factors(bound: BoundProblem, coverage: Coverage, inputs: Inputs) -> tuple[Tensor, Factors]:
    """The outputs [b, …], and J(x) = ∂f(x; w)/∂w of every example along each of the k outputs."""
    tape = coverage.record(bound, inputs)
    return tape.outputs.detach(), factors_along(bound, coverage, tape, inputs, every_output(tape))


def every_output(tape: Tape) -> Float[Tensor, "b k k"]:
    """The cotangents whose gradients are the rows of the Jacobian."""
    (b, k), like = tape.predictions.shape, tape.outputs
    return torch.eye(k, dtype=like.dtype, device=like.device).expand(b, k, k)


def factors_along(
    bound: BoundProblem, coverage: Coverage, tape: Tape, inputs: Inputs, cotangents: Float[Tensor, "b r k"]
) -> Factors:
    """Jᵀ g of every example, for r cotangents g of its own."""
    return Factors.of_layers(layers_along(bound, coverage, tape, inputs, cotangents))


def layers_along(
    bound: BoundProblem, coverage: Coverage, tape: Tape, inputs: Inputs, cotangents: Float[Tensor, "b r k"]
) -> Iterator[Factors]:
    """The same a layer at a time, in an order that is that of the network."""
    yield from _understood(coverage, tape, cotangents)
    yield from _left_over(bound, coverage, inputs, cotangents)


def _understood(coverage: Coverage, tape: Tape, cotangents: Float[Tensor, "b r k"]) -> Iterator[Factors]:
    """The same for the parameters that the tape understands, a layer at a time; those that are met several times last,
    their gradients summed."""
    times = Counter(root for use in tape.uses for root in tape.roots(use.names))
    summed: Matrices = {}
    again: list[tuple[Use, Tensor]] = []
    for use, q in zip(tape.uses, tape.gradients_at_uses(cotangents), strict=True):
        if coverage.low_rank.issuperset(use.names):
            yield Factors((_outer(use, q),), {})
        elif any(times[name] != 1 for name in use.names):
            again.append((use, q))
        elif coverage.keeps_vectors and isinstance(use, LinearUse):
            yield Factors((_outer(use, q, many_places=True),), {})
        else:
            yield Factors((), use.gradients(q))
    together = joined(again)
    parts = Counter(root for use, _ in together for root in tape.roots(use.names))
    for use, q in together:
        if coverage.keeps_vectors and isinstance(use, LinearUse) and all(parts[name] == 1 for name in use.names):
            yield Factors((_outer(use, q, many_places=True),), {})
            continue
        for name, part in use.gradients(q).items():
            summed[name] = summed[name].add_(part) if name in summed else part
    if summed:
        yield Factors((), tape.pulled_back(summed))


def _outer(use: Use, q: Tensor, *, many_places: bool = False) -> Outer:
    return Outer(use.weight, use.bias, *use.places(q), use.transposed, many_places)


def _left_over(
    bound: BoundProblem, coverage: Coverage, inputs: Inputs, cotangents: Float[Tensor, "b r k"]
) -> Iterator[Factors]:
    """The same for those that are left over, where there are any."""
    if coverage.unsupported and cotangents.shape[1] == 1:
        yield Factors((), left_over_gradients(bound, coverage.unsupported, inputs, cotangents[:, 0]))
    elif coverage.unsupported:
        jacobian = left_over_jacobian(bound, coverage.unsupported, inputs)
        yield Factors((), {name: torch.einsum("bkp,brk->brp", part, cotangents) for name, part in jacobian.items()})


def own_kernel(
    bound: BoundProblem, coverage: Coverage, inputs: Inputs, product: Callable[[Factors, Factors], Tensor]
) -> Tensor:
    """Products of the Jacobians of b examples among themselves, `inner_trace` or `inner`. The gradients of one layer
    are held at a time, for a trace along one output where a GPU need not be kept busy; half of a trace is computed."""
    tape = coverage.record(bound, inputs)
    whole, trace = every_output(tape), product is inner_trace
    one_by_one = trace and whole.device.type == "cpu"
    understood = (_understood(coverage, tape, some) for some in (whole.split(1, dim=1) if one_by_one else (whole,)))
    layers = chain(chain.from_iterable(understood), _left_over(bound, coverage, inputs, whole))
    return summed(gram(layer) if trace and layer.count >= WORTH_HALVING else product(layer, layer) for layer in layers)


def inner(left: Factors, right: Factors) -> Float[Tensor, "bl rl br rr"]:
    """⟨∇, ∇′⟩ between every gradient on the left and every one on the right."""
    return _met(left, right, Outer.inner, lambda a, b: _products(a, b).reshape(*a.shape[:2], *b.shape[:2]))


def inner_own(left: Factors, right: Factors) -> Float[Tensor, "b rr"]:
    """⟨∇, ∇′⟩ between the one gradient of every example on the left and those of the same example on the right."""
    return _met(left, right, Outer.inner_own, lambda a, b: torch.bmm(b, a.mT)[:, :, 0])


def inner_trace(left: Factors, right: Factors) -> Float[Tensor, "bl br"]:
    """Σ_r ⟨∇_r, ∇′_r⟩, the trace over the cotangents, without the rest of `inner`."""
    return _met(left, right, Outer.inner_trace, lambda a, b: a.flatten(1) @ b.flatten(1).T)


def _met(
    left: Factors,
    right: Factors,
    of_layers: Callable[[Outer, Outer], Tensor],
    of_matrices: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """The sum over layers of what the gradients on either side make together."""
    layers = [of_layers(one, other) for one, other in zip(left.outer, right.outer, strict=True)]
    return summed([*layers, *(of_matrices(part, right.explicit[name]) for name, part in left.explicit.items())])


def gram(gradients: Factors) -> Float[Tensor, "b b"]:
    """`inner_trace` with itself: half of it computed, in blocks, and mirrored."""
    b = gradients.count
    rows = -(-b // SYMMETRIC_BLOCKS)
    strips = [gradients.take(slice(i, i + rows)) for i in range(0, b, rows)]
    blocks = [[inner_trace(one, other) for other in strips[i:]] for i, one in enumerate(strips)]
    return from_upper([torch.cat(strip, dim=1) for strip in blocks], rows)


def symmetric_product(left: Float[Tensor, "b h"]) -> Float[Tensor, "b b"]:
    """left leftᵀ: half of it computed, in blocks, and mirrored."""
    rows = -(-len(left) // SYMMETRIC_BLOCKS)
    return from_upper([left[i : i + rows] @ left[i:].T for i in range(0, len(left), rows)], rows)


def from_upper(strips: list[Tensor], rows: int) -> Tensor:
    """A whole symmetric kernel [b, b] or [b, b, k, k] from strips of blocks on and above its diagonal."""
    b = strips[0].shape[1]
    whole = strips[0].new_empty(b, *strips[0].shape[1:])
    for i, strip in enumerate(strips):
        at = slice(i * rows, i * rows + len(strip))
        whole[at, at.start :] = strip
        whole[at.start :, at] = _transposed(strip)
        own = strip[:, : len(strip)]
        whole[at, at] = (own + _transposed(own)) / 2
    return whole


def _transposed(block: Tensor) -> Tensor:
    """Θ(x′, x) from Θ(x, x′), the outputs exchanged with the examples."""
    return block.transpose(0, 1) if block.ndim == 2 else block.permute(1, 0, 3, 2)


def contract(moved: Matrices, right: Factors) -> Float[Tensor, "c br rr"]:
    """⟨v, ∇′⟩ between vectors name → [c, p_name] and every gradient on the right."""
    gradients = right.matrices()
    b, r = next(iter(gradients.values())).shape[:2]
    return summed([(moved[name] @ part.flatten(0, 1).T).unflatten(1, (b, r)) for name, part in gradients.items()])


def explicit_columns(bound: BoundProblem, coverage: Coverage) -> int:
    """How many of the p columns `Factors` multiplies out; the rest costs no more than activations."""
    return sum(_explicit(bound, coverage))


def columns_at_once(bound: BoundProblem, coverage: Coverage) -> int:
    """How many of them one layer has at most; those that no layer has are multiplied out together."""
    left_over = sum(bound.params[name].numel() for name in coverage.unsupported)
    return max([left_over, *_explicit(bound, coverage)])


def _explicit(bound: BoundProblem, coverage: Coverage) -> list[int]:
    return [p.numel() for name, p in bound.params.items() if name not in coverage.low_rank]


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of all rows, leading axes flattened."""
    return a.reshape(-1, a.shape[-1]) @ b.reshape(-1, b.shape[-1]).T


def summed(parts: Iterable[Tensor]) -> Tensor:
    """Their sum, accumulated in the memory of the first, which is overwritten. An iterator is consumed one item at a
    time."""
    total: Tensor | None = None
    for part in parts:
        total = part if total is None else total.add_(part)
    if total is None:
        raise ValueError("expected at least one tensor to sum")
    return total
