"""Batches of trajectories, their statistics, and their files.

`TrajectoryBatch` holds trajectories in a few arrays, one row for each timestep; `MultiAgentBatch` holds such a batch
for each policy. Recorders write them, archives and folders keep them. The guide is `streamsampler/docs/batches.md` and
`streamsampler/docs/storage-and-formats.md`.
"""
