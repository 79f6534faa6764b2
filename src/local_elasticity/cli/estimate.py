"""`estimate`: what a similarity matrix would take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from local_elasticity.scale.cost import Cost

from local_elasticity.cli.app import Device, Json, app, console, print_json
from local_elasticity.cli.common_options import Loss

SIDE = 2048
"""Of the blocks that `Cost.in_blocks` counts."""

WORTH_IT = 0.9
"""Workers that save less than a tenth of the time are said to be no faster."""


@app.command()
def estimate(
    model: Annotated[
        str, typer.Option(metavar="MODULE:FACTORY", help="What makes the model; or fnn-40960, linear-…, resnet-…, cnn.")
    ],
    shape: Annotated[str, typer.Option(help="The shape of one input, separated by commas.")] = "1,28,28",
    sources: Annotated[int, typer.Option(min=1, help="How many sources, n.")] = 60_000,
    targets: Annotated[int | None, typer.Option(min=1, help="How many targets, m; by default the sources.")] = None,
    loss: Loss = "mse",
    landmarks: Annotated[int, typer.Option(min=1, help="For the plan that is linear in n.")] = 256,
    workers: Annotated[int, typer.Option(min=1, help="Cores or GPUs like the one that is measured on.")] = 8,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """What a similarity matrix would take: a few small ones are timed here (about half a minute) and scaled up."""
    from rich.table import Table

    from local_elasticity.cli.models import example_problem
    from local_elasticity.scale.cost import Cost

    problem, pair = example_problem(model, shape, loss, device)
    cost = Cost.measure(problem, pair)
    n, m = sources, targets or sources
    if json:
        found = {"n": n, "m": m, "engine": cost.engine, "seconds": cost.in_blocks(n, m)}
        print_json({**found, "seconds_on_workers": cost.in_blocks(n, m, workers=workers), "workers": workers})
        return
    table = Table("plan", "pairs", "here", f"on {workers} like this", "on disk", title=f"{model}, {cost.engine}")
    for row in plans(cost, n, m, landmarks=landmarks, workers=workers):
        table.add_row(*row)
    screen = console()
    screen.print(table)
    screen.print(
        f"seconds = {cost.start:.2g} + {cost.per_source:.2g} n + {cost.per_target:.2g} m + {cost.per_pair:.2g} n m, "
        "fitted to responses of at most 256 × 1024 random inputs; docs/scale.md says what is assumed",
        soft_wrap=True,
    )
    if why := no_faster(cost, n, m, workers):
        screen.print(why, soft_wrap=True)


def no_faster(cost: Cost, n: int, m: int, workers: int) -> str:
    """Why several workers are hardly faster than one, where that is so.

    >>> from local_elasticity.scale.cost import Cost
    >>> no_faster(Cost(0.0, 0.0, 0.0, 1e-6), 2000, 2000, 8)
    'On 8 workers it takes as long: all pairs fit into 1 block of 2048 × 2048, and one worker computes a block.'
    """
    if workers < 2 or cost.in_blocks(n, m, workers=workers) < WORTH_IT * cost.in_blocks(n, m):
        return ""
    blocks = math.ceil(n / SIDE) * math.ceil(m / SIDE)
    said = f"On {workers} workers it takes as long: "
    if blocks < workers:
        word = "block" if blocks == 1 else "blocks"
        return f"{said}all pairs fit into {blocks} {word} of {SIDE} × {SIDE}, and one worker computes a block."
    return f"{said}one process writes all results, and that takes longer than computing them."


def plans(cost: Cost, n: int, m: int, *, landmarks: int, workers: int) -> list[tuple[str, ...]]:
    """Rows of a table: all pairs in blocks, and a few landmarks against all.

    >>> from local_elasticity.scale.cost import Cost
    >>> for row in plans(Cost(0.0, 0.0, 0.0, 1e-6), 60_000, 60_000, landmarks=256, workers=8): print(*row, sep=" | ")
    all pairs | 3.60e+09 | 1.0 h | 7.5 min | 14 GB
    256 landmarks × n | 1.54e+07 | 15 s | 2.0 s | 61 MB
    """
    few = min(landmarks, n)
    return [_row(cost, "all pairs", n, m, workers), _row(cost, f"{few} landmarks × n", few, max(n, m), workers)]


def _row(cost: Cost, name: str, n: int, m: int, workers: int) -> tuple[str, ...]:
    from local_elasticity.api.estimate import bytes_in_words
    from local_elasticity.engine.progress import seconds_in_words

    here, there = (seconds_in_words(cost.in_blocks(n, m, workers=count)) for count in (1, workers))
    return name, f"{n * m:.2e}", here, there, bytes_in_words(4 * n * m)
