"""The worker of waiting environments and agents: many trajectories in flight on an event loop."""
