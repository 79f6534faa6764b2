"""Copies of tensors by their memory, so that views stay views."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class CopiedMemory:
    """Copies of the memory of tensors, each piece once; floating-point numbers are cast to `dtype`."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        self._storages: dict[int, Any] = {}
        self._cast: dict[tuple[int, torch.dtype], Any] = {}

    def dtype_of(self, tensor: Tensor) -> torch.dtype:
        """The type of a tensor's copy."""
        return self._dtype if self._dtype and tensor.is_floating_point() else tensor.dtype

    def view(self, tensor: Tensor) -> Tensor:
        """The same view of a copy of the memory."""
        storage, dtype = tensor.untyped_storage(), self.dtype_of(tensor)
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = storage.clone()
        memory, empty = self._storages[storage._cdata], tensor.data.new_empty(0)
        if dtype != tensor.dtype:
            key = storage._cdata, tensor.dtype
            if key not in self._cast:
                numbers = storage.nbytes() // tensor.element_size()
                self._cast[key] = torch.UntypedStorage(numbers * dtype.itemsize, device=tensor.device)
                fresh = tensor.data.new_empty(0, dtype=dtype).set_(self._cast[key], 0, (numbers,), (1,))
                fresh.copy_(empty.set_(memory, 0, (numbers,), (1,)))  # torch.func does not tell a result's memory
            memory, empty = self._cast[key], tensor.data.new_empty(0, dtype=dtype)
        viewed = empty.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
        viewed = viewed.conj() if tensor.is_conj() else viewed
        return torch._neg_view(viewed) if tensor.is_neg() else viewed
