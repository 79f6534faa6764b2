"""Slow, obvious, right. Never imported by the package."""
