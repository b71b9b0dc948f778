"""Environments and agents of the workloads; Python 3.8, numpy and gymnasium only."""
