"""Collect trajectories from Gymnasium environments in parallel."""
