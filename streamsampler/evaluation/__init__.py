"""Evaluate and compare agents on an exact number of trajectories.

Each number is printed with a valid interval. Intervals, stopping rules and decisions are pure functions of returns. The
guide is `streamsampler/docs/evaluation.md`.
"""
