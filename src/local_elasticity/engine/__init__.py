"""One update on a source → the response at the targets. Nothing in here knows about measures, results or plots."""

from local_elasticity.engine.linearized import Linearized
from local_elasticity.engine.looped import Looped
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.respond import respond
from local_elasticity.engine.response import Response
from local_elasticity.engine.sequential import respond_in_sequence
from local_elasticity.engine.structured import Structured
from local_elasticity.engine.update import SGD, Adam, FromOptimizer, Update
from local_elasticity.engine.vmapped import Vmapped

__all__ = [
    "SGD",
    "Adam",
    "FromOptimizer",
    "Linearized",
    "Looped",
    "Problem",
    "Response",
    "Structured",
    "Update",
    "Vmapped",
    "respond",
    "respond_in_sequence",
]
