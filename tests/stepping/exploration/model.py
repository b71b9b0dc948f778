"""A manager's own code, and its workers' own code; between them pipes and processes that are modelled.

A worker carries out one message at a time, when it is told to. What it writes is there for the manager's next call. An
environment may raise, or its process may die or hang, in any of its methods; a process may die between any two
messages as well. Time passes only when the world says so, and when the manager waits for it.
"""

import functools
import pickle
import types
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from streamsampler.core.settings import ProcessSettings
from streamsampler.engines.base import Died
from streamsampler.environments.updates import as_env_update
from streamsampler.protocol.faults import Hang
from streamsampler.protocol.messages import Phase
from streamsampler.protocol.progress import Progress
from streamsampler.stepping.base_manager import BaseEnvManager
from streamsampler.stepping.episode_server import EpisodeServer
from streamsampler.stepping.frames import IDS, TOGETHER, ids_in, split
from streamsampler.stepping.links import EnvLink, WorkerMessage
from streamsampler.stepping.options import ManagerOptions, is_abnormal
from streamsampler.stepping.process_transport import ProcessTransport
from streamsampler.stepping.rows import EnvSpaces, Rows
from streamsampler.stepping.worker_main import EnvChannel, EnvWorker
from streamsampler.workers.logs import Levels

LENGTH = 2
HOWS = ("raise", "die", "die after", "hang")
_PHASES = tuple(Phase)


class Clock:
    """Stands for the module `time`: shows the time of the world that is at hand."""

    world: Any = None

    @classmethod
    def monotonic(cls):
        return cls.world.now


class GoneError(BaseException):
    """The process of an environment is gone: nothing of it runs any more."""


class Faults:
    """What is to fail next.

    Attributes:
        armed: Environment, method and how; None for nothing.
        gone: The workers that died or hang, and whether they hang.
    """

    def __init__(self, worker_of, board):
        self.worker_of, self.board = worker_of, board
        self.armed: Any = None
        self.gone: dict[int, bool] = {}
        self._shown: dict[int, list[int]] = {}

    def before(self, method, env_id):
        worker = self.worker_of[env_id]
        if worker in self.gone:
            raise GoneError
        if self.armed == (env_id, method, "raise"):
            self.armed = None
            raise RuntimeError("the gearbox is stuck")
        for how in ("die", "hang"):
            if self.armed == (env_id, method, how):
                self._fail(worker, how)

    def after(self, method, env_id):
        if self.armed == (env_id, method, "die after"):
            self._fail(self.worker_of[env_id], "die")

    def _fail(self, worker, how):
        self.armed = None
        self.end(worker, hangs=how == "hang")
        raise GoneError

    def end(self, worker, *, hangs=False):
        """Let a worker end; or hang."""
        self.gone[worker] = hangs
        self._shown[worker] = list(self.board.rows[worker].words)

    def show_again(self, worker):
        """Let the board be what it was when a worker ended: what ran of its code since then would not have run."""
        self.board.rows[worker].words[:] = self._shown[worker]


class Counter(gymnasium.Env):
    """Shows the seed of its episode and its timestep; ends after `LENGTH` timesteps."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(10)

    def __init__(self, env_id, faults):
        self.env_id, self.faults = env_id, faults
        self.seen = (0, 0)
        self.pokes = 0
        self.fails("make")

    def fails(self, method, change=None):
        self.faults.before(method, self.env_id)
        if change is not None:
            change()
        self.faults.after(method, self.env_id)

    def reset(self, *, seed=None, options=None):
        self.fails("reset", lambda: setattr(self, "seen", (seed, 0)))
        return np.array(self.seen, np.float64), {}

    def step(self, action):
        self.fails("step", lambda: setattr(self, "seen", (self.seen[0], self.seen[1] + 1)))
        return np.array(self.seen, np.float64), float(action), self.seen[1] == LENGTH, False, {"t": self.seen[1]}

    def poke(self):
        self.fails("call", lambda: setattr(self, "pokes", self.pokes + 1))
        return self.env_id


class Row:
    """A worker's row of the board, in memory that can be copied."""

    timesteps_word, trajectory_word, phase_word = range(3)

    def __init__(self):
        self.words = [0, 0, 0]


