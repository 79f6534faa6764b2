"""settled: the way that `auto` chose, written down, so that the same rows come out to the same bits another time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from local_elasticity.engine.job import Job, Runner
from local_elasticity.engine.looped import LoopedRunner
from local_elasticity.engine.structured import StructuredRunner
from local_elasticity.engine.two_layer import TwoLayerRunner
from local_elasticity.engine.vmapped import VmappedRunner


@dataclass(frozen=True)
class Settled:
    """A kind of runner and its options; plain values, so that it can be kept in a file."""

    kind: Literal["looped", "vmapped", "structured", "two_layer"]
    chunk: int | None = None
    at_once: int | None = None
    channels_last: bool = False

    @property
    def engine(self) -> str:
        """What users call it."""
        return "structured" if self.kind == "two_layer" else self.kind

    def make(self, job: Job) -> Runner:
        """A runner of this kind."""
        if self.kind == "looped":
            return LoopedRunner(job, self.at_once, self.channels_last)
        if self.kind == "vmapped":
            return VmappedRunner(job, self.chunk)
        return TwoLayerRunner(job) if self.kind == "two_layer" else StructuredRunner(job)
