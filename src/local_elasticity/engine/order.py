"""Whether a forward pass may have put the examples of its batch into another order, or taken shares of different sizes.

The tape finds an example's part of a tensor by its place. Some networks choose places by values: they sort their batch
by length, pack it, or multiply by a permutation. What only looks at shapes is listed here. A few examples are followed
through a network once; after anything else, code that cannot be seen, or where a batch goes another way, places are
checked by a second backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine.replica import flatten_tree


def _spellings(name: str) -> tuple[str, ...]:
    return name, f"{name}_", f"__{name}__", f"__r{name}__", f"__i{name}__"


def _named(names: str) -> Iterator[Any]:
    """The functions of these names, wherever torch has them, and those that write in place."""
    for name in names.split():
        for home in (torch, Tensor, F, torch.special):
            for found in (getattr(home, one, None) for one in _spellings(name)):
                if callable(found):
                    yield found


_BY_ENTRY = frozenset(
    _named(
        "abs add addcdiv addcmul and bitwise_and bitwise_not bitwise_or ceil celu clamp clamp_max clamp_min clip cos "
        "cosh div divide dropout dropout1d dropout2d dropout3d elu eq erf erfc exp exp2 expm1 fill float_power floor "
        "floor_divide floordiv fmod ge gelu glu gt hardshrink hardsigmoid hardswish hardtanh invert isfinite isinf "
        "isnan le leaky_relu lerp log log10 log1p log2 log_sigmoid logaddexp logical_and logical_not logical_or logit "
        "logsigmoid lt masked_fill maximum minimum mish mod mul multiply nan_to_num ne neg negative or pow prelu "
        "reciprocal relu relu6 remainder round rrelu rsqrt rsub selu sigmoid sign silu sin sinh softplus softshrink "
        "softsign sqrt square sub subtract tan tanh threshold true_divide truediv trunc where xor zero "
        "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_tensor "
        "bool clone contiguous copy detach double float half bfloat16 int long requires_grad to type type_as cpu cuda "
        "dim get_device is_complex is_contiguous is_floating_point ndimension nelement numel size stride "
        "element_size len"
    )
) - {Tensor.__bool__, Tensor.__float__, Tensor.__int__}
"""Functions of each entry, and those that ask for no values."""

_BY_SHAPE = frozenset(
    _named(
        "adjoint broadcast_tensors broadcast_to channel_shuffle diagonal expand expand_as flatten moveaxis movedim "
        "native_channel_shuffle permute pixel_shuffle pixel_unshuffle ravel repeat squeeze swapaxes swapdims t tile "
        "transpose tril triu unsqueeze "
        "batch_norm group_norm instance_norm layer_norm rms_norm normalize local_response_norm"
    )
)
"""Functions that put entries where shapes alone say. Normalisation stays within an example."""

_RESIZES = frozenset(
    _named(
        "fold interpolate pad unfold upsample "
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d "
        "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d lp_pool1d lp_pool2d"
    )
)
"""Functions that make axes longer or shorter; harmless where that is not the axis of the examples."""

_VIEWS = frozenset(_named("reshape reshape_as unflatten view view_as"))
"""Functions that cut axes; harmless where the examples are not cut into groups."""

_ALONG_AXES = frozenset(
    _named(
        "all amax amin any argmax argmin cat chunk concat concatenate cumprod cumsum hstack log_softmax logsumexp max "
        "mean min narrow norm prod softmax split std sum tensor_split var vstack"
    )
)
"""Functions that take entries along some axes together or apart; harmless where that is not the first axis."""

_GATHERS = frozenset(_named("gather take_along_dim"))
"""Functions that choose entries along one axis; harmless where that is certainly not the one of the examples."""

_LOSSES = frozenset(
    _named("binary_cross_entropy binary_cross_entropy_with_logits cross_entropy l1_loss mse_loss nll_loss")
)
"""Functions that, without a reduction, put entries where shapes alone say."""

_WITH_WEIGHTS = frozenset(
    _named(
        "addmm baddbmm bilinear bmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d embedding "
        "linear matmul mm"
    )
)
"""Products, which are a layer where one of the factors is a parameter. With another matrix that is as long as there are
examples they may be a permutation."""

_ADDING = frozenset(_named("addmm baddbmm"))
"""Those among them whose first argument is added to the product of the others."""

_RAGGED = frozenset(
    _named(
        "argwhere array bincount float index int item masked_select nonzero numpy tolist unique unique_consecutive "
        "_pack_padded_sequence"
    )
) - {Tensor.float, Tensor.int}
"""Functions whose results have a shape that depends on values, or that make Python numbers of them."""

_REPEATS = frozenset(_named("repeat_interleave"))


def is_ragged(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the shape of a result depends on values, as with a mask or with a number of repeats for each entry."""
    if func in _REPEATS:
        return not isinstance(args[1] if len(args) > 1 else kwargs.get("repeats"), int)
    if func is Tensor.__getitem__:
        index = [one for one in flatten_tree(args[1]) if isinstance(one, Tensor)]
        return any(one.dtype in (torch.bool, torch.uint8) for one in index)
    if func is torch.where:
        return len(args) + len(kwargs) == 1
    return func in _RAGGED


