"""What does it cost to sample several agents? CartPole-v1 as a game of one agent, and a cheap game of one and of ten.

python -m benchmarks several_agents [--quick]     # needs torch

All contenders count the timesteps of all agents together: a step of the game of ten is ten of them.

`several_one` is CartPole-v1 behind the interface for several agents; `_single` is CartPole-v1 itself, in the same
rounds, whose agent is asked for one action at a time. Of several agents, those that one policy plays are asked for
together, by `get_actions`, also where there is one; `_one_by_one` has the agent without it. In `several_10`, one agent
alone is `_one_agent`. RLlib's env runners have one environment each, as all others have; `_8` has eight.
"""

from benchmarks.harness.lineup import OURS, ours
from benchmarks.harness.question import Goal, Question, throughput
from benchmarks.harness.running import Contender

BARE = Contender("bare", "bare_several")
RLLIB = (
    Contender("rllib_several", "rllib_several", peer=True),
    Contender("rllib_several_8", "rllib_several", {"n_envs": 8}, peer=True),
)

QUESTION = Question(
    "several_agents",
    "Several agents in one environment: timesteps of all agents together",
    ["several_one", "several_1", "several_10"],
    [BARE, OURS, *RLLIB],
    [
        # At most 1.2 times the CPU of the loop for one agent.
        Goal("several_one", "ours_single", 1.2, of="ours", key="cpu_share", most=True),
        Goal("several_one", "ours_single", 1.2, of="ours_one_by_one", key="cpu_share", most=True),
        # Of ten agents, one costs at most two fifths of what one alone costs.
        Goal("several_10", "ours", 2.5, of="ours_one_agent", key="cpu_share"),
    ],
    extra={
        "several_one": [
            Contender("bare_one_by_one", "bare_several", {"one_by_one": True}),
            Contender("bare_single", "bare", {"variant": "single"}),
            ours("ours_one_by_one", one_by_one=True),
            ours("ours_single", variant="single"),
        ],
        "several_10": [
            Contender("bare_one_agent", "bare_several", {"variant": "one_agent"}),
            ours("ours_one_agent", variant="one_agent"),
        ],
    },
    seconds=2.0,
)

if __name__ == "__main__":
    throughput(QUESTION)
