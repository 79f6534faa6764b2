"""Gradients of single examples, and inner products between them, layer by layer.

`Factors` holds what gradients are made of: for a linear layer the vectors a and q whose outer product they are, so that
⟨q aᵀ, q′ a′ᵀ⟩ = (q·q′)(a·a′) needs no matrix of p columns; for convolutions and normalisations the gradients of that
layer; for parameters that the tape does not understand the gradients by vmap, or one by one where vmap fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from local_elasticity.engine.guard import vectorizable_attention
from local_elasticity.engine.inputs import count, take
from local_elasticity.engine.memory import is_out_of_memory
from local_elasticity.engine.problem import Inputs, Moment, Params
from local_elasticity.engine.tape import Layout, Matrices
from local_elasticity.shapes import Float


@dataclass(frozen=True)
class Outer:
    """Weight gradients q aᵀ and bias gradients q of a linear layer, for b examples along r cotangents each."""

    weight: str | None
    bias: str | None
    a: Float[Tensor, "b d"]
    q: Float[Tensor, "b r o"]

    def meets(self, other: Outer) -> Float[Tensor, "b c"]:
        """a·a′ where the weight steps, and 1 more where the bias does."""
        products = self.a @ other.a.T if self.weight else self.a.new_zeros(len(self.a), len(other.a))
        return products + 1 if self.bias else products

    def squares(self) -> Float[Tensor, " b"]:
        """`meets` of every example with itself."""
        own = self.a.square().sum(1) if self.weight else self.a.new_zeros(len(self.a))
        return own + 1 if self.bias else own

    def matrices(self) -> Matrices:
        found = {self.bias: self.q} if self.bias else {}
        return found | ({self.weight: torch.einsum("bro,bd->brod", self.q, self.a).flatten(2)} if self.weight else {})


@dataclass(frozen=True)
class Factors:
    """The gradients of b examples along r cotangents each, not yet multiplied out."""

    outer: tuple[Outer, ...]
    explicit: Matrices

    def matrices(self) -> Matrices:
        """All of them multiplied out: name → [b, r, p_name]."""
        multiplied = dict(self.explicit)
        for layer in self.outer:
            multiplied |= layer.matrices()
        return multiplied

    def take(self, rows: slice) -> Factors:
        """The gradients of some of the examples."""
        outer = tuple(Outer(layer.weight, layer.bias, layer.a[rows], layer.q[rows]) for layer in self.outer)
        return Factors(outer, {name: part[rows] for name, part in self.explicit.items()})


def jacobian_factors(moment: Moment, layout: Layout, inputs: Inputs) -> Factors:
    """J(x) = ∂f(x; w)/∂w of every example, along each of the k outputs."""

    def every_output(predictions: Tensor) -> Tensor:
        b, k = predictions.shape
        return torch.eye(k, dtype=predictions.dtype, device=predictions.device).expand(b, k, k)

    return _factors(moment, layout, inputs, every_output)


def gradient_factors(moment: Moment, layout: Layout, inputs: Inputs, cotangents: Float[Tensor, "b k"]) -> Factors:
    """Jᵀ g of every example, for a cotangent g of its own."""
    return _factors(moment, layout, inputs, lambda predictions: cotangents[:, None])


def loss_cotangents(moment: Moment, outputs: Tensor, labels: Tensor) -> Float[Tensor, "c batch k"]:
    """∂ℓ/∂f for outputs [c·B, …] and labels [c, B, …], the loss being the mean over each B."""
    c, batch = labels.shape[:2]
    with torch.enable_grad():
        read = outputs.detach().unflatten(0, (c, batch)).requires_grad_()
        losses = [moment.loss(one, label) for one, label in zip(read, labels, strict=True)]
        gradient: Tensor = torch.autograd.grad(torch.stack(losses).sum(), read)[0]
    return gradient.reshape(c, batch, -1)


def inner(left: Factors, right: Factors) -> Float[Tensor, "bl rl br rr"]:
    """⟨∇, ∇′⟩ between every gradient on the left and every one on the right."""

    def products(a: Tensor, b: Tensor) -> Tensor:
        flat = a.reshape(-1, a.shape[-1]) @ b.reshape(-1, b.shape[-1]).T
        return flat.reshape(*a.shape[:2], *b.shape[:2])

    parts = [
        products(one.q, other.q) * one.meets(other)[:, None, :, None]
        for one, other in zip(left.outer, right.outer, strict=True)
    ]
    return _total([*parts, *(products(left.explicit[name], right.explicit[name]) for name in left.explicit)])


def inner_trace(left: Factors, right: Factors) -> Float[Tensor, "bl br"]:
    """Σ_r ⟨∇_r, ∇′_r⟩, the trace over the cotangents, without the rest of `inner`."""

    def products(a: Tensor, b: Tensor) -> Tensor:
        return a.flatten(1) @ b.flatten(1).T

    parts = [products(one.q, other.q) * one.meets(other) for one, other in zip(left.outer, right.outer, strict=True)]
    return _total([*parts, *(products(left.explicit[name], right.explicit[name]) for name in left.explicit)])


def contract(moved: Matrices, right: Factors) -> Float[Tensor, "c br rr"]:
    """⟨v, ∇′⟩ between vectors name → [c, p_name] and every gradient on the right."""
    gradients = right.matrices()
    b, r = next(iter(gradients.values())).shape[:2]
    return _total([(moved[name] @ part.flatten(0, 1).T).unflatten(1, (b, r)) for name, part in gradients.items()])


def explicit_columns(moment: Moment, layout: Layout, inputs: Inputs) -> int:
    """How many of the p columns `Factors` multiplies out; the rest costs no more than activations."""
    one = take(inputs, slice(0, 1))
    outer = {name for use in layout.record(moment, one).uses if use.is_outer_product for name in use.names}
    return sum(p.numel() for name, p in moment.params.items() if name not in outer)


def _factors(moment: Moment, layout: Layout, inputs: Inputs, cotangents_of: Callable[[Tensor], Tensor]) -> Factors:
    tape = layout.record(moment, inputs)
    cotangents = cotangents_of(tape.predictions)
    outer: list[Outer] = []
    explicit: Matrices = {}
    for use, q in zip(tape.uses, tape.gradients_at_uses(cotangents), strict=True):
        if use.is_outer_product:
            outer.append(Outer(use.weight, use.bias, use.a, q))
        else:
            explicit |= use.gradients(q)
    if layout.left_over:
        jacobian = _left_over_jacobian(moment, layout.left_over, inputs)
        explicit |= {name: torch.einsum("bkp,brk->brp", part, cotangents) for name, part in jacobian.items()}
    return Factors(tuple(outer), explicit)


def _total(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _left_over_jacobian(moment: Moment, names: tuple[str, ...], inputs: Inputs) -> Matrices:
    """name → [b, k, p_name] for some parameters, by vmap, or one by one for modules that vmap cannot take."""
    some = {name: moment.params[name] for name in names}

    def predict(params: Params, one: Inputs) -> Tensor:
        return moment.predict({**moment.params, **params}, take(one, None))[0]

    def by_vmap(one: Inputs) -> Params:
        rows: Params = jacrev(predict)(some, one)
        return rows

    def plainly(one: Inputs) -> Params:
        leaves = {name: p.detach().requires_grad_() for name, p in some.items()}
        rows = [_plain_gradient(output, leaves) for output in predict(leaves, one)]
        return {name: torch.stack([row[name] for row in rows]) for name in leaves}

    parts = _each(by_vmap, plainly, inputs)
    return {name: part.reshape(*part.shape[:2], -1) for name, part in parts.items()}


def _each(function: Callable[[Inputs], Params], plainly: Callable[[Inputs], Params], inputs: Inputs) -> Params:
    try:
        with torch.no_grad(), vectorizable_attention():
            return vmap(function)(inputs)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
    parts = [plainly(take(inputs, i)) for i in range(count(inputs))]
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


def _plain_gradient(scalar: Tensor, leaves: Params) -> Params:
    gradients = torch.autograd.grad(
        scalar, list(leaves.values()), retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return dict(zip(leaves, gradients, strict=True))
