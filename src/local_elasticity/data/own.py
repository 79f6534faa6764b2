"""The user's own examples: arrays in a file, a folder of images, or a Dataset; at most n, balanced by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from local_elasticity.data.images import FILES, load
from local_elasticity.data.points import as_points, read_arrays
from local_elasticity.extras import extra

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
"""How the names of images end."""

GREY = ("1", "L", "I;16", "I;16B", "I")
"""Pillow's names for images with one channel."""

SIXTEEN_BITS = 65535
"""The largest pixel of 16 bits, which Pillow may also hold in 32."""

EXPECTED = (
    "an .npz or .safetensors file with x and y, a folder with a folder of images for each class, or MODULE:FACTORY"
)


@dataclass(frozen=True)
class Examples:
    """Inputs, labels where there are any, and which of all examples they are.

    `rows` are their places in the file, in the Dataset, or in the sorted list of images; `class_names` are those of a
    folder, by label, and `files` the images.
    """

    inputs: Any
    labels: Tensor | None
    rows: np.ndarray
    class_names: tuple[str, ...] | None = None
    files: tuple[str, ...] | None = None

    def to(self, device: str) -> Examples:
        """The same on a device."""
        inputs = _each(self.inputs, lambda leaf: leaf.to(device))
        return replace(self, inputs=inputs, labels=None if self.labels is None else self.labels.to(device))

    def in_order(self) -> Examples:
        """The same in the order of the data, and not class after class."""
        order = np.argsort(self.rows, kind="stable")
        inputs = _each(self.inputs, lambda leaf: leaf[torch.from_numpy(order).to(leaf.device)])
        labels = None if self.labels is None else self.labels[torch.from_numpy(order).to(self.labels.device)]
        files = None if self.files is None else tuple(self.files[i] for i in order)
        return replace(self, inputs=inputs, labels=labels, rows=self.rows[order], files=files)

    @property
    def shape(self) -> str:
        """The shape of the inputs in words."""
        if isinstance(self.inputs, Tensor):
            return str(tuple(self.inputs.shape))
        return type(self.inputs).__name__


def read_own(data: str, n: int, *, size: tuple[int, int] | None = None, argument: str = "--data") -> Examples:
    """At most n examples of a file or folder, as evenly over the classes as there are, class after class.

    Args:
        data: an .npz or .safetensors file with x and perhaps y, a folder of images with one folder for each class (or
            of images alone), or the name of a dataset that `local-elasticity data list` shows.
        n: the most examples.
        size: height and width that images are resized to.
        argument: what errors call it.

    Returns:
        The examples; images are numbers in [0, 1], [n, channels, height, width].

    Raises:
        ValueError, OSError: if nothing can be read there; the message names the argument.

    >>> few = read_own("digits", 20)
    >>> few.shape, few.labels.tolist()[:4]
    ('(20, 1, 8, 8)', [0, 0, 1, 1])
    """
    path = Path(data)
    if path.is_dir():
        return _of_folder(path, n, size, argument)
    if size is not None:
        raise ValueError(f"--image-size: {data} is not a folder of images; leave it out")
    if path.suffix in (".npz", ".npy"):
        names = _array_names(path, argument)
        return _of_arrays(path, dict(zip(names, read_arrays(path, names, argument), strict=True)), n, argument)
    if path.suffix == ".safetensors":
        return _of_arrays(path, _safetensors(path, argument), n, argument)
    if data in FILES:
        images = load(data)
        labels = images.y_test
        rows = even_rows(labels, n)
        return Examples(2 * images.x_test[rows].float() / 255 - 1, labels[rows].long(), rows.numpy())
    if not path.exists():
        raise FileNotFoundError(f"{argument}: there is no {data}; expected {EXPECTED}")
    raise ValueError(f"{argument}: {data} cannot be read; expected {EXPECTED}")


