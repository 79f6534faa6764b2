"""`data list`: the datasets on this machine."""

from __future__ import annotations

import os

import typer

from local_elasticity.cli.app import Json, app, console, print_json

data_app = typer.Typer(help="Datasets on this machine.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command(name="list")
def list_data(json: Json = False) -> None:
    """Which datasets are on this machine, and where."""
    from rich.table import Table

    from local_elasticity.data.images import FOLDER, available

    if json:
        print_json(available())
        return
    table = Table("dataset", "where")
    for name, place in available().items():
        table.add_row(name, place)
    screen = console()
    screen.print(table)
    if not os.environ.get(FOLDER):
        screen.print(f"Name a folder of .npz files in {FOLDER} to use your own copies.")
