"""The tape: where parameters met inputs in a forward pass, so that one backward pass gives every example's gradient.

At a linear layer with input a and gradient q at its output, an example's weight gradient is the outer product q aᵀ; at
a convolution it is the sum of those over patches; at the affine part of a normalisation it is q ⊙ x̂. The functions
themselves are watched (not the modules), so that it does not matter how a network is written. A parameter that is met
anywhere else, or twice, is *left over* and is differentiated example by example.
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

from local_elasticity.engine.guard import FunctionMode
from local_elasticity.engine.problem import BoundProblem, Inputs, as_predictions
from local_elasticity.engine.replica import Params, flatten_tree


def patches(x: Tensor, kernel_size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> Tensor:
    """Windows of images [b, c, h, w] as a view [b, c, kh, kw, h′, w′].

    >>> import torch
    >>> patches(torch.zeros(2, 3, 8, 8), 3, padding=1, stride=2).shape
    torch.Size([2, 3, 3, 3, 4, 4])
    """
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = (two(v) for v in (kernel_size, stride, padding, dilation))
    if ph or pw:
        x = F.pad(x, (pw, pw, ph, ph))
    b, c, h, w = x.shape
    rows, columns = (h - dh * (kh - 1) - 1) // sh + 1, (w - dw * (kw - 1) - 1) // sw + 1
    at_b, at_c, at_h, at_w = x.stride()
    strides = (at_b, at_c, at_h * dh, at_w * dw, at_h * sh, at_w * sw)
    return x.as_strided((b, c, kh, kw, rows, columns), strides, x.storage_offset())


def two(value: Any) -> tuple[int, int]:
    """One number for both axes, or two."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


PATCH_BYTES = {"cpu": 1 << 24}
"""What the patches of some examples may take where caches are small."""

Matrices = dict[str, Tensor]
"""Parameter name → [..., p_name], the columns that belong to that parameter; the sum of p_name is p."""


