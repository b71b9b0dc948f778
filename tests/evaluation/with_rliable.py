"""Compare the interquartile mean and the probability of improvement with rliable's, to 1e-9.

Run by `.ci/full rliable` in an environment of its own: rliable 1.2 needs pandas below 3 and arch below 8.

    python tests/evaluation/with_rliable.py
"""

import numpy as np
from rliable import metrics

from streamsampler.evaluation.comparison import probability_of_improvement
from streamsampler.evaluation.intervals import interquartile_mean

CLOSE = 1e-9
SAMPLES = {
    "normal": lambda rng, n: rng.normal(10, 3, n),
    "exponential": lambda rng, n: rng.exponential(50, n),
    "with ties": lambda rng, n: rng.integers(0, 5, n).astype(float),
    "mostly equal": lambda rng, n: np.where(rng.random(n) < 0.9, 500.0, rng.normal(100, 50, n)),
    "successes": lambda rng, n: (rng.random(n) < 0.7).astype(float),
}


def close(ours: float, theirs: float) -> bool:
    """Whether two numbers agree, relative to the larger one where that is above 1."""
    return abs(ours - theirs) <= CLOSE * max(1.0, abs(theirs))


def main() -> None:
    """Raise AssertionError at the first number that differs."""
    rng = np.random.default_rng(1)
    n_compared = 0
    for name, sample in SAMPLES.items():
        for n in (1, 2, 3, 4, 5, 10, 30, 99, 1_000):
            first, second = sample(rng, n), sample(rng, max(1, n - n // 3)) + rng.choice([0.0, 1.0])
            iqm = interquartile_mean(first), metrics.aggregate_iqm(first[:, None])
            better = (
                probability_of_improvement(first, second),
                metrics.probability_of_improvement(second[:, None], first[:, None]),
            )
            for what, (ours, theirs) in {"IQM": iqm, "probability of improvement": better}.items():
                assert close(ours, float(theirs)), f"{what} of {n} {name}: {ours} here, and {theirs} of rliable"
                n_compared += 1
    print(f"{n_compared} numbers agree with rliable's to {CLOSE}")


if __name__ == "__main__":
    main()
