"""How fast and how exact: every row of what was aimed at, measured, with pass or miss.

    python benchmarks/speed.py                                       # on the CPU
    python benchmarks/speed.py --tangents .venv-tangents/bin/python  # with neural-tangents beside
    python benchmarks/speed.py --gpu                                 # on a CUDA machine

Loops are timed on some rows and scaled to all, engines run whole; ratios are within one run. Errors are against float64
and relative to the row's norm. Figures go to benchmarks/results/speed-<device>.json, the table to the screen.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from ways import (
    Case,
    digits_cnn,
    environment,
    forget_peak_memory,
    good_loop,
    peak_memory,
    product_rate,
    rebuilding_loop,
    released_loop,
    resnet,
    respond,
    seconds,
    wide,
)

import local_elasticity as le

HERE = Path(__file__).parent
LOOP_ROWS = 20
UNSEEN = 0.01
"""GiB that the peak of a process does not show."""

HALVED = 5 / 8
"""What is computed of a symmetric product, in four strips."""

STEP_SIZES = [10.0**power for power in range(-8, 0)]
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::mv")


def median_seconds(work: Callable[[], object], repeats: int = 3) -> float:
    return statistics.median(seconds(work) for _ in range(repeats))


def loop_seconds(loop: Callable[[Case, int], None], case: Case, of: int | None = None) -> float:
    """Seconds for all rows, from a few of them."""
    loop(case, 2)
    return seconds(lambda: loop(case, LOOP_ROWS)) * (of or case.n) / LOOP_ROWS


def wide_nets(device: str, n: int, width: int) -> dict[str, Any]:
    """The two-layer net of He & Su, exactly, at two step sizes, against the released loop and a good one."""
    case = wide(n, width, 1e-6).to(device)
    forget_peak_memory(device)
    before = loop_seconds(released_loop, case), loop_seconds(good_loop, case)
    found: dict[str, Any] = {"case": case.name}
    for step_size in (1e-6, 1e-3):
        here = replace(case, step_size=step_size)
        found[f"step {step_size:g}"] = {
            "first": seconds(lambda here=here: respond(here)),
            "seconds": median_seconds(lambda here=here: respond(here)),
            "engine": respond(here).engine,
        }
    after = loop_seconds(released_loop, case), loop_seconds(good_loop, case)
    for name, *times in zip(("released", "good"), before, after, strict=True):
        found[name] = sum(times) / 2
        for step in (found["step 1e-06"], found["step 0.001"]):
            step[f"{name} / ours"] = found[name] / step["seconds"]
    flops = 2 * n * width * 784 + (1 + HALVED) * 2 * n * n * width
    found["operations of the products"] = flops
    found["of the machine's product rate"] = flops / found["step 1e-06"]["seconds"] / product_rate(device)
    found["peak memory GiB"] = peak_memory(device)
    for step_size in (1e-6, 1e-3):
        here = replace(case, step_size=step_size)
        share = share_in_products(lambda here=here: respond(here), device)
        found[f"step {step_size:g}"]["share in matrix products"] = share
    return found


def share_in_products(work: Callable[[], object], device: str) -> float:
    """Time inside matrix products over the time of all operations, as the profiler sees them."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device != "cpu")
    with profile(activities=activities) as seen:
        work()
    averages = seen.key_averages()
    if device == "cpu":
        return _share({one.key: one.self_cpu_time_total for one in averages})
    return _share({one.key: one.self_device_time_total for one in averages})


def _share(times: dict[str, float]) -> float:
    return sum(time for name, time in times.items() if name in PRODUCTS) / sum(times.values())


def precision(device: str, width: int) -> dict[str, Any]:
    """Largest error of a row over step sizes, in float32, against a float64 loop: fresh and trained nets."""
    case = wide(200, width).to(device)
    found: dict[str, Any] = {}
    for state in ("fresh", "trained"):
        if state == "trained":
            _train(case)
        for step_size in STEP_SIZES:
            found[f"{state}, step {step_size:g}"] = _error(replace(case, step_size=step_size))
    return {
        "case": f"784-{width}-1, 4 sources, 200 targets",
        "errors": found,
        "worst": float(np.max(list(found.values()))),
    }


def _train(case: Case, steps: int = 200) -> None:
    optimizer = torch.optim.SGD(case.net.parameters(), lr=3e-3)
    for step in range(steps):
        rows = torch.arange(step * 50, (step + 1) * 50) % case.n
        optimizer.zero_grad()
        case.loss_of(case.net(case.x[rows]), case.y[rows]).backward()
        optimizer.step()
    case.net.requires_grad_(True)


