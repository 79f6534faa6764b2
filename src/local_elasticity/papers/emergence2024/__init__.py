"""Emergence of Alignment and Local Elasticity in Two-Layer Neural Networks (2024): its claims, tested."""
