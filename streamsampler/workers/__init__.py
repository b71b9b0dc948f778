"""Define the workers, which run agents in environments.

- `streamsampler.DefaultWorker` runs trajectories in sequence in a single environment.
- `streamsampler.VecWorker` runs several environments side by side; see `streamsampler/docs/vectorised.md`.
- `streamsampler.Worker` is the base class of both. `streamsampler/docs/extending.md` explains how to write a subclass;
  pass it as `worker_class`, its further keyword arguments as `worker_args`.
"""
