"""`verify-store`: every byte of a stored result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from local_elasticity.cli.app import app


@app.command(name="verify-store")
def verify_store(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A store that `le.similarity(..., store=PATH)` wrote.")],
) -> None:
    """Read every block of a stored similarity and compare it with the digest that was written with it."""
    from local_elasticity.store.result import verify

    found = verify(path)
    total = sum(len(blocks) for blocks in found.values())
    typer.echo(f"{len(found['finished'])} of {total} blocks are there and are what was written")
    for state in ("missing", "damaged"):
        if found[state]:
            typer.echo(f"{state}: {' '.join(map(str, found[state][:20]))}{' …' if len(found[state]) > 20 else ''}")
    if found["missing"] or found["damaged"]:
        typer.echo("the same le.similarity(..., store=PATH) computes what is missing or damaged")
        raise typer.Exit(1)
