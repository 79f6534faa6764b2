"""Links to other libraries' documentation, from names that are listed here: the site is built without a network."""

import zlib
from pathlib import Path

ABSTRACT = ("Callable", "Iterable", "Iterator", "Mapping", "Sequence")

PAGES = {
    "torch": (
        "https://docs.pytorch.org/docs/stable/",
        {
            "torch.Tensor": "tensors.html",
            "torch.dtype": "tensor_attributes.html",
            "torch.device": "tensor_attributes.html",
            "torch.nn.Module": "generated/torch.nn.Module.html",
            "torch.nn.Parameter": "generated/torch.nn.parameter.Parameter.html",
            "torch.optim.Optimizer": "optim.html",
            "torch.utils.data.Dataset": "data.html",
            "torch.utils.data.DataLoader": "data.html",
        },
    ),
    "numpy": (
        "https://numpy.org/doc/stable/",
        {
            "numpy.ndarray": "reference/generated/numpy.ndarray.html",
            "numpy.typing.ArrayLike": "reference/typing.html",
            "numpy.random.RandomState": "reference/random/legacy.html",
            "numpy.random.Generator": "reference/random/generator.html",
        },
    ),
    "xarray": (
        "https://docs.xarray.dev/en/stable/",
        {
            "xarray.DataArray": "generated/xarray.DataArray.html",
            "xarray.Dataset": "generated/xarray.Dataset.html",
        },
    ),
    "sklearn": (
        "https://scikit-learn.org/stable/",
        {
            "sklearn.base.BaseEstimator": "modules/generated/sklearn.base.BaseEstimator.html",
            "sklearn.base.ClusterMixin": "modules/generated/sklearn.base.ClusterMixin.html",
            "sklearn.cluster.KMeans": "modules/generated/sklearn.cluster.KMeans.html",
            "sklearn.pipeline.Pipeline": "modules/generated/sklearn.pipeline.Pipeline.html",
        },
    ),
    "pandas": (
        "https://pandas.pydata.org/docs/",
        {
            "pandas.DataFrame": "reference/api/pandas.DataFrame.html",
            "pandas.Series": "reference/api/pandas.Series.html",
        },
    ),
    "matplotlib": ("https://matplotlib.org/stable/", {"matplotlib.figure.Figure": "api/figure_api.html"}),
    "python": (
        "https://docs.python.org/3/",
        {
            "pathlib.Path": "library/pathlib.html",
            **{f"collections.abc.{name}": "library/collections.abc.html" for name in ABSTRACT},
            **dict.fromkeys(("int", "float", "bool"), "library/functions.html"),
            **dict.fromkeys(("str", "dict", "list", "tuple", "range"), "library/stdtypes.html"),
            **dict.fromkeys(("ValueError", "TypeError", "RuntimeError", "KeyError"), "library/exceptions.html"),
        },
    ),
}
"""By library: where its documentation is, and the page of each name that ours refer to."""

ALONE = ("Tensor", "Figure", "Path", "ArrayLike", *ABSTRACT)
"""Names that signatures have without their module."""


def mapping(folder: Path) -> dict[str, tuple[str, str]]:
    """What intersphinx is given; the inventories are written below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for library, (where, names) in PAGES.items():
        file = folder / f"{library}.inv"
        file.write_bytes(inventory(names))
        made[library] = (where, str(file))
    return made


def inventory(names: dict[str, str]) -> bytes:
    """An objects.inv in version 2 of Sphinx's format."""
    head = (
        "Sphinx inventory version 2",
        "Project: -",
        "Version: -",
        "The remainder of this file is compressed using zlib.",
    )
    written = [(spelling, page, name) for name, page in names.items() for spelling in spellings(name)]
    lines = "".join(f"{spelling} py:class 1 {page}#{name} -\n" for spelling, page, name in written)
    return "".join(f"# {line}\n" for line in head).encode() + zlib.compress(lines.encode())


def spellings(name: str) -> list[str]:
    """A name as signatures have it: in full, by the usual short name of its module, and alone."""
    short = {"torch.nn.": "nn.", "numpy.": "np.", "xarray.": "xr.", "pandas.": "pd."}
    abbreviated = [name.replace(long, brief) for long, brief in short.items() if name.startswith(long)]
    last = name.rpartition(".")[2]
    return [name, *abbreviated, *([last] if last in ALONE and last != name else [])]
