"""Replay: a measurement recorded as one graph of GPU kernels, and launched whole at every later moment of training.

Measuring a small network is a thousand short kernels, which Python launches more slowly than a GPU runs them. The
graph reads copies of the weights, which are updated before each launch, so training continues meanwhile. What rounding
does to predictions is measured once, when the graph is recorded, because the CPU waits for the GPU there. A graph
repeats the branches that Python code took while it was recorded. So a few predictions are computed again at each launch
and compared with those of a second, small graph; if they differ, the graphs are not used.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from local_elasticity.engine.inputs import take
from local_elasticity.engine.job import Job
from local_elasticity.engine.looped import seconds_of_a_row
from local_elasticity.engine.noise import Noise
from local_elasticity.engine.null_steps import OutputRounding
from local_elasticity.engine.problem import BoundProblem, Inputs, Problem
from local_elasticity.engine.replica import Params
from local_elasticity.engine.respond import as_response, clear_rows
from local_elasticity.engine.response import Response
from local_elasticity.engine.rows import Rows, collect
from local_elasticity.engine.structured import differences_runner, two_layer_runner
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.update import SGD, Update

logger = logging.getLogger("local_elasticity")

OfResponse = Callable[[Response], dict[str, tuple[Tensor, Tensor]]]
"""Similarities [n, m] by the measure's name, and their denominators [2, n]."""

LOOKED_AT = 2
"""Targets whose predictions are computed again before every replay."""

SAME = 1e-3
"""How far these may differ from the graph's, as a share of the largest prediction."""

SYNCHRONIZES = "synchronizing CUDA operation"
"""Part of torch's warning that the CPU waits for the GPU, which a graph cannot record."""


class Launched:
    """Kernels that run between two events of a stream."""

    def __init__(self) -> None:
        self.began, self.ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    @property
    def done(self) -> bool:
        return bool(self.ended.query())

    def wait(self) -> float:
        """Wait for the kernels; return how many seconds they took."""
        self.ended.synchronize()
        return float(self.began.elapsed_time(self.ended)) / 1e3


@dataclass(frozen=True)
class Recording:
    """A graph of kernels that runs on a stream of its own, and the tree of tensors that it fills."""

    graph: torch.cuda.CUDAGraph
    stream: torch.cuda.Stream
    found: Any

    def launch(self) -> Launched:
        launched = Launched()
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            launched.began.record()
            self.graph.replay()
            launched.ended.record()
        return launched

    def read(self) -> Any:
        """The tensors on the CPU, without waiting for other work on the GPU."""
        with torch.cuda.stream(self.stream):
            return tree_map(Tensor.cpu, self.found)


class Replay:
    """Similarities of the same sources and targets by `Structured`, as long as only the weights of the network change.
    Build one with `recorded`.
    """

    def __init__(self, problem: Problem, job: Job, rounding: OutputRounding, similarities: OfResponse) -> None:
        self.problem, self.job = problem, job
        self.made_of = job.bound.made_of
        self.usable = True
        self._few = take(job.target_inputs, slice(0, LOOKED_AT))
        works = [lambda: _predicted(job.bound, self._few), lambda: _measured(job, rounding, similarities)]
        self._look, self._recording = captured(works, job.bound.device)

    @property
    def weights(self) -> Params:
        """The parameters and buffers of the last launch."""
        return {**self.job.bound.params, **self.job.bound.constants}

    def launched(self) -> Launched | None:
        """Start measuring the network as it is now, without waiting; None if the graph no longer fits the network.
        Read `found` before the next launch.
        """
        if not self.usable:
            return None
        with self.problem.bound() as bound:
            bound.replica.effects = self.job.bound.replica.effects
            self.usable = self._put(bound) and self._believed(bound)
            return self._recording.launch() if self.usable else None

    def found(self) -> tuple[dict[str, tuple[Tensor, Tensor]], bool]:
        """The similarities that were launched last, once that is done, and whether all of them are clear of noise."""
        similarity, clear = self._recording.read()
        return similarity, bool(clear)

    def beats_the_loop(self) -> bool:
        """Whether it takes less time than `Looped` would."""
        with self.problem.bound():
            return self._recording.launch().wait() < seconds_of_a_row(self.job) * self.job.n

    def _put(self, bound: BoundProblem) -> bool:
        """Copy the weights of this moment to where the graph reads them; False where they do not fit."""
        kept, new = self.weights, {**bound.params, **bound.constants}
        fits = bound.made_of == self.made_of and list(kept) == list(new)
        if not fits or any(_like(kept[name]) != _like(new[name]) for name in kept):
            return False
        with torch.no_grad():
            torch._foreach_copy_(list(kept.values()), list(new.values()))
        return True

    def _believed(self, bound: BoundProblem) -> bool:
        """Whether a few predictions are still those that the graph makes."""
        launched = self._look.launch()
        expected = _predicted(bound, self._few)
        launched.wait()
        believed = _same(self._look.read(), expected.cpu())
        if not believed:
            logger.info("local elasticity: the network is not what was recorded; it is measured step by step from now")
        return believed


