"""Replay: a measurement recorded as one graph of GPU kernels, and launched whole at every later moment of training.

A small network's measurement is a thousand short kernels, which Python launches more slowly than a GPU runs them. The
graph reads copies of the weights, into which those of the moment are put first. What Python code decided while it was
recorded stays decided; so a few predictions are computed anew each time, and a graph that gives others is not believed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from local_elasticity.engine.clock import now
from local_elasticity.engine.difference import UnreadableError
from local_elasticity.engine.inputs import take
from local_elasticity.engine.job import Job
from local_elasticity.engine.looped import LoopedRunner
from local_elasticity.engine.noise import Noise, resolved_rows
from local_elasticity.engine.problem import Moment, Params, Problem
from local_elasticity.engine.progress import Progress
from local_elasticity.engine.response import OfResponse
from local_elasticity.engine.structured import differences_runner, two_layer_runner
from local_elasticity.engine.table import as_response, fill
from local_elasticity.engine.update import SGD, Update

logger = logging.getLogger("local_elasticity")

LOOKED_AT = 2
"""Targets whose predictions are computed anew beside every replay."""

SAME = 1e-3
"""By how much of the largest prediction those may differ from the graph's."""

SYNCHRONIZES = "synchronizing CUDA operation"
"""Part of torch's warning where the CPU waits for the GPU, which a graph cannot."""


@dataclass(frozen=True)
class Found:
    """Similarities by name, predictions at the targets before any step, and whether all rows are clear of noise."""

    similarity: Mapping[str, Tensor]
    before: Tensor
    clear: Tensor


class Replay:
    """Similarities of the same sources and targets by `Structured`, for as long as the network stays the same but for
    its weights. Build one with `recorded`.
    """

    def __init__(self, problem: Problem, job: Job, measures: Mapping[str, OfResponse]) -> None:
        self.problem, self.job = problem, job
        self.made_of = job.moment.made_of
        self.usable = True
        self._launch, self._found = captured(lambda: _measured(job, measures), job.moment.device)

    def __call__(self, *, all_clear: bool) -> dict[str, Tensor] | None:
        """The similarities now; None where the graph is not to be believed, or not `all_clear` though that is asked."""
        if not self.usable:
            return None
        with self.problem.moment() as moment, torch.no_grad():
            self.usable = self._put(moment)
            if not self.usable:
                return None
            self._launch()
            few = take(self.job.target_inputs, slice(0, LOOKED_AT))
            expected, found = moment.predict(moment.params, few), self._found.before[:LOOKED_AT]
            same = (found - expected).abs().amax() <= SAME * expected.abs().amax()
            believed, clear = torch.stack([same, self._found.clear]).tolist()
        if not believed:
            logger.info("local elasticity: the network is not what was recorded; it is measured step by step from now")
            self.usable = False
        if not believed or (all_clear and not clear):
            return None
        return {name: S.clone() for name, S in self._found.similarity.items()}

    def beats_the_loop(self) -> bool:
        """Whether it takes less time than `Looped` would, as two of its rows tell."""
        with self.problem.moment():
            loop = LoopedRunner(self.job)
            loop.rows(0, 1)
            of_loop = _seconds(lambda: [loop.rows(0, 1) for _ in range(2)], self.job.moment.device) / 2
            return _seconds(self._launch, self.job.moment.device) < of_loop * self.job.n

    def _put(self, moment: Moment) -> bool:
        """Copy the weights of this moment to where the graph reads them; False where they do not fit."""
        if moment.made_of != self.made_of:
            return False
        for kept, new in ((self.job.moment.params, moment.params), (self.job.moment.constants, moment.constants)):
            if list(kept) != list(new) or any(_like(kept[name]) != _like(new[name]) for name in kept):
                return False
            for name, tensor in kept.items():
                tensor.copy_(new[name])
        return True


def recorded(
    problem: Problem, sources: Any, targets: Any, update: Update, memory: int | None, measures: Mapping[str, OfResponse]
) -> Replay | None:
    """A recording of what `Structured` does; None, with the reason in the log, where that would not be the same at
    another moment, does not fit in one chunk or waits for the GPU. Nets of two layers have a shorter way.
    """
    with problem.moment() as present:
        if not (records_on(present.device) and isinstance(update, SGD) and problem.loss_is_named):
            return None
        moment = replace(present, params=_copies(present.params), constants=_copies(present.constants))
        job = Job.read(moment, sources, targets, update, memory=memory)
        try:
            if two_layer_runner(job) is not None:
                return None
            runner = differences_runner(job)
            if runner.chunk < job.n or runner.bytes + job.footprint.parameters > job.memory:
                return None
            if waits(lambda: _measured(job, measures)):
                raise UnreadableError("the network waits for the GPU")
            return Replay(problem, job, measures)
        except (UnreadableError, RuntimeError) as error:
            logger.info("local elasticity: probes are not recorded (%s)", error)
            return None


def records_on(device: torch.device) -> bool:
    """Whether there are graphs of kernels."""
    return device.type == "cuda" and torch.version.cuda is not None


def waits(work: Callable[[], object]) -> bool:
    """Whether the CPU waits for the GPU in it."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return any(SYNCHRONIZES in str(one.message) for one in seen)


def captured(work: Callable[[], Found], device: torch.device) -> tuple[Callable[[], None], Found]:
    """A function that launches all kernels of `work` at once, and the tensors that they fill."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        current, beside = torch.cuda.current_stream(), torch.cuda.Stream()
        beside.wait_stream(current)
        with torch.cuda.stream(beside):
            work()
        current.wait_stream(beside)
        recording = torch.cuda.graph(graph, capture_error_mode="thread_local")
        with torch.cuda.stream(current), _lent_random_state(), recording:
            found = work()
    return graph.replay, found


@contextmanager
def _lent_random_state() -> Iterator[None]:
    """A random state that may be spoiled: a recording that fails leaves the one it began with unusable."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    own = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(own)


def _measured(job: Job, measures: Mapping[str, OfResponse]) -> Found:
    """What a probe computes, without a look at any number."""
    runner = differences_runner(job)
    noise = Noise.measure(job, runner)
    table = fill(job, runner, Progress(job.n, "updates", False))
    response = as_response(job, table, noise, runner, "structured", ())
    clear = resolved_rows(
        job.kind, noise.source_before, table.source_change, noise.of_rows(table), runner.target_before, noise.target
    )
    return Found({name: measure(response) for name, measure in measures.items()}, runner.target_before, clear.all())


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    began = now(device)
    work()
    return now(device) - began


def _copies(tensors: Params) -> Params:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _like(tensor: Tensor) -> Any:
    return tensor.shape, tensor.dtype, tensor.device
