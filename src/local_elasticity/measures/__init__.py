"""Response → similarity matrix: pure functions. Rows are sources, columns targets."""
