"""Datasets as they are found on this machine, and the synthetic manifolds of He & Su."""

from local_elasticity.data.images import Images, available, load
from local_elasticity.data.manifolds import MANIFOLDS, Manifold, manifold

__all__ = ["MANIFOLDS", "Images", "Manifold", "available", "load", "manifold"]
