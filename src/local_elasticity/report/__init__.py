"""Figures and tables of results. Nothing in here trains or steps a network."""
