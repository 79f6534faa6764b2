"""Class pairs, locality, change points and comparisons; nothing else in the package computes these."""