class Board:
    def __init__(self, n):
        self.rows = [Row() for _ in range(n)]

    def clear(self, worker):
        self.rows[worker].words[:] = [0, 0, 0]

    def progress(self, worker):
        timesteps, trajectory, phase = self.rows[worker].words
        return Progress(0, timesteps, trajectory - 1 if trajectory else None, _PHASES[phase])


def _nothing(*_):
    return b""


class Ends(EnvChannel):
    """What connects a process that is modelled: what it says is kept."""

    def __init__(self, process):
        self.process = process

    def read(self):
        raise NotImplementedError

    def write(self, frame):
        self.process.say(frame)

    def open_rows(self, spaces):
        return self.process.rows

    def report_copy(self):
        raise NotImplementedError


class Process(EnvWorker):
    """A worker process: what it was told and has not carried out, and what it has written.

    Attributes:
        inbox: Frames.
        said: The same, of which nobody has read any.
        is_made: Whether it has made its environments.
    """

    def __init__(self, world, number):
        envs = world.envs_of[number]
        updates = {env_id: as_env_update(functools.partial(Counter, env_id, world.faults)) for env_id in envs}
        server = EpisodeServer(updates, number, world.board.rows[number], world.autoreset)
        server.fresh = updates.__getitem__
        silent = types.SimpleNamespace(set_levels=_nothing, take=_nothing, apply=_nothing, hold=_nothing)
        begun: Any = types.SimpleNamespace(keeper=silent, threads=silent, settings=silent)
        self.number, self.rows, self.faults = number, world.rows, world.faults
        super().__init__(server, Ends(self), begun)
        self.inbox: list[bytes] = []
        self.said: list[WorkerMessage] = []
        self.is_made = False

    def say(self, frame):
        if self.number in self.faults.gone:
            raise GoneError
        self.said.append(WorkerMessage(self.number, *split(frame)))

    @property
    def server(self):
        return self._server

    @property
    def can_work(self):
        return self.number not in self.faults.gone and bool(self.inbox or not self.is_made)

    def next_methods(self):
        """Which methods of which environments the next message may call."""
        envs = list(self.server._updates)
        if not self.is_made:
            return [(env_id, "make") for env_id in envs]
        kind, data = split(self.inbox[0])
        if kind in (IDS, TOGETHER):
            return [(env_id, method) for env_id in ids_in(data) for method in self._methods_of_step(env_id)]
        what, *arguments = pickle.loads(data)
        methods = {"reset": ("reset",), "restore": ("make", "reset", "step", "call"), "request": ("call",)}
        named = arguments[0] if what in ("reset", "request") else envs
        return [(env_id, method) for env_id in named for method in methods.get(what, ())]

    def _methods_of_step(self, env_id):
        if self.server._is_over[env_id]:
            return ["reset"]
        env: Any = self.server.envs[env_id]
        resets = self.server._autoreset == "same_step" and env.seen[1] == LENGTH - 1
        return ["step", "reset"] if resets else ["step"]

    def work(self):
        """Make the environments, or carry out the next message."""
        try:
            if self.is_made:
                self.carry_out(*split(self.inbox.pop(0)))
            else:
                self.is_made = self.make()
                if not self.is_made:
                    self.faults.end(self.number)  # by itself
        except GoneError:
            self.faults.show_again(self.number)


class Link(EnvLink):
    """The manager's end of what it shares with a process."""

    pid: Any = 0
    n_moved: Any = 0
    ends_within: Any = None
    kill: Any = None
    stacks: Any = None
    close: Any = None

    def __init__(self, process):
        super().__init__(process.number)
        self.process = process

    def _send(self, data):
        self.process.inbox.append(bytes(data))


