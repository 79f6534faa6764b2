"""What measuring sets and puts back: global torch flags, random state, and the stacks of modes that torch keeps.

`untouched` makes a function leave all of it as it was, also where an exception such as Ctrl-C arrives at any moment.
Measurements of several threads follow one another, because the flags belong to the process.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _python_dispatch, checkpoint

P = ParamSpec("P")
T = TypeVar("T")

TRIES = 20
"""How often what interrupts stop from being restored is tried again."""

_one_at_a_time = threading.RLock()
_inside = threading.local()


def _new_lock() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)  # the thread that holds it is not there


def untouched(function: Callable[P, T]) -> Callable[P, T]:
    """The function; when it returns or raises, everything in `Surroundings` is restored. This happens in two nested
    `finally` clauses, so that an interrupt just before the first is followed by the second.
    """

    @wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        if measuring():
            return function(*args, **kwargs)
        if torch._C._functorch.get_dynamic_layer_stack_depth():
            raise RuntimeError("model: measure it outside of torch.func.grad, jvp and vmap")
        with _one_at_a_time:
            before, left = Surroundings(), False
            try:
                try:
                    _inside.call = before
                    return function(*args, **kwargs)
                except BaseException as error:
                    _close_contexts(error)
                    stopped = interruption(error)
                    if stopped is not None and stopped is not error:
                        raise stopped from error
                    raise
                finally:
                    left = _leave(before)
            finally:
                if not left:
                    _leave(before)

    return inside


def measuring() -> bool:
    """Whether this thread is inside an `untouched` call, so that the caller is the model, or a hook of it."""
    return _outside() is not None


def _outside() -> Surroundings | None:
    """The state around the `untouched` call that this thread is inside."""
    found: Surroundings | None = getattr(_inside, "call", None)
    return found


def notes_on_autocast(device: torch.device) -> list[str]:
    """The note that autocast is off while measuring, if the user had it on for this device."""
    outside = _outside()
    on = torch.is_autocast_enabled(device.type) if outside is None else device.type in outside.autocast
    return ["autocast was on and is off while measuring"] if on else []


def _close_contexts(error: BaseException) -> None:
    """Close the context managers that an interrupt left open. Torch writes some of its own as generators, which would
    put modes back on its stacks when the traceback is forgotten, long after this call.
    """
    for seen in _followed(error):
        trace = seen.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == contextlib.__file__:
                with contextlib.suppress(RuntimeError):  # it is still running
                    trace.tb_frame.clear()
            trace = trace.tb_next


def _leave(before: Surroundings, tries: int = TRIES) -> bool:
    """Restore everything, also where one interrupt follows another."""
    try:
        before.restore()
        _inside.call = None
    except BaseException:
        if tries:
            _leave(before, tries - 1)
        raise
    return True


def interruption(error: BaseException) -> BaseException | None:
    """The interrupt from outside that an error follows from: Ctrl-C, a timeout, or whatever a signal handler raises.
    Torch's context managers, when they are interrupted, may raise errors of their own on the way out.
    """
    for seen in _followed(error):
        if isinstance(seen, (KeyboardInterrupt, SystemExit, TimeoutError)) or raised_by_a_handler(seen):
            return seen
    return None


def _followed(error: BaseException) -> Iterator[BaseException]:
    """An error that was caught, and those that it follows from. Those that a caller further out handles, as where a run
    is measured inside `except KeyboardInterrupt:`, are over.
    """
    caught = error.__traceback__.tb_frame if error.__traceback__ else None
    outer = set[types.FrameType]()
    while caught is not None and (caught := caught.f_back) is not None:
        outer.add(caught)
    seen: BaseException | None = error
    while seen is not None:
        trace = seen.__traceback__
        if seen is not error and trace is not None and trace.tb_frame in outer:
            return
        yield seen
        seen = seen.__cause__ or seen.__context__


def raise_interruption(error: BaseException) -> None:
    """Raise the original interrupt that an error follows from, if there is one."""
    stopped = interruption(error)
    if stopped is not None:
        raise stopped


def raise_of_handler(error: BaseException) -> None:
    """Raise what a signal handler raised, if an error follows from that. A timeout of a disk or a server, which a run
    may go on after, is not meant."""
    for seen in _followed(error):
        if isinstance(seen, (KeyboardInterrupt, SystemExit)) or raised_by_a_handler(seen):
            raise seen


def raised_by_a_handler(error: BaseException) -> bool:
    """Whether a signal handler that is installed now was running."""
    trace = error.__traceback__
    if trace is None or trace.tb_next is None:  # nothing was called where it was caught; this saves a quarter of a ms
        return False
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code(handler: Any) -> types.CodeType | None:
    """What runs when a handler is called; None if it is not Python."""
    if not callable(handler):  # the default of most signals
        return None
    if isinstance(handler, partial):
        return _code(handler.func)
    found: types.CodeType | None = getattr(handler, "__code__", None)  # a method has that of its function
    return found or getattr(inspect.getattr_static(type(handler), "__call__", None), "__code__", None)


class FunctionMode(TorchFunctionMode):
    """A mode that restores the stack on exit, also if an interrupt kept torch from doing so."""

    def __enter__(self) -> Any:
        self._depth = torch._C._len_torch_function_stack()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        while torch._C._len_torch_function_stack() > self._depth:
            torch._C._pop_torch_function_stack()


class DispatchMode(_python_dispatch.TorchDispatchMode):
    """A mode that sees operations of higher-order operators, too. Nothing is compiled while one is on, so that torch
    need not import its compiler to keep it away from `__torch_dispatch__`."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


