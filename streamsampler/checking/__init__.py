"""Check an environment and an agent, and measure how fast each kind of worker runs them.

`check` tries the rules on which samplers rely; `bench` measures each way to step environments. Both are commands, too.
The guide is `streamsampler/docs/checking.md`.
"""
