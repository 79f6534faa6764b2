"""`influence`: which of your training examples help or harm your test examples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from local_elasticity.cli import common_options
from local_elasticity.cli.app import Device, Json, Quiet, app, console, print_frame, print_json
from local_elasticity.cli.common_options import DATA, ImageSize, Loss, Model

if TYPE_CHECKING:
    from local_elasticity.data.own import Examples

ROWS_SHOWN = 3


@app.command()
def influence(
    model: Model,
    data: Annotated[str, typer.Option(help=f"The training examples. {DATA}")],
    targets: Annotated[str, typer.Option(help="The examples to explain, given as --data is.")],
    store: Annotated[Path, typer.Option(help="The index, such as index.zarr; made, resumed, or opened.")],
    weights: Annotated[
        list[Path] | None, typer.Option(help="Weights, or one --weights for each checkpoint of a training run.")
    ] = None,
    step_size: Annotated[
        list[float] | None,
        typer.Option(help="The learning rate, or one for each --weights. [default: 0.001]", show_default=False),
    ] = None,
    loss: Loss = "cross_entropy",
    n: Annotated[
        int | None, typer.Option("-n", "--n", min=1, help="The most training examples; by default all.")
    ] = None,
    n_targets: Annotated[int, typer.Option(min=1, help="The most targets, balanced by class as far as possible.")] = 10,
    image_size: ImageSize = None,
    dimension: Annotated[int, typer.Option(min=2, help="Numbers kept for each example and checkpoint.")] = 4096,
    top: Annotated[int, typer.Option(min=1, help="Helpers, and harmers, of each target.")] = ROWS_SHOWN,
    out: Annotated[Path | None, typer.Option(help="Keep the rows, in a .csv file.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw helpers and harmers as bars: a .png, .pdf or .svg file.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page, such as report.html.")] = None,
    device: Device = "cpu",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Which training examples help or harm each target most, from an index that is made once.

    Example: `local-elasticity influence --model my_nets:make --weights best.pt --data photos --targets mistakes --store
    index.zarr`. With several checkpoints: `--weights a.pt --step-size 0.1 --weights b.pt --step-size 0.01`.
    """
    from local_elasticity.api.influence import influence_index
    from local_elasticity.cli.models import problem_of

    common_options.check_out(out, report)
    common_options.check_picture(figure)
    examples, given = common_options.streamed_data(data, n, image_size, device)
    asked = common_options.labelled_data(targets, n_targets, image_size, device, "--targets")
    common_options.check_same_classes(examples, asked, ("--data", "--targets"))
    moments = _moments(weights or [], step_size or [])
    problem = problem_of(model, moments[0][0] if moments else None, loss, device, examples)
    options: dict[str, Any] = {"dimension": dimension, "store": store, "progress": not quiet}
    if len(moments) > 1:
        options["checkpoints"] = moments
    elif step_size:
        options["step_size"] = step_size[0]
    with common_options.warnings_on_one_line():
        index = influence_index(problem, given, **options)
        found = index.query((asked.inputs, asked.labels), top=top)
    frame = common_options.with_rows(found.frame(), asked, "target")
    if isinstance(given, tuple):
        frame = common_options.with_rows(frame, examples, "source")
    if json:
        facts = {name: value for name, value in vars(found).items() if not name.startswith("_")}
        print_json({**facts, "store": str(store), "influences": frame.to_dict("records")})
    screen = console(quiet=quiet or json)
    screen.print(index, soft_wrap=True)
    for sentence in found.sentences():
        screen.print(sentence, soft_wrap=True)
    if len(moments) > 1 and len(step_size or []) < 2:
        screen.print(f"The step size {moments[0][1]:g} is used for all {len(moments)} --weights.")
    summed = f", summed over {len(moments)} checkpoints (TracIn)" if len(moments) > 1 else " by one step"
    print_frame(
        screen, common_options.in_words(frame), f"first-order change of the target's loss{summed}: below 0 helps"
    )
    if out is not None:
        common_options.write_rows(screen, frame, out)
    if figure is not None:
        from local_elasticity.report.bars import influence_figure

        common_options.write_picture(influence_figure(frame, columns=2), figure)
        screen.print(f"wrote {figure}", soft_wrap=True)
    if report is not None:
        sides = {"target": asked} | ({"source": examples} if isinstance(given, tuple) else {})
        shown = replace(found, _frame=_with_pictures(frame, found, sides))
        common_options.write_page(screen, {"influences": shown}, report)


def _with_pictures(frame: Any, found: Any, sides: dict[str, Examples]) -> Any:
    """The rows with what a page shows of their examples, where it is numbers that can be drawn."""
    import numpy as np

    from local_elasticity.report.examples import kept_examples

    for side, examples in sides.items():
        inputs, places = common_options.shown_examples(examples, None), found.frame()[side].to_numpy()
        if inputs is not None:
            used, each = np.unique(places, return_inverse=True)
            frame = frame.assign(**{f"{side}_example": kept_examples(inputs[used], len(used))[each]})
    return frame


def _moments(weights: list[Path], step_sizes: list[float]) -> list[tuple[Path, float]]:
    """Each file with its learning rate."""
    if len(step_sizes) not in (0, 1, len(weights)):
        raise ValueError(
            f"--step-size: expected one, or one for each of the {len(weights)} --weights, got {len(step_sizes)}"
        )
    rates = step_sizes * len(weights) if len(step_sizes) == 1 else step_sizes or [1e-3] * len(weights)
    return list(zip(weights, rates, strict=True))