Call = tuple[Any, ...]
"""The name of a function, and the numbers and words that it was given."""


def call_of(func: Any, leaves: list[Any]) -> Call:
    """What decides where a call puts entries, except for the shapes of tensors."""
    given: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, slice):
            given += [None if isinstance(end, Tensor) else end for end in (leaf.start, leaf.stop, leaf.step)]
        elif isinstance(leaf, (int, str, type(None))):
            given.append(leaf)
    return getattr(func, "__name__", ""), *given


def same_calls(calls: Sequence[Call], others: Sequence[Call], examples: int, of_others: int) -> bool:
    """Whether two passes call the same functions in the same way, with numbers that are equal, or grow with the number
    of examples."""

    def same(one: Any, other: Any) -> bool:
        if one == other:
            return True
        return isinstance(one, int) and isinstance(other, int) and one * of_others == other * examples

    return len(calls) == len(others) and all(
        one == other or (len(one) == len(other) and all(map(same, one, other)))
        for one, other in zip(calls, others, strict=True)
    )


def may_move(func: Any, given: Any, result: Any, examples: int, is_parameter: Callable[[Any], Any]) -> bool:
    """Whether examples may come out of a function in an order that depends on values."""
    if examples == 1 or func in _BY_ENTRY or func in _BY_SHAPE or getattr(func, "__name__", "") == "__get__":
        return False
    tensors = [one for one in flatten_tree(given) if isinstance(one, Tensor)]
    if all(is_parameter(one) for one in tensors):
        return False
    made = [one for one in flatten_tree(result) if isinstance(one, Tensor)]
    if _shows_gradients() and not any(one.requires_grad for one in (*tensors, *made)):
        return False  # gradients do not pass here; what moves back later is seen there
    if func in (Tensor.__getitem__, Tensor.__setitem__):
        return _chooses(given[0][0], given[0][1], examples)
    if not made:  # values that Python sees; of a single one it can make no other order
        return any(one.numel() > 1 for one in tensors)
    if not any(size and size % examples == 0 for one in (*tensors, *made) for size in one.shape):  # no examples in it
        return False
    for functions, moves in _MOVES:
        if func in functions:
            return moves(given, tensors, made, examples)
    if func in _WITH_WEIGHTS:
        factors = _factors(func, *given)
        return not any(is_parameter(one) for one in factors) and _may_permute(factors, examples)
    return func is not F.scaled_dot_product_attention or not _apart(tensors[:3], examples)


def _shows_gradients() -> bool:
    """Whether tensors say if gradients pass through them; inside torch.func they do not."""
    return torch.is_grad_enabled() and torch._C._functorch.peek_interpreter_stack() is None


def _chooses(given: Tensor, index: Any, examples: int) -> bool:
    """Whether entries are chosen by numbers that were computed, or along an axis on which the examples may be, before
    or after."""
    index = index if isinstance(index, tuple) else (index,)
    taken = [one for one in index if one is not None and one is not Ellipsis]
    if not all(type(one) is int or (isinstance(one, slice) and _is_fixed(one)) for one in taken):
        return True
    after = 0 if Ellipsis not in index else sum(one is not None for one in index[index.index(Ellipsis) + 1 :])
    first = len(taken) - after
    axes = [*range(first), *range(given.ndim - after, given.ndim)]
    for axis, one in zip(axes, taken, strict=True):
        size = given.shape[axis]
        left = 1 if isinstance(one, int) else len(range(*one.indices(size)))
        if left != size and not (size % examples and left % examples):
            return True
    return False


def _is_fixed(part: slice) -> bool:
    return not any(isinstance(end, Tensor) for end in (part.start, part.stop, part.step))


def _has_first(tensor: Tensor, examples: int) -> bool:
    """Whether the first axis is as long as there are examples, or a multiple of that."""
    return tensor.ndim > 0 and tensor.shape[0] % examples == 0


