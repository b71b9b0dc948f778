"""What this library and others cost: `python -m benchmarks`."""
