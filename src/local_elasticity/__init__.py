"""local_elasticity: if a network took one step on this example, whose predictions would move, and how far?

Names are loaded when they are first used, so that importing the package, and the command's `--help`, stay quick.
"""

import random
import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from local_elasticity import clustering as clustering
    from local_elasticity import data as data
    from local_elasticity import emergence as emergence
    from local_elasticity import models as models
    from local_elasticity import theory as theory
    from local_elasticity import training as training
    from local_elasticity.api.check_step import StepCheck as StepCheck
    from local_elasticity.api.check_step import StepTrial as StepTrial
    from local_elasticity.api.check_step import check_step as check_step
    from local_elasticity.api.compare import Compared as Compared
    from local_elasticity.api.compare import compare as compare
    from local_elasticity.api.compare_seeds import ComparedSeeds as ComparedSeeds
    from local_elasticity.api.estimate import Estimate as Estimate
    from local_elasticity.api.estimate import estimate as estimate
    from local_elasticity.api.forecast import Forecast as Forecast
    from local_elasticity.api.forecast import ForecastCheck as ForecastCheck
    from local_elasticity.api.forecast import forecast as forecast
    from local_elasticity.api.influence import InfluenceIndex as InfluenceIndex
    from local_elasticity.api.influence import Influences as Influences
    from local_elasticity.api.influence import influence_index as influence_index
    from local_elasticity.api.similarity import as_similarity as as_similarity
    from local_elasticity.api.similarity import load as load
    from local_elasticity.api.similarity import similarity as similarity
    from local_elasticity.clustering.agreement import agreement as agreement
    from local_elasticity.clustering.agreement import best_match_accuracy as best_match_accuracy
    from local_elasticity.clustering.estimator import LocalElasticityClustering as LocalElasticityClustering
    from local_elasticity.clustering.kernel_kmeans import KernelKMeans as KernelKMeans
    from local_elasticity.engine import SGD as SGD
    from local_elasticity.engine import Adam as Adam
    from local_elasticity.engine import FromOptimizer as FromOptimizer
    from local_elasticity.engine import Linearized as Linearized
    from local_elasticity.engine import Looped as Looped
    from local_elasticity.engine import Problem as Problem
    from local_elasticity.engine import Response as Response
    from local_elasticity.engine import Structured as Structured
    from local_elasticity.engine import Vmapped as Vmapped
    from local_elasticity.engine.causes import UnresolvedWarning as UnresolvedWarning
    from local_elasticity.engine.difference import rule as rule
    from local_elasticity.engine.nonlinearity import LargeStepWarning as LargeStepWarning
    from local_elasticity.engine.respond import respond as respond
    from local_elasticity.engine.sequential import respond_in_sequence as respond_in_sequence
    from local_elasticity.measures.activation import activation as activation
    from local_elasticity.measures.kernel import kernel as kernel
    from local_elasticity.measures.kernel import normalized as normalized
    from local_elasticity.measures.kernel import ntk as ntk
    from local_elasticity.measures.kernel import self_kernel as self_kernel
    from local_elasticity.measures.kernel import symmetrized as symmetrized
    from local_elasticity.measures.loss import loss_change as loss_change
    from local_elasticity.measures.measure import Measure as Measure
    from local_elasticity.measures.measure import Scores as Scores
    from local_elasticity.measures.registry import measure as measure
    from local_elasticity.measures.relative import euclidean as euclidean
    from local_elasticity.measures.relative import kl as kl
    from local_elasticity.measures.relative import manhattan as manhattan
    from local_elasticity.measures.relative import noise_floor as noise_floor
    from local_elasticity.measures.relative import relative as relative
    from local_elasticity.measures.relative import source_change as source_change
    from local_elasticity.measures.stiffness import stiffness as stiffness
    from local_elasticity.report.write import write_report as write_report
    from local_elasticity.scale.landmarks import landmark_features as landmark_features
    from local_elasticity.scale.sketch import gradient_sketch as gradient_sketch
    from local_elasticity.scale.workers import workers as workers
    from local_elasticity.statistics.class_pairs import class_pairs as class_pairs
    from local_elasticity.statistics.coupling import Coupling as Coupling
    from local_elasticity.statistics.coupling import coupling as coupling
    from local_elasticity.statistics.locality import Locality as Locality
    from local_elasticity.statistics.locality import locality as locality
    from local_elasticity.training.monitor import Monitor as Monitor

_PLACES = {
    "engine": (
        "Problem SGD Adam FromOptimizer respond respond_in_sequence Response Looped Vmapped Structured Linearized"
    ),
    "engine.difference": "rule",
    "engine.causes": "UnresolvedWarning",
    "engine.nonlinearity": "LargeStepWarning",
    "measures.relative": "euclidean manhattan kl relative source_change noise_floor",
    "measures.kernel": "kernel self_kernel normalized symmetrized ntk",
    "measures.loss": "loss_change",
    "measures.stiffness": "stiffness",
    "measures.activation": "activation",
    "statistics.class_pairs": "class_pairs",
    "statistics.coupling": "coupling Coupling",
    "statistics.locality": "locality Locality",
    "measures.measure": "Measure Scores",
    "measures.registry": "measure",
    "api.check_step": "check_step StepCheck StepTrial",
    "api.compare": "compare Compared",
    "api.compare_seeds": "ComparedSeeds",
    "api.estimate": "estimate Estimate",
    "api.forecast": "forecast Forecast ForecastCheck",
    "api.influence": "influence_index InfluenceIndex Influences",
    "api.similarity": "similarity as_similarity load",
    "report.write": "write_report",
    "scale.workers": "workers",
    "scale.landmarks": "landmark_features",
    "scale.sketch": "gradient_sketch",
    "clustering": "LocalElasticityClustering KernelKMeans best_match_accuracy agreement",
    "training": "Monitor",
}
_PLACE_OF = {name: f"local_elasticity.{place}" for place, names in _PLACES.items() for name in names.split()}
_SUBPACKAGES = ("clustering", "data", "emergence", "models", "theory", "training")

__all__ = [*_PLACE_OF, *_SUBPACKAGES, "__version__"]


def _version() -> str:
    """The installed version; that of the source tree where it is run from there."""
    try:
        return version("local-elasticity")
    except PackageNotFoundError:
        import tomllib

        about = Path(__file__).parents[2] / "pyproject.toml"
        found: str = tomllib.loads(about.read_text(encoding="utf-8"))["project"]["version"]
        return f"{found}+source"


__version__ = _version()


def __getattr__(name: str) -> Any:
    if name not in _PLACE_OF and name not in _SUBPACKAGES:
        raise AttributeError(f"module 'local_elasticity' has no attribute {name!r}")
    state, filters = random.getstate(), list(warnings.filters)
    try:
        place = import_module(_PLACE_OF.get(name, f"local_elasticity.{name}"))
    finally:  # some libraries draw numbers or filter warnings when they are imported
        random.setstate(state)
        if warnings.filters != filters:
            warnings.filters[:] = filters  # type: ignore[index]
            warnings._filters_mutated()  # type: ignore[attr-defined]
    value = globals()[name] = place if name in _SUBPACKAGES else getattr(place, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
