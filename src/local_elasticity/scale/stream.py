"""Labelled examples by position, read a few at a time: from tensors, a Dataset or a DataLoader of any length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, Subset

from local_elasticity.engine.inputs import LOADED_AT_ONCE, NO_EXAMPLES, as_tensors, check_sources, count, read_sources
from local_elasticity.engine.problem import Inputs


@dataclass(frozen=True)
class ExampleStream:
    """Examples that are read when they are needed, on the device of the model; build one with `ExampleStream.of`.

    A DataLoader gives its dataset, its `collate_fn` and its workers. Positions are those of the dataset, whatever order
    the loader draws them in.

    >>> import torch
    >>> stream = ExampleStream.of((torch.eye(3), torch.arange(3)))
    >>> stream.read([2], torch.device("cpu"), torch.float32)
    (tensor([[0., 0., 1.]]), tensor([2]))
    """

    n: int
    pair: tuple[Inputs, Any] | None
    dataset: Dataset[Any] | None = None
    loader: DataLoader[Any] | None = None
    name: str = "data"

    @classmethod
    def of(cls, data: Any, name: str = "data") -> ExampleStream:
        """Raises a ValueError or TypeError where examples have no positions; the message begins with `name`."""
        check_sources(data, name)
        if not isinstance(data, (Dataset, DataLoader)):
            pair = as_tensors(data[0]), as_tensors(data[1])
            leaves = tree_leaves(pair)
            if not leaves or not all(isinstance(leaf, Tensor) and leaf.ndim for leaf in leaves):
                raise TypeError(f"{name}: expected tensors or arrays whose first axis is the examples")
            if len({len(leaf) for leaf in leaves}) > 1:
                shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves)
                raise ValueError(f"{name}: inputs and labels have shapes {shapes}; give one label for each example")
            return cls(count(pair[0]), pair, name=name)._checked()
        loader = data if isinstance(data, DataLoader) else None
        dataset: Dataset[Any] = data.dataset if isinstance(data, DataLoader) else data
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise TypeError(
                f"{name}: a {type(dataset).__name__} has no positions to go back to; pass a Dataset with __getitem__ "
                "and __len__"
            )
        if loader is not None and not isinstance(loader.sampler, (SequentialSampler, RandomSampler)):
            raise ValueError(
                f"{name}: the sampler of the DataLoader, a {type(loader.sampler).__name__}, may leave examples out or "
                "repeat them; pass a Dataset, for some of its examples torch.utils.data.Subset(dataset, rows)"
            )
        return cls(len(dataset), None, dataset, loader, name)._checked()

    def _checked(self) -> ExampleStream:
        if self.n == 0:
            raise ValueError(f"{self.name}: {NO_EXAMPLES}")
        return self

    def read(self, rows: Sequence[int], device: torch.device, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
        """(inputs, labels) of the examples at these positions, checked as sources are."""
        if self.pair is None:
            return read_sources(self._loader(rows), device, dtype, self.name)
        at = slice(rows.start, rows.stop) if isinstance(rows, range) and rows.step == 1 else torch.as_tensor(rows)

        def taken(leaf: Any) -> Any:
            return leaf[at if isinstance(at, slice) else at.to(leaf.device)].to(device)

        pair = tuple(tree_map(taken, part) for part in self.pair)
        return read_sources(pair, device, dtype, self.name)

    def _loader(self, rows: Sequence[int]) -> DataLoader[Any]:
        assert self.dataset is not None
        some: Dataset[Any] = Subset(self.dataset, list(rows))
        if self.loader is None:
            return DataLoader(some, batch_size=LOADED_AT_ONCE)
        workers = min(self.loader.num_workers, len(rows) // LOADED_AT_ONCE)
        return DataLoader(
            some,
            batch_size=self.loader.batch_size or LOADED_AT_ONCE,
            num_workers=workers,
            collate_fn=self.loader.collate_fn,
            worker_init_fn=self.loader.worker_init_fn,
            multiprocessing_context=self.loader.multiprocessing_context if workers else None,
        )
