"""The runner that all experiments share: units one by one, each kept as soon as it is done, then one result.json."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch

import local_elasticity
from local_elasticity.checks import check_choice, check_device
from local_elasticity.engine.nonlinearity import LargeStepWarning
from local_elasticity.papers.experiment import Experiment, Findings, Reading, Scale, Unit, Values
from local_elasticity.scale.workers import current_workers
from local_elasticity.statistics.judging import judge
from local_elasticity.store.atomic import write_whole

logger = logging.getLogger("local_elasticity")

T = TypeVar("T")

SCHEMA = 2
"""2: claims carry the values of every unit and how they are tested; cells have a value or null for every seed."""
MOST_SEEDS = 10_000
PUBLISHED_UNITS = "units.json"
COMMIT = "LOCAL_ELASTICITY_COMMIT"
EXPERIMENTS = {
    "dan2021dynamics/cifar10": "local_elasticity.papers.dan2021dynamics.cifar10:CIFAR10",
    "dan2021dynamics/cifar100": "local_elasticity.papers.dan2021dynamics.cifar100:CIFAR100",
    "dan2021dynamics/homogeneous": "local_elasticity.papers.dan2021dynamics.homogeneous:Homogeneous",
    "dan2021dynamics/penalised": "local_elasticity.papers.dan2021dynamics.penalised:Penalised",
    "dan2021dynamics/regression": "local_elasticity.papers.dan2021dynamics.regression:Regression",
    "dan2021dynamics/relu_gate": "local_elasticity.papers.dan2021dynamics.relu_gate:ReluGateFigure",
    "dan2021dynamics/selection": "local_elasticity.papers.dan2021dynamics.selection:Selection",
    "dan2021dynamics/svhn": "local_elasticity.papers.dan2021dynamics.svhn:SVHN",
    "emergence2024/alignment": "local_elasticity.papers.emergence2024.alignment:Alignment",
    "emergence2024/emergence": "local_elasticity.papers.emergence2024.emergence:Emergence",
    "emergence2024/many_steps": "local_elasticity.papers.emergence2024.many_steps:ManySteps",
    "emergence2024/metric_learning": "local_elasticity.papers.emergence2024.metric_learning:MetricLearning",
    "emergence2024/mnist": "local_elasticity.papers.emergence2024.mnist:Mnist",
    "emergence2024/operator_norm": "local_elasticity.papers.emergence2024.operator_norm:OperatorNorm",
    "emergence2024/rank_one": "local_elasticity.papers.emergence2024.rank_one:RankOne",
    "emergence2024/retrieval": "local_elasticity.papers.emergence2024.retrieval:Retrieval",
    "forecast/digits": "local_elasticity.papers.forecast.digits:ForecastOfDigits",
    "he2020local/fig1": "local_elasticity.papers.he2020local.fig1:Fig1",
    "he2020local/fig4": "local_elasticity.papers.he2020local.fig4:Fig4",
    "he2020local/fig5": "local_elasticity.papers.he2020local.fig5:Fig5",
    "he2020local/photos": "local_elasticity.papers.he2020local.photos:Photos",
    "he2020local/pretrained": "local_elasticity.papers.he2020local.pretrained:Pretrained",
    "he2020local/released_probe": "local_elasticity.papers.he2020local.released_probe:ReleasedProbe",
    "he2020local/table1": "local_elasticity.papers.he2020local.table1:Table1",
    "he2020local/table2": "local_elasticity.papers.he2020local.table2:Table2",
    "he2020local/table2_stable": "local_elasticity.papers.he2020local.table2_stable:Table2Stable",
    "he2020local/table3": "local_elasticity.papers.he2020local.table3:Table3",
    "he2020local/table4": "local_elasticity.papers.he2020local.table4:Table4",
    "he2020local/table5": "local_elasticity.papers.he2020local.table5:Table5",
    "he2020local/table6": "local_elasticity.papers.he2020local.table6:Table6",
    "he2020local/table7": "local_elasticity.papers.he2020local.table7:Table7",
    "he2020local/table8": "local_elasticity.papers.he2020local.table8:Table8",
}
"""Name → where it is defined, by paper and name; loaded when it is asked for."""

Report = Callable[[Unit, int, int, str], None]
"""Called after every unit: (unit, done, total, the seconds it took or where it was found)."""


def find_experiment(name: str) -> Experiment:
    """An experiment by name."""
    if name not in EXPERIMENTS:
        close = get_close_matches(name, EXPERIMENTS, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise ValueError(f"NAME: there is no {name!r}; {meant}`local-elasticity list` shows all {len(EXPERIMENTS)}")
    module, _, kind = EXPERIMENTS[name].partition(":")
    return getattr(import_module(module), kind)()


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

    Every finished unit is a file of its own under `out/units`; the same call resumes where an interrupted one stopped,
    and a folder that holds another run is refused.
    """
    measure_units(experiment, out, scale=scale, seeds=seeds, reading=reading, device=device, report=report)
    return conclude(experiment, out)


