"""The command, one file for each of its parts."""

from local_elasticity.cli import data, demo, estimate, experiments, report, stores, verify, watch
from local_elasticity.cli.app import app, main

__all__ = ["app", "data", "demo", "estimate", "experiments", "main", "report", "stores", "verify", "watch"]
