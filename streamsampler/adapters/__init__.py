"""Agents made of other libraries' policies.

`streamsampler.adapters.torch`, `.sb3` and `.mlp` need their extras only when imported. The guide is
`streamsampler/docs/agents.md`.
"""
