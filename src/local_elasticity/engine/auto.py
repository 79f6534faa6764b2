"""auto: the exact engine that a short measurement finds fastest. Every row it times is a row of the result."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass

import torch

from local_elasticity.engine.job import Job, Rows, Runner
from local_elasticity.engine.looped import LoopedRunner
from local_elasticity.engine.memory import is_out_of_memory
from local_elasticity.engine.vmapped import VmappedRunner

logger = logging.getLogger("local_elasticity")

WORTHWHILE = 0.9
"""A way is taken over another where it needs less than this share of its time."""

SECONDS_WORTH_A_RACE = 0.2
SECONDS_WORTH_AN_IMPORT = 10.0
"""Looped work that is left, from which on other ways are tried; the first use of torch.func takes a second."""

CACHE_SIZED = 128
"""Targets in a pass of `Looped` that is tried beside all at once: a CPU is often faster while its cache suffices."""

TRIAL_SHARE = {"cpu": 1 / 128, "cuda": 1 / 8, "mps": 1 / 8}
"""Of the rows, how many the first chunk of `Vmapped` has: a CPU is soon full, a GPU is not."""

GROWTH = 4
"""Chunks of `Vmapped` grow by this factor for as long as that is worthwhile."""


@dataclass(frozen=True)
class Auto:
    """Times `Looped` on the first rows, then small chunks of `Vmapped`, then larger ones while they gain. Exact."""

    @property
    def exact(self) -> bool:
        return True

    def runner(self, job: Job) -> AutoRunner:
        return AutoRunner(job)


@dataclass
class Way:
    """A runner and how many seconds a row took it; `warms_up` where the first time does not count."""

    name: str
    runner: Runner
    chunk: int
    warms_up: bool = False
    seconds: float = float("inf")

    def __str__(self) -> str:
        how = f" in chunks of {self.chunk}" if self.chunk > 1 else ""
        if isinstance(self.runner, LoopedRunner):
            how = f" with {self.runner.at_once} targets at a time" if self.runner.at_once < self.runner.job.m else ""
            how += ", channels last" if self.runner.channels_last else ""
        return f"{self.name}{how} ({_duration(self.seconds)} a row)"


class AutoRunner:
    """A race between ways: each trial is timed, the best is kept, and the race is over when no trial is left."""

    subtracts = True

    def __init__(self, job: Job) -> None:
        self.job = job
        looped = LoopedRunner(job)
        self.target_before = looped.target_before
        self.notes: list[str] = []
        self.best = Way("looped", looped, 1)
        self.trials = _looped_trials(looped)
        if job.moment.device.type == "cpu":
            if looped.at_once >= 2 * CACHE_SIZED:
                self.trials += _looped_trials(LoopedRunner(job, CACHE_SIZED))
            if any(p.ndim == 4 for p in job.moment.params.values()):
                at_once = CACHE_SIZED if looped.at_once >= 2 * CACHE_SIZED else None
                self.trials += _looped_trials(LoopedRunner(job, at_once, channels_last=True))

    @property
    def chunk(self) -> int:
        return (self.trials[0] if self.trials else self.best).chunk

    @property
    def name(self) -> str:
        return self.best.name

    @property
    def seconds(self) -> float:
        """What a row takes the best way."""
        return self.best.seconds

    @property
    def bytes(self) -> int:
        return self.best.runner.bytes

    def shrink(self) -> bool:
        way = self.trials[0] if self.trials else self.best
        shrunk = way.runner.shrink()
        way.chunk = min(way.chunk, way.runner.chunk)
        return shrunk

    def rows(self, start: int, stop: int) -> Rows:
        if not self.trials:
            return self.best.runner.rows(start, stop)
        trial = self.trials[0]
        began = self._now()
        try:
            rows = trial.runner.rows(start, stop)
        except RuntimeError as error:
            if is_out_of_memory(error) or trial.name == "looped":
                raise
            self.trials = []
            self._say(f"auto: looped, since vmap cannot take this model ({_first_line(error)})")
            return self.best.runner.rows(start, stop)
        trial.seconds = (self._now() - began) / (stop - start)
        del self.trials[0]
        if not trial.warms_up:
            self._judge(trial, left=self.job.n - stop)
        return rows

    def again(self, job: Job) -> Runner:
        """A runner of the kind that was best here, for another job on the same network."""
        best = self.best.runner
        if isinstance(best, LoopedRunner):
            return LoopedRunner(job, best.at_once, best.channels_last)
        return VmappedRunner(job, self.best.chunk)

    def _judge(self, trial: Way, left: int) -> None:
        better = trial.seconds < WORTHWHILE * self.best.seconds
        loser = self.best if better else trial
        if better:
            self.best = trial
        if trial.name == "looped" and not self.trials:
            self.trials = self._vmapped_trials(self.best.seconds, left)
        elif better and trial.name == "vmapped":
            self.trials = self._larger_chunk(trial, left)
        if not self.trials and trial.name == "vmapped":
            self._say(f"auto: {self.best} against {loser}")

    def _vmapped_trials(self, seconds: float, left: int) -> list[Way]:
        """Small chunks of `Vmapped`, where enough work is left for them to matter."""
        if not self.job.update.vectorizes:
            self._say("auto: looped, since this optimizer's rule cannot be vectorised")
            return []
        imported = "torch._dynamo" in sys.modules
        if left * seconds < (SECONDS_WORTH_A_RACE if imported else SECONDS_WORTH_AN_IMPORT):
            self._say(f"auto: {self.best}, not enough work for a race")
            return []
        _warm_up_torch_func()
        kind = self.job.moment.device.type
        runner = VmappedRunner(self.job, target_before=self.target_before)
        chunk = max(1, min(runner.chunk, left // 4, int(self.job.n * TRIAL_SHARE[kind])))
        first = Way("vmapped", runner, chunk)
        return [first] if kind == "cpu" else [Way("vmapped", runner, chunk, warms_up=True), first]

    def _larger_chunk(self, way: Way, left: int) -> list[Way]:
        chunk = min(GROWTH * way.chunk, way.runner.chunk, left)
        return [Way("vmapped", way.runner, chunk)] if chunk > way.chunk else []

    def _say(self, note: str) -> None:
        self.notes.append(note)
        logger.info(note)

    def _now(self) -> float:
        if self.job.moment.device.type == "cuda":
            torch.cuda.synchronize(self.job.moment.device)
        return time.perf_counter()


def _looped_trials(runner: LoopedRunner) -> list[Way]:
    return [Way("looped", runner, 1, warms_up=True), Way("looped", runner, 1)]


def _warm_up_torch_func() -> None:
    torch.func.grad(torch.sum)(torch.ones(1))


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
