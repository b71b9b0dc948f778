"""Several environments side by side in each worker, with one call of the agent for all their actions.

Lanes refill each environment as soon as its trajectory ends; blocks run trajectories that influence each other
together. Native vector environments have a runner of their own. The guide is `streamsampler/docs/vectorised.md`.
"""
