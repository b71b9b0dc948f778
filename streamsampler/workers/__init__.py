"""Workers: how rollouts are run.

- `streamsampler.DefaultWorker` runs one trajectory after the other in one environment.
- `streamsampler.VecWorker` runs several environments side by side; see `streamsampler/docs/vectorised.md`.
- `streamsampler.Worker` is the base class of both. To write a worker of your own see `streamsampler/docs/extending.md`,
  and pass the class as `worker_class`; `worker_args` are further keyword arguments for it.
"""
