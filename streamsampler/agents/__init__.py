"""Agents: the `Agent` protocol, and the agents of this package.

An agent is any object with `get_action(observation) -> (action, agent_info)`, or a function of the observation. `Agent`
documents the optional methods; the guide is `streamsampler/docs/agents.md`.
"""