def measure_units(
    experiment: Experiment,
    out: Path,
    *,
    scale: Scale = "small",
    seeds: int = 3,
    reading: Reading = "as_defined",
    device: str = "cpu",
    report: Report | None = None,
) -> None:
    """The first half of a run: measure the units that `out` does not hold yet. It needs no plotting library, so that a
    bare GPU machine can do it; `conclude` makes the result anywhere.
    """
    _check(experiment, scale, seeds, reading, device)
    settings = experiment.scales[scale]
    identity = _identity(experiment, scale, reading)
    _claim_folder(out, identity)
    units = [Unit(part, seed) for seed in range(seeds) for part in experiment.parts(settings)]
    taken = _take_over(out, units, _siblings(out, identity, experiment.shares))
    missing = [unit for unit in units if not _file(out, unit).exists()]
    done = 0
    for unit in units:
        if report and unit not in missing:
            done += 1
            found = f"taken from ../{taken[unit].name}" if unit in taken else "was there already"
            report(unit, done, len(units), found)
    shared = experiment, settings, reading, device
    batches = experiment.batches(missing, settings)
    for _, finished in current_workers().map(_measure, shared, batches, gpus=int("cuda" in device)):
        for unit, made in finished:
            _write(_file(out, unit), made)
            done += 1
            if report:
                report(unit, done, len(units), f"{made['seconds']:.1f} s")


def _measure(shared: Any, batch: list[Unit]) -> Iterator[tuple[Unit, dict[str, Any]]]:
    """A task for workers: the units of one batch as they are done, and how each was made."""
    experiment, settings, reading, device = shared
    made = {"environment": _environment(device), "commit": _commit()}
    began = time.monotonic()
    for unit, measured in _without_warnings(experiment.measure_batch(batch, settings, reading, device)):
        seconds, began = time.monotonic() - began, time.monotonic()
        yield unit, {"part": unit.part, "seed": unit.seed, **made, "seconds": seconds, "measured": dict(measured)}


def _without_warnings(results: Iterable[T]) -> Iterator[T]:
    """The same, one after another, without a word about large steps: papers ask for them."""
    waiting = iter(results)
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LargeStepWarning)
            try:
                found = next(waiting)
            except StopIteration:
                return
        yield found


def conclude(experiment: Experiment, out: Path) -> dict[str, Any]:
    """The second half of a run: result.json and figures from the units in `out`, wherever they were measured."""
    identity = json.loads((out / "run.json").read_text())
    there = stored_units(out)
    order = {part: place for place, part in enumerate(experiment.parts(identity["settings"]))}
    kept = sorted((one for one in there if one["part"] in order), key=lambda one: (one["seed"], order[one["part"]]))
    findings = experiment.find({Unit(one["part"], one["seed"]): one["measured"] for one in kept})
    seeds = sorted({one["seed"] for one in kept})
    cells = [cell.as_json() for cell in findings.cells]
    result = {
        "schema": SCHEMA,
        **identity,
        "environment": _one_or_all([one["environment"] for one in kept]),
        "commit": _one_or_all([one["commit"] for one in kept]),
        "seeds": seeds,
        "seconds": round(sum(one["seconds"] for one in kept), 1),
        "cells": cells,
        "claims": judged_claims(experiment, cells, len(seeds)),
        "curves": [asdict(curve) for curve in findings.curves],
        "figures": _save_figures(findings, out),
    }
    _write(out / "result.json", result)
    return result


def stored_units(out: Path) -> list[dict[str, Any]]:
    """The units of a run: a file each, or all in one where they were published."""
    if (out / PUBLISHED_UNITS).exists():
        return json.loads((out / PUBLISHED_UNITS).read_text())["units"]
    return [json.loads(file.read_text()) for file in sorted((out / "units").glob("[!.]*.json"))]


def publish(out: Path, to: Path) -> None:
    """Copy a finished run to where results are published: its result, its figures, and its units in one small file,
    each with version and commit. `conclude` makes the result from that file again.

    Args:
        out: the folder of a run.
        to: the folder to write; what a former run left there is replaced.
    """
    units = stored_units(out)
    if not units:
        raise ValueError(f"out: {out} holds no units of a run")
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for name in ("result.json", "run.json"):
        shutil.copy(out / name, to / name)
    if (out / "figures").exists():
        shutil.copytree(out / "figures", to / "figures")
    text = json.dumps({"schema": SCHEMA, "units": units}, ensure_ascii=False, separators=(",", ":"))
    write_whole(to / PUBLISHED_UNITS, f"{text}\n".encode())


