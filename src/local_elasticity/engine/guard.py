"""What is held still while measuring, and put back after: global torch flags, random state, train and eval modes."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def held_still(device: torch.device, model: Any) -> Iterator[None]:
    """Full float32 precision, no autocast, gradients on, random state (torch's, NumPy's, Python's) untouched; all of it
    restored on the way out.

    The fused attention path of `nn.MultiheadAttention` is off as well, since it knows no derivatives, and so is cuDNN
    for a recurrent model, since it differentiates those in training mode only.
    """
    with ExitStack() as stack:
        cuda = [device] if device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices=cuda))
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 (the user's)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in {"cpu", device.type}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(_full_precision())
        stack.enter_context(_plain_attention())
        if isinstance(model, nn.Module) and any(isinstance(m, nn.RNNBase) for m in model.modules()):
            stack.enter_context(_no_cudnn())
        yield


@contextmanager
def mode_of(module: Any, training: bool) -> Iterator[None]:
    """Every submodule of `module` in train or eval mode, each put back as it was."""
    modules = list(module.modules()) if isinstance(module, nn.Module) else []
    before = [m.training for m in modules]
    try:
        for m in modules:
            m.training = training
        yield
    finally:
        for m, was in zip(modules, before, strict=True):
            m.training = was


@contextmanager
def vectorized() -> Iterator[None]:
    """For vmap: attention in plain operations, since the fused kernels have no batching rule, and no warnings where it
    goes one by one for want of another; that it is slow shows in the time it takes.
    """
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


@contextmanager
def _full_precision() -> Iterator[None]:
    """TF32 and other shortened float32 products off (CUDA, cuDNN and the CPU's oneDNN).

    A setting that has no value of its own follows the one above it. They are turned off from the top down, so that only
    those with a value of their own are written, and later put back.
    """
    settings: list[Any] = [
        torch.backends,
        torch.backends.cudnn,
        torch.backends.mkldnn,
        torch.backends.cuda.matmul,
        torch.backends.cudnn.conv,  # type: ignore[attr-defined]
        torch.backends.cudnn.rnn,
        torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
        torch.backends.mkldnn.conv,  # type: ignore[attr-defined]
    ]
    with ExitStack() as stack:
        for setting in settings:
            was = setting.fp32_precision
            if was != "ieee":
                stack.callback(setattr, setting, "fp32_precision", was)
                setting.fp32_precision = "ieee"
        yield


@contextmanager
def _no_cudnn() -> Iterator[None]:
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


@contextmanager
def _plain_attention() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
