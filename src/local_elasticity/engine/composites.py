"""Functions that are composed of others: the rules and the tape only need to know the parts.

Most of torch.nn.functional is Python code, which is traced. A recurrent network is one call into torch; it is written
out here.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

COMPOSITES: dict[Any, Callable[..., Any]] = {}
"""Function → the same function, written with others."""

_PYTHON = ("torch.nn.functional", "torch.functional", "torch._tensor")


@cache
def inside(func: Any) -> Callable[..., Any] | None:
    """The body of a composed function, which calls its parts without dispatching the whole function again; None if its
    parts are not known."""
    if func in COMPOSITES:
        return COMPOSITES[func]
    if not isinstance(func, types.FunctionType) or func.__module__ not in _PYTHON:
        return None
    if not any(name.startswith("has_torch_function") for name in func.__code__.co_names):
        return None  # a wrapper would dispatch the same function again, without end
    return _entered(func)


def _entered(func: Any) -> Callable[..., Any]:
    asked = {name: _nobody for name in func.__globals__ if name.startswith("has_torch_function")}
    body = types.FunctionType(
        func.__code__, {**func.__globals__, **asked}, func.__name__, func.__defaults__, func.__closure__
    )
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def _nobody(*tensors: Any) -> bool:
    return False


def composite(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what functions are made of."""

    def register(written: Callable[..., Any]) -> Callable[..., Any]:
        COMPOSITES.update(dict.fromkeys(functions, written))
        return written

    return register


@composite(torch.prelu)
def _prelu(x: Any, weight: Any) -> Any:
    """max(x, 0) + w (x − max(x, 0)), with a w for each channel or one. At 0 the derivative is w, as torch has it."""
    w = weight.reshape(1, -1, *[1] * (x.ndim - 2)) if weight.numel() > 1 and x.ndim > 1 else weight
    return torch.relu(x) + w * (x - torch.relu(x))


composite(torch.log2, Tensor.log2)(lambda x: torch.log(x) / math.log(2))
composite(torch.log10, Tensor.log10)(lambda x: torch.log(x) / math.log(10))
composite(torch.exp2, Tensor.exp2)(lambda x: torch.exp(x * math.log(2)))
composite(torch.tan, Tensor.tan)(lambda x: torch.sin(x) / torch.cos(x))
composite(torch.hypot, Tensor.hypot)(lambda x, y: torch.sqrt(x * x + y * y))
composite(torch.float_power, Tensor.float_power)(
    lambda x, exponent: torch.pow(*(one.double() if isinstance(one, Tensor) else one for one in (x, exponent)))
)
composite(torch.logaddexp, Tensor.logaddexp)(lambda x, y: torch.maximum(x, y) + F.softplus(-torch.abs(x - y)))
composite(torch.lerp, Tensor.lerp)(lambda start, end, weight: start + weight * (end - start))
composite(torch.addcmul, Tensor.addcmul)(
    lambda input, tensor1, tensor2, *, value=1: input + value * (tensor1 * tensor2)
)
composite(torch.addcdiv, Tensor.addcdiv)(
    lambda input, tensor1, tensor2, *, value=1: input + value * (tensor1 / tensor2)
)


@composite(F.multi_head_attention_forward)
def _multi_head_attention(
    query: Any, key: Any, value: Any, width: int, heads: int, weight: Any, bias: Any, *others: Any, **options: Any
) -> Any:
    """A sequence's attention to itself, without masks, with the examples first throughout: torch's own code, which has
    the places first, copies what is transposed. Anything else as torch has it."""
    bias_k, bias_v, zero_attention, dropout, out_weight, out_bias = others[:6]
    asks_more = options.get("need_weights", True) or (options.get("training", True) and dropout > 0) or zero_attention
    given = (bias_k, bias_v, *(part for name, part in options.items() if name in _RARELY_GIVEN))
    to_itself = query is key is value and query.ndim == 3 and weight is not None and len(others) == 6
    if not to_itself or asks_more or any(part is not None for part in given):
        whole = _entered(F.multi_head_attention_forward)
        return whole(query, key, value, width, heads, weight, bias, *others, **options)
    parts = F.linear(query.transpose(0, 1), weight, bias).chunk(3, -1)
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
    read = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return F.linear(read, out_weight, out_bias).transpose(0, 1), None


_RARELY_GIVEN = frozenset(
    ("key_padding_mask", "attn_mask", "q_proj_weight", "k_proj_weight", "v_proj_weight", "static_k", "static_v")
)


@composite(F.embedding_bag)
def _embedding_bag(input: Any, weight: Any, *args: Any, **options: Any) -> Any:
    """Bags are embeddings that are summed, less those of the padding."""
    mode, padding, offsets = options.get("mode", "mean"), options.get("padding_idx"), options.get("offsets")
    plain = not any(options.get(name) for name in ("max_norm", "scale_grad_by_freq"))
    if args or (input.ndim == 1) is (offsets is None) or not plain or mode not in ("sum", "mean"):
        return _entered(F.embedding_bag)(input, weight, *args, **options)
    shares, scale = torch.ones_like(input, dtype=weight.dtype), options.get("per_sample_weights")
    if padding is not None:
        shares = (input != padding % len(weight)).to(weight.dtype)

    def summed(x: Any) -> Any:
        """Of each bag."""
        if offsets is None:
            return x.sum(1)
        starts = offsets[:-1] if options.get("include_last_offset") else offsets
        bags = torch.bucketize(torch.arange(len(x), device=x.device), starts, right=True) - 1
        return x.new_zeros(len(starts), *x.shape[1:]).index_add(0, bags, x)

    counts = summed(shares).clamp_min(1)
    shares = shares if scale is None else shares * scale
    total = summed(F.embedding(input, weight, padding) * shares[..., None])
    return total / counts[:, None] if mode == "mean" else total