class Pool:
    """All links; what has happened is told at the next look."""

    def __init__(self, world):
        self.world, self.board = world, world.board
        self.links = [Link(Process(world, number)) for number in range(len(world.envs_of))]

    def __getitem__(self, number):
        return self.links[number]

    def __iter__(self):
        return iter(self.links)

    is_ours = True

    def sleep(self, timeout, awaited=None):
        """Return what has happened; where nothing has, and it is waited for, let all go on until something does.

        Where one process is awaited, it alone goes on as long as it can: what others do comes as late as it may.
        """
        happened = self._happened()
        while timeout != 0 and not happened:
            able = [link.process for link in self.links if not link.ended and link.process.can_work]
            able = [it for it in able if awaited is not None and it is awaited.process] or able
            hanging = [number for number, hangs in self.world.faults.gone.items() if hangs]
            assert able or hanging or timeout is not None, "deadlock"
            for process in able:
                process.work()
            if not able and timeout is not None:
                self.world.now += timeout
                timeout = 0
            elif not able:
                self.world.time_out(hanging[0])
            happened = self._happened()
        return happened

    def _happened(self):
        events: list[Any] = []
        for link in self.links:
            if link.ended:
                continue
            events += link.process.said
            link.process.said = []
            if self.world.faults.gone.get(link.number) is False:
                link.ended = True
                events.append(Died(link.number, -9))
        return events

    def read(self, events):
        return events

    def restart(self, number):
        self.board.clear(number)
        self.world.faults.gone.pop(number, None)
        self.links[number] = Link(Process(self.world, number))

    def discard_worker(self, link):
        link.ended = True
        link.forget()


class Modelled(ProcessTransport):
    """Carries requests to processes that are modelled."""

    def __init__(self, world, policy):
        updates: Any = dict.fromkeys(range(world.n_envs))
        no_server: Any = None
        no_pool: Any = None
        super().__init__(updates, len(world.envs_of), no_server, policy, None, 1, world.wait, new_pool=no_pool)
        self._worker_of, self._envs_of = world.faults.worker_of, world.envs_of
        self._errors._envs_of = world.envs_of
        self._settings = ProcessSettings({}, (), "/", {}), Levels()
        self.world = world

    def start(self):
        self._pool: Any = Pool(self.world)
        self.spaces = spaces_of(self.world.n_envs)
        self.rows = self.world.rows
        for link in self._pool:
            self._begin(link)

    def send_settings(self):
        pass


class ModelManager(BaseEnvManager):
    def __init__(self, world, on_failure):
        options = ManagerOptions(
            world.n_envs, world.autoreset, None, 1, None, on_failure, is_abnormal, restart_wait=world.wait
        )
        self.world = world
        super().__init__({}, options, 0, len(world.envs_of))

    def _new_transport(self):
        return Modelled(self.world, self._options.policy(max_restarts=None))

    def _send_parameters(self, transport, env_ids):
        pass


@functools.cache
def spaces_of(n_envs):
    return EnvSpaces([(Counter.observation_space, Counter.action_space)] * n_envs)


def new_rows(n_envs):
    return Rows(spaces_of(n_envs), np.zeros)


_ARRAYS = ("observations", "last_observations", "actions", "rewards", "seeds", "terminated", "truncated", "slots",
           "parameters")  # fmt: skip


def arrays_of(rows):
    return [getattr(rows, name) for name in _ARRAYS]


def _rows_with(n_envs, contents):
    rows = new_rows(n_envs)
    for array, content in zip(arrays_of(rows), contents, strict=True):
        array[...] = content
    return rows


def reduce_rows(rows):
    """Let rows be pickled: some of their arrays are views of others."""
    return _rows_with, (len(rows.seeds), [array.copy() for array in arrays_of(rows)])


def share_space(space):
    """Let copies of a world have the spaces themselves, which nothing changes: copying these takes longest."""
    name = "action_space" if isinstance(space, spaces.Discrete) else "observation_space"
    assert space is getattr(Counter, name) or space == getattr(Counter, name)
    return getattr, (Counter, name)


def share_spaces(given):
    return spaces_of, (len(given.observation),)


def hang_of(world, number):
    return Hang(world.board.progress(number), 1.0, "")
