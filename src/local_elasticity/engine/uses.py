"""Uses: how a parameter is applied to an input, and the gradients of single examples that follow from it.

At a linear layer with input a and gradient q at its output, an example's weight gradient is the outer product q aᵀ; at
a convolution it is the sum of those over patches; at the affine part of a normalisation it is q ⊙ x̂; at an embedding
it is q in the rows of the tokens.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge

PATCH_BYTES = {"cpu": 1 << 24}
"""The bytes that the patches of some examples may take on a CPU, whose caches are small."""

Matrices = dict[str, Tensor]
"""Parameter name → [..., p_name], the columns that belong to that parameter; the sum of p_name is p."""


def patches(x: Tensor, kernel_size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> Tensor:
    """Windows of signals, images or volumes [b, c, …] as a view [b, c, *kernel, *places].

    >>> import torch
    >>> patches(torch.zeros(2, 3, 8, 8), 3, padding=1, stride=2).shape
    torch.Size([2, 3, 3, 3, 4, 4])
    """
    axes = x.ndim - 2
    kernel, steps, borders, spacing = (each_axis(v, axes) for v in (kernel_size, stride, padding, dilation))
    if any(borders):
        x = F.pad(x, [border for border in reversed(borders) for _ in range(2)])
    sizes = list(zip(x.shape[2:], kernel, steps, spacing, strict=True))
    places = [(size - gap * (k - 1) - 1) // step + 1 for size, k, step, gap in sizes]
    at, inner = x.stride(), x.stride()[2:]
    strides = (*at[:2], *(s * gap for s, gap in zip(inner, spacing, strict=True)))
    strides += tuple(s * step for s, step in zip(inner, steps, strict=True))
    return x.as_strided((*x.shape[:2], *kernel, *places), strides, x.storage_offset())


def each_axis(value: Any, axes: int) -> tuple[int, ...]:
    """One number for all axes, or one for each."""
    if isinstance(value, int):
        return (value,) * axes
    numbers = tuple(int(one) for one in value)
    return numbers * axes if len(numbers) == 1 else numbers


def padding_of(padding: Any, kernel_size: Any, dilation: Any) -> tuple[int, ...] | None:
    """Padding by name ("same", "valid") as numbers; None if it differs between the two sides."""
    axes = len(kernel_size)
    if not isinstance(padding, str):
        return each_axis(padding, axes)
    if padding == "valid":
        return (0,) * axes
    total = [gap * (k - 1) for k, gap in zip(kernel_size, each_axis(dilation, axes), strict=True)]
    return None if any(one % 2 for one in total) else tuple(one // 2 for one in total)


Meeting = tuple[str, str | None, str | None, int]
"""A use by its kind, its weight and bias, and which one of those with the same it is in a pass."""


@dataclass(frozen=True)
class Placement:
    """Where a tensor has its examples: on one axis, which also runs over `rest` other things (heads, places, windows);
    the examples vary slowest, or fastest where they are `inner`."""

    axis: int = 0
    inner: bool = False

    def apart(self, x: Tensor, b: int, lead: int = 0) -> Tensor:
        """[…] with the examples on an axis of their own, the first: [b, …], `rest` left in place. The first `lead`
        axes come before those that are meant."""
        at = self.axis + lead
        if x.ndim <= at or x.shape[at] % b:
            raise ValueError(f"{tuple(x.shape)} does not hold {b} examples on axis {at}")
        parted: Tensor = x.unflatten(at, (-1, b) if self.inner else (b, -1))
        return parted.movedim(at + 1 if self.inner else at, 0)


@dataclass(frozen=True)
class Use(ABC):
    """A weight and perhaps a bias that met one input, y = f(weight, a) + bias.

    Attributes:
        weight, bias: names of the stepped parameters; None if there is none or it does not step.
        a: the input; for the affine part of a normalisation the normalised one.
        edge: where the gradient at the output arrives.
        output: the output, detached; None unless it was asked for.
        shape: of the output.
        meeting: which use of the pass it is.
        placement: where the output has its examples.
        examples: how many there are.
    """

    weight: str | None
    bias: str | None
    a: Tensor
    edge: GradientEdge
    output: Tensor | None
    shape: torch.Size
    meeting: Meeting = ("", None, None, 0)
    placement: Placement | None = None
    examples: int = 1

    outer = False
    """Whether its gradients are sums of outer products, `places`."""

    transposed = False
    """Whether the weight has its inputs on the first axis."""

    @property
    def names(self) -> list[str]:
        return [name for name in (self.weight, self.bias) if name is not None]

    def gradients(self, q: Tensor) -> Matrices:
        """Gradients of every example for r cotangents, q [r, …]: name → [b, r, p_name]."""
        found = {}
        if self.weight is not None:
            found[self.weight] = self._of_weight(q).flatten(2)
        if self.bias is not None:
            found[self.bias] = self._of_bias(q).flatten(2)
        return found

    def only(self, name: str) -> Use:
        """The same for one of its parameters."""
        return replace(self, weight=name if name == self.weight else None, bias=name if name == self.bias else None)

    def some(self, q: Tensor, outputs: int) -> tuple[Use, Tensor]:
        """The same for the first outputs of the weight only, if that is cheap."""
        return self, q

    def places(self, q: Tensor, *, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """Of outer products: inputs [b, l, d] and gradients [b, r, l, o] at the l places."""
        raise TypeError(f"the gradients of a {type(self).__name__} are not sums of outer products")

    @abstractmethod
    def _of_weight(self, q: Tensor) -> Tensor:
        """Of the weight, [b, r, …]."""

    def _of_bias(self, q: Tensor) -> Tensor:
        """Of the bias, [b, r, …]."""
        raise TypeError(f"a {type(self).__name__} has no bias")

    def _apart(self, x: Tensor, lead: int = 0) -> Tensor:
        assert self.placement is not None
        return self.placement.apart(x, self.examples, lead)


@dataclass(frozen=True)
class LinearUse(Use):
    """y = a Wᵀ + b at every place; y = a W + b where it is `transposed`."""

    transposed: bool = False
    outer = True

    def places(self, q: Tensor, *, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """Inputs [b, l, d] and gradients [b, r, l, o] at the l places."""
        a, at = self._apart(self.a), self._apart(q, 1)
        return a.reshape(len(a), -1, a.shape[-1]), at.reshape(*at.shape[:2], -1, at.shape[-1])

    def some(self, q: Tensor, outputs: int) -> tuple[Use, Tensor]:
        return (self, q) if self.transposed else (self, q[..., :outputs])

    def _of_weight(self, q: Tensor) -> Tensor:
        found = outer_sums(*self.places(q))
        return found.transpose(2, 3) if self.transposed else found

    def _of_bias(self, q: Tensor) -> Tensor:
        return self.places(q)[1].sum(2)


def joined(uses: Sequence[tuple[Use, Tensor]]) -> list[tuple[Use, Tensor]]:
    """Uses with their gradients q. Linear layers with the same parameters, such as the steps of a recurrent net, become
    one with the places of all: the sum of their gradients is then one product, instead of a large matrix for each.
    """
    rest: list[tuple[Use, Tensor]] = []
    linear: dict[Any, list[tuple[LinearUse, Tensor]]] = {}
    for use, q in uses:
        if isinstance(use, LinearUse):
            linear.setdefault((use.weight, use.bias, use.transposed), []).append((use, q))
        else:
            rest.append((use, q))
    return rest + [_as_one(same) for same in linear.values()]


def _as_one(uses: list[tuple[LinearUse, Tensor]]) -> tuple[Use, Tensor]:
    inputs, gradients = zip(*(use.places(q) for use, q in uses), strict=True)
    one = replace(uses[0][0], a=torch.cat(inputs, dim=1), placement=Placement())
    return one, torch.cat(gradients, dim=2).transpose(0, 1)


@dataclass(frozen=True)
class ConvolutionUse(Use):
    """A linear layer at every patch, within each of the `groups` of channels."""

    options: dict[str, Any] | None = None
    groups: int = 1

    @property
    def outer(self) -> bool:  # type: ignore[override]
        return self.groups == 1

    def places(self, q: Tensor, *, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """Patches [b, l, d] and gradients [b, r, l, o] at them, for one group. The d numbers of a patch are in the
        order of the weight's, unless channels shall come last.
        """
        windows = patches(self.a, **(self.options or {}))
        n = (windows.ndim - 2) // 2
        kernel, at = range(2, 2 + n), range(2 + n, 2 + 2 * n)
        of_patch = (*kernel, 1) if channels_last else (1, *kernel)
        a = self._apart(windows.permute(0, *at, *of_patch).flatten(1 + n).flatten(1, n))
        found = self._apart(q.flatten(3).transpose(2, 3), 1)
        return a.flatten(1, 2), found.flatten(2, 3)

    def some(self, q: Tensor, outputs: int) -> tuple[Use, Tensor]:
        return (self, q[:, :, :outputs]) if self.groups == 1 else (self, q)

    def _of_weight(self, q: Tensor) -> Tensor:
        """Σ_l q_l a_lᵀ, [b, r, o, d], for as many examples at a time as their patches fit into a tile."""
        if self.groups > 1:
            return self._of_groups(q)
        d = self.a.shape[1] * math.prod((self.options or {})["kernel_size"])
        b, rest = self.examples, len(self.a) // self.examples
        tile = PATCH_BYTES.get(q.device.type, 1 << 28)
        at_once = max(1, tile // (d * rest * math.prod(q.shape[3:]) * q.element_size()))
        if at_once >= b or self.placement is None or self.placement.inner:
            return outer_sums(*self.places(q))
        weight = q.new_empty(b, q.shape[0], q.shape[2], d)
        for i in range(0, b, at_once):
            rows = slice(i * rest, (i + at_once) * rest)
            some = replace(self, a=self.a[rows], examples=min(at_once, b - i))
            outer_sums(*some.places(q[:, rows]), out=weight[i : i + at_once])
        return weight

    def _of_groups(self, q: Tensor) -> Tensor:
        """The same within each group: [b, r, o, d]."""
        windows = patches(self.a, **(self.options or {}))
        n = (windows.ndim - 2) // 2
        a = windows.unflatten(1, (self.groups, -1)).flatten(2, 2 + n).flatten(3)
        at = q.flatten(3).unflatten(2, (self.groups, -1))
        found = torch.einsum("ngdl,rngol->nrgod", a, at).flatten(2, 3)
        return self._apart(found).sum(1)

    def _of_bias(self, q: Tensor) -> Tensor:
        return self._apart(q.flatten(3).sum(3), 1).sum(2)


@dataclass(frozen=True)
class ScaleUse(Use):
    """weight ⊙ a + bias, with an entry for each channel, on the second axis, or for each place on the last `kept`."""

    kept: int = 0

    def _of_weight(self, q: Tensor) -> Tensor:
        return self._spread(q * self.a)

    def _of_bias(self, q: Tensor) -> Tensor:
        return self._spread(q)

    def _spread(self, product: Tensor) -> Tensor:
        """Sum [r, …] over all places but those the weight has an entry for: [b, r, …]."""
        if not self.kept:
            product = product.flatten(3).sum(3) if product.ndim > 3 else product
            return self._apart(product, 1).sum(2)
        parted = self._apart(product, 1)
        return parted.reshape(*parted.shape[:2], -1, *parted.shape[parted.ndim - self.kept :]).sum(2)


@dataclass(frozen=True)
class EmbeddingUse(Use):
    """Rows of the weight by the tokens `a`; the row `padding` takes no gradient."""

    rows: int = 0
    padding: int | None = None

    def tokens(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [b, l] and gradients [b, r, l, d] at their l places."""
        tokens, at = self._apart(self.a).flatten(1), self._apart(q, 1)
        at = at.reshape(*at.shape[:2], -1, at.shape[-1])
        if self.padding is not None:
            at = at * (tokens != self.padding)[:, None, :, None]
        return tokens, at

    def _of_weight(self, q: Tensor) -> Tensor:
        tokens, at = self.tokens(q)
        found = at.new_zeros(*at.shape[:2], self.rows, at.shape[-1])
        return found.scatter_add_(2, tokens[:, None, :, None].expand_as(at), at)


