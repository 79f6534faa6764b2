"""The papers' experiments, one file a table or figure, on one runner."""
