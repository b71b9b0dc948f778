"""The agent in the caller's process, environments in worker processes: `inference="parent"`.

Rows whose observations are there are asked for actions in one call. Batches are those of a `VecWorker` with as many
environments. The guide is `streamsampler/docs/vectorised.md`.
"""
