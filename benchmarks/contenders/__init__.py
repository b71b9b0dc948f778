"""One module for each contender; `python -m contenders.NAME WORKLOAD` runs it, see `harness.contender`."""
