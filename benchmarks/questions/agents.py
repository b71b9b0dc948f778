"""What do the library's own agents reach, of bare loops with the same agents as they were in commit 7da5917e?

python -m benchmarks agents [--quick]     # needs torch and gymnasium[mujoco]

In the other questions agents are plain classes of the benchmarks, the same for every contender. Here `TorchAgent` and
`MlpAgent` act, and what they gain counts: the bare loops' copies of them never change (`problems/frozen.py`).
"""

from benchmarks.harness.lineup import BARE, OURS
from benchmarks.harness.question import Goal, Question, throughput
from benchmarks.questions.torch_mlp import several, ten

QUESTION = Question(
    "agents",
    "The library's own agents, TorchAgent and MlpAgent 2x64: CartPole-v1, Pendulum-v1 and HalfCheetah-v5",
    ["agent_cartpole", "agent_cartpole_500", "agent_numpy_500", "agent_pendulum", "agent_cheetah"],
    [BARE, OURS],
    [
        Goal("agent_cartpole", "ours_vec_32", 0.88, of="batched_bare_32"),
        Goal("agent_cartpole_500", "ours_vec_32", 0.93, of="batched_bare_32"),
        Goal("agent_pendulum", "ours_vec_8_ten", 0.95, of="batched_bare_8"),
        Goal("agent_cheetah", "ours", 0.92),
    ],
    {
        "agent_cartpole": several(32),
        "agent_cartpole_500": several(32),
        "agent_numpy_500": several(32),
        "agent_pendulum": several(8, ten(8, length=200)),
        "agent_cheetah": several(8),
    },
)

if __name__ == "__main__":
    throughput(QUESTION)