def _both_ways(
    layer: Callable[..., tuple[Any, list[Any]]],
    states: list[Any],
    x: Any,
    weights: list[Any],
    biases: bool,
    layers: int,
    both: bool,
    batch_first: bool,
    sizes: list[int] | None,
) -> tuple[Any, list[Any]]:
    """Layers one after the other, each forwards and perhaps backwards in time: outputs and last states. Of packed
    sequences, `sizes` are how many there are at each time."""
    x = x.transpose(0, 1) if batch_first else x
    ways = 2 if both else 1
    each = len(weights) // (layers * ways)
    last: list[list[Any]] = []
    for depth in range(layers):
        outputs = []
        for way in range(ways):
            i = depth * ways + way
            own = weights[i * each : (i + 1) * each]
            own = own if biases else [*own[:2], None, None, *own[2:]]
            out, end = layer(x, [state[i] for state in states], bool(way), sizes, *own)
            outputs.append(out)
            last.append(end)
        x = torch.cat(outputs, -1) if both else outputs[0]
    ends = [torch.stack([end[j] for end in last]) for j in range(len(states))]
    return (x.transpose(0, 1) if batch_first else x), ends


def _over_time(cell: Callable[..., list[Any]]) -> Callable[..., tuple[Any, list[Any]]]:
    """A layer that takes a cell along the first axis; the inputs' part is computed for all times at once."""

    def layer(
        x: Any, state: list[Any], back: bool, sizes: list[int] | None, w_ih: Any, w_hh: Any, b_ih: Any, *own: Any
    ) -> Any:
        from_input, outputs = F.linear(x, w_ih, b_ih), []
        times = from_input.unbind(0) if sizes is None else from_input.split(sizes)
        for now in reversed(times) if back else times:
            if sizes is None:
                state = cell(now, state, w_hh, *own)
            else:  # sequences that have ended, or not begun, keep their state
                alive = cell(now, [one[: len(now)] for one in state], w_hh, *own)
                state = [torch.cat([one, rest[len(now) :]]) for one, rest in zip(alive, state, strict=True)]
            outputs.append(state[0] if sizes is None else state[0][: len(now)])
        outputs = outputs[::-1] if back else outputs
        return (torch.stack(outputs) if sizes is None else torch.cat(outputs)), state

    return layer


def _lstm_cell(from_input: Any, state: list[Any], w_hh: Any, b_hh: Any, w_hr: Any = None) -> list[Any]:
    i, f, g, o = (from_input + F.linear(state[0], w_hh, b_hh)).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return [h if w_hr is None else F.linear(h, w_hr), c]


def _gru_cell(from_input: Any, state: list[Any], w_hh: Any, b_hh: Any) -> list[Any]:
    h = state[0]
    (ir, iz, new), (hr, hz, hn) = from_input.chunk(3, -1), F.linear(h, w_hh, b_hh).chunk(3, -1)
    new = torch.tanh(new + torch.sigmoid(ir + hr) * hn)
    return [new + torch.sigmoid(iz + hz) * (h - new)]


def _plain_cell(activation: Callable[[Any], Any]) -> Callable[..., list[Any]]:
    return lambda from_input, state, w_hh, b_hh: [activation(from_input + F.linear(state[0], w_hh, b_hh))]


def _recurrent(cell: Callable[..., list[Any]], whole: Any) -> Callable[..., Any]:
    """A recurrent network, written out; in training mode with dropout between layers it is left to torch."""

    def run(x: Any, *args: Any) -> Any:
        packed = isinstance(args[2], (list, tuple))  # then the sizes of batches come first
        hx, weights, biases, layers, dropout, train, both, *batch_first = args[1:] if packed else args
        if train and dropout > 0:
            return whole(x, *args)
        states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
        sizes, first = (args[0].tolist(), False) if packed else (None, batch_first[0])
        out, ends = _both_ways(_over_time(cell), states, x, list(weights), biases, layers, both, first, sizes)
        return out, *ends

    return run


composite(torch.lstm)(_recurrent(_lstm_cell, torch.ops.aten.lstm))
composite(torch.gru)(_recurrent(_gru_cell, torch.ops.aten.gru))
composite(torch.rnn_tanh)(_recurrent(_plain_cell(torch.tanh), torch.ops.aten.rnn_tanh))
composite(torch.rnn_relu)(_recurrent(_plain_cell(torch.relu), torch.ops.aten.rnn_relu))


@composite(torch.lstm_cell)
def _one_lstm(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    return tuple(_lstm_cell(F.linear(x, w_ih, b_ih), list(hx), w_hh, b_hh))


def _one(cell: Callable[..., list[Any]]) -> Callable[..., Any]:
    return lambda x, hx, w_ih, w_hh, b_ih=None, b_hh=None: cell(F.linear(x, w_ih, b_ih), [hx], w_hh, b_hh)[0]


composite(torch.gru_cell)(_one(_gru_cell))
composite(torch.rnn_tanh_cell)(_one(_plain_cell(torch.tanh)))
composite(torch.rnn_relu_cell)(_one(_plain_cell(torch.relu)))
