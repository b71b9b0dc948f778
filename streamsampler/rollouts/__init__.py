"""The script of a trajectory, which every kind of worker drives.

An environment of a trajectory is reset, stepped and recorded in one place, `script.trajectory`: a generator that
suspends wherever an action is needed. Who drives it decides where actions come from. The page is
`streamsampler/docs/how-it-works.md`.
"""
