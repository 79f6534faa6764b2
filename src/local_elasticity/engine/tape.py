"""The tape: where parameters met inputs in a forward pass, so that one backward pass gives every example's gradient.

At a linear layer with input a and gradient q at its output, an example's weight gradient is the outer product q aᵀ; at
a convolution it is the sum of those over patches; at the affine part of a normalisation it is q ⊙ x̂; at an embedding
it is q in the rows of the tokens. The functions themselves are watched (not the modules), so that it does not matter
how a network is written. A parameter that is met anywhere else is *left over* and is differentiated example by example.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from local_elasticity.engine.composites import inside
from local_elasticity.engine.guard import FunctionMode
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.problem import BoundProblem, Inputs, as_predictions
from local_elasticity.engine.replica import Params, flatten_tree

PATCH_BYTES = {"cpu": 1 << 24}
"""What the patches of some examples may take where caches are small."""

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
    """Padding by name ("same", "valid") as numbers; None where it differs between the two sides."""
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
class Use:
    """A weight and perhaps a bias that met one input, y = f(weight, a) + bias.

    Attributes:
        weight, bias: names of the stepped parameters; None where there is none or it does not step.
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
        """The same for the first outputs of the weight alone, where that is easily had."""
        return self, q

    def places(self, q: Tensor, *, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """Of outer products: inputs [b, l, d] and gradients [b, r, l, o] at the l places."""
        raise NotImplementedError

    def _of_weight(self, q: Tensor) -> Tensor:
        raise NotImplementedError

    def _of_bias(self, q: Tensor) -> Tensor:
        raise NotImplementedError

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


@dataclass(frozen=True)
class ConvolutionUse(Use):
    """A linear layer at every patch, within each of the `groups` of channels."""

    options: dict[str, Any] | None = None
    groups: int = 1
    channels: int = 1

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


DERIVED = "#"
"""Names of what is derived from parameters begin so."""


@dataclass(frozen=True)
class Derived:
    """A tensor that was made of parameters alone, or of others that were, and the parameters at the roots."""

    tensor: Tensor
    made_of: tuple[str, ...]
    roots: tuple[str, ...]


@dataclass(frozen=True)
class Tape:
    """A forward pass of b examples: the outputs [b, …], with their graph, and the uses that were met of the `leaves`
    and of what is `derived` from them."""

    outputs: Tensor
    uses: tuple[Use, ...]
    leaves: Params
    derived: dict[str, Derived]
    met: frozenset[str]
    """Whatever went into a function, in a use or not."""
    unread: frozenset[str]
    """The parameters that went, or something made of them, into a function that is not a use."""
    ragged: bool
    """Whether examples may have taken different shares of an axis, because shapes depend on values."""

    @property
    def predictions(self) -> Tensor:
        return as_predictions(self.outputs)

    def gradients_at_uses(self, cotangents: Tensor) -> list[Tensor]:
        """q of every use, [r, …], for r cotangents of the predictions, [b, r, k]."""
        if not self.uses:
            return []
        predictions, edges = self.predictions, [use.edge for use in self.uses]
        rows = [
            torch.autograd.grad(predictions, edges, cotangents[:, i].contiguous(), retain_graph=True, allow_unused=True)
            for i in range(cotangents.shape[1])
        ]
        return [
            torch.stack([predictions.new_zeros(()).expand(use.shape) if one is None else one for one in q])
            for use, q in zip(self.uses, zip(*rows, strict=True), strict=True)
        ]

    def pulled_back(self, gradients: Matrices) -> Matrices:
        """Gradients [b, r, p] of what is derived as gradients of the parameters that it is made of, summed."""
        found = {name: part for name, part in gradients.items() if name not in self.derived}
        for name, part in gradients.items():
            if name in self.derived:
                for root, gradient in self._of_roots(self.derived[name], part).items():
                    found[root] = found[root] + gradient if root in found else gradient
        return found

    def roots(self, names: Collection[str]) -> set[str]:
        """The parameters that these are, or are derived from."""
        return {root for name in names for root in (self.derived[name].roots if name in self.derived else (name,))}

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


class _Recorder(FunctionMode):
    """Notes every function that a parameter goes into, or something that was derived from parameters alone."""

    def __init__(self, params: Params, constants: Collection[Meeting], *, keep: bool) -> None:
        super().__init__()
        self.names = {id(p): name for name, p in params.items()}
        self.constants, self.keep = constants, keep
        self.met: Counter[str] = Counter()
        self.read: Counter[str] = Counter()
        self.uses: list[Use] = []
        self.derived: dict[str, Derived] = {}
        self.ragged = False
        self._times: Counter[tuple[str, str | None, str | None]] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in flatten_tree((args, kwargs)) if isinstance(leaf, Tensor)]
        self.ragged |= func in _RAGGED or (func is Tensor.__getitem__ and _by_values(args[1]))
        names = [self.names[id(leaf)] for leaf in tensors if id(leaf) in self.names]
        if not names:
            return func(*args, **kwargs)
        body = None if func in _READERS else inside(func)
        if body is not None:
            with self:
                return body(*args, **kwargs)
        result = func(*args, **kwargs)
        made = [leaf for leaf in flatten_tree(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if all(id(leaf) in self.names for leaf in made):
            return result
        self.met.update(names)
        if func in _READERS:
            if result._is_view():  # what is written into a view in place passes by the edge
                result = torch.ops.aten._unsafe_view(result, result.shape)
            self._use(result, _READERS[func](self, result, *args, **kwargs), names)
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
        """Follow what was made of parameters alone as if it were one."""
        roots = {root for name in names for root in (self.derived[name].roots if name in self.derived else (name,))}
        self.read.update(names)
        for tensor in made:
            name = f"{DERIVED}{len(self.derived)}"
            self.names[id(tensor)], self.derived[name] = name, Derived(tensor, tuple(names), tuple(roots))

    def understood(self) -> set[str]:
        """What was met in uses alone, and so was all that is derived from it."""
        found = {name for name, times in self.met.items() if times == self.read[name]}
        for name, one in reversed(self.derived.items()):
            if self.met[name] and name not in found:
                found -= set(one.made_of)
        return found

    def name(self, p: Any) -> str | None:
        return self.names.get(id(p))

    def common(self, result: Tensor) -> dict[str, Any]:
        """What every use has."""
        output = result.detach() if self.keep else None
        return {"edge": get_gradient_edge(result), "output": output, "shape": result.shape}


_RAGGED = {
    *(torch.nonzero, torch.argwhere, torch.masked_select, torch.unique, torch.repeat_interleave, torch.bincount),
    *(getattr(Tensor, name) for name in ("nonzero", "masked_select", "unique", "repeat_interleave", "argwhere")),
    *(getattr(Tensor, name) for name in ("item", "tolist", "__int__", "__index__", "numpy")),
}
"""Functions whose results have a shape that depends on values, or that make Python numbers of them."""


def _by_values(index: Any) -> bool:
    """Whether what is chosen depends on values, as with a mask."""
    return any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in flatten_tree(index))


def leaves_of(params: Params) -> Params:
    """Tensors of the same values that gradients end at."""
    return {name: p.detach().requires_grad_() for name, p in params.items()}


def record(
    bound: BoundProblem,
    leaves: Params,
    inputs: Inputs,
    known: Collection[str] | None = None,
    *,
    constants: Collection[Meeting] = (),
    keep: bool = False,
) -> Tape:
    """Run the network on a batch and keep the uses of the `known` parameters, or of all, that are met in uses alone;
    with `keep` also the outputs of uses. What comes out of the `constants` is the same for all examples."""
    with torch.enable_grad(), _Recorder(leaves, constants, keep=keep) as recorder:
        outputs = bound.outputs(leaves, inputs)
    read = recorder.understood()
    if known is not None:
        derived = recorder.derived
        read = {name for name in read if set(known).issuperset(derived[name].roots if name in derived else (name,))}

    def only(name: str | None) -> str | None:
        return name if name in read else None

    uses = [replace(use, examples=len(outputs), weight=only(use.weight), bias=only(use.bias)) for use in recorder.uses]
    unread = set(recorder.met) - recorder.understood()
    tape = Tape(
        outputs,
        tuple(use for use in uses if use.names),
        leaves,
        recorder.derived,
        frozenset(recorder.met),
        frozenset(),
        recorder.ragged,
    )
    return replace(tape, unread=frozenset(tape.roots(unread)))


def _linear(seen: _Recorder, result: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Use:
    return LinearUse(seen.name(weight), seen.name(bias), input.detach(), **seen.common(result))


def _addmm(
    seen: _Recorder, result: Tensor, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Use | None:
    if beta != 1 or alpha != 1 or (seen.name(input) and input.shape != result.shape[-1:]):
        return None
    return LinearUse(seen.name(mat2), seen.name(input), mat1.detach(), **seen.common(result), transposed=True)


def _matmul(seen: _Recorder, result: Tensor, input: Tensor, other: Tensor) -> Use | None:
    if other.ndim != 2 or seen.name(input) or input.ndim < 2:
        return None
    return LinearUse(seen.name(other), None, input.detach(), **seen.common(result), transposed=True)


def _convolution(
    seen: _Recorder,
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Use | None:
    border = padding_of(padding, weight.shape[2:], dilation)
    if border is None or input.ndim != weight.ndim:
        return None
    options = {"kernel_size": weight.shape[2:], "stride": stride, "padding": border, "dilation": dilation}
    names = seen.name(weight), seen.name(bias)
    return ConvolutionUse(*names, input.detach(), **seen.common(result), options=options, groups=groups)


def _batch_norm(
    seen: _Recorder,
    result: Tensor,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Use | None:
    if training or running_mean is None or running_var is None:
        return None
    channels = (1, -1, *[1] * (input.ndim - 2))
    normal = (input.detach() - running_mean.view(channels)) / (running_var.view(channels) + eps).sqrt()
    return ScaleUse(seen.name(weight), seen.name(bias), normal, **seen.common(result))


def _layer_norm(
    seen: _Recorder,
    result: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Use:
    normal = F.layer_norm(input.detach(), normalized_shape, eps=eps)
    kept = len(normalized_shape)
    return ScaleUse(seen.name(weight), seen.name(bias), normal, **seen.common(result), kept=kept)


def _rms_norm(
    seen: _Recorder,
    result: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Use:
    normal = F.rms_norm(input.detach(), normalized_shape, eps=eps)
    return ScaleUse(seen.name(weight), None, normal, **seen.common(result), kept=len(normalized_shape))


def _group_norm(
    seen: _Recorder,
    result: Tensor,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Use:
    normal = F.group_norm(input.detach(), num_groups, eps=eps)
    return ScaleUse(seen.name(weight), seen.name(bias), normal, **seen.common(result))


def _embedding(
    seen: _Recorder,
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Use | None:
    if max_norm is not None or scale_grad_by_freq:
        return None
    padding = None if padding_idx is None else padding_idx % len(weight)
    return EmbeddingUse(seen.name(weight), None, input, **seen.common(result), rows=len(weight), padding=padding)


def _expand(seen: _Recorder, result: Tensor, input: Tensor, *sizes: Any) -> Use:
    return BroadcastUse(seen.name(input), None, result.new_ones(()), **seen.common(result), of=input.shape)


def _add(seen: _Recorder, result: Tensor, input: Any, other: Any, *, alpha: float = 1) -> Use | None:
    p = input if seen.name(input) else other
    if alpha != 1 or (seen.name(input) and seen.name(other)):
        return None
    return BroadcastUse(seen.name(p), None, result.detach().new_ones(()), **seen.common(result), of=p.shape)


def _mul(seen: _Recorder, result: Tensor, input: Any, other: Any) -> Use | None:
    p, factor = (input, other) if seen.name(input) else (other, input)
    if seen.name(factor):
        return None
    factor = factor.detach() if isinstance(factor, Tensor) else result.detach().new_tensor(factor)
    return BroadcastUse(seen.name(p), None, factor, **seen.common(result), of=p.shape)


_READERS: dict[Any, Callable[..., Use | None]] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    F.conv1d: _convolution,
    F.conv2d: _convolution,
    F.conv3d: _convolution,
    F.batch_norm: _batch_norm,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.embedding: _embedding,
    Tensor.expand: _expand,
    torch.add: _add,
    Tensor.add: _add,
    Tensor.__add__: _add,
    Tensor.__radd__: _add,
    torch.mul: _mul,
    Tensor.mul: _mul,
    Tensor.__mul__: _mul,
    Tensor.__rmul__: _mul,
}
"""The functions whose gradients are understood."""