def of_dataset(made: Any, n: int, place: str, argument: str = "--data") -> Examples:
    """At most n examples of a Dataset whose items are (input, label), a dict with "labels", or inputs; or of a pair of
    tensors. They are balanced by class if the Dataset has `targets` or `labels`, and evenly spaced otherwise.
    """
    if (
        isinstance(made, (tuple, list))
        and len(made) == 2
        and all(isinstance(one, (Tensor, np.ndarray)) for one in made)
    ):
        given = [_plain(one.detach().cpu()).numpy() if isinstance(one, Tensor) else one for one in made]
        return _of_arrays(Path(place), dict(zip("xy", given, strict=True)), n, argument)
    if isinstance(made, IterableDataset):
        items = [item for item, _ in zip(made, range(n), strict=False)]
        rows = torch.arange(len(items))
    elif isinstance(made, Dataset) or (_has_places(made) and not isinstance(made, (str, bytes, Mapping))):
        rows = _rows_of_dataset(made, n)
        items = [made[int(row)] for row in rows]
    else:
        raise ValueError(
            f"{argument}: {place} makes a {type(made).__name__}, not a Dataset or a pair of tensors (x, y)"
        )
    if not items:
        raise ValueError(f"{argument}: {place} makes a Dataset without examples")
    try:
        batch = default_collate(items)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(
            f"{argument}: the items of {place} do not make one batch ({reason}); pad or resize them to one shape"
        ) from error
    inputs, labels = _split(batch)
    if labels is not None and not isinstance(labels, Tensor):
        raise ValueError(f"{argument}: the labels of {place} are {type(labels).__name__}s; expected numbers")
    return Examples(inputs, labels, rows.numpy(), _class_names(made, labels))


def _has_places(made: Any) -> bool:
    return hasattr(made, "__getitem__") and hasattr(made, "__len__")


def _class_names(made: Any, labels: Tensor | None) -> tuple[str, ...] | None:
    """`classes` of a Dataset, as torchvision has them, where there is one for every label."""
    names = getattr(made, "classes", None)
    if not isinstance(names, Sequence) or labels is None or labels.is_floating_point() or labels.ndim != 1:
        return None
    return tuple(map(str, names)) if len(names) > int(labels.max()) else None


def even_rows(labels: Tensor, n: int) -> Tensor:
    """Rows of at most n examples: the first ones of each class, as many of each as there are, class after class.

    >>> even_rows(torch.tensor([0, 0, 0, 1, 0, 2]), 4)
    tensor([0, 1, 3, 5])
    """
    by_class = [torch.nonzero(labels == label).flatten() for label in labels.unique()]
    places = sorted((place, number) for number, rows in enumerate(by_class) for place in range(len(rows)))[:n]
    chosen = torch.tensor(sorted((number, int(by_class[number][place])) for place, number in places))
    return chosen[:, 1] if len(chosen) else torch.zeros(0, dtype=torch.long)


def _array_names(path: Path, argument: str) -> tuple[str, ...]:
    """x, and y where there is one."""
    try:
        read_arrays(path, ("x", "y"), argument)
    except ValueError as error:
        if "but no array" not in str(error):
            raise
        return ("x",)
    return "x", "y"


