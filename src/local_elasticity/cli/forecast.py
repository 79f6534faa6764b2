"""`forecast`: what a fine-tune of your own model will break."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from local_elasticity.cli import common_options
from local_elasticity.cli.app import Device, Json, Quiet, app, console, print_frame, print_json
from local_elasticity.cli.common_options import DATA, Count, ImageSize, Loss, Model, UpdateRule, Weights

if TYPE_CHECKING:
    from local_elasticity.data.own import Examples

ROWS_SHOWN = 10


@app.command()
def forecast(
    model: Model,
    new: Annotated[str, typer.Option(help=f"What it will be fine-tuned on. {DATA}")],
    old: Annotated[str, typer.Option(help="What it should keep, given as --new is.")],
    steps: Annotated[int, typer.Option(min=1, help="How many steps the fine-tune will take.")],
    step_size: Annotated[
        str | None,
        typer.Option(help="η of the fine-tune (needed), or auto for a step of sgd that acts as a small one."),
    ] = None,
    weights: Weights = None,
    loss: Loss = "cross_entropy",
    update: UpdateRule = "sgd",
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Examples in a step, in the order given; by default all of --new.")
    ] = None,
    virtual: Annotated[
        int,
        typer.Option(min=0, help="Steps really taken, in a copy, before the rest is extrapolated; at most 5, or all."),
    ] = 0,
    simulate: Annotated[bool, typer.Option(help="Take all steps as well, in a copy, to compare with.")] = False,
    drop: Annotated[
        float | None, typer.Option(help="Call an example lost where its loss rises by more than this.")
    ] = None,
    n: Count = 1000,
    image_size: ImageSize = None,
    top: Annotated[int, typer.Option(min=1, help="Old examples that are printed: those most at risk.")] = ROWS_SHOWN,
    out: Annotated[Path | None, typer.Option(help="Keep a row for each old example, in a .csv file.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw margins before and after: a .png, .pdf or .svg file.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page, such as report.html.")] = None,
    device: Device = "cpu",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Which old examples your model will lose when it is fine-tuned on new ones, before that is done.

    Example: `local-elasticity forecast --model my_nets:make --weights best.pt --new mistakes --old photos --steps 20
    --step-size 0.01`, where my_nets.py in this folder has a function make() that returns the model, and both folders
    have a folder of images for each class.
    """
    from local_elasticity.api.forecast import MAX_VIRTUAL
    from local_elasticity.api.forecast import forecast as forecasted
    from local_elasticity.cli.models import problem_of

    common_options.check_out(out, report)
    common_options.check_picture(figure)
    if step_size is None:
        raise ValueError("--step-size: name that of the fine-tune, such as 0.01")
    step = common_options.made_update(update, step_size)
    both = [
        common_options.labelled_data(data, n, image_size, device, argument)
        for data, argument in ((new, "--new"), (old, "--old"))
    ]
    problem = problem_of(model, weights, loss, device, both[0], data="--new")
    common_options.check_same_classes(both[0], both[1], ("--new", "--old"))
    with common_options.warnings_on_one_line():
        found = forecasted(
            problem,
            *((one.inputs, one.labels) for one in both),
            update=step,
            steps=steps,
            batch_size=batch_size,
            virtual=virtual,
            max_virtual=steps if virtual == steps else MAX_VIRTUAL,
            simulate=simulate,
            drop=drop,
        )
    frame = common_options.with_rows(found.frame(), both[1], "example")
    if json:
        print_json(_facts(found, frame))
    screen = console(quiet=quiet or json)
    for sentence in found.sentences(named=False):
        screen.print(sentence, soft_wrap=True)
    _show(screen, frame, top)
    if out is not None:
        common_options.write_rows(screen, frame, out)
    if figure is not None:
        common_options.write_picture(found.plot(), figure)
        screen.print(f"wrote {figure}", soft_wrap=True)
    if report is not None:
        _write_page(screen, found, both[1], report)


def _write_page(screen: Any, found: Any, old: Examples, report: Path) -> None:
    """The page with a picture of each old example where it is one; with --simulate also what came true."""
    from dataclasses import replace

    from local_elasticity.api.forecast import ForecastCheck
    from local_elasticity.report.foreseen import foreseen

    check = None if found.simulated is None else ForecastCheck.of(found.old, found.simulated.old)
    names = common_options.names_of_rows(old)
    shown = replace(foreseen("forecast", found, check), names=names, sentences=found.sentences(named=False))
    common_options.write_page(screen, {"forecast": shown}, report, common_options.shown_examples(old, None))


def _facts(found: Any, frame: Any) -> dict[str, Any]:
    """What a program wants to know: the fine-tune, what it will do, and a row for each old example."""
    old, new = found.old, found.new
    lost, right_after = (old.lost.sum(), (new.margin_after > 0).sum()) if found.sizes_known else (None, None)
    return {
        "update": repr(found.update),
        "steps": found.steps,
        "batch_size": found.batch_size,
        "virtual": found.virtual,
        "seconds": found.seconds,
        "nonlinearity": found.nonlinearity,
        "total_nonlinearity": found.total_nonlinearity,
        "old": {"n": len(old.right), "right": old.right.sum(), "lost": lost, "lost_range": found.lost_range},
        "new": {"n": len(new.right), "right": new.right.sum(), "right_after": right_after},
        "notes": list(found.notes),
        "examples": frame.to_dict("records"),
    }


def _show(screen: Any, frame: Any, top: int) -> None:
    worst = frame[frame["risk"].notna()].sort_values("risk", ascending=False, kind="stable").head(top)
    if len(worst):
        shown = worst.assign(probability=worst["probability"].round(3)).drop(columns=["wrong_before", "risk"])
        shown = shown.dropna(axis="columns", how="all")
        print_frame(screen, common_options.in_words(shown), f"most at risk: {len(worst)} of {len(frame)}")