@dataclass(frozen=True)
class BroadcastUse(Use):
    """A parameter that was added to something, multiplied by `a`, or repeated."""

    of: tuple[int, ...] = ()

    def _of_weight(self, q: Tensor) -> Tensor:
        parted = self._apart(q * self.a, 1)
        missing = parted.ndim - 2 - len(self.of)
        sizes = (*[1] * missing, *self.of)
        if any(size not in (1, parted.shape[i + 2]) for i, size in enumerate(sizes)):
            raise ValueError("a parameter that is as long as there are examples")
        over = [i + 2 for i, size in enumerate(sizes) if size == 1 and parted.shape[i + 2] != 1]
        return parted.sum(over, keepdim=True) if over else parted


def outer_sums(a: Tensor, q: Tensor, out: Tensor | None = None) -> Tensor:
    """Σ_l q_l a_lᵀ of inputs a [b, l, d] and gradients q [b, r, l, o]: [b, r, o, d]. All cotangents of an example are
    one matrix; a product that broadcast a over them would copy it for each.

    >>> outer_sums(torch.ones(2, 3, 4), torch.ones(2, 5, 3, 6)).shape
    torch.Size([2, 5, 6, 4])
    """
    into = None if out is None else out.flatten(1, 2)
    b, r, _, o = q.shape
    return torch.bmm(q.transpose(2, 3).flatten(1, 2), a, out=into).view(b, r, o, -1)
