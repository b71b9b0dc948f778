"""One module for each contender; `python -m benchmarks.contenders.NAME WORKLOAD` runs it, see `harness.contender`."""
