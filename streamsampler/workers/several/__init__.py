"""Environments of several agents: policies play them, and each agent's trajectory is recorded.

`PolicySet` assigns agents to policies, and calls each policy once for all its agents. `JointRecorder` writes a row for
each agent that acted. The guide is `streamsampler/docs/several-agents.md`.
"""
