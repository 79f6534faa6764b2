"""auto: the exact engine that a short measurement finds fastest. Every row it times is a row of the result."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import Any

import torch

from local_elasticity.engine.clock import now
from local_elasticity.engine.job import Job, Rows, Runner
from local_elasticity.engine.looped import seconds_of_a_row
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.remembered import Remembered
from local_elasticity.engine.settled import Settled
from local_elasticity.engine.structured import StructuredRunner, differences_runner, prove, two_layer_runner
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.two_layer import NotTwoLayersError
from local_elasticity.engine.vmapped import VmappedRunner, check_vmap

logger = logging.getLogger("local_elasticity")

WORTHWHILE = 0.9
"""A way is taken over another where it needs less than this share of its time."""

SECONDS_WORTH_A_RACE = 0.2
SECONDS_WORTH_AN_IMPORT = 10.0
"""Looped work that is left, from which on other ways are tried; the first use of torch.func takes a second."""

HOPELESS = 2
"""A way whose first row takes so many times what another's do is not even proved."""

CACHE_SIZED = 128
"""Targets in a pass of `Looped` that is tried beside all at once: a CPU is often faster while its cache suffices."""

TRIAL_SHARE = {"cpu": 1 / 128, "cuda": 1 / 8, "mps": 1 / 8}
"""Of the rows, how many the first chunk of `Vmapped` has: a CPU is soon full, a GPU is not."""

FAILURES = (UnsupportedModelError, RuntimeError, TypeError, AssertionError)
"""What a way raises that cannot take a model; there is always the loop."""

GROWTH = 4
"""Chunks of `Vmapped` grow by this factor for as long as that is worthwhile."""


@dataclass(frozen=True)
class Auto:
    """Times the exact engines on the first rows and keeps the fastest; remembers its choice for a model. Exact.

    With a way that was `settled` before there is no race, and the same rows come out to the same bits.
    """

    settled: Settled | None = None

    @property
    def exact(self) -> bool:
        return True

    def runner(self, job: Job) -> AutoRunner:
        return AutoRunner(job, self.settled)


def settled_where_short(job: Job) -> Settled | None:
    """`Structured` for a job that will come again but is too short to race for, where it can read the network: it is
    faster on small networks, and what is settled at once gives the same bits at every moment. None for any other.
    """
    if seconds_of_a_row(job) * job.n >= SECONDS_WORTH_A_RACE:
        return None
    try:
        if two_layer_runner(job) is not None:
            return None
        differences_runner(job)
    except FAILURES as error:
        if not may_be_passed_over(error):
            raise
        return None
    return Settled("structured")


class StaleChoiceError(Exception):
    """The engine that was chosen before cannot take the network as it is now."""


@dataclass
class Way:
    """A runner, the way it goes written down, and how many seconds a row took it.

    `warms_up` where its first chunk is slower than the others and does not count.
    """

    name: str
    runner: Runner
    chunk: int
    settled: Settled
    detail: str = ""
    warms_up: bool = False
    seconds: float = float("inf")

    def __str__(self) -> str:
        return f"{self.name}{self.detail} ({_duration(self.seconds)} a row)"


@dataclass(frozen=True)
class Choice:
    """A way that won, without the job that it won on."""

    name: str
    detail: str
    chunk: int
    settled: Settled
    seconds: float


_choices: Remembered[Choice] = Remembered()