def _error(case: Case) -> float:
    sources = (case.x[:4], case.y[:4])
    options: dict[str, Any] = {"update": le.SGD(case.step_size), "progress": False}
    ours = le.respond(case.problem, sources, case.x, engine="structured", **options).target_change[..., 0].double()
    net = le.models.fnn(784, width=case.net[1].out_features).double().to(case.x.device)
    net.load_state_dict({name: p.double() for name, p in case.net.state_dict().items()})
    exact = le.Problem.of(net, case.loss)
    doubled = (sources[0].double(), sources[1].double())
    truth = le.respond(exact, doubled, case.x.double(), engine="looped", **options).target_change[..., 0]
    return float(((ours - truth).norm(dim=1) / truth.norm(dim=1)).max())


def convolutions(device: str, n: int) -> dict[str, Any]:
    """The MNIST CNN, exactly, against both loops."""
    case = digits_cnn(n).to(device)
    fresh = loop_seconds(good_loop, case)  # before anything made glibc keep the memory that is freed
    respond(case)
    turns = []
    for _ in range(3):
        before = [loop_seconds(loop, case) for loop in (released_loop, good_loop)]
        ours = seconds(lambda: respond(case))
        after = [loop_seconds(loop, case) for loop in (released_loop, good_loop)]
        turns.append((ours, *((a + b) / 2 for a, b in zip(before, after, strict=True))))
    took, released, good = (statistics.median(column) for column in zip(*turns, strict=True))
    operations = 2 * n * n * (24 * 24 * 20 * 25 + 8 * 8 * 50 * 500 + 800 * 500 + 500)
    return {
        "case": case.name,
        "released": released,
        "good": good,
        "good, fresh": fresh,
        "seconds": took,
        "engine": respond(case).engine,
        "released / ours": statistics.median(loop / ours for ours, loop, _ in turns),
        "good / ours": statistics.median(loop / ours for ours, _, loop in turns),
        "good, fresh / ours": fresh / took,
        "of the machine's product rate": operations / took / product_rate(device),
    }


def classifier(device: str) -> dict[str, Any]:
    """ResNet-18, 60 x 60, against the way of Dan et al.'s notebooks and a good loop."""
    case = resnet().to(device)
    before = loop_seconds(rebuilding_loop, case, 180), loop_seconds(good_loop, case)
    first = seconds(lambda: respond(case))
    respond(case)
    took = median_seconds(lambda: respond(case), 5)
    after = loop_seconds(rebuilding_loop, case, 180), loop_seconds(good_loop, case)
    rebuilt, good = (sum(times) / 2 for times in zip(before, after, strict=True))
    return {
        "case": case.name,
        "rebuilding": rebuilt,
        "good": good,
        "first": first,
        "seconds": took,
        "engine": respond(case).engine,
        "rebuilding / ours": rebuilt / took,
        "good / ours": good / took,
    }


def kernels(device: str, sizes: dict[str, int], tangents: str | None) -> list[dict[str, Any]]:
    """The linearised engine against the tools of the field; each in a process of its own."""
    n, wide_n, resnet_n = sizes["n"], sizes["n"], sizes["resnet"]
    cases = [
        ("fnn", 4096, wide(n, 4096)),
        ("fnn", sizes["width"], wide(wide_n, sizes["width"])),
        ("cnn", 0, digits_cnn(n)),
        ("resnet", 0, resnet(resnet_n)),
    ]
    return [_kernel_case(network, width, case, device, tangents) for network, width, case in cases]


def _kernel_case(network: str, width: int, case: Case, device: str, tangents: str | None) -> dict[str, Any]:
    truth = le.ntk(le.Problem.of(case.net.double(), "mse"), case.x.double())
    case.net.float()
    weights = {f"weight {name}": p.detach().numpy() for name, p in case.net.named_parameters()}
    outputs = 3 if network == "resnet" else 1
    jacobian = case.n * outputs * sum(p.numel() for p in case.net.parameters()) * 4 / 2**30
    found: dict[str, Any] = {"case": case.name, "Jacobian GiB": jacobian}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "case.npz"
        np.savez(file, network=network, width=width, x=case.x.numpy(), truth=truth.numpy(), **weights)
        for way in ("ours", "torch.func", "opacus", "backpack"):
            fits = way == "ours" or jacobian < (12 if device == "cpu" else 60)
            command = [sys.executable, str(HERE / "kernels.py"), way, str(file), "--device", device]
            found[way] = _run(command) if fits else {"failed": f"Jacobians of {jacobian:.0f} GiB do not fit"}
        if tangents:
            found["neural-tangents"] = _run([tangents, str(HERE / "tangents.py"), str(file)])
    return found


def _run(command: list[str]) -> dict[str, Any]:
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        lines = answer.stderr.strip().splitlines()
        return {"failed": lines[-1][:200] if lines else f"exit status {answer.returncode}"}
    found: dict[str, Any] = json.loads(answer.stdout.strip().splitlines()[-1])
    return found


