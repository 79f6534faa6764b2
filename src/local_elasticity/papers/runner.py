"""The runner that all experiments share: units one by one, each kept as soon as it is done, then one result.json."""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import local_elasticity
from local_elasticity.papers.experiment import Experiment, Findings, Measured, Reading, Scale, Unit
from local_elasticity.report.figures import save_figure

logger = logging.getLogger("local_elasticity")

SCHEMA = 1
EXPERIMENTS = {"he2020local/fig1": "local_elasticity.papers.he2020local.fig1:Fig1"}
"""Name → where it is defined; loaded when it is asked for."""

Report = Callable[[Unit, int, int, float], None]
"""Called after every unit: (unit, done, total, seconds; 0 where it was there already)."""


def find_experiment(name: str) -> Experiment:
    """An experiment by name."""
    if name not in EXPERIMENTS:
        raise ValueError(f"NAME: {name!r} is not one of {', '.join(EXPERIMENTS)}; `local-elasticity list` shows them")
    module, _, kind = EXPERIMENTS[name].partition(":")
    experiment: Experiment = getattr(import_module(module), kind)()
    return experiment


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    scale: Scale = "small",
    seeds: int = 3,
    reading: Reading = "as_defined",
    device: str = "cpu",
    report: Report | None = None,
) -> dict[str, Any]:
    """Run what is not yet done, and write result.json and the figures into `out`. Returns the result.

    Every finished unit is a file of its own under `out/units`; the same call goes on where an interrupted one stopped,
    and a folder that holds another run is refused.
    """
    _check(experiment, scale, seeds, reading, device)
    settings = experiment.scales[scale]
    identity = {
        "experiment": experiment.name,
        "scale": scale,
        "reading": reading,
        "settings": json.loads(json.dumps(settings)),
    }
    _claim_folder(out, identity)
    units = [Unit(part, seed) for seed in range(seeds) for part in experiment.parts(settings)]
    measured: dict[Unit, Measured] = {}
    for done, unit in enumerate(units, start=1):
        file = out / "units" / f"{unit.name}.json"
        began = time.monotonic()
        there = file.exists()
        if not there:
            _write(file, dict(experiment.measure(unit, settings, reading, device)))
        measured[unit] = json.loads(file.read_text())
        if report:
            report(unit, done, len(units), 0.0 if there else time.monotonic() - began)
    findings = experiment.find(measured)
    result = _result(identity, findings, seeds, device, _save_figures(findings, out))
    _write(out / "result.json", result)
    return result


def _check(experiment: Experiment, scale: Scale, seeds: int, reading: Reading, device: str) -> None:
    if scale not in experiment.scales:
        raise ValueError(f"--scale: {scale!r} is not one of {', '.join(experiment.scales)}")
    if reading not in experiment.readings:
        raise ValueError(f"--reading: {experiment.name} has {', '.join(experiment.readings)}, not {reading!r}")
    if seeds < 1:
        raise ValueError(f"--seeds: at least one is wanted, not {seeds}")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device: {device!r} is not available here ({str(error).splitlines()[0]})") from error


def _claim_folder(out: Path, identity: Mapping[str, Any]) -> None:
    """Write down whose folder this is, or refuse one that belongs to another run."""
    file = out / "run.json"
    if not file.exists():
        if out.exists() and any(out.iterdir()):
            raise ValueError(f"--out: {out} is not empty and holds no run; choose another folder")
        _write(file, identity)
        return
    before = json.loads(file.read_text())
    changed = [key for key in identity if before.get(key) != identity[key]]
    if changed:
        raise ValueError(
            f"--out: {out} holds another run ({', '.join(changed)} differ); choose another folder or remove it"
        )


def _result(
    identity: Mapping[str, Any], findings: Findings, seeds: int, device: str, figures: list[str]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        **identity,
        "environment": {
            "local_elasticity": local_elasticity.__version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "device": _device_in_words(device),
        },
        "commit": _commit(),
        "seeds": list(range(seeds)),
        "cells": [cell.as_json() for cell in findings.cells],
        "claims": [asdict(claim) for claim in findings.claims],
        "curves": [asdict(curve) for curve in findings.curves],
        "figures": figures,
    }


def _save_figures(findings: Findings, out: Path) -> list[str]:
    files = [file for name, made in findings.figures.items() for file in save_figure(made, out / "figures" / name)]
    return [str(file.relative_to(out)) for file in files]


def _device_in_words(device: str) -> str:
    if device.startswith("cuda"):
        return f"one {torch.cuda.get_device_name(device)}"
    return f"{device}, {torch.get_num_threads()} threads"


def _commit() -> str | None:
    """The commit of the source tree that runs, where there is one."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _write(file: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    unfinished.replace(file)
