"""Results on disk: labelled, chunked, readable with plain xarray."""
