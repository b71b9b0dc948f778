"""Run workers: in this process, in processes of their own, or in a Ray cluster.

An engine carries messages between the sampler and its workers. All engines share the scheduler, so they give the same
batches. To write an engine see `streamsampler/docs/extending.md`; `tests/contracts` runs against every engine.
"""
