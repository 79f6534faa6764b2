"""Results on disk: labelled, in blocks, resumable, readable with plain xarray."""
