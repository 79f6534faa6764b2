"""Published results made again without training.

`python -m local_elasticity.papers.judge_again docs/results` goes through every result.json below a folder, of this
schema or the one before. Where the units of the run are published beside it (units.json) the whole result is made from
them. Elsewhere its claims are judged from the values by seed that its cells hold; a claim whose values are not there is
"not measured", and says what is missing. `python -m local_elasticity.report.page docs/results/PAPER` makes the page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from local_elasticity.papers.runner import (
    EXPERIMENTS,
    PUBLISHED_UNITS,
    SCHEMA,
    conclude,
    find_experiment,
    judged_claims,
)
from local_elasticity.store.atomic import write_whole


def judge_again(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result with its claims judged anew; its cells stay as they are, but for values that are rounding.

    Args:
        result: a result.json of schema 1 or 2.

    Returns:
        A result of today's schema.

    Raises:
        ValueError: the schema or the experiment is unknown.
    """
    if result.get("schema") not in (1, SCHEMA):
        raise ValueError(
            f"result: expected schema 1 or {SCHEMA}, got {result.get('schema')!r}; it was written by another version"
        )
    if result["experiment"] not in EXPERIMENTS:
        raise ValueError(f"result: there is no experiment {result['experiment']!r}; it was renamed or removed")
    experiment = find_experiment(result["experiment"])
    cells = experiment.resolved(result["cells"])
    return {
        **result,
        "schema": SCHEMA,
        "cells": cells,
        "claims": judged_claims(experiment, cells, len(result["seeds"])),
    }


def main(folders: list[str]) -> None:
    for file in sorted(file for folder in folders for file in Path(folder).rglob("result.json")):
        result = json.loads(file.read_text())
        if (file.parent / PUBLISHED_UNITS).exists():
            conclude(find_experiment(result["experiment"]), file.parent)
            continue
        made = judge_again(result)
        write_whole(file, (json.dumps(made, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1:])
