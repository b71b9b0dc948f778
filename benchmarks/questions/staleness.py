"""How many more iterations does a learner make that learns while the next batch is sampled?

After each call the caller sleeps for as long as a call takes, as if it learned on an accelerator: so without a lag an
iteration takes twice as long as a call, and with `staleness=1` at best as long. The agent is a small network, with new
parameters in each call.

python -m benchmarks staleness [--quick]
"""

from benchmarks.harness.lineup import ours
from benchmarks.harness.question import Goal, Question, throughput

NAMES = ("on_policy", "cheap_20")
IN_TURN = ours("ours_in_turn", learns=True)

QUESTION = Question(
    "staleness",
    "`staleness` 1 against 0, for a learner that takes as long as the sampler",
    NAMES,
    [IN_TURN, ours("ours_lagging", learns=True, staleness=1)],
    [Goal(name, "ours_lagging", 1.6, of=IN_TURN.name) for name in NAMES],
    seconds=4.0,
    rounds=8,
    limit=IN_TURN.name,
    label="iterations to those without a lag",
)

if __name__ == "__main__":
    throughput(QUESTION)
