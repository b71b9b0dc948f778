"""Agents: the protocol that an agent keeps, and agents that come with the package.

An agent is any object with `get_action(observation) -> (action, agent_info)`, or a function of the observation. `Agent`
documents the methods that an agent may have besides. The guide is `streamsampler/docs/agents.md`.
"""
