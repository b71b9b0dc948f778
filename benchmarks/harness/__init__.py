"""The benchmarks' harness: contenders as processes, measured in turn, one while all others are frozen."""
