"""Check an environment and an agent, and measure the ways to run them.

`check` finds out whether they keep to the rules that samplers rely on; `bench` measures each way to step them. Both are
commands as well. The guide is `streamsampler/docs/checking.md`.
"""
