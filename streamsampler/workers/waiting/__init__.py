"""The worker whose environments and agents wait: many trajectories in flight on one event loop."""
