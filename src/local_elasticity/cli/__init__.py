"""The command, one file for each of its parts."""

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
    stores,
    verify,
    watch,
)
from local_elasticity.cli.app import app, main

__all__ = [
    "app",
    "compare",
    "data",
    "demo",
    "estimate",
    "experiments",
    "forecast",
    "influence",
    "main",
    "measure",
    "report",
    "stores",
    "verify",
    "watch",
]
