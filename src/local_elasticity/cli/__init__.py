"""The command, one file for each of its parts; importing a part registers its commands."""

# ruff: noqa: F401
from local_elasticity.cli import (
    compare,
    data,
    demo,
    estimate,
    experiments,
    forecast,
    influence,
    measure,
    report,
    step,
    stores,
    verify,
    watch,
)
from local_elasticity.cli.app import app, main

__all__ = ["app", "main"]
