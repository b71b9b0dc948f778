r"""The command line: parse, call the library, print.

`streamsampler --help` lists the commands, `streamsampler sample --help` the options of one. ENV_ID is an id of
Gymnasium's, or `module:ENV_ID`:

```text
streamsampler sample CartPole-v1 --num-samples 100000 --out cartpole.npz
streamsampler sample CartPole-v1 --agent my_agents:greedy --num-trajectories 100 --seed 1
streamsampler sample CartPole-v1 --num-samples 1000000000 --seed 1 --out big --shard-size 1000000
streamsampler sample my/Maze-v0 --import my_envs --env-kwarg size=9 --num-samples 5000 --json
streamsampler info cartpole.npz
streamsampler evaluate CartPole-v1 --agent model.zip --num-trajectories 100 --seed 1 --out model.json
streamsampler evaluate CartPole-v1 --agent my_agents:greedy --until-halfwidth 5
streamsampler compare CartPole-v1 --agent old.zip --agent new.zip --until-decided 0.05 --bounds 0 500
streamsampler plot cartpole.npz
streamsampler plot old.json new.json
streamsampler check my/Maze-v0 --import my_envs --agent my_agents:greedy
streamsampler bench my/Maze-v0 --import my_envs --agent my_agents:greedy
streamsampler replay cartpole.npz --index 17 --video it.mp4
streamsampler merge part-*.json --out model.json
```

`streamsampler export FILE|FOLDER --to FORMAT --out FOLDER` writes trajectories in the format of another library; see
`streamsampler.formats`.

Progress and warnings are printed on standard error, the summary on standard output, as text or with `--json` as one
object. `streamsampler info FILE|FOLDER` prints what was sampled into a file or a folder: environment, returns, spaces,
seed, version, and which shards are damaged; of what `evaluate` and `compare` wrote it prints what they printed.

`streamsampler evaluate` and `streamsampler compare` print what `streamsampler.evaluate` and `streamsampler.compare`
find (see `streamsampler.evaluation`), with the same trajectories for any number of workers. `--out` writes it as JSON,
the same as in Python. While they run, the interval is shown as it narrows. `streamsampler plot FILE|FOLDER` draws
returns and lengths of whatever was written, and of a comparison the returns pair by pair; `streamsampler plot old.json
new.json` draws several in one picture.

`--agent archer=NAME --agent knight=NAME` has several policies, for environments of several agents: see
`streamsampler.workers.several`. `--policy-of archer_0=archer` says who plays whom, `--aec` takes a module's `env`.

`streamsampler check` prints what `streamsampler.check` finds: see `streamsampler.checking`. Its exit code is 1 where
there are failures.

`streamsampler bench` measures how many timesteps per second there are in all the ways to step an environment with an
agent, and recommends one: see `streamsampler.checking.bench`.

`streamsampler replay FILE|FOLDER --index I` runs a recorded trajectory again, compares it with what was recorded, bit
for bit, and says where it differs first: see `streamsampler.replay`. Its exit code is 1 where it differs. `--video`
films it; `streamsampler evaluate --video FOLDER` films trajectories of an evaluation.

Every command takes options from a TOML file with `--config FILE`; those that are typed win. Keys are the options'
names, and `env-id`. Paths in it are relative to the current directory:

```text
env-id = "CartPole-v1"
num-trajectories = 100
env-kwarg = { sutton_barto_reward = true }
```

The exit code is 0 for success, 1 for a failure, 2 for wrong usage, 130 after Ctrl-C and 143 after SIGTERM.

Parts
-----

`--part 2/7` of `evaluate` and `compare` runs the second of seven contiguous ranges of the trajectories, for
job arrays on clusters; `streamsampler merge` makes of what all parts wrote what one run would have written, byte for
byte. It needs `--num-trajectories` and `--seed`, or `--seeds` or `--scenarios`. In tasks 1 to 7 of a SLURM job array:

```text
streamsampler evaluate CartPole-v1 --num-trajectories 700 --seed 1 --part $SLURM_ARRAY_TASK_ID/7 \
    --out part-$SLURM_ARRAY_TASK_ID.json
streamsampler merge part-*.json --out cartpole.json
```

A part that was killed or interrupted is run again. `merge` names parts that are missing, there twice, not whole, or of
another run. To sample on several machines give each command a seed of its own: `streamsampler.load` reads several
folders as one.

Interruption
------------

Ctrl-C keeps the finished trajectories: the summary describes them, and `--out` holds them. The same command makes the
whole file, from the beginning; the summary prints it, with the seed. With `--shard-size` the same command with
`--resume` continues (see `streamsampler.data.folder`):

```text
$ streamsampler sample CartPole-v1 --num-samples 1000000000 --out big --shard-size 100000
^C
interrupted   after 300,062 of 1,000,000,000 timesteps
…
written to    big (3 shards)
to go on      streamsampler sample CartPole-v1 --num-samples 1000000000 --out big --shard-size 100000 --resume
```

`evaluate` and `compare` print and write what was finished, too, and say that they were interrupted.

Failures
--------

A process that dies, or with `--step-timeout` hangs, is replaced; a warning is printed above the progress bar, and the
data are the same as without. The summary counts restarts. With `--on-failure drop` it lists what was left out, and why:

```text
restarts      2, 1 hung
dropped       40 trajectories
              trajectory 6, stepping the environment: OSError: the arm is stuck
              …
```
"""

from streamsampler.cli.app import main

__all__ = ["main"]
