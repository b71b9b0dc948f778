"""Agents made of policies of other libraries.

`streamsampler.adapters.torch`, `.sb3` and `.mlp` each need their extra only where they are imported. The guide is
`streamsampler/docs/agents.md`.
"""
