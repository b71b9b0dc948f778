"""Evaluate and compare agents on an exact number of trajectories.

Each number is printed with the interval that holds for it. Intervals, rules to stop and decisions are pure functions of
returns. The guide is `streamsampler/docs/evaluation.md`.
"""
