"""Watching local elasticity while a network trains."""

from local_elasticity.statistics.change_point import ChangePoint, change_point, half_life
from local_elasticity.training.failures import MonitorWarning
from local_elasticity.training.history import History
from local_elasticity.training.monitor import Monitor
from local_elasticity.training.phases import locality
from local_elasticity.training.schedule import Every, Listed, LogSpaced, PerEpoch

__all__ = [
    "ChangePoint",
    "Every",
    "History",
    "Listed",
    "LogSpaced",
    "Monitor",
    "MonitorWarning",
    "PerEpoch",
    "change_point",
    "half_life",
    "locality",
]