def recorded(
    problem: Problem, sources: Any, targets: Any, update: Update, memory: int | None, similarities: OfResponse
) -> Replay | None:
    """A recording of what `Structured` does; None, with the reason in the log, where that would not be the same at
    another moment, does not fit in one chunk or waits for the GPU. Nets of two layers have a shorter way.
    """
    with problem.bound() as present:
        if not (records_on(present.device) and isinstance(update, SGD) and update.plain and problem.loss_is_named):
            return None
        replica = present.replica.having(_copies(present.constants))
        bound = replace(present, params=_copies(present.params), replica=replica)
        job = Job.read(bound, sources, targets, update, memory=memory)
        try:
            if two_layer_runner(job) is not None:
                return None
            runner = differences_runner(job)
            if runner.chunk < job.n or runner.bytes + job.footprint.parameters > job.memory:
                return None
            noise = Noise.measure(job, runner)
            rounding = OutputRounding(noise.forward, noise.outputs)
            if waits(lambda: _measured(job, rounding, similarities)):
                raise UnsupportedModelError("the network waits for the GPU")
            return Replay(problem, job, rounding, similarities)
        except (UnsupportedModelError, RuntimeError) as error:
            logger.info("local elasticity: probes are not recorded (%s)", error)
            return None


def records_on(device: torch.device) -> bool:
    """Whether this device can record graphs of kernels."""
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


def captured(works: Sequence[Callable[[], Any]], device: torch.device) -> list[Recording]:
    """A recording of each work. Each runs once first, so that libraries are initialised. All share one stream, so their
    workspaces are used by nothing else. Unlike `torch.cuda.graph`, this keeps torch's cached memory.
    """
    stream = torch.cuda.Stream(device)
    with torch.cuda.device(device), _lent_random_state():
        for work in works:
            work()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            return [_captured(work, stream) for work in works]


def _captured(work: Callable[[], Any], stream: torch.cuda.Stream) -> Recording:
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        found = work()
    finally:
        graph.capture_end()
    return Recording(graph, stream, found)


@contextmanager
def _lent_random_state() -> Iterator[None]:
    """Use a copy of the random state, because a failed recording leaves its random state unusable."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    own = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(own)


def _measured(
    job: Job, rounding: OutputRounding, similarities: OfResponse
) -> tuple[dict[str, tuple[Tensor, Tensor]], Tensor]:
    """The similarities of a probe, and whether they are clear of noise, without a look at any number."""
    runner = differences_runner(job)
    noise = Noise.measure(job, runner, rounding)
    rows = collect(job, runner, Rows.empty(job), lambda count: None)
    response = as_response(job, rows, noise, runner, "structured", ())
    clear = clear_rows(job, runner, noise, rows).all()
    return similarities(response), clear


def _predicted(bound: BoundProblem, inputs: Inputs) -> Tensor:
    with torch.no_grad():
        return bound.predict(bound.params, inputs)


def _copies(tensors: Params) -> Params:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _same(found: Tensor, expected: Tensor) -> bool:
    """Whether predictions agree up to rounding, and are not finite at the same places."""
    known = expected.isfinite()
    if not torch.equal(found.isfinite(), known):
        return False
    found, expected = (torch.where(known, part, 0) for part in (found, expected))
    return bool((found - expected).abs().amax() <= SAME * expected.abs().amax())


def _like(tensor: Tensor) -> Any:
    return tensor.shape, tensor.dtype, tensor.device
