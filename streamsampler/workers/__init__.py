"""Kinds of workers: how rollouts are run."""
