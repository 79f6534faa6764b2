"""Faster ways for some networks and devices; each can be removed without the rest noticing."""
