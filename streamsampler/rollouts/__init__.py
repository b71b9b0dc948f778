"""Run the script of a trajectory, the only place where workers reset and step environments.

`script.trajectory` is a generator which suspends wherever it needs an action; its driver supplies the actions. See
`streamsampler/docs/how-it-works.md`.
"""