class AutoRunner:
    """A race between ways: each trial is timed, the best is kept, and the race is over when no trial is left."""

    def __init__(self, job: Job, settled: Settled | None = None, *, anew: bool = False) -> None:
        """With `anew`, nothing that was settled, remembered or recognised is taken over: the race begins with loops."""
        self.job = job
        self.notes: list[str] = []
        self.trials: list[Way] = []
        known = None if anew else self._agreed(settled) or self._remembered() or self._two_layers()
        self.best = known or self._start_race()
        self.target_before = self.best.runner.target_before
        self.subtracts = bool(self.trials) or self.best.runner.subtracts

    @property
    def chunk(self) -> int:
        return (self.trials[0] if self.trials else self.best).chunk

    @property
    def name(self) -> str:
        return self.best.name

    @property
    def settled(self) -> Settled:
        """The best way so far, for other jobs."""
        return self.best.settled

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

    def again(self, job: Job) -> Runner:
        """A runner of the kind that was best here, for another job on the same network."""
        return self.best.settled.make(job)

    def rows(self, start: int, stop: int) -> Rows:
        trial = self.trials[0] if self.trials else self.best
        began = self._now()
        try:
            rows = trial.runner.rows(start, stop)
        except FAILURES as error:
            if not may_be_passed_over(error) or trial.name == "looped":
                raise
            if not self.subtracts:
                raise StaleChoiceError(_first_line(error)) from error
            return self._without(trial, error, start, stop)
        if not self.trials:
            return rows
        trial.seconds = (self._now() - began) / (stop - start)
        del self.trials[0]
        if not trial.warms_up:
            self._judge(trial, left=self.job.n - stop)
        return rows

    def _without(self, failed: Way, error: BaseException, start: int, stop: int) -> Rows:
        """The rows another way, which is remembered instead."""
        self.trials = []
        self.best = _looped(self.job, None, False) if self.best is failed else self.best
        self._say(f"auto: {self.best.name}, since {failed.name} cannot take this model ({_first_line(error)})")
        began = self._now()
        rows = self.best.runner.rows(start, stop)
        self.best.seconds = (self._now() - began) / (stop - start)
        self._remember()
        return rows

    def _judge(self, trial: Way, left: int) -> None:
        better = trial.seconds < WORTHWHILE * self.best.seconds
        loser = self.best if better else trial
        if better:
            self.best = trial
            trial.chunk = trial.runner.chunk if trial.name == "structured" else trial.chunk
        if not self.trials:
            self.trials = self._next_trials(trial, better, left)
        if not self.trials:
            against = f" against {loser}" if loser.seconds < float("inf") else ""
            self._say(f"auto: {self.best}{against}")
            self._remember()

    def _next_trials(self, trial: Way, better: bool, left: int) -> list[Way]:
        """After the loops, differences; after those, small chunks of `Vmapped`; after those, larger ones that gain."""
        imported = "torch._dynamo" in sys.modules
        if left * self.best.seconds < SECONDS_WORTH_A_RACE:
            return []
        if trial.name == "looped":
            differences = self._differences(left)
            if differences:
                return differences
        if trial.name in ("looped", "structured"):
            worth = imported or left * self.best.seconds > SECONDS_WORTH_AN_IMPORT
            return self._vmapped(left) if worth and self.best.name == "looped" and self.job.vectorizes else []
        return self._larger_chunk(trial, left) if better else []

    def _agreed(self, settled: Settled | None) -> Way | None:
        if settled is None:
            return None
        runner = self._made(settled)
        if runner is None:
            return None
        return Way(settled.engine, runner, min(runner.chunk, settled.chunk or runner.chunk), settled)

    def _start_race(self) -> Way:
        """Loops: all targets in a pass; on a CPU also fewer, and convolutions with their channels last."""
        looped = _looped(self.job, None, False)
        self.trials = [_warming_up(looped), looped]
        if self.job.moment.device.type == "cpu":
            large = self.job.m >= 2 * CACHE_SIZED
            if large:
                few = _looped(self.job, CACHE_SIZED, False)
                self.trials += [_warming_up(few), few]
            if any(p.ndim == 4 for p in self.job.moment.params.values()):
                last = _looped(self.job, CACHE_SIZED if large else None, True)
                self.trials += [_warming_up(last), last]
        return Way("looped", looped.runner, 1, looped.settled)

    def _two_layers(self) -> Way | None:
        try:
            runner = two_layer_runner(self.job)
        except FAILURES as error:
            if not may_be_passed_over(error):
                raise
            self._say(f"auto: not structured ({_first_line(error)})")
            return None
        if runner is None:
            return None
        self._say("auto: structured, all pairs of a two-layer net from a few matrix products")
        return Way("structured", runner, runner.chunk, Settled("two_layer"))

    def _differences(self, left: int) -> list[Way]:
        try:
            runner = StructuredRunner(self.job)
            if runner.chunk == 1 and self._hopeless(runner):
                return []
            prove(self.job, StructuredRunner)
        except FAILURES as error:
            if not may_be_passed_over(error):
                raise
            self._say(f"auto: not structured ({_first_line(error)})")
            return []
        way = Way("structured", runner, min(runner.chunk, max(1, left // 2)), Settled("structured"))
        return [way] if self.job.moment.device.type == "cpu" else [_warming_up(way), way]

    def _hopeless(self, runner: Runner) -> bool:
        """Whether a row, though it is its first, takes it so long that a proof would be in vain."""
        began = self._now()
        runner.rows(0, 1)
        seconds = self._now() - began
        if seconds < HOPELESS * self.best.seconds:
            return False
        self._say(f"auto: not structured ({_duration(seconds)} a row)")
        return True

    def _vmapped(self, left: int) -> list[Way]:
        torch.func.grad(torch.sum)(torch.ones(1, device="cpu"))  # the import that the first use of torch.func brings
        try:
            check_vmap(self.job)
        except FAILURES as error:
            if not may_be_passed_over(error):
                raise
            self._say(f"auto: looped, since vmapped cannot take this model ({_first_line(error)})")
            return []
        kind = self.job.moment.device.type
        runner = VmappedRunner(self.job, target_before=self.target_before)
        chunk = max(1, min(runner.chunk, left // 4, int(self.job.n * TRIAL_SHARE[kind])))
        first = _vmapped_way(runner, chunk)
        return [first] if kind == "cpu" else [_warming_up(first), first]

    def _larger_chunk(self, way: Way, left: int) -> list[Way]:
        chunk = min(GROWTH * way.chunk, way.runner.chunk, left)
        grows = way.name == "vmapped" and chunk > way.chunk and isinstance(way.runner, VmappedRunner)
        return [_vmapped_way(way.runner, chunk)] if grows else []

    def _key(self) -> Any:
        job = self.job
        return job.n, job.m, job.batch, job.moment.dtype, job.moment.device, type(job.update), job.plain

    def _remembered(self) -> Way | None:
        choice = _choices.get(self.job.moment, self._key())
        if choice is None:
            return None
        runner = self._made(choice.settled)
        if runner is None:
            return None
        way = Way(
            choice.name, runner, min(choice.chunk, runner.chunk), choice.settled, choice.detail, False, choice.seconds
        )
        self._say(f"auto: {way}, as chosen before")
        return way

    def _made(self, settled: Settled) -> Runner | None:
        """A runner of this kind; None where the network has changed so that it cannot be."""
        try:
            return settled.make(self.job)
        except (*FAILURES, NotTwoLayersError) as error:
            if not may_be_passed_over(error):
                raise
            self._say(f"auto: not {settled.engine} as before ({_first_line(error)})")
            return None

    def _remember(self) -> None:
        best = self.best
        choice = Choice(best.name, best.detail, best.chunk, best.settled, best.seconds)
        _choices.put(self.job.moment, self._key(), choice)

    def _say(self, note: str) -> None:
        self.notes.append(note)
        logger.info(note)

    def _now(self) -> float:
        return now(self.job.moment.device)


def _looped(job: Job, at_once: int | None, channels_last: bool) -> Way:
    settled = Settled("looped", at_once=at_once, channels_last=channels_last)
    detail = f" with {at_once} targets at a time" if at_once else ""
    return Way("looped", settled.make(job), 1, settled, detail + (", channels last" if channels_last else ""))


def _vmapped_way(runner: Runner, chunk: int) -> Way:
    return Way("vmapped", runner, chunk, Settled("vmapped", chunk=chunk), f" in chunks of {chunk}")


def _warming_up(way: Way) -> Way:
    return Way(way.name, way.runner, way.chunk, way.settled, way.detail, warms_up=True)


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
