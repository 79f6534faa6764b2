"""`step`: whether a step size is sensible for your model and data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from local_elasticity.cli import common_options
from local_elasticity.cli.app import Device, Json, Quiet, app, console, in_options, print_frame, print_json
from local_elasticity.cli.common_options import DATA, Count, ImageSize, Labels, Loss, Measure, StepSize, UpdateRule


@app.command()
def step(
    model: common_options.Model,
    data: Annotated[str, typer.Option(help=DATA)],
    weights: common_options.Weights = None,
    loss: Loss = "cross_entropy",
    measure: Measure = "relative",
    update: UpdateRule = "sgd",
    step_size: StepSize = None,
    n: Count = 30,
    labels: Labels = "given",
    image_size: ImageSize = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it: a .png, .pdf or .svg file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Keep the rows, in a .csv file.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page, such as report.html.")] = None,
    device: Device = "cpu",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Whether a step is small enough for similarities to describe your model, and which step is.

    Example: `local-elasticity step --model my_nets:make --weights best.pt --data photos --step-size 0.01`.
    """
    from local_elasticity import check_step
    from local_elasticity.cli.models import problem_of

    common_options.check_out(out, report)
    common_options.check_picture(figure)
    chosen = common_options.made_update(update, step_size)
    sources = common_options.read_data(data, n, image_size, device)
    problem = problem_of(model, weights, loss, device, sources)
    x, at, options = common_options.question(sources, None, measure, chosen, labels)
    options |= {"progress": not quiet}
    options.pop("class_names", None)
    with common_options.warnings_on_one_line():
        found = check_step(problem, x, at, **options)
    if json:
        about = {name: value for name, value in asdict(found).items() if name not in ("asked", "trials")}
        print_json({"verdict": found.verdict, **about, "trials": found.frame().to_dict("records")})
    screen = console(quiet=quiet or json)
    for sentence in found.sentences():
        screen.print(in_options(sentence), soft_wrap=True)
    print_frame(screen, common_options.in_words(found.frame()), "step sizes that were tried")
    if out is not None:
        common_options.write_rows(screen, found.frame(), out)
    if figure is not None:
        common_options.write_picture(found.plot(columns=2), figure)
        screen.print(f"wrote {figure}", soft_wrap=True)
    if report is not None:
        common_options.write_page(screen, {"step": found}, report)
