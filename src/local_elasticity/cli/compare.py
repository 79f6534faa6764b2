"""`compare`: what changed between two results, or between two sets of weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from local_elasticity.cli import common_options
from local_elasticity.cli.app import Device, Json, Quiet, app, choices, console, print_frame, print_json
from local_elasticity.cli.common_options import DATA, Count, ImageSize, Labels, Loss, StepSize, UpdateRule

ROWS_SHOWN = 10


@app.command()
def compare(
    before: Annotated[
        Path | None, typer.Argument(help="A stored similarity or history; with --model, a file of weights.")
    ] = None,
    after: Annotated[Path | None, typer.Argument(help="The same of the other moment.")] = None,
    seeds_before: Annotated[
        list[Path] | None,
        typer.Option("--before", help="In place of BEFORE: the stored result of one seed; repeat it for each seed."),
    ] = None,
    seeds_after: Annotated[list[Path] | None, typer.Option("--after", help="The same of the other setting.")] = None,
    paired: Annotated[
        bool, typer.Option("--paired", help="The --before and --after at the same place have the same seed.")
    ] = False,
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
        str,
        typer.Option(
            help="A row for each of these; with --before and --after: classes, overall or seeds.",
            **choices("classes", "pairs", "sources", "targets", "overall", "seeds"),
        ),
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
    --model my_nets:make --data photos`. Two settings, with several seeds each: `local-elasticity compare --before
    plain-0.zarr --before plain-1.zarr --after decay-0.zarr --after decay-1.zarr`.
    """
    from local_elasticity.api.compare import BY
    from local_elasticity.api.compare_seeds import BY_SEED
    from local_elasticity.checks import check_choice

    several = bool(seeds_before or seeds_after)
    check_choice("--by", by, BY_SEED if several else BY)
    common_options.check_out(out, report)
    if several:
        if before is not None or model is not None:
            raise ValueError("--before, --after: they take stored results; leave out BEFORE, AFTER and --model")
        found = _of_seeds(seeds_before or [], seeds_after or [], measure, paired=paired)
    elif before is None or after is None or paired:
        raise ValueError(
            "BEFORE, AFTER: name two results; to compare several seeds, repeat --before and --after, also for --paired"
        )
    elif model is None:
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
        print_json(_facts(found, by, several=several))
    screen = console(quiet=quiet or json)
    _tell(screen, found, by, top, several=several)
    if out is not None:
        common_options.write_rows(screen, found.frame(by), out)
    if report is not None:
        common_options.write_page(screen, {"before and after": found}, report)


def _facts(found: Any, by: str, *, several: bool) -> dict[str, Any]:
    """What a program wants to know."""
    overall = found.frame("overall").to_dict("records") if several else vars(found.overall)
    told = {"measure": found.measure, "sentences": found.sentences(), "overall": overall}
    return {**told, by: found.frame(by).to_dict("records")}


def _tell(screen: Any, found: Any, by: str, top: int, *, several: bool) -> None:
    """The sentences, and a table where there is something to put into it."""
    from local_elasticity.measures.registry import with_unit
    from local_elasticity.statistics.class_pairs import has_classes

    screen.print(found, soft_wrap=True)
    if by == "classes" and not has_classes(found.after[0] if several else found.after):
        return
    shown = common_options.in_words(found.frame(by, top=top)) if several else _shown(found.frame(by, top=top), by)
    what = f"{with_unit(found.measure)}, by {by}"
    print_frame(screen, shown, what if by == "seeds" else f"{what}: what changed most")


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


def _of_seeds(before: list[Path], after: list[Path], measure: str | None, *, paired: bool) -> Any:
    from local_elasticity.api.compare import compare as compared

    sides = [[_opened(path, name) for path in paths] for paths, name in ((before, "--before"), (after, "--after"))]
    try:
        return compared(*sides, measure=measure, paired=paired)
    except ValueError as error:
        words = str(error)
        for letter, name, paths in (("A", "--before", before), ("B", "--after", after)):
            words = re.sub(rf"^{letter}(?=:)", name, words)
            for place, path in enumerate(paths):
                words = words.replace(f"{letter}[{place}]", f"{name} {path}")
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
