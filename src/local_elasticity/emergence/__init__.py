"""One large step in a two-layer network: alignment, local elasticity and retrieval on classes never trained on.

The two-layer model exactly (`TwoLayer`, `one_step`, `training_data`, `unseen_classes`), with the theory to hold
against it (`Theory`, `equivalent_recall`, `operator_norm_bound`); and the same measures on the features of any
network (`feature_extractor`, `stream_features`, `OF_FEATURES`), along its training too (`FeatureMeasure`).
"""

from local_elasticity.emergence.activation import ACTIVATIONS, Activation, Moments
from local_elasticity.emergence.alignment import alignment, alignment_by_class, elasticity, separability
from local_elasticity.emergence.clusters import ClusterAgreement, cluster_agreement
from local_elasticity.emergence.designs import (
    DESIGNS,
    NOISES,
    TrainingData,
    UnseenClasses,
    noise,
    training_data,
    unseen_classes,
)
from local_elasticity.emergence.equivalent_kernel import equivalent_kernel, equivalent_recall
from local_elasticity.emergence.feature_measures import FeatureMeasure
from local_elasticity.emergence.features import FeatureStream, feature_extractor, stream_features
from local_elasticity.emergence.metric import ProxyLoss, library_loss, library_recall_at_1, triplet_loss
from local_elasticity.emergence.named import OF_FEATURES
from local_elasticity.emergence.of_response import centred_cosine, cosine
from local_elasticity.emergence.one_step import Norms, Step, one_step, train_covariance, usual_step_size
from local_elasticity.emergence.operator_norm import operator_norm, operator_norm_bound
from local_elasticity.emergence.prediction import Theory
from local_elasticity.emergence.retrieval import recall_at_k
from local_elasticity.emergence.rise import half_rise, rise_curve
from local_elasticity.emergence.train_unseen import train_unseen_second_moment, train_unseen_similarity
from local_elasticity.emergence.two_layer import TwoLayer
from local_elasticity.emergence.unseen_elasticity import WithinAndBetween, relative_on_unseen

__all__ = [
    "ACTIVATIONS",
    "DESIGNS",
    "NOISES",
    "OF_FEATURES",
    "Activation",
    "ClusterAgreement",
    "FeatureMeasure",
    "FeatureStream",
    "Moments",
    "Norms",
    "ProxyLoss",
    "Step",
    "Theory",
    "TrainingData",
    "TwoLayer",
    "UnseenClasses",
    "WithinAndBetween",
    "alignment",
    "alignment_by_class",
    "centred_cosine",
    "cluster_agreement",
    "cosine",
    "elasticity",
    "equivalent_kernel",
    "equivalent_recall",
    "feature_extractor",
    "half_rise",
    "library_loss",
    "library_recall_at_1",
    "noise",
    "one_step",
    "operator_norm",
    "operator_norm_bound",
    "recall_at_k",
    "relative_on_unseen",
    "rise_curve",
    "separability",
    "stream_features",
    "train_covariance",
    "train_unseen_second_moment",
    "train_unseen_similarity",
    "training_data",
    "triplet_loss",
    "unseen_classes",
    "usual_step_size",
]
