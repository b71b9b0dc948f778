"""Evaluate agents: numbers with the interval that holds for each.

```python
from streamsampler import evaluate

evaluation = evaluate("random", "CartPole-v1", n_trajectories=100, seed=1)
print(evaluation)
```

```text
RandomAgent in CartPole-v1: 100 trajectories
  mean return          22.27  95 % [20.188, 24.352]  t
  …
```

`streamsampler.evaluate` takes exactly `n_trajectories` trajectories; or one from each of `seeds`; or one for each of
`scenarios`, which are dicts of a seed, reset options and a name. With `until_halfwidth=5` it goes on until the mean
return is known to ±5, with `precision_of="success"` the success rate. The trajectories are the same for any number of
workers.

The agent is whatever samplers take, a model of Stable-Baselines3 or its `.zip` file, another object with `predict`, or
a torch module. The result calls it by its attribute `name` where it has one, a model by the name of its file, and
everything else by its class or function.

The result is a `streamsampler.evaluation.evaluation.Evaluation`. It has every return with index and seed, can be
printed, and is saved as JSON (`evaluation.save("cartpole.json")`).

With several agents in one environment, `return_of="archer_0"` says whose return counts: see
`streamsampler.workers.several`.

Which interval
--------------

Rates have the exact interval of Clopper and Pearson, which holds for all rates and any number of trajectories.
(Wilson's is narrower, and where the rate is .98 holds in only 90 of 100 evaluations of some numbers of trajectories.)
The mean has:

| returns | interval of the mean |
|---|---|
| two values, such as 0 and 1 | that of the rate, scaled to them; of medians and interquartile means as well |
| all equal | none: they do not say how large others are |
| more than half equal, or in two narrow groups | Gaffke's, scaled to those that were seen, or to twice that |
| fewer than 10 | none |
| fewer than 30, skewed or in two groups (as where an agent sometimes fails) | none |
| others | Student's t; where the skewness asks for it, the studentised bootstrap |

Gaffke's is scaled to twice the distance of those that were seen where fewer than 10 differ from all others, and their
values vary. Where one or two of fewer than 30 differ, intervals reach the value of all others: they are printed only
because these were seen. Medians and interquartile means have the percentile bootstrap from 30 trajectories on. See
`streamsampler.evaluation.intervals`.

`bounds=(0, 500)` says which returns there can be. Then the mean has an interval in all these cases. It matters most
where all returns are equal: without bounds the evaluation prints how many trajectories may have another return. After
50 equal ones these are at most 5.8 %, with 95 % confidence, after 299 at most 1 %.

`until_halfwidth` stops equal returns there, after 299, and says so; with `bounds`, when the interval is narrow enough.
An interval that decides when to stop is wrong more often than it says: after at least 30 trajectories, in 5 to 10 of
100 evaluations; exact ones, of rates and of two values, in at most 7. With `guarantee=True` it is a betting confidence
sequence, which holds whenever one stops (`streamsampler.evaluation.rules`).

A list of environments means one for each worker. Different ones would become one mean: an error, unless
`PerWorker([…])` says that this is wanted.

Comparing
---------

```python
from streamsampler import compare

comparison = compare({"random": "random", "left": lambda observation: 0}, "CartPole-v1", n_trajectories=100, seed=1)
print(comparison)
```

`streamsampler.compare` runs two agents or more on the same seeds. Differences are taken pair by pair, so that what the
seed decides for both cancels; `correlation` says how much that was, and "as good as 410 unpaired trajectories" what it
was worth. Where all differences are equal, as between an agent and itself, they have no interval, and it is said how
many pairs may differ. `until_decided=0.05` stops as soon as a test is sure which agent is better, and tells equal
agents apart in at most 5 of 100 comparisons although it looks after each pair. It needs the `bounds` of returns;
success rates need none (`decide_on="success"`). Of more than two agents each is compared with the first.

Parts
-----

For job arrays of clusters, without any engine that spans machines: each of n jobs runs one part, and what they wrote is
merged to the file that one run would have written, byte for byte.

```python
from streamsampler import evaluate, merge

for i in range(1, 8):  # each in a job of its own
    evaluate("random", "CartPole-v1", n_trajectories=100, seed=1, part=(i, 7)).save(f"part-{i}.json")
merge([f"part-{i}.json" for i in range(1, 8)], "cartpole.json")  # afterwards; so does `streamsampler merge`
```

`part` goes with `n_trajectories`, which needs a `seed`, the same for all; with `seeds` and with `scenarios`. Where a
rule decides when to stop, no job knows its range. `compare` takes it, too. A part that was killed or interrupted is run
again; `streamsampler.merge` names those that are missing.

Replaying
---------

```python
from streamsampler import MultiprocessingSampler, replay

with MultiprocessingSampler("random", "CartPole-v1", seed=1) as sampler:
    batch = sampler.obtain_trajectories(10)
print(replay(batch, 7, agent="random", env="CartPole-v1"))
```

`streamsampler.replay` runs trajectory 7 again, from a batch, a file or a folder, in the same row of a batch of the same
shape. It compares observations, actions, rewards and the end, bit for bit, and says where they differ first, and why
that may be. `actions=True` replays the recorded actions without the agent, and `video="it.mp4"` films it.

Videos
------

`evaluate(…, video="videos")` films the first, the best, the median and the worst trajectory, or those that `video_of`
names, as `.mp4` files named by index, seed and return. They are chosen when the evaluation is complete, and run again:
it costs no more until then. Needs `pip install av`, and an environment that can be made with
`render_mode="rgb_array"`.
"""
