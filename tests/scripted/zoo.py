"""A module as PettingZoo has them: with the functions that make both forms of a game."""

from tests.scripted.games import Comings, Turns

__all__ = ["env", "parallel_env"]

parallel_env, env = Comings, Turns