def _safetensors(path: Path, argument: str) -> dict[str, np.ndarray]:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise ValueError(f"{argument}: {path} needs the package safetensors: pip install safetensors") from error
    try:
        found = load_file(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{argument}: there is no {path}") from None
    except Exception as error:
        raise ValueError(f"{argument}: {path} cannot be read as safetensors ({error})") from error
    if "x" not in found:
        raise ValueError(f"{argument}: {path} holds {', '.join(found) or 'nothing'}, but no tensor x")
    return {name: _plain(found[name]).numpy() for name in ("x", "y") if name in found}


def _plain(values: Tensor) -> Tensor:
    """In a type that NumPy has too."""
    return values.float() if values.is_floating_point() and values.dtype != torch.float64 else values


def _of_arrays(path: Path, held: Mapping[str, np.ndarray], n: int, argument: str) -> Examples:
    x, *labels = as_points(path, held, argument)
    if not labels:
        rows = _spaced(len(x), n)
        return Examples(x[rows], None, rows.numpy())
    y = labels[0]
    rows = even_rows(y, n) if y.ndim == 1 and not y.is_floating_point() else _spaced(len(x), n)
    return Examples(x[rows], y[rows], rows.numpy())


def _spaced(total: int, n: int) -> Tensor:
    return torch.linspace(0, total - 1, min(n, total), dtype=torch.float64).round().long()


def _rows_of_dataset(dataset: Any, n: int) -> Tensor:
    """Even by class where labels are known without reading every example."""
    for name in ("targets", "labels"):
        labels: Any = getattr(dataset, name, None)
        if _has_places(labels) and not isinstance(labels, Mapping) and len(labels) == len(dataset):
            known = _as_classes(labels)
            if known is not None:
                return even_rows(known, n)
    return _spaced(len(dataset), n)


def _as_classes(labels: Any) -> Tensor | None:
    """A class for each example, by number or by name; None where these are no classes."""
    try:
        found = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    except ValueError:  # lists of other lengths
        return None
    if found.ndim != 1 or found.dtype.kind not in "biuSU":
        return None
    return torch.from_numpy(np.unique(found, return_inverse=True)[1])


def _split(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if name != "labels"}, batch.get("labels")
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    return (batch[0] if isinstance(batch, (tuple, list)) and len(batch) == 1 else batch), None


def _of_folder(folder: Path, n: int, size: tuple[int, int] | None, argument: str) -> Examples:
    classes = sorted(one.name for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    by_class = {name: _pictures(folder / name) for name in classes}
    by_class = {name: files for name, files in by_class.items() if files}
    files = [file for group in by_class.values() for file in group] or _pictures(folder)
    if not files:
        raise ValueError(
            f"{argument}: the folder {folder} holds no images; expected one folder for each class, with files "
            f"{', '.join(PICTURES[:4])}, …"
        )
    labels = torch.tensor([label for label, group in enumerate(by_class.values()) for _ in group])
    rows = even_rows(labels, n) if by_class else _spaced(len(files), n)
    chosen = [files[int(row)] for row in rows]
    return Examples(
        _read_images(chosen, size, argument),
        labels[rows] if by_class else None,
        rows.numpy(),
        tuple(by_class) or None,
        tuple(str(file.relative_to(folder)) for file in chosen),
    )


def _pictures(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in PICTURES)


def _read_images(files: Sequence[Path], size: tuple[int, int] | None, argument: str) -> Tensor:
    """[n, channels, height, width] in [0, 1]; one channel where every image is grey, three elsewhere."""
    with extra("report"):
        from PIL import Image
    opened = []
    for file in files:
        try:
            with Image.open(file) as image:
                image.load()
                opened.append(image.copy())
        except Exception as error:
            raise ValueError(f"{argument}: {file} cannot be read as an image ({error})") from error
    sizes = {(image.height, image.width) for image in opened}
    if size is None and len(sizes) > 1:
        (a, b), (c, d) = sorted(sizes)[0], sorted(sizes)[-1]
        raise ValueError(
            f"{argument}: images are from {a} × {b} to {c} × {d}; pass --image-size {a},{b} to resize them"
        )
    for file, one in zip(files, opened, strict=True):
        if one.mode == "F" or (one.mode == "I" and np.max(one.getextrema()) > SIXTEEN_BITS):
            raise ValueError(
                f"{argument}: {file} has pixels of 32 bits, whose range is not known; put the images, in the numbers "
                "that the model expects, as x into an .npz file"
            )
    mode = "L" if all(image.mode in GREY for image in opened) else "RGB"
    resized = [image if size is None else image.resize((size[1], size[0])) for image in opened]
    arrays = np.stack([np.asarray(_eight_bit(image).convert(mode), dtype=np.float32) for image in resized]) / 255
    return torch.from_numpy(arrays[:, None] if mode == "L" else np.ascontiguousarray(arrays.transpose(0, 3, 1, 2)))


def _eight_bit(image: Any) -> Any:
    """Grey images of 16 bits in 8, which `convert` would cut off at 255."""
    return image.point(lambda value: value / 257).convert("L") if image.mode.startswith("I") else image


def _each(tree: Any, change: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: _each(one, change) for name, one in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(_each(one, change) for one in tree)
    return change(tree) if isinstance(tree, Tensor) else tree
