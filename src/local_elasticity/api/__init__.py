"""What users ask: similarity, estimate."""