WITHOUT_EFFECT = {torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__}  # type: ignore[attr-defined]
"""Functions that change no values."""


class _WithoutEffect(FunctionMode):
    """Ignores calls of `WITHOUT_EFFECT` that torch.func refuses. It makes some itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if func not in WITHOUT_EFFECT or "requires_grad" not in str(error):
                raise
            return args[0]


@contextmanager
def isolated(device: torch.device, model: Any = None) -> Iterator[None]:
    """Full float32 precision, no autocast, gradients on, compiled code run eagerly.

    The fused attention path of `nn.MultiheadAttention` is off as well, because it has no derivatives, and so is cuDNN
    for a recurrent model, because it differentiates those in training mode only. Inside an `untouched` call the flags
    stay set until that call ends.
    """
    before = None if measuring() else Surroundings()
    try:
        _set_flags(device, model)
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        if before is not None:
            before.restore()


class Surroundings:
    """A snapshot of all global state that measuring may change. `restore` writes what differs."""

    def __init__(self) -> None:
        self.generators = [(get, put, get()) for get, put in random_states()]
        self.flags = [(get, put, get()) for get, put in _flags()]
        self.warnings = cast(list[Any], warnings.filters), list(warnings.filters), warnings.showwarning
        self.stacks = _stacks()
        self.autocast = {kind for kind in _autocast_kinds() if torch.is_autocast_enabled(kind)}

    def restore(self) -> None:
        _unwind(self.stacks)
        for get, put, before in self.flags:
            if get() != before:
                put(before)
        filters, content, show = self.warnings
        if warnings.filters is not filters or warnings.filters != content:
            filters[:] = content
            warnings.filters, warnings.showwarning = filters, show
            warnings._filters_mutated()  # type: ignore[attr-defined]
        for get, put, before in self.generators:
            if not _same(get(), before):
                put(before)


@contextmanager
def vectorized() -> Iterator[None]:
    """For vmap: attention in plain operations, since the fused kernels have no batching rule. Warnings about slow
    fallbacks are off, because the race measures their time. Values keep whether they require gradients, which PEFT
    changes in `disable_adapter()`.
    """
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH), _WithoutEffect():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        warnings.filterwarnings("ignore", message="An output with one or more elements was resized")
        yield


def _set_flags(device: torch.device, model: Any) -> None:
    for setting in _float32_settings():
        if setting.fp32_precision != "ieee":
            setting.fp32_precision = "ieee"
    for kind in {"cpu", device.type}:
        if torch.is_autocast_enabled(kind):
            torch.set_autocast_enabled(kind, False)
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    if torch.backends.mha.get_fastpath_enabled() and any(_has_fast_path(module) for module in modules):
        torch.backends.mha.set_fastpath_enabled(False)
    if device.type == "cuda" and any(isinstance(module, nn.RNNBase) for module in modules):
        torch.backends.cudnn.enabled = False
    parametrize._cache_enabled = 0  # `parametrize.cached()` would keep the weights of before a step
    setattr(checkpoint, _CHECKPOINTED, _plain_call)
    if "torch._dynamo" in sys.modules:
        _set_stance(torch._dynamo.eval_frame.DynamoStance("force_eager"))


_CHECKPOINTED = "_checkpoint_without_reentrant_generator"
_checkpointed: Callable[..., Iterator[None]] = getattr(checkpoint, _CHECKPOINTED)


def _plain_call(function: Any, preserve: bool, context_fn: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
    """What `torch.utils.checkpoint` does around a call: nothing. It would compute the call a second time for the
    backward pass, and differently, because nothing is recorded then."""
    if context_fn is checkpoint.noop_context_fn:
        yield
    else:
        yield from _checkpointed(function, preserve, context_fn, *args, **kwargs)


def _has_fast_path(module: nn.Module) -> bool:
    return isinstance(module, (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder))


def _float32_settings() -> list[Any]:
    """The settings that allow TF32 and similar products for float32, from general to specific. A specific setting
    without a value follows the general one, so restoring them in this order writes only what differs.
    """
    return [
        torch.backends,
        torch.backends.cudnn,
        torch.backends.mkldnn,
        torch.backends.cuda.matmul,
        torch.backends.cudnn.conv,  # type: ignore[attr-defined]
        torch.backends.cudnn.rnn,
        torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
        torch.backends.mkldnn.conv,  # type: ignore[attr-defined]
    ]


Access = tuple[Callable[[], Any], Callable[[Any], Any]]
"""How a setting is read and written."""


def _attribute(owner: Any, name: str) -> Access:
    return partial(getattr, owner, name), partial(setattr, owner, name)


def _autocast_kinds() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",)


def _flags() -> Iterator[Access]:
    for setting in _float32_settings():
        yield _attribute(setting, "fp32_precision")
    for kind in _autocast_kinds():
        yield partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind)
    for name in _IN_DISPATCH_MODE:
        yield _attribute(_python_dispatch, name)
    yield _stance, _set_stance
    yield _attribute(parametrize, "_cache_enabled")
    yield _attribute(checkpoint, _CHECKPOINTED)
    yield _attribute(torch.backends.cudnn, "enabled")
    yield torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled
    yield torch.is_grad_enabled, torch._C._set_grad_enabled
    yield torch.get_default_dtype, torch.set_default_dtype
    yield torch.get_num_threads, torch.set_num_threads
    attention = torch.backends.cuda
    yield attention.math_sdp_enabled, attention.enable_math_sdp
    yield attention.flash_sdp_enabled, attention.enable_flash_sdp
    yield attention.mem_efficient_sdp_enabled, attention.enable_mem_efficient_sdp
    yield attention.cudnn_sdp_enabled, attention.enable_cudnn_sdp


_IN_DISPATCH_MODE = [name for name in vars(_python_dispatch) if name.startswith("_is_in_")]


def _stance() -> Any:
    """Whether compiled code runs compiled; None as long as nothing can have been compiled."""
    return torch._dynamo.eval_frame._stance if "torch._dynamo" in sys.modules else None


def _set_stance(stance: Any) -> None:
    frames = torch._dynamo.eval_frame
    frames._set_stance(frames.DynamoStance() if stance is None else stance)


def random_states() -> Iterator[Access]:
    """The random states of all libraries."""
    yield random.getstate, random.setstate
    yield partial(np.random.get_state, legacy=False), np.random.set_state
    yield torch.get_rng_state, torch.set_rng_state
    for i in range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ():
        yield partial(torch.cuda.get_rng_state, i), partial(torch.cuda.set_rng_state, device=i)


def _same(state: Any, before: Any) -> bool:
    if isinstance(state, torch.Tensor):
        return torch.equal(state, before)
    if isinstance(state, dict):
        return state.keys() == before.keys() and all(_same(state[key], before[key]) for key in state)
    return bool(np.array_equal(state, before)) if isinstance(state, np.ndarray) else bool(state == before)


Stacks = tuple[list[Any], list[Any], int]
"""Modes for functions, such as that of `torch.set_default_device`, modes for kernels, and transforms under way."""


def _stacks() -> Stacks:
    transforms = torch._C._functorch.get_dynamic_layer_stack_depth()
    return _get_current_function_mode_stack(), _python_dispatch._get_current_dispatch_mode_stack(), transforms


def _unwind(stacks: Stacks) -> None:
    """Exit modes and transforms that an exception left active, and enter those again that it exited."""
    functions, kernels, transforms = stacks
    torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(transforms)
    now, now_kernels, _ = _stacks()
    kept = _common(now, functions)
    for _ in now[kept:]:
        torch._C._pop_torch_function_stack()
    for mode in functions[kept:]:
        torch._C._push_on_torch_function_stack(mode)
    kept = _common(now_kernels, kernels)
    for _ in now_kernels[kept:]:
        torch._C._pop_torch_dispatch_stack(None)
    for mode in kernels[kept:]:
        torch._C._push_on_torch_dispatch_stack(mode)


def _common(one: list[Any], other: list[Any]) -> int:
    """How many modes two stacks share, counted from the bottom."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a is not b), min(len(one), len(other)))
