"""Kernel K-means in the plainest way: the objective as a double sum, the best of all partitions, Lloyd's walk."""

import itertools

import numpy as np


def inertia(K, labels):
    """Σ over clusters of Σ_{i∈C} K_ii − 1/|C| Σ_{i,j∈C} K_ij."""
    total = 0.0
    for cluster in set(labels):
        members = [i for i, label in enumerate(labels) if label == cluster]
        total += sum(K[i, i] for i in members) - sum(K[i, j] for i in members for j in members) / len(members)
    return total


def best_inertia(K, n_clusters):
    """The least over all partitions into that many clusters."""
    partitions = itertools.product(range(n_clusters), repeat=len(K))
    return min(inertia(K, labels) for labels in partitions if len(set(labels)) == n_clusters)


def lloyd(K, labels, n_clusters, max_iter):
    """One start, point after point; clusters are supposed not to run empty."""
    labels = list(labels)
    for _ in range(max_iter):
        clusters = [[j for j, label in enumerate(labels) if label == c] for c in range(n_clusters)]
        nearest = []
        for i in range(len(K)):
            distances = [
                K[i, i]
                - 2 * sum(K[i, j] for j in members) / len(members)
                + sum(K[j, k] for j in members for k in members) / len(members) ** 2
                for members in clusters
            ]
            nearest.append(int(np.argmin(distances)))
        if nearest == labels:
            break
        labels = nearest
    return labels


def best_match(labels, truth):
    """The share that is right under the best naming of clusters, all of them tried."""
    names = sorted(set(truth))
    clusters = sorted(set(labels))
    names += [None] * max(0, len(clusters) - len(names))
    return max(
        sum(dict(zip(clusters, naming, strict=True))[label] == kind for label, kind in zip(labels, truth, strict=True))
        for naming in itertools.permutations(names, len(clusters))
    ) / len(labels)
