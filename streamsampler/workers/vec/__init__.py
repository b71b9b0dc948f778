"""Several environments in each worker, and a single agent call for all their actions.

Lanes refill an environment as soon as its trajectory ends. Blocks run trajectories that influence each other together.
Native vector environments have a runner of their own. The guide is `streamsampler/docs/vectorised.md`.
"""
