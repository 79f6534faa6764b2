"""Engines against loops: seconds for all n sources and m targets, as ratios within one run.

    python benchmarks/engines.py                 # on the CPU
    python benchmarks/engines.py --device cuda   # on a GPU

We compare against two baseline loops, `released_loop` and `good_loop` of ways.py. They are timed on some rows, before
and after the engine they are compared with, and scaled to all; engines run whole. A ratio is taken within a turn, and
the median over turns is reported. Figures go to benchmarks/results/engines-<device>.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from ways import (
    Case,
    digits_cnn,
    environment,
    good_loop,
    peak_memory,
    released_loop,
    resnet,
    respond,
    seconds,
    wide,
)

RESULTS = Path(__file__).parent / "results"
LOOP_ROWS = 24
TURNS = 3


def measure(case: Case, device: str, turns: int) -> dict[str, Any]:
    """Turns of: loops, engine, loops again, so that a slow spell of the machine hits all of them."""
    rows = min(LOOP_ROWS, case.n)
    first = seconds(lambda: respond(case))
    response = respond(case)
    released_loop(case, 2)
    good_loop(case, 2)

    def loops() -> dict[str, float]:
        ways = {"released": released_loop, "good": good_loop}
        return {name: seconds(partial(way, case, rows)) * case.n / rows for name, way in ways.items()}

    taken = []
    for _ in range(turns):
        before = loops()
        auto = seconds(lambda: respond(case))
        after = loops()
        linearized = seconds(lambda: respond(case, "linearized"))
        mean = {name: (before[name] + after[name]) / 2 for name in before}
        taken.append({**mean, "auto": auto, "linearized": linearized})
    return {
        "case": case.name,
        "seconds": {name: statistics.median(turn[name] for turn in taken) for name in taken[0]}
        | {"auto, first": first},
        "turns": taken,
        "loop rows timed": 2 * rows,
        "auto": list(response.notes),
        "engine": response.engine,
        "released / auto": statistics.median(turn["released"] / turn["auto"] for turn in taken),
        "good / auto": statistics.median(turn["good"] / turn["auto"] for turn in taken),
        "auto / linearized": statistics.median(turn["auto"] / turn["linearized"] for turn in taken),
        "peak memory GiB": peak_memory(device),
    }


def verdicts(results: list[dict[str, Any]], device: str) -> list[tuple[str, float, str]]:
    """What was aimed at, what came out, pass or miss."""
    by_name = {result["case"].split(",")[0]: result for result in results}
    fnn, cnn, classifier = by_name["784-4096-1"], by_name["MNIST CNN"], by_name["ResNet-18"]
    if device != "cpu":
        return [_verdict("ResNet-18 60x60: good loop / auto at least 5", classifier["good / auto"], 5.0)]
    return [
        _verdict("784-4096-1: released loop / auto at least 1.2", fnn["released / auto"], 1.2),
        *[
            _verdict(f"{name}: good loop / auto at least 0.9", result["good / auto"], 0.9)
            for name, result in by_name.items()
        ],
        _verdict("MNIST CNN: auto / linearized at least 8", cnn["auto / linearized"], 8.0),
    ]


def _verdict(what: str, ratio: float, least: float) -> tuple[str, float, str]:
    return what, ratio, "pass" if ratio >= least else "miss"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="few sources, one turn: to see that it runs")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    n, turns = (60, 1) if options.quick else (500, TURNS)
    results = []
    for case in (wide(n, 4096), digits_cnn(n), resnet()):
        results.append(measure(case.to(options.device), options.device, turns))
        line = ", ".join(f"{name} {value:.3g} s" for name, value in results[-1]["seconds"].items())
        print(f"{case.name}: {line} ({results[-1]['engine']})", flush=True)
    report = {
        **environment(options.device),
        "turns": turns,
        "results": results,
        "verdicts": verdicts(results, options.device),
    }
    out = options.out or RESULTS / f"engines-{options.device.split(':')[0]}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    for what, ratio, verdict in report["verdicts"]:
        print(f"{verdict:5} {ratio:8.2f}  {what}")


if __name__ == "__main__":
    main()