def growth(device: str, n: int, width: int) -> dict[str, Any]:
    """How the exact structured answer grows: seconds, and the exponent of a power law through them."""

    def took(case: Case) -> float:
        here = case.to(device)
        respond(here, "structured")
        return median_seconds(lambda: respond(here, "structured"))

    sizes = {
        "n": {size: took(wide(size, width // 4, 1e-6)) for size in (n // 4, n // 2, n)},
        "width": {size: took(wide(n // 2, size, 1e-6)) for size in (width // 16, width // 4, width)},
        "depth": {layers: took(_deep(n // 10, layers)) for layers in (2, 4, 8, 16)},
    }
    return {name: {"seconds": times, "exponent": _exponent(times)} for name, times in sizes.items()}


def _deep(n: int, layers: int) -> Case:
    case = wide(n, 16)
    hidden = [part for _ in range(layers - 1) for part in (nn.Linear(512, 512), nn.Tanh())]
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.Tanh(), *hidden, nn.Linear(512, 1))
    return replace(case, net=net)


def _exponent(times: dict[int, float]) -> float:
    logs = np.log(np.array(list(times.items())))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def verdicts(found: dict[str, Any], device: str) -> list[tuple[str, float, str]]:
    """What was aimed at, what came out, pass or miss."""
    fnn = found["two layers"]
    rows = [
        _at_least(f"784-40960-1, step {step}: released loop / ours", fnn[f"step {step}"]["released / ours"], least)
        for step in ("1e-06", "0.001")
        for least in [400 if device == "cpu" else 500]
    ]
    rows.append(_at_most("784-40960-1: worst error, steps 1e-8 to 1e-1", found["precision"]["worst"], 2e-6))
    if device == "cpu":
        rows += [
            _at_least(f"784-40960-1, step {s}: share in products", fnn[f"step {s}"]["share in matrix products"], 0.5)
            for s in ("1e-06", "0.001")
        ]
        rows.append(_at_least("MNIST CNN: released loop / ours", found["CNN"]["released / ours"], 2))
        rows.append(_at_least("MNIST CNN: good loop / ours", found["CNN"]["good / ours"], 1))
        rows.append(_at_least("MNIST CNN: good loop in a fresh process / ours", found["CNN"]["good, fresh / ours"], 1))
    else:
        rows.append(_at_most("ResNet-18 60x60: seconds", found["ResNet-18"]["seconds"], 0.040))
        rows.append(_at_least("ResNet-18 60x60: rebuilding / ours", found["ResNet-18"]["rebuilding / ours"], 800))
    for kernel in found["kernels"]:
        rows += _kernel_rows(kernel)
    return rows


def _kernel_rows(kernel: dict[str, Any]) -> list[tuple[str, float, str]]:
    ours = kernel["ours"]
    rows = []
    for way, least in (("neural-tangents", 1), ("opacus", 5), ("backpack", 5), ("torch.func", 5)):
        other = kernel.get(way, {"failed": "not asked for"})
        what = f"kernel, {kernel['case']}: {way} / ours"
        if "failed" in other:
            rows.append((f"{what}: {other['failed']}", math.nan, "-"))
        else:
            rows.append(_at_least(what, other["seconds"] / ours["seconds"], least))
            rows.append(
                _at_least(
                    f"{what}, memory", (other["peak memory GiB"] + UNSEEN) / (ours["peak memory GiB"] + UNSEEN), 1
                )
            )
    return rows


def _at_least(what: str, value: float, least: float) -> tuple[str, float, str]:
    return f"{what}, at least {least:g}", value, "pass" if value >= least else "miss"


def _at_most(what: str, value: float, most: float) -> tuple[str, float, str]:
    return f"{what}, at most {most:g}", value, "pass" if value <= most else "miss"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="on CUDA")
    parser.add_argument("--tangents", help="a Python that has neural-tangents")
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it runs")
    parser.add_argument("--only", nargs="*", help="measure these parts again and keep the others of the results file")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    device = "cuda" if options.gpu else "cpu"
    n, width = (80, 512) if options.quick else (1000, 40960)
    sizes = {"n": n // 2, "width": width, "resnet": 6 if options.quick else 60}
    work: dict[str, Callable[[], Any]] = {
        "precision": lambda: precision(device, width),
        "CNN": lambda: convolutions(device, n // 2),
        "ResNet-18": lambda: classifier(device),
        "kernels": lambda: kernels(device, sizes, options.tangents),
        "growth": lambda: growth(device, n, width),
        "two layers": lambda: wide_nets(device, n, width),  # last: once a GPU was profiled, its launches stay slow
    }
    out = options.out or HERE / "results" / f"speed-{device}.json"
    found: dict[str, Any] = json.loads(out.read_text()) if options.only else {}
    found |= environment(device)
    for name in options.only or work:
        found[name] = work[name]()
        print(f"{name}: {json.dumps(found[name])}", flush=True)
    found["verdicts"] = verdicts(found, device)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")
    for what, value, verdict in found["verdicts"]:
        print(f"{verdict:5} {value:10.3g}  {what}")


if __name__ == "__main__":
    main()
