"""`compare`: what changed between two results, or between two sets of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from local_elasticity.cli import common_options
from local_elasticity.cli.app import Device, Json, Quiet, app, choices, console, print_frame, print_json
from local_elasticity.cli.common_options import DATA, Count, ImageSize, Labels, Loss, StepSize, UpdateRule

ROWS_SHOWN = 10


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="A stored similarity or history; with --model, a file of weights.")],
    after: Annotated[Path, typer.Argument(help="The same of the other moment.")],
    model: Annotated[str | None, typer.Option(metavar="MODULE:FACTORY", help="What makes the model.")] = None,
    model_after: Annotated[
        str | None, typer.Option(metavar="MODULE:FACTORY", help="Where the second model is another.")
    ] = None,
    data: Annotated[str | None, typer.Option(help=DATA)] = None,
    loss: Loss = "cross_entropy",
    measure: Annotated[
        str | None, typer.Option(help="Of two models (by default relative), or which measure of two results.")
    ] = None,
    update: UpdateRule = "sgd",
    step_size: StepSize = None,
    n: Count = 100,
    labels: Labels = "given",
    image_size: ImageSize = None,
    by: Annotated[
        str, typer.Option(help="A row for each of these.", **choices("classes", "pairs", "sources", "targets"))
    ] = "classes",
    top: Annotated[int, typer.Option(min=1, help="Rows that are printed: those that changed most.")] = ROWS_SHOWN,
    out: Annotated[Path | None, typer.Option(help="Keep all rows, in a .csv file.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page with both sides.")] = None,
    device: Device = "cpu",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What changed from one result to another, or from one file of weights to another, pair by pair.

    Examples: `local-elasticity compare monday.zarr friday.zarr`, and `local-elasticity compare epoch-1.pt epoch-9.pt
    --model my_nets:make --data photos`.
    """
    from local_elasticity.api.compare import BY
    from local_elasticity.checks import check_choice
    from local_elasticity.measures.registry import with_unit
    from local_elasticity.statistics.class_pairs import has_classes

    check_choice("--by", by, BY)
    common_options.check_out(out, report)
    if model is None:
        if data is not None or model_after is not None:
            raise ValueError("--data, --model-after: they need --model MODULE:FACTORY; two results have their examples")
        found = _of_results(before, after, measure)
    else:
        if data is None:
            raise ValueError("--data: two models are measured at the same examples; name them")
        step = common_options.made_update(update, step_size)
        sources = common_options.read_data(data, n, image_size, device)
        found = _of_models((model, before), (model_after or model, after), sources, loss, measure, step, labels, device)
    if json:
        print_json(
            {
                "measure": found.measure,
                "sentences": found.sentences(),
                "overall": vars(found.overall),
                by: found.frame(by).to_dict("records"),
            }
        )
    screen = console(quiet=quiet or json)
    screen.print(found, soft_wrap=True)
    if by != "classes" or has_classes(found.after):
        print_frame(
            screen, _shown(found.frame(by, top=top), by), f"{with_unit(found.measure)}, by {by}: what changed most"
        )
    if out is not None:
        common_options.write_rows(screen, found.frame(by), out)
    if report is not None:
        common_options.write_page(screen, {"before and after": found}, report)


def _shown(frame: Any, by: str) -> Any:
    """The rows for a terminal: columns say of what they are medians, and p-values that are not there say so."""
    if by != "pairs":
        medians = {"before": "median_before", "after": "median_after", "difference": "median_of_differences"}
        frame = frame.rename(columns=medians)
    for name in ("p_value", "p_adjusted"):
        if name in frame and frame[name].isna().any():
            frame[name] = ["not tested" if value != value else f"{value:.4g}" for value in frame[name]]
    return common_options.in_words(frame)


def _of_results(before: Path, after: Path, measure: str | None) -> Any:
    from local_elasticity.api.compare import compare as compared

    try:
        return compared(_opened(before, "BEFORE"), _opened(after, "AFTER"), measure=measure)
    except ValueError as error:
        words = str(error)
        for name, argument in (("A", "BEFORE"), ("B", "AFTER")):
            words = words.replace(f"measure: {name} ", f"measure: {argument} ").replace("A, B: ", "BEFORE, AFTER: ")
        raise ValueError(words) from None


def _opened(path: Path, argument: str) -> Any:
    """A stored similarity or history."""
    from local_elasticity.api.similarity import load
    from local_elasticity.training.history import History

    if not path.exists():
        raise FileNotFoundError(f"{argument}: there is no {path}")
    if not path.is_dir():
        raise ValueError(
            f"{argument}: {path} is no stored result (a .zarr folder); to compare weights, name --model and --data"
        )
    try:
        return load(path)
    except ValueError as error:
        try:
            return History.open(path)
        except (ValueError, OSError):
            raise error from None


def _of_models(
    one: tuple[str, Path],
    other: tuple[str, Path],
    sources: Any,
    loss: str,
    measure: str | None,
    step: Any,
    labels: str,
    device: str,
) -> Any:
    from dataclasses import replace

    from local_elasticity.api.compare import compare as compared
    from local_elasticity.cli.models import problem_of

    problems = [
        problem_of(model, weights, loss, device, sources, argument)
        for (model, weights), argument in ((one, "BEFORE"), (other, "AFTER"))
    ]
    x, _, options = common_options.question(sources, None, measure or "relative", step, labels)
    with common_options.warnings_on_one_line():
        found = compared(*problems, sources=x, examples=common_options.shown_examples(sources, None), **options)
    return replace(
        found,
        before=common_options.named(found.before, sources, None),
        after=common_options.named(found.after, sources, None),
    )
