"""Options that commands on one's own model share: model, data, step; and how what they find is written."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from local_elasticity.cli.app import as_typed, choices, in_options

if TYPE_CHECKING:
    from local_elasticity.data.own import Examples

ALL = 10**9
"""More examples than there are."""

LOSSES = ("cross_entropy", "nll", "mse", "half_mse", "bce", "bce_logits")
MEASURES = (
    *("relative", "relative_l1", "kl", "kernel", "normalized_kernel"),
    *("loss", "stiffness_cos", "stiffness_sign", "activation"),
)

CSV = (".csv",)
PICTURES = (".png", ".pdf", ".svg")

Model = Annotated[str, typer.Option(metavar="MODULE:FACTORY", help="What makes the model.")]
Weights = Annotated[
    Path | None, typer.Option(help="Its weights: a .safetensors file, or a state_dict. Without, as it is made.")
]
Loss = Annotated[str, typer.Option(help="The loss of the step.", **choices(*LOSSES))]
Measure = Annotated[str, typer.Option(help="The measure.", **choices(*MEASURES))]
UpdateRule = Annotated[str, typer.Option("--update", help="The rule of the step.", **choices("sgd", "adam"))]
StepSize = Annotated[
    str | None,
    typer.Option(
        help="η, or auto for a step of sgd at which nine in ten changes, also of probabilities, are within 1 % of the "
        "limit of small steps. [default: 0.001]",
        show_default=False,
    ),
]
Count = Annotated[
    int, typer.Option("-n", "--n", min=1, help="The most examples, balanced by class as far as possible.")
]
Labels = Annotated[
    str, typer.Option(help="Given with the data, or predicted by the model.", **choices("given", "predicted"))
]
ImageSize = Annotated[
    str | None,
    typer.Option(metavar="HEIGHT,WIDTH", help="Resize the images of a folder; by default all have one size."),
]

DATA = (
    "An .npz or .safetensors file with x and y, a folder with a folder of images for each class, MODULE:FACTORY of a "
    "Dataset, or a dataset as `data list` shows it."
)


def read_data(data: str, n: int, image_size: str | None, device: str, argument: str = "--data") -> Examples:
    """The examples of a file, a folder, a Dataset factory or a dataset by name, on a device."""
    from local_elasticity.data.own import read_own

    if not _names_a_factory(data):
        return read_own(data, n, size=_two_sizes(image_size), argument=argument).to(device)
    return _read_dataset(_made_dataset(data, image_size, argument), n, data, device, argument)


def _read_dataset(made: Any, n: int, data: str, device: str, argument: str) -> Examples:
    from local_elasticity.cli.models import said
    from local_elasticity.data.own import of_dataset

    with said(argument, f"the Dataset of {data} cannot be read"):
        return of_dataset(made, n, data, argument).to(device)


def labelled_data(data: str, n: int, image_size: str | None, device: str, argument: str) -> Examples:
    """The same in the order of the data, which a fine-tune follows; a ValueError where there are no labels."""
    return _labelled(read_data(data, n, image_size, device, argument), data, argument).in_order()


def _labelled(found: Examples, data: str, argument: str) -> Examples:
    if found.labels is None:
        raise ValueError(f"{argument}: {data} has no labels (y); add them")
    return found


def streamed_data(data: str, n: int | None, image_size: str | None, device: str) -> tuple[Examples, Any]:
    """Examples to check a model with, and what to index: a Dataset as it is, where all of its examples are asked for,
    else (inputs, labels)."""
    if n is None and _names_a_factory(data):
        from torch.utils.data import Dataset

        made = _made_dataset(data, image_size, "--data")
        if isinstance(made, Dataset):
            return _labelled(_read_dataset(made, 2, data, device, "--data"), data, "--data"), made
    found = labelled_data(data, ALL if n is None else n, image_size, "cpu", "--data")
    return found, (found.inputs, found.labels)


def _names_a_factory(data: str) -> bool:
    return ":" in data and not Path(data).exists()


def _made_dataset(data: str, image_size: str | None, argument: str) -> Any:
    from local_elasticity.cli.models import said
    from local_elasticity.training.checkpoints import find

    if image_size is not None:
        raise ValueError(f"--image-size: {data} makes a Dataset, which gives its images one size; leave it out")
    with said(argument, f"{data} makes no Dataset. Name a function that takes no arguments"):
        factory = find(data, argument)
        return factory() if callable(factory) else factory


def _two_sizes(image_size: str | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    from local_elasticity.cli.models import sizes

    found = sizes(image_size, "--image-size", "224,224")
    if len(found) != 2:
        raise ValueError(f"--image-size: expected a height and a width, such as 224,224, got {image_size!r}")
    return found[0], found[1]


LARGEST_STEP = 1e38
"""Above it, a step does not fit into the numbers of a float32 network."""


def made_update(rule: str, step_size: str | None) -> Any:
    """`SGD` or `Adam`; None where nothing was said, so that measures that take no step accept it."""
    from local_elasticity.checks import check_choice
    from local_elasticity.engine.update import SGD, Adam

    check_choice("--update", rule, ("sgd", "adam"))
    if step_size is None:
        return None if rule == "sgd" else Adam(1e-3)
    if step_size == "auto":
        if rule == "adam":
            raise ValueError("--step-size: auto is for sgd; name a number for adam, such as 0.001")
        return SGD("auto")
    try:
        size = float(step_size)
    except ValueError:
        raise ValueError(f"--step-size: expected a number or auto, got {step_size!r}") from None
    if LARGEST_STEP < size < math.inf:
        raise ValueError(f"--step-size: expected a number up to {LARGEST_STEP:g}, got {step_size}")
    return SGD(size) if rule == "sgd" else Adam(size)


def question(
    sources: Examples, targets: Examples | None, measure: str, update: Any, labels: str
) -> tuple[Any, Any, dict[str, Any]]:
    """Sources, targets and options of `le.similarity`."""
    from local_elasticity.checks import check_choice

    check_choice("--labels", labels, ("given", "predicted"))
    if sources.labels is None and labels == "given":
        raise ValueError("--data: it has no labels (y); add them, or pass --labels predicted")
    options: dict[str, Any] = {"measure": measure, "labels": labels, "progress": True}
    options |= {} if update is None else {"update": update}
    if sources.class_names is not None and labels == "given":
        options["class_names"] = sources.class_names
    asked = sources.inputs if labels == "predicted" else (sources.inputs, sources.labels)
    if targets is None:
        return asked, None, options
    if labels == "given":
        check_same_classes(sources, targets, ("--data", "--targets"))
    return asked, (targets.inputs, None if labels == "predicted" else targets.labels), options


def check_same_classes(one: Examples, other: Examples, arguments: tuple[str, str]) -> None:
    """Raise where folders of images name other classes, whose numbers would mean something else."""
    if len({one.class_names, other.class_names} - {None}) > 1:
        raise ValueError(
            f"{arguments[1]}: its classes {other.class_names} are not those of {arguments[0]}, {one.class_names}; give "
            "both the same folders"
        )


def with_rows(frame: Any, examples: Examples, column: str) -> Any:
    """A frame whose examples are called by their rows in the data, with the files of images."""
    places = frame[column].to_numpy()
    frame = frame.assign(**{column: examples.rows[places]})
    if examples.files is not None:
        name = "file" if column == "example" else f"{column}_file"
        frame.insert(list(frame.columns).index(column) + 1, name, [examples.files[place] for place in places])
    return frame


def named(S: Any, sources: Examples, targets: Examples | None) -> Any:
    """A similarity whose sources and targets are called by their rows in the data, with the files of images."""
    for axis, one in (("source", sources), ("target", targets or sources)):
        S = S.assign_coords({axis: one.rows})
        if one.files is not None:
            S = S.assign_coords({f"{axis}_file": (axis, list(one.files))})
    return S


def with_predictions(S: Any, problem: Any, targets: Examples, class_names: tuple[str, ...] | None, labels: str) -> Any:
    """A similarity with the class that the model predicts for each target, where labels that were given are classes."""
    if labels != "given" or targets.labels is None or "target_class" not in S.coords or problem.kind == "numbers":
        return S
    from local_elasticity.engine.predicted import predicted

    found = predicted(problem, targets.inputs, "--data")[1]
    if found.shape != targets.labels.shape:
        return S
    values = found.to(targets.labels.dtype).tolist()
    names = class_names or ()
    named_so = [names[one] if one < len(names) else str(one) for one in values] if names else values
    return S.le.with_predictions(named_so)


def shown_examples(sources: Examples, targets: Examples | None) -> Any:
    """What the page shows of each example, where it is numbers that can be drawn."""
    from torch import Tensor

    several = [one.inputs for one in (sources, targets) if one is not None]
    if not all(isinstance(one, Tensor) and one.is_floating_point() and one.ndim in (2, 3, 4) for one in several):
        return None
    several = [one.cpu() for one in several]
    return several[0] if targets is None else tuple(several)


def in_words(frame: Any) -> Any:
    """A frame whose column names can be broken into lines."""
    return frame.rename(columns=lambda name: str(name).replace("_", " "))


def check_out(out: Path | None, report: Path | None = None, endings: tuple[str, ...] = CSV) -> None:
    """Raise where a result could not be written, before anything is measured."""
    from local_elasticity.extras import extra
    from local_elasticity.store.atomic import check_file, check_name

    if out is not None:
        check_name(out, "--out")
        if out.suffix not in endings:
            raise ValueError(f"--out: expected a name that ends with {' or '.join(endings)}, got {out}")
        if out.exists():
            raise FileExistsError(f"--out: {out} is there already; choose another name or remove it")
    if report is not None:
        check_file(report, "--report")
        with extra("report"):
            import jinja2  # noqa: F401


def check_picture(figure: Path | None) -> None:
    """Raise where a figure could not be drawn or written, before anything is measured."""
    from local_elasticity.extras import extra
    from local_elasticity.store.atomic import check_file

    if figure is None:
        return
    check_file(figure, "--figure")
    if figure.suffix not in PICTURES:
        raise ValueError(f"--figure: expected a name that ends with {' or '.join(PICTURES)}, got {figure}")
    with extra("report"):
        import matplotlib  # noqa: F401


def write_picture(drawn: Any, figure: Path) -> None:
    """A matplotlib figure as a file."""
    import io

    from local_elasticity.store.atomic import write_whole

    content = io.BytesIO()
    drawn.savefig(content, format=figure.suffix[1:])
    write_whole(figure, content.getvalue(), "--figure")


def write_rows(screen: Any, frame: Any, out: Path) -> None:
    """The rows of a frame as a .csv file."""
    from local_elasticity.store.atomic import write_whole

    write_whole(out, frame.to_csv(index=False).encode(), "--out")
    screen.print(f"wrote {out}", soft_wrap=True)


def names_of_rows(examples: Examples) -> list[str]:
    """What a page calls each example: its row in the data, and the file of an image."""
    rows = [f"#{row}" for row in examples.rows]
    return rows if examples.files is None else [f"{row} {file}" for row, file in zip(rows, examples.files, strict=True)]


def write_page(screen: Any, found: dict[str, Any], report: Path, examples: Any = None) -> None:
    """A page of results by name."""
    from local_elasticity.report.write import write_report

    page = write_report(found, report, command=as_typed(), examples=examples)
    screen.print(f"wrote {page}: open it in a browser", soft_wrap=True)


@contextmanager
def warnings_on_one_line() -> Iterator[None]:
    """Show each warning as `warning: …` on stderr, without a line of code."""

    def show(message: Warning | str, *rest: Any, **more: Any) -> None:
        typer.echo(f"warning: {in_options(str(message))}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