def judged_claims(experiment: Experiment, cells: Sequence[Mapping[str, Any]], seeds: int) -> list[dict[str, Any]]:
    """The experiment's claims, judged from the cells of a result."""
    values = Values(cells, seeds)
    return [claim.as_json() for claim in judge(experiment.claims, values, values.printed())]


def _check(experiment: Experiment, scale: Scale, seeds: int, reading: Reading, device: str) -> None:
    check_choice("--scale", scale, experiment.scales)
    if reading not in experiment.readings:
        raise ValueError(
            f"--reading: expected one of {', '.join(experiment.readings)} for {experiment.name}, got {reading!r}"
        )
    if not 1 <= seeds <= MOST_SEEDS:
        raise ValueError(f"--seeds: expected a number from 1 to {MOST_SEEDS:,}, got {seeds:,}")
    check_device(device, "--device")


def _claim_folder(out: Path, identity: Mapping[str, Any]) -> None:
    """Write down whose folder this is, or refuse one that belongs to another run."""
    file = out / "run.json"
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out: {out} is a file; choose a folder")
    if not file.exists():
        if out.exists() and any(out.iterdir()):
            raise ValueError(f"--out: {out} is not empty and holds no run; choose another folder")
        _write(file, identity)
        return
    before = _run_of(file)
    if before is None:
        raise ValueError(f"--out: {file} cannot be read as JSON of a run; choose another folder or remove it")
    changed = [key for key in identity if before.get(key) != identity[key]]
    if changed:
        raise ValueError(
            f"--out: {out} holds another run ({', '.join(changed)} differ); choose another folder or remove it"
        )


def _run_of(file: Path) -> dict[str, Any] | None:
    """Whose folder this is; None where the file says nothing of the kind."""
    try:
        content = json.loads(file.read_text())
    except (ValueError, OSError):
        return None
    return content if isinstance(content, dict) else None


def _siblings(out: Path, identity: Mapping[str, Any], shares: Sequence[str]) -> list[Path]:
    """Folders beside this one whose units of the same name are the same work."""
    alike = {key: value for key, value in identity.items() if key != "experiment"}
    folders = []
    for file in sorted(out.absolute().parent.glob("*/run.json")) if shares else ():
        other = _run_of(file) or {}
        if other.get("experiment") in shares and all(other.get(key) == value for key, value in alike.items()):
            folders.append(file.parent)
    return folders


def _take_over(out: Path, units: Sequence[Unit], siblings: Sequence[Path]) -> dict[Unit, Path]:
    """Copy the units that a folder beside holds and this one does not; which came from where."""
    taken = {}
    for unit in units:
        folder = next((folder for folder in siblings if _file(folder, unit).exists()), None)
        if folder is not None and not _file(out, unit).exists():
            _write(_file(out, unit), json.loads(_file(folder, unit).read_text()))
            taken[unit] = folder
    return taken


def _identity(experiment: Experiment, scale: Scale, reading: Reading) -> dict[str, Any]:
    settings = json.loads(json.dumps(experiment.scales[scale]))
    return {"experiment": experiment.name, "scale": scale, "reading": reading, "settings": settings}


def _file(out: Path, unit: Unit) -> Path:
    return out / "units" / f"{unit.name}.json"


def _environment(device: str) -> dict[str, str]:
    return {
        "local_elasticity": local_elasticity.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": _device_in_words(device),
    }


def _one_or_all(values: list[Any]) -> Any:
    """What all units share, or the list of what there was."""
    different = [value for place, value in enumerate(values) if value not in values[:place]]
    return different[0] if len(different) == 1 else different


def _save_figures(findings: Findings, out: Path) -> list[str]:
    from local_elasticity.report.figures import save_figure

    files = [file for name, made in findings.figures.items() for file in save_figure(made, out / "figures" / name)]
    return [str(file.relative_to(out)) for file in files]


def _device_in_words(device: str) -> str:
    if device.startswith("cuda"):
        return f"one {torch.cuda.get_device_name(device)}"
    return f"{device}, {torch.get_num_threads()} threads"


def _commit() -> str | None:
    """The commit of the source tree that runs, where there is one; "+changes" where files differ from it.

    LOCAL_ELASTICITY_COMMIT names it for a copy of the tree that has no history.
    """
    if os.environ.get(COMMIT):
        return os.environ[COMMIT]
    try:
        commit, changes = (_git("rev-parse", "HEAD"), _git("status", "--porcelain", "--", "."))
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if changes else commit


def _git(*words: str) -> str:
    here = Path(__file__).parents[1]
    answer = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True)
    return answer.stdout.strip()


def _write(file: Path, content: Mapping[str, Any]) -> None:
    write_whole(file, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode(), "--out")