@dataclass(frozen=True)
class Use:
    """A weight and perhaps a bias that met one input: y = f(weight, a) + bias.

    Attributes:
        kind: `"linear"`, `"conv2d"` or `"scale"` (weight ⊙ a, channels on the second axis or on the last ones).
        weight, bias: names of the stepped parameters; None where there is none or it does not step.
        a: the input, [b, …]; for `"scale"` the normalised input.
        edge: where the gradient at the output arrives.
        shape: of the output.
        options: of the convolution; for `"scale"` the shape of the weight and whether channels come second.
    """

    kind: str
    weight: str | None
    bias: str | None
    a: Tensor
    edge: GradientEdge
    shape: torch.Size
    options: dict[str, Any]

    @property
    def zero(self) -> Tensor:
        """The gradient at an output that the predictions do not depend on."""
        return self.a.new_zeros(()).expand(self.shape)

    @property
    def names(self) -> list[str]:
        return [name for name in (self.weight, self.bias) if name is not None]

    def places(self, q: Tensor, *, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """Of a linear layer or convolution: inputs [b, l, d] and gradients [b, r, l, o] at its l places (patches).

        The d numbers of a patch are in the order of the weight's, unless channels shall come last.
        """
        if self.kind == "conv2d":
            of_patch = (2, 3, 1) if channels_last else (1, 2, 3)
            windows = patches(self.a, **self.options).permute(0, 4, 5, *of_patch)
            return windows.flatten(3).flatten(1, 2), q.flatten(3).transpose(2, 3)
        return self.a.reshape(len(self.a), -1, self.a.shape[-1]), q.reshape(*q.shape[:2], -1, q.shape[-1])

    def gradients(self, q: Tensor) -> Matrices:
        """Gradients of every example for r cotangents, q [b, r, …]: name → [b, r, p_name]."""
        if self.kind == "scale":
            weight, bias = _spread(q * self.a[:, None], self.options), _spread(q, self.options)
        else:
            weight = self._weight_gradients(q) if self.weight else q
            bias = q.flatten(3).sum(3) if self.kind == "conv2d" else q.reshape(*q.shape[:2], -1, q.shape[-1]).sum(2)
        found = {self.weight: weight, self.bias: bias}
        return {name: gradient.flatten(2) for name, gradient in found.items() if name is not None}

    def _weight_gradients(self, q: Tensor) -> Tensor:
        """Σ_l q_l a_lᵀ, [b, r, o, d], for as many examples at a time as their patches fit into a tile."""
        if self.kind == "linear":
            return outer_sums(*self.places(q))
        d = self.a.shape[1] * math.prod(self.options["kernel_size"])
        weight = q.new_empty(*q.shape[:3], d)
        tile = PATCH_BYTES.get(q.device.type, 1 << 28)
        at_once = max(1, tile // (d * math.prod(q.shape[3:]) * q.element_size()))
        for i in range(0, len(q), at_once):
            rows = slice(i, i + at_once)
            outer_sums(*replace(self, a=self.a[rows]).places(q[rows]), out=weight[rows])
        return weight


def outer_sums(a: Tensor, q: Tensor, out: Tensor | None = None) -> Tensor:
    """Σ_l q_l a_lᵀ of inputs a [b, l, d] and gradients q [b, r, l, o]: [b, r, o, d]. All cotangents of an example are
    one matrix; a product that broadcast a over them would copy it for each.

    >>> outer_sums(torch.ones(2, 3, 4), torch.ones(2, 5, 3, 6)).shape
    torch.Size([2, 5, 6, 4])
    """
    into = None if out is None else out.flatten(1, 2)
    b, r, _, o = q.shape
    return torch.bmm(q.transpose(2, 3).flatten(1, 2), a, out=into).view(b, r, o, -1)


@dataclass(frozen=True)
class Tape:
    """A forward pass of b examples: the outputs [b, …], with their graph, and the uses that were met."""

    outputs: Tensor
    uses: tuple[Use, ...]

    @property
    def predictions(self) -> Tensor:
        return as_predictions(self.outputs)

    def gradients_at_uses(self, cotangents: Tensor) -> list[Tensor]:
        """q of every use, [b, r, …], for r cotangents of the predictions, [b, r, k]."""
        if not self.uses:
            return []
        predictions, edges = self.predictions, [use.edge for use in self.uses]
        rows = [
            torch.autograd.grad(predictions, edges, cotangents[:, i].contiguous(), retain_graph=True, allow_unused=True)
            for i in range(cotangents.shape[1])
        ]
        return [
            torch.stack([use.zero if one is None else one for one in q], dim=1)
            for use, q in zip(self.uses, zip(*rows, strict=True), strict=True)
        ]


class _Recorder(FunctionMode):
    """Notes every function that a parameter goes into."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        self.names = {id(p): name for name, p in params.items()}
        self.met: Counter[str] = Counter()
        self.uses: list[Use] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        names = [self.names[id(leaf)] for leaf in flatten_tree((args, kwargs)) if id(leaf) in self.names]
        if names and any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in flatten_tree(result)):
            self.met.update(names)
            if func in _READERS:
                if result._is_view():  # what is written into a view in place passes by the edge
                    result = torch.ops.aten._unsafe_view(result, result.shape)
                use = _READERS[func](self.names, result, *args, **(kwargs or {}))
                self.uses += [] if use is None else [use]
        return result


def leaves_of(params: Params) -> Params:
    """Tensors of the same values that gradients end at."""
    return {name: p.detach().requires_grad_() for name, p in params.items()}


def record(bound: BoundProblem, leaves: Params, inputs: Inputs, known: Collection[str] | None = None) -> Tape:
    """Run the network on a batch and keep every use of the `known` parameters, or of all, that is their only one."""
    with torch.enable_grad(), _Recorder(leaves) as recorder:
        outputs = bound.outputs(leaves, inputs)
    uses = [
        use
        for use in recorder.uses
        if use.names
        and all(recorder.met[name] == 1 and (known is None or name in known) for name in use.names)
        and len(use.a) == len(outputs)
    ]
    return Tape(outputs, tuple(uses))


def _linear(names: dict[int, str], result: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Use:
    edge = get_gradient_edge(result)
    return Use("linear", names.get(id(weight)), names.get(id(bias)), input.detach(), edge, result.shape, {})


def _conv2d(
    names: dict[int, str],
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Use | None:
    if groups != 1 or isinstance(padding, str) or input.ndim != 4:
        return None
    options = {"kernel_size": weight.shape[2:], "stride": stride, "padding": padding, "dilation": dilation}
    edge = get_gradient_edge(result)
    return Use("conv2d", names.get(id(weight)), names.get(id(bias)), input.detach(), edge, result.shape, options)


def _batch_norm(
    names: dict[int, str],
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
    options = {"second": True, "shape": running_mean.shape}
    edge = get_gradient_edge(result)
    return Use("scale", names.get(id(weight)), names.get(id(bias)), normal, edge, result.shape, options)


def _layer_norm(
    names: dict[int, str],
    result: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Use:
    normal = F.layer_norm(input.detach(), normalized_shape, eps=eps)
    options = {"second": False, "shape": normalized_shape}
    edge = get_gradient_edge(result)
    return Use("scale", names.get(id(weight)), names.get(id(bias)), normal, edge, result.shape, options)


_READERS: dict[Any, Callable[..., Use | None]] = {
    F.linear: _linear,
    F.conv2d: _conv2d,
    F.batch_norm: _batch_norm,
    F.layer_norm: _layer_norm,
}
"""The functions whose gradients are understood."""


def _spread(product: Tensor, options: dict[str, Any]) -> Tensor:
    """Sum [b, r, …] over all places but those the weight has an entry for."""
    if options["second"]:
        return product.flatten(3).sum(3) if product.ndim > 3 else product
    kept = len(options["shape"])
    places = product.reshape(*product.shape[:2], -1, *product.shape[product.ndim - kept :])
    return places.sum(2)