def _cuts_examples(given: Any, tensors: list[Tensor], made: list[Tensor], examples: int) -> bool:
    """Whether a first axis on which the examples are is cut, other than into repeats of all of them."""
    before, after = tensors[0], made[0]
    if not _has_first(before, examples) or _has_first(after, examples):
        return False
    repeats = after.ndim > 1 and after.shape[0] * after.shape[1] == before.shape[0] and after.shape[1] % examples == 0
    return not repeats


def _resizes_examples(given: Any, tensors: list[Tensor], made: list[Tensor], examples: int) -> bool:
    """Whether an axis on which the examples may be, before or after, has another length afterwards."""
    before, after = tensors[0].shape, made[0].shape
    if len(before) != len(after):  # windows
        return before[0] != after[0] or any(size % examples == 0 for size in before[1:])
    return any(b != a and not (b % examples and a % examples) for b, a in zip(before, after, strict=True))


def _stacks_others(given: Any, tensors: list[Tensor], made: list[Tensor], examples: int) -> bool:
    """Whether some of the tensors that are stacked do not have all examples."""
    return not all(_has_first(one, examples) for one in tensors)


def _reduces(given: Any, tensors: list[Tensor], made: list[Tensor], examples: int) -> bool:
    """Whether a loss takes examples together."""
    return bool(given[1].get("reduction", "mean") != "none")


def _takes_together(given: Any, tensors: list[Tensor], made: list[Tensor], examples: int) -> bool:
    """Whether examples are taken together or apart; one number of them all has no order."""
    if all(one.ndim == 0 for one in made):
        return False
    return _first_axis(*given) or not _keeps_first([one for one in tensors if one.numel()], made, examples)


def _gathers_examples(given: Any, tensors: list[Tensor], made: list[Tensor], examples: int) -> bool:
    """Whether entries may be chosen along the axis of the examples: it is the first, or others are as long."""
    args, kwargs = given
    axis = kwargs.get("dim", next((one for one in args[1:] if isinstance(one, int)), None))
    if axis is None or axis % tensors[0].ndim == 0:
        return True
    together = (*tensors, *made)
    return not all(_has_first(one, examples) and all(size % examples for size in one.shape[1:]) for one in together)


_MOVES = (
    (_VIEWS, _cuts_examples),
    (_RESIZES, _resizes_examples),
    ({torch.stack}, _stacks_others),
    (_LOSSES, _reduces),
    (_ALONG_AXES, _takes_together),
    (_GATHERS, _gathers_examples),
)
"""Functions that move examples only where this is so, by their arguments, the tensors among those and the results."""


def _first_axis(args: Any, kwargs: Any) -> bool:
    """Whether the axis that is asked for is the first."""
    axis = kwargs.get("dim", args[-1] if len(args) > 1 else None)
    return isinstance(axis, int) and not isinstance(axis, bool) and axis == 0


def _keeps_first(given: list[Tensor], made: list[Tensor], examples: int) -> bool:
    """Whether the first axis alone is as long as there are examples, before and after."""
    lengths = {one.shape[0] if one.ndim else 0 for one in (*given, *made)}
    if len(lengths) != 1 or min(lengths) % examples:
        return False
    return all(size % examples for one in given for size in one.shape[1:]) or [g.shape for g in given] == [
        m.shape for m in made
    ]


def _factors(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that a product multiplies, without the one that it adds."""
    adds = func in _ADDING
    places = args[1:] if adds else args[: 3 if func is F.bilinear else 2]
    named = [one for name, one in kwargs.items() if name != ("input" if adds else "bias")]
    return [one for one in (*places, *named) if isinstance(one, Tensor)]


def _may_permute(factors: list[Tensor], examples: int) -> bool:
    """Whether one of the factors may be a table of examples or a matrix that permutes them, or sums over them."""
    if any(not one.is_floating_point() for one in factors):  # an embedding
        return any(one.is_floating_point() and len(one) % examples == 0 for one in factors)
    apart = _apart(factors, examples)
    if not apart and factors[-2].shape[-1] % examples == 0:
        return True
    ends = (slice(-2, None),) if apart else (slice(2), slice(-2, None))
    sides = [one.shape[end] for one in factors if one.ndim > 1 for end in ends]
    return any(rows % examples == 0 and columns % examples == 0 for rows, columns in sides)


def _apart(factors: list[Tensor], examples: int) -> bool:
    """Whether all have the examples on the first of at least three axes."""
    return all(one.ndim >= 3 and one.shape[0] % examples == 0 for one in factors)
