"""`watch`: local elasticity at saved checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from local_elasticity.cli.app import Device, Json, Quiet, app, console, print_frame, print_json
from local_elasticity.cli.common_options import Loss, Model


@app.command()
def watch(
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINTS...", help="Files that hold a state_dict, or folders of them.")
    ],
    model: Model,
    data: Annotated[str, typer.Option(help="A dataset, as `data list` shows it, or an .npz file with x and y.")],
    loss: Loss = "cross_entropy",
    measure: Annotated[
        str, typer.Option(help="Names separated by commas: relative,kl,kernel,stiffness_cos, …")
    ] = "relative",
    per_class: Annotated[int, typer.Option(min=1, help="Sources of each class.")] = 20,
    step_size: Annotated[float, typer.Option(help="η of the probing step.")] = 1e-3,
    out: Annotated[Path, typer.Option(help="Folder for the history and the figure.")] = Path("watched"),
    device: Device = "cpu",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Local elasticity at saved checkpoints: the same history that a live monitor makes, after the fact."""
    from local_elasticity import SGD
    from local_elasticity.cli.models import check_checkpoints, check_step_size, made_model
    from local_elasticity.data.points import read_points
    from local_elasticity.report.figures import save_figure
    from local_elasticity.training.checkpoints import watch as watch_checkpoints

    if (out / "history.zarr").exists():
        raise FileExistsError(f"--out: {out} holds a history already; choose another folder or remove it")
    net = made_model(model, device)
    check_step_size(step_size, net)
    check_checkpoints(checkpoints)
    x, y = read_points(data, per_class)
    monitor = watch_checkpoints(
        checkpoints,
        net,
        (x.to(device), y.to(device)),
        loss=loss,
        measure=tuple(name.strip() for name in measure.split(",")),
        update=SGD(step_size),
        store=out / "history.zarr",
    )
    phases, classes = monitor.phases(), monitor.frame()
    if json:
        tables = {"phases": phases, "locality": monitor.locality(), "classes": classes}
        print_json({name: table.to_dict("records") for name, table in tables.items()})
    screen = console(quiet=quiet or json)
    print_frame(screen, phases.round(4), "Phases")
    print_frame(screen, classes.round(4).tail(12), "The last class pairs")
    files = save_figure(monitor.plot(), out / "curves")
    screen.print(f"{len(monitor.history)} probes; written to {out / 'history.zarr'} and {files[0]}", soft_wrap=True)
