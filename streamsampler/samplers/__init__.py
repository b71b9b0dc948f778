"""Samplers: the calls that return trajectories, and the processes that run them.

`Sampler` documents each argument and each call. `MultiprocessingSampler` has its workers in processes, `LocalSampler`
in the calling process, `RaySampler` on a cluster. The guide is `streamsampler/docs/sampling.md`,
`streamsampler/docs/fragments.md`, `streamsampler/docs/guarantees.md` and `streamsampler/docs/failures.md`.
"""
