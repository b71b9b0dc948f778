"""Run the agent in the caller's process, and environments in worker processes: `inference="parent"`.

A single call of the agent chooses the actions of all ready rows. Batches are those of a `VecWorker` with as many
environments. The guide is `streamsampler/docs/vectorised.md`.
"""
