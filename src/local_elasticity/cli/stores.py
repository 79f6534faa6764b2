"""`verify-store`: every byte of a stored similarity or index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from local_elasticity.cli.app import Json, Quiet, app, print_json


@app.command(name="verify-store")
def verify_store(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A stored similarity, or an index of influences.")],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read every block of a stored similarity or index and compare it with the digest that was written with it."""
    from local_elasticity.store.result import verify

    found = verify(path)
    total = sum(len(blocks) for blocks in found.values())
    whole = not (found["missing"] or found["damaged"])
    if json:
        print_json({state: [str(block) for block in blocks] for state, blocks in found.items()})
    if json or quiet:
        raise typer.Exit(0 if whole else 1)
    typer.echo(f"{len(found['finished'])} of {total} blocks are there and are what was written")
    for state in ("missing", "damaged"):
        if found[state]:
            typer.echo(f"{state}: {' '.join(map(str, found[state][:20]))}{' …' if len(found[state]) > 20 else ''}")
    if not whole:
        typer.echo("the call or command that wrote it, run again, computes what is missing or damaged")
        raise typer.Exit(1)
