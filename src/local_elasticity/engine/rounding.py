"""A pass whose intermediate results are rounded otherwise (Monte Carlo arithmetic), to see which digits they have.

A sum that is large beside its parts loses their digits, and so does a difference of nearly equal numbers. Both show if
every number that a kernel computes is moved by a unit in its last place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._functorch import eager_transforms
from torch._ops import OpOverload

from local_elasticity.engine.guard import DispatchMode
from local_elasticity.engine.memory import may_be_passed_over

T = TypeVar("T")

LENGTH, STRIDE = 4099, 1009
"""The length of a random pattern, a prime, so that it does not align with rows or channels; and how far it is moved
from one result to the next."""

ROUNDED_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

EXACT = frozenset(
    {"clone", "copy", "_to_copy", "lift", "lift_fresh", "cat", "stack", "pad", "constant_pad_nd", "repeat", "roll"}
    | {"squeeze", "unsqueeze", "t", "transpose", "as_strided", "_unsafe_view", "unsafe_split", "set", "resize"}
    | {"unsafe_split_with_sizes", "index", "index_select", "gather", "take", "im2col", "sort", "topk", "flip"}
    | {"where", "masked_fill", "masked_select", "masked_scatter", "tril", "triu", "embedding"}
    | {"select_scatter", "slice_scatter", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"}
    | {"fill", "zero", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "empty", "empty_like", "eye"}
    | {"new_zeros", "new_ones", "new_full", "new_empty", "empty_strided", "new_empty_strided", "arange"}
    | {"relu", "threshold", "hardtanh", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "max", "min", "amax"}
    | {"amin", "abs", "neg", "scalar_tensor", "view_as_real", "view_as_complex", "complex", "real", "imag"}
    | {"max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d"}
)
"""Kernels that choose, move or fill and so do not round, by name without a final underscore."""

STEPS = frozenset(
    {"floor", "ceil", "round", "trunc", "sign", "heaviside", "floor_divide", "histc"}
    | {"eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "logical_xor"}
    | {"fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask"}
    | {"mode", "_unique2", "unique_dim", "unique_consecutive"}
)
"""Kernels whose floating-point results jump."""

CHOOSES = frozenset({"sort", "topk", "max", "min", "median", "nanmedian", "kthvalue", "cummax", "cummin"})
"""Kernels that give numbers together with their places."""

POOLS, UNPOOLS = frozenset({"max_pool2d_with_indices", "max_pool3d_with_indices"}), ("max_unpool2d", "max_unpool3d")
"""Kernels that give places which only others use."""

MODULO = frozenset({"remainder", "fmod", "frac"})
"""Kernels that jump by their second argument, or by 1."""

CASTS = {"_to_copy": 0, "copy": 1}
"""Kernels that round where they go to fewer digits, and the place of what they read."""

DISTANCES, FEW_POINTS = "_cdist_forward", 25
"""Distances of more points than this are computed from squares and products, and lose the digits of both."""

GROUP_NORM = "native_group_norm"

SUBTRACTS_INSIDE = {
    **dict.fromkeys(("native_layer_norm", GROUP_NORM, "native_batch_norm", "cudnn_batch_norm"), 0),
    **dict.fromkeys(("_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "_batch_norm_no_update"), 0),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean", "sum", "mean", "cumsum", "logcumsumexp"), 0),
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "linear", "convolution", "_convolution"), 0),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmv", DISTANCES), 1),
    **dict.fromkeys(("_fft_r2c", "_fft_c2c", "_fft_c2r", "mkldnn_rnn_layer"), 0),
}
"""Kernels that add and subtract inside, where nothing can be moved, and the place of the argument that is moved
instead. Of other kernels that are not elementwise, all arguments are moved."""

READS_EACH = frozenset(
    {"_softmax", "_log_softmax", "_prelu_kernel", "glu", "native_dropout", "bucketize", "searchsorted"}
    | {"prod", "cumprod"}
)
"""Further kernels that lose no digits inside, though torch does not call them elementwise."""


class Rounding(DispatchMode):
    """Moves every number that a kernel computes by a unit in its last place.

    Decisions that a network takes by such numbers, as by `mask.sum(1).long()`, are those of `decisions`, if given: what
    rounding does to them is no small change. `decides` says whether there were any.
    """

    def __init__(self, pattern: Tensor) -> None:
        super().__init__()
        self.pattern = pattern
        self.units: dict[Any, Tensor] = {}
        self.offset = self.place = 0
        self.decides = False
        self.decisions: list[Decision] | None = None

    @classmethod
    def at_random(cls, device: torch.device, generator: torch.Generator) -> Rounding:
        """Each number moved up or down."""
        return cls(2.0 * torch.randint(0, 2, (LENGTH,), generator=generator, device=device) - 1)

    @classmethod
    def alternating(cls, device: torch.device, pattern: int) -> Rounding:
        """Neighbours moved in opposite directions: few tries are enough to see what that does."""
        return cls(alternating_signs(torch.ones(1 << (pattern + 10), device=device), pattern))

    def __enter__(self) -> Any:
        self.place = 0
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload) or _in_forward_mode():
            return func(*args, **kwargs)
        name = _name(func)
        places = _read_inside(func)
        if places:
            args = tuple(self._moved(one) if i in places else one for i, one in enumerate(args))
        if name == GROUP_NORM and _by_squares(args[0]):
            args = (self._of_squares(args[0], args[6]), *args[1:])
        found = func(*args, **kwargs)
        if name == DISTANCES and _by_products(*args):
            found = self._of_products(found, *args[:2])
        if _is_decision(func, found, args, kwargs):
            self.decides |= name not in POOLS
            return found if self.decisions is None else self._decided(func, found, args)
        self.decides |= name in UNPOOLS
        if _computes(func) or _casts_down(name, found, args):
            for one in found if isinstance(found, (tuple, list)) else (found,):
                self._move(one)
        return found

    def _decided(self, func: Any, found: Any, args: Any) -> Any:
        """What was decided here without rounding; of a kernel that gives numbers too, those that it gives now."""
        assert self.decisions is not None
        there = self.decisions[self.place] if self.place < len(self.decisions) else None
        self.place += 1
        if there is None or there.func is not func:
            raise RuntimeError("the network takes other decisions where its numbers are rounded otherwise")
        if _name(func) in MODULO:
            apart, by = found - there.found, 1.0 if len(args) < 2 else args[1]
            return found.copy_(there.found + apart - by * (apart / by).round())
        if func._schema.is_mutable:  # what is written, the caller has already
            return found.copy_(there.found)
        if not isinstance(found, (tuple, list)):
            return _copied(there.found)
        keeps = _name(func) in STEPS
        pairs = zip(found, there.found, strict=True)
        return type(found)(now if _moves(now) and not keeps else _copied(before) for now, before in pairs)

    def _of_products(self, found: Tensor, one: Tensor, other: Tensor) -> Tensor:
        """Distances √(‖a‖² + ‖b‖² − 2ab) whose squares are moved by a unit of their largest term."""
        largest = one.square().sum(-1)[..., :, None] + other.square().sum(-1)[..., None, :]
        off = self._moved(largest) - largest
        return (found.square() + off).clamp_min(0).sqrt()

    def _of_squares(self, images: Tensor, groups: int) -> Tensor:
        """Images whose spread in each group is that of a variance E[x²] − E[x]² with E[x²] moved by a unit."""
        each = images.unflatten(1, (groups, -1)).flatten(2)
        mean, spread = each.mean(2, keepdim=True), each.var(2, keepdim=True, correction=0)
        squares = mean.square() + spread
        off = (self._moved(squares) - squares) / (2 * spread).clamp_min(torch.finfo(spread.dtype).tiny)
        return images + ((each - mean) * off.clamp(-1, 1)).view(images.shape)

    def _moved(self, value: Any) -> Any:
        """A copy of a tensor of numbers, moved; anything else as it is."""
        if not _is_plain(value):
            return value
        if value.layout in (torch.sparse_coo, torch.sparse_csr):
            numbers = self._moved(value._values() if value.layout == torch.sparse_coo else value.values())
            if value.layout == torch.sparse_csr:
                return torch.sparse_csr_tensor(value.crow_indices(), value.col_indices(), numbers, value.shape)
            made = torch.sparse_coo_tensor(value._indices(), numbers, value.shape)
            return made._coalesced_(value.is_coalesced())
        copy = value.clone()
        self._move(copy)
        return copy

    def _move(self, found: Any) -> None:
        if not _moves(found) or not found.numel():
            return
        if found.is_complex():
            found = torch.view_as_real(found)
        most = torch.finfo(found.dtype).max / 16  # masks of −∞ or of the largest number stay what they are
        self.offset = (self.offset + STRIDE) % len(self.pattern)
        found.addcmul_(found.clamp(-most, most), self._units(found))

    def _units(self, found: Tensor) -> Tensor:
        """The pattern, again and again in the order of memory, in units of relative rounding."""
        reach = sum((size - 1) * stride for size, stride in zip(found.shape, found.stride(), strict=True)) + 1
        units = self.units.get((found.dtype, found.device))
        if units is None or len(units) < len(self.pattern) + reach:
            whole = (torch.finfo(found.dtype).eps / 2 * self.pattern).to(found)
            units = whole.repeat(1 - (-reach // len(whole)))
            self.units[found.dtype, found.device] = units
        return units.as_strided(found.shape, found.stride(), self.offset)


@dataclass(frozen=True)
class Decision:
    """What a kernel gave that is no continuous number."""

    func: Any
    found: Any


class _Decisions(DispatchMode):
    """Records the decisions of a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Decision] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if isinstance(func, OpOverload) and not _in_forward_mode() and _is_decision(func, found, args, kwargs):
            kept = type(found)(map(_copied, found)) if isinstance(found, (tuple, list)) else _copied(found)
            self.taken.append(Decision(func, kept))
        return found


