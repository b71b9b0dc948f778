"""Batches of trajectories, their statistics, and their files.

`TrajectoryBatch` holds trajectories in a few arrays, a row for each timestep; `MultiAgentBatch` holds a batch for each
policy. Guides: `streamsampler/docs/batches.md` and `streamsampler/docs/storage-and-formats.md`.
"""
