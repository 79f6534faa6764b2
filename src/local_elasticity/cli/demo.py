"""The first command that a new user runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from local_elasticity.cli.app import Quiet, app, console


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the results.")] = Path("demo"),
    quiet: Quiet = False,
) -> None:
    """Train a small net on real digits and measure its local elasticity (under a minute)."""
    import torch

    from local_elasticity.demo import run_demo

    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out: {out} is a file; choose a folder")
    torch.set_num_threads(1)  # so small a net is many times slower with threads that wait for each other
    run_demo(out, console(quiet=quiet))