def run_rounded(rounding: Rounding, run: Callable[[], T], plain: Callable[[], Any]) -> T:
    """What `run` gives with its numbers rounded otherwise, and its decisions those of `plain`, the same without."""
    try:
        with rounding:
            found = run()
        if not rounding.decides or rounding.decisions is not None:
            return found
    except Exception as error:  # whatever a network raises whose numbers are not those that it expects
        if not may_be_passed_over(error) or not rounding.decides or rounding.decisions is not None:
            raise
    recorder = _Decisions()
    with recorder:
        plain()
    rounding.decisions = recorder.taken
    with rounding:
        return run()


def repeated(pattern: Tensor, like: Tensor) -> Tensor:
    """A pattern, again and again, in the shape of a tensor."""
    repeats = -(-like.numel() // len(pattern))
    whole = pattern if repeats <= 1 else pattern.repeat(repeats)
    return whole[: like.numel()].view(like.shape).to(like.dtype)


def alternating_signs(like: Tensor, pattern: int) -> Tensor:
    """+ − + − …, + + − − …, and so on, in the shape of a tensor: unlike random signs, no two patterns are equal."""
    places = torch.arange(like.numel(), device=like.device).view(like.shape)
    return 1.0 - 2.0 * ((places >> pattern) & 1).to(like.dtype)


def _in_forward_mode() -> bool:
    """Inside `torch.func.jvp`, where torch does not take operations of a mode."""
    return bool(getattr(eager_transforms, "JVP_NESTING", 0))


@cache
def _name(func: Any) -> str:
    """Of a kernel: "add" for aten.add_.Tensor."""
    return str(func.overloadpacket.__name__).removesuffix("_")


@cache
def _computes(func: Any) -> bool:
    """Whether a kernel makes numbers that have to be rounded."""
    return not (func.is_view or _name(func) in EXACT)


@cache
def _read_inside(func: Any) -> frozenset[int]:
    """The places of the arguments that are moved, as their digits may be lost inside a kernel: not those that it
    writes."""
    name, arguments = _name(func), func._schema.arguments
    if name in SUBTRACTS_INSIDE:
        places = {SUBTRACTS_INSIDE[name]}
    elif not _computes(func) or torch.Tag.pointwise in func.tags or name in READS_EACH or "backward" in name:
        return frozenset()
    else:
        places = {i for i, argument in enumerate(arguments) if str(argument.type) in ("Tensor", "Optional[Tensor]")}
    return frozenset(i for i in places if arguments[i].alias_info is None or not arguments[i].alias_info.is_write)


def _by_products(one: Tensor, other: Tensor, p: float, mode: int | None = None) -> bool:
    """Whether distances are computed from squares and products."""
    return p == 2 and (mode == 1 or (mode in (None, 0) and max(one.shape[-2], other.shape[-2]) > FEW_POINTS))


def _by_squares(images: Tensor) -> bool:
    """Whether group norms take variances from sums of squares, as torch does on a CPU where channels come last."""
    last = images.ndim == 4 and images.is_contiguous(memory_format=torch.channels_last)
    return images.device.type == "cpu" and last and not images.is_contiguous()


def _is_decision(func: Any, found: Any, args: Any, kwargs: Any) -> bool:
    """Whether a kernel made something of numbers that is none itself: places, truth, whole numbers."""
    name = _name(func)
    if isinstance(found, Tensor):
        jumps = name in STEPS or name in MODULO or (name == "div" and kwargs.get("rounding_mode") is not None)
        discrete = jumps or not (found.is_floating_point() or found.is_complex())
    else:
        discrete = isinstance(found, (bool, int)) or name in CHOOSES or name in STEPS or name in POOLS
    return discrete and any(map(_is_number, (*args, *kwargs.values())))


def _casts_down(name: str, found: Any, args: Any) -> bool:
    """Whether a kernel copied numbers to fewer digits."""
    at = CASTS.get(name)
    if at is None or len(args) <= at or not (_is_number(found) and _is_number(args[at])):
        return False
    return bool(found.dtype.itemsize < args[at].dtype.itemsize)


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _is_plain(value: Any) -> bool:
    """Whether something is a tensor of numbers without code of its own."""
    if type(value) not in (Tensor, torch.nn.Parameter) or value.is_nested:
        return False
    return value.dtype in ROUNDED_TYPES or value.is_complex()


def _moves(value: Any) -> bool:
    """Whether numbers may be moved in place: those of a plain tensor in which each has a place of its own."""
    return _is_plain(value) and value.layout == torch.strided and 0 not in value.stride()


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
