"""Which exact engine computes a job: the one that a short race finds fastest. The rows it times are rows of the result.

The race goes from what can take any network to what is faster on some: loops, then differences (`Structured`), then
vmap over chunks of sources that grow for as long as that pays. Its outcome is an ordinary engine, which prints, pickles
and is written into stores as itself.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from local_elasticity.engine.job import Engine, Job, Runner
from local_elasticity.engine.looped import Looped, seconds_of_a_row
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.model_cache import ModelCache
from local_elasticity.engine.null_steps import rounding_at_few
from local_elasticity.engine.progress import now, seconds_in_words
from local_elasticity.engine.rows import Counted, Rows, collect
from local_elasticity.engine.structured import Structured, StructuredRunner, spot_check, two_layer_runner
from local_elasticity.engine.supported import ChangedChoiceError, UnsupportedModelError, first_line
from local_elasticity.engine.vmapped import Vmapped, VmappedRunner, check_vmap

logger = logging.getLogger("local_elasticity")

WORTHWHILE = 0.9
"""An engine replaces another if it needs less than this share of its time; one loop replaces another if it needs
less."""

SECONDS_WORTH_A_LOOP, SECONDS_WORTH_A_RACE, SECONDS_WORTH_AN_IMPORT = 0.05, 0.2, 10.0
"""Seconds of looped work left above which gradients of several sources at once are tried, and other engines; the first
use of torch.func takes a second."""

FAR_SLOWER = 2
"""An engine whose first row takes this many times as long as a row of the best engine is not checked further."""

FLOAT64_PRICE = 2
"""How many times as long a row takes in float64, in which rows that rounding hides are computed again."""

SECONDS_WORTH_A_RIVAL = 0.005
"""Seconds of looped work from which differences are timed in a whole call later, if the job is too short for a race:
for less they cost more than they save."""

CACHE_SIZED, CACHE_BYTES = 128, 3 << 19
"""Targets in one pass of `Looped`, and bytes of their largest activation, tried as alternatives to all at once: a CPU
is often faster while the data fits into its cache."""

LOOPED_ROWS = 3
"""Rows on which a loop is timed on a CPU; single rows of one loop differ by a third. They are rows of the result."""

GRADIENTS_AT_ONCE = 16
"""Sources whose gradients one backward pass of `Looped` computes, tried as an alternative to one by one."""

TRIAL_SHARE = {"cpu": 1 / 128, "cuda": 1 / 8, "mps": 1 / 8}
"""How many of the rows the first chunk of `Vmapped` has: small chunks already occupy a CPU, but not a GPU."""

GROWTH = 4
"""Chunks of `Vmapped` grow by this factor for as long as that is worthwhile."""

UNSUPPORTED = (UnsupportedModelError, RuntimeError, TypeError, AssertionError)
"""Errors that mean that an engine does not support a model, unless they come from a lack of memory or an interrupt."""


@dataclass(frozen=True)
class Choice:
    """An engine, why it was chosen, and its seconds per row; infinite if they were not measured."""

    engine: Engine
    reason: str
    seconds: float = float("inf")
    runner: Runner | None = field(default=None, compare=False)
    """The runner that was made for the job during the choice."""
    rival: Engine | None = None
    """Another engine that may be faster. Both are timed in one whole call each, and the faster stays."""
    whole: float | None = None
    """The seconds of a whole call with `rival`, once they are known."""


_choices: ModelCache[Choice] = ModelCache()
_unread: ModelCache[str] = ModelCache()
"""Why `Structured` cannot take a model."""


@dataclass
class Trial:
    """An engine with a runner for this job, and its seconds per row."""

    engine: Engine
    runner: Runner
    chunk: int
    seconds: float = float("inf")

    @property
    def name(self) -> str:
        return name_of(self.engine)


class Race:
    """Chooses an engine for a job while it fills the first rows of a table."""

    def __init__(self, job: Job, advance: Callable[[int], None] = lambda count: None, *, keep: bool = True) -> None:
        """`advance` is called with the number of finished rows. Without `keep`, rows are timed and discarded."""
        self.job, self.advance = job, advance
        self.notes: list[str] = []
        self.best = self._trial(Looped())
        self.losers: dict[str, Trial] = {}
        self.rows = Rows.empty(job) if keep else None
        self._counted = Counted()
        self._price = 1.0
        self._tried_differences = False

    @property
    def left(self) -> int:
        """Rows that are not done yet."""
        return self.job.n - self._done

    @property
    def _done(self) -> int:
        return (self.rows or self._counted).done

    def run(
        self, enough: Callable[[Rows], bool] = lambda rows: False, hidden: Callable[[Rows], float] = lambda rows: 0.0
    ) -> Trial:
        """The fastest engine. If rounding hides rows, those of an engine that subtracts cost more.

        Args:
            enough: whether rounding hides so many rows that engines which subtract need no more of them.
            hidden: the share of rows that it hides.
        """
        self._enough = enough
        self._loops()
        loops, hopeless = self._done, bool(self.left) and self._ended()
        if self.rows is not None and loops:
            self._price = FLOAT64_PRICE if hopeless else 1 + FLOAT64_PRICE * hidden(self.rows)
        self._enough = lambda rows: False
        if self._pays(SECONDS_WORTH_A_RACE):
            self._differences()
        imported = "torch._dynamo" in sys.modules
        worth = SECONDS_WORTH_A_RACE if imported else SECONDS_WORTH_AN_IMPORT
        if hopeless and self.best.name == "looped" and self.rows is not None:
            self.rows.done = loops
        elif self.best.name == "looped" and self.job.vectorizes and self._pays(worth):
            self._vmapped()
        if self.best.seconds < float("inf"):
            rival = self._rival()
            against = listed(map(self._words, self.losers.values()))
            self.say(f"auto: {self._words(self.best)}{f' against {against}' if against else ''}")
            remember(self.job, Choice(self.best.engine, "; ".join(self.notes), self.best.seconds, rival=rival))
            if rival is not None:
                later = ", but timed in the next one" if self.rows is not None else ""
                self.say(f"auto: {name_of(rival)} is not tried in so short a job{later}")
        return self.best

    def _cost(self, trial: Trial) -> float:
        """Seconds per row, those of rows that are computed again included."""
        return trial.seconds * (self._price if trial.runner.subtracts else 1)

    def _words(self, trial: Trial) -> str:
        again = ", with those in float64" if self._cost(trial) > trial.seconds else ""
        return f"{in_words(trial.engine)} ({seconds_in_words(self._cost(trial))} a row{again})"

    def _rival(self) -> Engine | None:
        """Differences, if the job was too short to try them. Says why it goes on without them."""
        if self._tried_differences:
            return None
        why = _unread.get(self.job.bound, _pair(self.job))
        worth = self.job.n * self._cost(self.best) >= SECONDS_WORTH_A_RIVAL
        worth = worth and self.job.bound.device.type == "cpu" and not self.job.removes_drift
        if why is not None or not worth:
            self.say(f"auto: not structured ({why or 'the job is too short to try it'})")
        return Structured() if worth and why is None else None

    def say(self, note: str) -> None:
        self.notes.append(note)
        logger.info(note)

    def _pays(self, seconds: float) -> bool:
        """Whether the best engine would take so long for the rest."""
        return self.left * self._cost(self.best) >= seconds and not self._ended()

    def _ended(self) -> bool:
        return not self.left or (self.rows is not None and self._enough(self.rows))

    def _loops(self) -> None:
        """All targets in a pass; on a CPU also fewer, convolutions with their channels last, and gradients of several
        sources in a pass."""
        self._timed(self.best)
        if self.job.bound.device.type != "cpu":
            return
        together = self._loop(gradients_at_once=GRADIENTS_AT_ONCE) if self._pays(SECONDS_WORTH_A_LOOP) else None
        if together is not None and together.chunk > 1:
            self._timed_loop(together)
        few = [CACHE_SIZED] if self.job.m >= 2 * CACHE_SIZED else []
        passes = -(-self.job.m * self.job.footprint.largest // CACHE_BYTES)
        few += [-(-self.job.m // passes)] if 1 < passes < self.job.m else []
        for at_once in few:
            self._timed_loop(self._loop(at_once=at_once))
        if any(p.ndim == 4 for p in self.job.bound.params.values()):
            self._channels_last()

    @property
    def _best_loop(self) -> Looped:
        assert isinstance(self.best.engine, Looped)
        return self.best.engine

    def _loop(self, **options: Any) -> Trial:
        """The best loop with other options, tried on a few rows at a time."""
        trial = self._trial(replace(self._best_loop, **options))
        return replace(trial, chunk=min(trial.runner.chunk, max(1, self.left // 4)))

    def _timed_loop(self, trial: Trial) -> None:
        if self._timed(trial):
            trial.chunk = trial.runner.chunk

    def _channels_last(self) -> None:
        """Where the network takes that layout, and predicts the same in it."""
        engine = replace(self._best_loop, channels_last=True)
        try:
            trial = self._loop(channels_last=True)
        except UNSUPPORTED as error:
            self._pass_over(in_words(engine), error)
            return
        if self._rounds_alike(trial.runner.target_before):
            self._timed_loop(trial)
        else:
            self.say(f"auto: not {in_words(engine)} (its predictions depend on the layout in memory)")

    def _rounds_alike(self, found: Tensor) -> bool:
        """Whether predictions in another layout differ by no more than rounding makes those of this one do."""
        before = self.best.runner.target_before
        apart = (found - before)[found.isfinite() & before.isfinite()].double()
        return float(apart.norm()) <= rounding_at_few(self.job, before).typical * apart.numel() ** 0.5

    def _differences(self) -> None:
        self._tried_differences = True
        try:
            runner = StructuredRunner(self.job)
            if runner.chunk == 1 and self._far_slower(runner):
                return
            spot_check(self.job, StructuredRunner)
        except UNSUPPORTED as error:
            self._pass_over("structured", error)
            _note_unread(self.job, error)
            return
        trial = Trial(Structured(), runner, min(runner.chunk, max(1, self.left // 2)))
        if self._timed(trial):
            trial.chunk = runner.chunk

    def _far_slower(self, runner: Runner) -> bool:
        """Whether one row takes so long that the engine cannot win, so that it need not be checked."""
        began = self._now()
        runner.rows(0, 1)
        seconds = self._now() - began
        if seconds < FAR_SLOWER * self._cost(self.best):
            return False
        self.say(f"auto: not structured ({seconds_in_words(seconds)} a row)")
        return True

    def _vmapped(self) -> None:
        torch.func.grad(torch.sum)(torch.ones(1, device="cpu"))  # the import that the first use of torch.func brings
        try:
            check_vmap(self.job)
        except UNSUPPORTED as error:
            self._pass_over("vmapped", error)
            return
        runner = VmappedRunner(self.job, target_before=self.best.runner.target_before)
        share = TRIAL_SHARE[self.job.bound.device.type]
        chunk = max(1, min(runner.chunk, self.left // 4, int(self.job.n * share)))
        while self._timed(Trial(Vmapped(chunk), runner, chunk)):
            larger = min(GROWTH * chunk, runner.chunk, self.left)
            if larger <= chunk or not self._pays(SECONDS_WORTH_A_RACE):
                return
            chunk = larger

    def _timed(self, trial: Trial) -> bool:
        """Time an engine on the next rows, after a first chunk that warms it up where it needs that; whether it is the
        best so far. Two loops that are close are timed again, one after the other."""
        warms_up = trial.name == "looped" or self.job.bound.device.type != "cpu"
        if (warms_up and self._seconds(trial, 1) is None) or (seconds := self._seconds(trial)) is None:
            return False
        trial.seconds = seconds
        loops = trial.name == self.best.name == "looped"
        if loops and trial is not self.best and WORTHWHILE < trial.seconds / self.best.seconds < 1 / WORTHWHILE:
            for one in (self.best, trial):
                one.seconds = (one.seconds + (self._seconds(one) or one.seconds)) / 2
        better = self._cost(trial) < (1.0 if loops else WORTHWHILE) * self._cost(self.best)
        if trial is not self.best:
            loser, self.best = (self.best, trial) if better else (trial, self.best)
            self.losers[loser.name] = loser
        return better

    def _seconds(self, trial: Trial, rows: int | None = None) -> float | None:
        """The seconds of one of the next rows by an engine; None if none is left, or if it does not take the model."""
        if self._ended():
            return None
        on_cpu = self.job.bound.device.type == "cpu"
        rows = rows or (LOOPED_ROWS if trial.name == "looped" and on_cpu else 1)
        start, began = self._done, self._now()
        upto = min(self.job.n, start + max(trial.chunk, rows))
        try:
            collect(self.job, trial.runner, self.rows or self._counted, self.advance, chunk=trial.chunk, upto=upto)
        except UNSUPPORTED as error:
            if trial is self.best:
                raise
            self._pass_over(in_words(trial.engine), error)
            return None
        return (self._now() - began) / (self._done - start)

    def _trial(self, engine: Engine) -> Trial:
        return Trial(engine, engine.runner(self.job), 1)

    def _pass_over(self, name: str, error: BaseException) -> None:
        if not may_be_passed_over(error):
            raise error
        self.say(f"auto: not {name} ({first_line(error)})")

    def _now(self) -> float:
        return now(self.job.bound.device)


def choose(job: Job) -> Choice:
    """The engine for a job: cached, or found by a race whose rows are discarded."""
    notes: list[str] = []
    found = known(job, notes)
    if found is not None:
        return found
    race = Race(job, keep=False)
    best = race.run()
    return Choice(best.engine, "; ".join([*notes, *race.notes]) or f"auto: {name_of(best.engine)}", best.seconds)


def known(job: Job, notes: list[str]) -> Choice | None:
    """The engine that won before on this model, or that is known to be the fastest for such a network. If a fast path
    cannot be taken, the reason is added to `notes`."""
    choice = _choices.get(job.bound, _key(job))
    if choice is not None:
        return replace(choice, reason=f"{choice.reason}, as chosen before")
    try:
        runner = two_layer_runner(job)
        if runner is not None:
            reason = "auto: structured, all pairs of a two-layer net from a few matrix products"
            return Choice(Structured(), reason, runner=runner)
    except UNSUPPORTED as error:
        if not may_be_passed_over(error):
            raise
        notes.append(f"auto: not structured ({first_line(error)})")
    return None


def turn(choice: Choice) -> Choice:
    """The choice for a whole call. A rival is timed in one call, and the chosen engine in the next."""
    if choice.rival is None:
        return choice
    if choice.whole is not None:
        against = f"{name_of(choice.rival)}, which took {seconds_in_words(choice.whole)}"
        return replace(
            choice, reason=f"{choice.reason}; {name_of(choice.engine)} is timed in this call against {against}"
        )
    reason = f"{choice.reason}; {name_of(choice.rival)} is timed in this call"
    return replace(choice, engine=choice.rival, rival=choice.engine, reason=reason)


@contextmanager
def timed(job: Job, choice: Choice) -> Iterator[None]:
    """Time a whole call of an engine that has a rival, and settle which of them stays once both are known."""
    began = now(job.bound.device)
    yield
    if choice.rival is None:
        return
    seconds = now(job.bound.device) - began
    before = _choices.get(job.bound, _key(job))
    if before is None:
        return
    if choice.whole is None:
        remember(job, replace(before, whole=seconds))
        return
    rival, chosen = (
        Choice(engine, "", each / job.n) for engine, each in ((choice.rival, choice.whole), (choice.engine, seconds))
    )
    better, worse = (rival, chosen) if rival.seconds < WORTHWHILE * chosen.seconds else (chosen, rival)
    words = [f"{in_words(one.engine)} ({seconds_in_words(one.seconds)} a row)" for one in (better, worse)]
    remember(job, replace(better, reason=f"auto: {words[0]} against {words[1]}, in whole calls"))


def dismiss(job: Job, choice: Choice, error: BaseException) -> None:
    """Keep the other engine of a choice whose turn ended in an error, and the cause."""
    before = _choices.get(job.bound, _key(job))
    reason = f"auto: not {name_of(choice.engine)} ({first_line(error)})"
    if before is not None:
        remember(job, replace(before, reason=f"{reason}; {before.reason}", rival=None))
    if isinstance(choice.engine, Structured):
        _note_unread(job, error)


def _note_unread(job: Job, error: BaseException) -> None:
    """Keep why differences cannot take a model, unless that depends on the step."""
    if not isinstance(error, ChangedChoiceError):
        _unread.put(job.bound, _pair(job), first_line(error))


def short(job: Job) -> Engine | None:
    """`Structured` for a job that will be repeated but is too short for a race, if it supports the network: it is
    faster on small networks, and a fixed engine gives the same bits every time. None for any other job.
    """
    if seconds_of_a_row(job) * job.n >= SECONDS_WORTH_A_RACE:
        return None
    try:
        Structured().runner(job)
    except UNSUPPORTED as error:
        if not may_be_passed_over(error):
            raise
        return None
    return Structured()


def remember(job: Job, choice: Choice) -> None:
    """For the next job of the same size on this model."""
    _choices.put(job.bound, _key(job), choice)


def _key(job: Job) -> Any:
    return job.n, job.m, job.batch, job.bound.dtype, job.bound.device, type(job.update), job.plain


def _pair(job: Job) -> Any:
    return job.kind_of_targets, job.batch, job.bound.dtype, type(job.update), job.plain


def listed(parts: Iterable[str]) -> str:
    """Parts of a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *first, last = list(parts) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def name_of(engine: Engine) -> str:
    """What users call an engine."""
    return type(engine).__name__.lower()


def in_words(engine: Engine) -> str:
    """An engine with its options.

    >>> in_words(Looped(128)), in_words(Vmapped(8))
    ('looped with 128 targets at a time', 'vmapped in chunks of 8')
    """
    words = name_of(engine)
    if isinstance(engine, Looped):
        options = [f"{engine.at_once} targets at a time"] if engine.at_once else []
        options += ["channels last"] if engine.channels_last else []
        options += [f"gradients of {engine.gradients_at_once} at a time"] if engine.gradients_at_once > 1 else []
        words += f" with {', '.join(options)}" if options else ""
    elif isinstance(engine, Vmapped) and engine.chunk:
        words += f" in chunks of {engine.chunk}"
    return words
