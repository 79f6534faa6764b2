"""Whether `le.forecast` serves: which examples a fine-tune loses, and replay of those at risk."""
