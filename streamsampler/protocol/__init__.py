"""Decide for sampler and workers, and define their messages. Pure."""
