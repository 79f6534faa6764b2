"""Reading sources and targets: tensors, pytrees of tensors, a Dataset or a DataLoader, checked before any work."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import DataLoader, Dataset, default_collate

from local_elasticity.engine.loader_states import beside, kept_states
from local_elasticity.engine.problem import Inputs

T = TypeVar("T")

LOADED_AT_ONCE = 256

GOLDEN = 0.6180339887498949
"""The multiples of this number, modulo 1, are far apart."""

NO_EXAMPLES = "there are no examples; give at least one"


def read_sources(
    sources: Any, device: torch.device, dtype: torch.dtype, name: str = "sources"
) -> tuple[Inputs, Tensor]:
    """(inputs, labels), one label for each example; errors call them `name`."""
    check_sources(sources, name)
    if isinstance(sources, (Dataset, DataLoader)):
        inputs, labels = _loaded(sources, _labelled, device)
    else:
        inputs, labels = as_tensors(sources[0]), as_tensors(sources[1])
    inputs = _checked(inputs, name, device, dtype)
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name}: labels must be a tensor, not {type(labels).__name__}")
    if labels.is_nested or labels.layout is not torch.strided:
        raise TypeError(f"{name}: labels must be a dense tensor")
    labels = labels.detach().clone() if labels.is_inference() else labels.detach()
    if labels.ndim == 0 or len(labels) != count(inputs):
        raise ValueError(f"{name}: {count(inputs)} inputs but labels of shape {tuple(labels.shape)}; give one for each")
    if labels.device != device:
        raise ValueError(f"{name}: labels are on {labels.device}, the model on {device}; pass labels.to('{device}')")
    if labels.is_floating_point():
        labels = labels.to(dtype)
        if not labels.isfinite().all():
            raise ValueError(f"{name}: labels contain NaN or infinity; remove those examples")
    return inputs, labels


def check_sources(sources: Any, name: str = "sources") -> None:
    """Raise an error if this is not a pair (inputs, labels), a Dataset or a DataLoader, before anything is read."""
    if isinstance(sources, (Dataset, DataLoader)):
        return
    if isinstance(sources, (tuple, list)) and not sources:
        raise ValueError(f"{name}: {NO_EXAMPLES}")
    if not isinstance(sources, (tuple, list)) or len(sources) != 2:
        raise TypeError(
            f"{name}: expected a pair (inputs, labels), a Dataset or a DataLoader, got {type(sources).__name__}"
            + ('; without labels, add labels="predicted"' if name == "sources" else "")
        )
    if isinstance(sources[1], (int, float)) or getattr(sources[1], "ndim", None) == 0:
        raise ValueError(
            f"{name}: expected an axis of examples, got one label without it. Pass a single example as x[i : i + 1], "
            "y[i : i + 1]"
        )


def read_inputs(inputs: Any, device: torch.device, dtype: torch.dtype, name: str) -> Inputs:
    """Inputs alone; the labels of a Dataset or DataLoader are left out. Errors call them `name`."""
    if isinstance(inputs, (Dataset, DataLoader)):
        return _checked(_loaded(inputs, _unlabelled, device), name, device, dtype)
    return _checked(as_tensors(inputs), name, device, dtype)


def read_targets(
    targets: Any, like: Inputs, device: torch.device, dtype: torch.dtype, *, labels_needed: bool = False
) -> tuple[Inputs, Tensor | None]:
    """Inputs, and labels where they were given: (inputs, labels), inputs alone, a Dataset or a DataLoader.

    Targets of a model with several inputs are ((a, b), None) or a dict; the pair (a, b) that earlier versions took for
    two inputs is still read so, with a DeprecationWarning. `like` are inputs of the sources.
    """
    if isinstance(targets, (Dataset, DataLoader)):
        inputs, *labels = _loaded(targets, _perhaps_labelled, device)
    elif _is_pair(targets, like):
        inputs, labels = targets[0], [one for one in targets[1:] if one is not None]
    else:
        inputs, labels = targets, []
    if labels:
        return read_sources((inputs, labels[0]), device, dtype, "targets")
    if labels_needed:
        raise ValueError("targets: this measure reads their labels; pass targets=(inputs, labels)")
    return _checked(as_tensors(inputs), "targets", device, dtype), None


def _is_pair(targets: Any, like: Inputs) -> bool:
    """Whether targets are (inputs, labels) and not inputs alone, for a model with such inputs."""
    if not isinstance(targets, (tuple, list)) or len(targets) != 2:
        return False
    if not isinstance(like, (tuple, list)) or len(like) != 2 or _alike(targets[0], like) or not _alike(targets, like):
        return True
    warnings.warn(
        "targets: a pair is read as (inputs, labels) from the next release on; pass ((a, b), None) for a model with "
        "two inputs",
        DeprecationWarning,
        stacklevel=2,
    )
    return False


def _alike(one: Any, other: Any) -> bool:
    """Whether two pytrees have the same structure."""
    return bool(tree_flatten(one)[1] == tree_flatten(other)[1])


def spread(count: int, few: int, device: torch.device | str = "cpu") -> Tensor:
    """At most `few` of `count` positions, evenly spaced.

    >>> spread(10, 3)
    tensor([0, 4, 9])
    """
    return torch.linspace(0, count - 1, min(few, count), device=device).round().long()


def scattered(count: int, few: int, device: torch.device | str = "cpu") -> Tensor:
    """At most `few` of `count` positions: one in each of as many equal parts, at another place in every part, so that
    they do not follow a period in the data.

    >>> scattered(100, 5)
    tensor([ 0, 32, 44, 77, 89])
    """
    few, there = min(few, count), torch.device(device)
    made_on = "cpu" if there.type == "mps" else there  # without float64; a copy from the CPU would wait for a GPU
    places = torch.arange(few, dtype=torch.float64, device=made_on)
    return ((places + (GOLDEN * places) % 1) * count / few).long().to(there)


def count(inputs: Inputs) -> int:
    """How many examples there are."""
    return len(tree_flatten(inputs)[0][0])


def take(inputs: Inputs, rows: slice | int | Tensor | None) -> Inputs:
    """The examples at `rows`; None adds an axis in front."""
    return tree_map(lambda leaf: leaf[rows], inputs)


def cast_floats(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """The same with floating-point numbers in this precision; whole numbers stay."""
    return tree_map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, inputs)


def given_twice(sources: Any, targets: Any) -> bool:
    """Whether the targets are the very sources that were given: one Dataset or DataLoader, or the same tensors or
    arrays in memory, with the same labels or none. Call this before they are read, since reading may copy.
    """
    if isinstance(targets, (Dataset, DataLoader)):
        return targets is sources
    if not isinstance(sources, (tuple, list)) or len(sources) != 2:
        return False
    inputs, pair, given = (as_tensors(one) for one in (sources[0], tuple(sources), targets))
    given = tuple(given) if isinstance(given, list) else given
    return any(_same(one, given) for one in (inputs, pair, (inputs, None)))


def _checked(inputs: Inputs, name: str, device: torch.device, dtype: torch.dtype) -> Inputs:
    leaves = tree_flatten(inputs)[0]
    if not leaves:
        raise ValueError(f"{name}: {NO_EXAMPLES}")
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        strange = next(type(leaf).__name__ for leaf in leaves if not isinstance(leaf, Tensor))
        raise TypeError(
            f"{name}: expected inputs that are a tensor, an array, or a dict or tuple of those, got a {strange} in "
            "them; for a list of numbers pass torch.tensor(inputs)"
        )
    if any(leaf.is_nested for leaf in leaves):
        raise TypeError(f"{name}: inputs are nested; pass a dense tensor, torch.nested.to_padded_tensor(x, 0.0)")
    if any(leaf.ndim == 0 for leaf in leaves) or len({len(leaf) for leaf in leaves}) != 1:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves)
        raise ValueError(f"{name}: inputs of shapes {shapes} must have one first axis of the same length, the examples")
    if len(leaves[0]) == 0:
        raise ValueError(f"{name}: {NO_EXAMPLES}")
    return tree_map(lambda leaf: _checked_leaf(leaf, name, device, dtype), inputs)


def _checked_leaf(leaf: Tensor, name: str, device: torch.device, dtype: torch.dtype) -> Tensor:
    if leaf.device != device:
        raise ValueError(f"{name}: inputs are on {leaf.device}, the model on {device}; pass inputs.to('{device}')")
    if leaf.layout is not torch.strided:
        raise TypeError(f"{name}: inputs are sparse; pass a dense tensor, x.to_dense()")
    leaf = leaf.data.clone() if leaf.is_inference() else leaf.data
    if not leaf.is_floating_point():
        return leaf
    leaf = leaf.to(dtype)
    if not leaf.isfinite().all():
        raise ValueError(f"{name}: inputs contain NaN or infinity; remove those examples")
    return leaf


def _same(a: Any, b: Any) -> bool:
    """Whether two pytrees are made of the same places in memory."""
    (left, one), (right, other) = tree_flatten(a), tree_flatten(b)
    return one == other and all(_place(x) == _place(y) for x, y in zip(left, right, strict=True))


def _place(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    if leaf.is_nested or leaf.layout is not torch.strided:
        return id(leaf)
    return leaf.data_ptr(), leaf.shape, leaf.stride(), leaf.dtype


def as_tensors(inputs: Any) -> Inputs:
    """NumPy arrays become tensors and other mappings dicts; everything else stays."""
    if hasattr(inputs, "to_numpy"):
        raise TypeError(f"sources or targets: a {type(inputs).__name__} cannot be read; pass its .to_numpy()")
    if isinstance(inputs, np.ma.MaskedArray):
        raise TypeError("sources or targets: masked arrays cannot be read; fill them first, x.filled(0)")
    if isinstance(inputs, Mapping) and not isinstance(inputs, dict):
        inputs = dict(inputs)
    return tree_map(lambda leaf: _from_array(leaf) if isinstance(leaf, np.ndarray) else leaf, inputs)


def _from_array(array: np.ndarray) -> Tensor:
    """A tensor of an array of numbers, whatever its strides and the order of its bytes."""
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > 16:
        raise TypeError(f"sources or targets: arrays of {array.dtype} cannot be read; convert them to float32 or int64")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if native.dtype in (np.longdouble, np.clongdouble):
        native = native.astype(np.float64 if native.dtype.kind == "f" else np.complex128)
    return torch.from_numpy(native if all(stride >= 0 for stride in native.strides) else native.copy())


def _loaded(examples: Dataset[Any] | DataLoader[Any], pick: Callable[[Any], Any], device: torch.device) -> Any:
    batches = beside(examples)
    if not isinstance(batches, DataLoader):
        batches = DataLoader(batches, batch_size=LOADED_AT_ONCE, collate_fn=default_collate)
    with kept_states(examples):
        picked = [tree_map(lambda leaf: _on_device(leaf, device), pick(batch)) for batch in batches]
    if not picked:
        raise ValueError("sources or targets: the Dataset or DataLoader is empty; give at least one example")
    if any(not leaf.ndim for leaf in tree_flatten(picked[0])[0]):
        raise ValueError("sources or targets: the DataLoader gives single examples; make it with a batch_size")
    return tree_map(_joined, *picked)


def _on_device(leaf: Any, device: torch.device) -> Tensor:
    if not isinstance(leaf, Tensor):
        raise TypeError(
            f"sources or targets: the batches of the DataLoader hold a {type(leaf).__name__}; leave it out in the "
            "dataset or the collate_fn, which must give tensors"
        )
    return leaf.to(device)


def _joined(*leaves: Tensor) -> Tensor:
    """The examples of all batches."""
    shapes = [tuple(leaf.shape[1:]) for leaf in leaves]
    other = next((shape for shape in shapes if shape != shapes[0]), None)
    if other is not None:
        raise ValueError(
            f"sources or targets: the batches of the DataLoader hold examples of shape {shapes[0]} and of {other}; pad "
            "all to one length in its collate_fn, or pass batches of tokens through sequences of "
            "local_elasticity.training.language"
        )
    return torch.cat(leaves)


def _labelled(batch: Any) -> tuple[Inputs, Tensor]:
    if isinstance(batch, Mapping) and "labels" in batch:
        return {key: value for key, value in batch.items() if key != "labels"}, batch["labels"]
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        inputs, labels = batch
        return inputs, labels
    raise TypeError('sources or targets: each item of a Dataset must be a pair (inputs, label) or a dict with "labels"')


def _perhaps_labelled(batch: Any) -> tuple[Any, ...]:
    """(inputs, labels), or (inputs,) where the batch has no labels that are a tensor."""
    labelled = "labels" in batch if isinstance(batch, Mapping) else isinstance(batch, (tuple, list)) and len(batch) == 2
    if labelled:
        inputs, labels = _labelled(batch)
        return (inputs, labels) if isinstance(labels, Tensor) else (inputs,)
    return (_unlabelled(batch),)


def _unlabelled(batch: Any) -> Inputs:
    if isinstance(batch, Mapping) or (isinstance(batch, (tuple, list)) and len(batch) == 2):
        return _labelled(batch)[0] if not isinstance(batch, Mapping) or "labels" in batch else dict(batch)
    return batch[0] if isinstance(batch, (tuple, list)) and len(batch) == 1 else batch
