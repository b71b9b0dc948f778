"""Batches, and how they are recorded."""
