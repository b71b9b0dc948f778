"""Measure what this library and others cost: `python -m benchmarks`."""
