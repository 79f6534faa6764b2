"""respond: one update on each source, read at every target. The engine does the expensive thing once, here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from local_elasticity.engine.auto import Auto
from local_elasticity.engine.climb import respond_and_climb
from local_elasticity.engine.guard import untouched
from local_elasticity.engine.job import Engine, Job
from local_elasticity.engine.linearized import Linearized
from local_elasticity.engine.looped import Looped
from local_elasticity.engine.loss import LossFunction
from local_elasticity.engine.noise import Noise
from local_elasticity.engine.problem import Problem, as_problem
from local_elasticity.engine.progress import Progress, ProgressOption
from local_elasticity.engine.response import Response
from local_elasticity.engine.structured import Structured
from local_elasticity.engine.table import as_response, fill
from local_elasticity.engine.update import DEFAULT_UPDATE, Update
from local_elasticity.engine.vmapped import Vmapped

ENGINES: dict[str, type] = {
    "auto": Auto,
    "looped": Looped,
    "vmapped": Vmapped,
    "structured": Structured,
    "linearized": Linearized,
}


@untouched
def respond(
    problem: Problem | nn.Module,
    sources: Any,
    targets: Any = None,
    *,
    loss: str | LossFunction | None = None,
    update: Update = DEFAULT_UPDATE,
    engine: str | Engine = "auto",
    approximate: bool = False,
    source_batch_size: int | None = None,
    memory: int | None = None,
    progress: ProgressOption = None,
) -> Response:
    """How one update on each source would move the prediction at every target. The model is not touched.

    For source i, w⁺ = w + update(∇_w ℓ(f(x_i; w), y_i)); the response holds f(x′; w⁺) − f(x′; w) for every target x′
    and the same at x_i itself (He & Su eq. 2.1, 2.2).

    Args:
        problem: the network and its loss, from `Problem.of`; or a bare `nn.Module` together with `loss=`.
        sources: (inputs, labels), or a Dataset or DataLoader of such pairs.
        targets: (inputs, labels), inputs alone, a Dataset or a DataLoader; by default the sources themselves. Targets
            of a model with several inputs are ((a, b), None) or a dict.
        loss: the loss of a bare model, as for `Problem.of`.
        update: `SGD`, `Adam` or `FromOptimizer`.
        engine: `"auto"` (exact, chosen by a short measurement; rows that rounding hides are computed again in
            float64), `"looped"`, `"vmapped"`, `"structured"`, `"linearized"`, or an engine object.
        approximate: let `auto` answer to first order in the step (`Linearized`).
        source_batch_size: take one step on each consecutive batch of this many sources instead of on each source.
        memory: bytes that may be used beyond the result itself; by default half of what is free.
        progress: None for a bar on a terminal and log lines elsewhere, True for lines on stderr instead of those, False
            for none, or a function (done, total).

    >>> import torch, local_elasticity as le
    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> x, y = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([3.0, 5.0])
    >>> response = le.respond(le.Problem.of(net, "half_mse"), sources=(x, y), update=le.SGD(0.1))
    >>> le.relative(response)  # a linear model: |x·x′| / ‖x‖²
    tensor([[1.0000, 1.0000],
            [0.5000, 1.0000]])
    """
    problem = as_problem(problem, loss)
    chosen = resolve_engine(engine, approximate)
    with problem.moment() as moment:
        job = Job.read(moment, sources, targets, update, source_batch_size=source_batch_size, memory=memory)
        with Progress(job.n, "updates", progress) as bar:
            if isinstance(chosen, Auto):
                response = respond_and_climb(job, chosen.runner(job), bar)
            else:
                response = _respond(job, chosen, bar)
        job.check_company(response.target_before)
    return replace(response, notes=(*problem.notes(), *response.notes, *_overflows(response)))


def _overflows(response: Response) -> list[str]:
    """What to say of predictions that are not finite, before or after the step."""
    unknown = [~rows.isfinite().flatten(1).all(1) for rows in (response.source_change, response.target_before)]
    sources, targets = torch.stack([rows.sum() for rows in unknown]).tolist()
    what = [f"{count} of the {name}" for count, name in ((sources, "sources"), (targets, "targets")) if count]
    return [f"predictions are not finite at {' and '.join(what)}; their pairs are NaN"] if what else []


def resolve_engine(engine: str | Engine, approximate: bool) -> Engine:
    """An engine object from a name or an object."""
    if isinstance(engine, str):
        if engine not in ENGINES:
            raise ValueError(f"engine: {engine!r} is not one of {', '.join(ENGINES)}")
        engine = ENGINES[engine]()
    if isinstance(engine, type) or not isinstance(engine, Engine):
        raise TypeError(f"engine: a name or an engine such as le.Looped() is wanted, not {engine!r}")
    return Linearized() if approximate and isinstance(engine, Auto) else engine


def _respond(job: Job, engine: Engine, bar: Progress) -> Response:
    runner = engine.runner(job)
    noise = Noise.measure(job, runner)
    return as_response(job, fill(job, runner, bar), noise, runner, type(engine).__name__.lower(), ())
