"""Similarity → labels: Algorithm 1 as an estimator, kernel K-means, baselines, agreement with known classes."""

from local_elasticity.clustering.agreement import agreement, best_match_accuracy
from local_elasticity.clustering.baselines import autoencoder_features, kmeans, pca_kmeans, pretrained_features
from local_elasticity.clustering.estimator import LocalElasticityClustering
from local_elasticity.clustering.kernel_kmeans import KernelKMeans
from local_elasticity.clustering.stability import Stability, stability

__all__ = [
    "KernelKMeans",
    "LocalElasticityClustering",
    "Stability",
    "agreement",
    "autoencoder_features",
    "best_match_accuracy",
    "kmeans",
    "pca_kmeans",
    "pretrained_features",
    "stability",
]
