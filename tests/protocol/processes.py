"""Worker processes of the model: the real `WorkerLoop`, with a fake worker, a fake channel and a fake row."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from streamsampler.engines.base import Engine
from streamsampler.errors import SerializationError
from streamsampler.protocol.messages import Exit, Phase, Stop
from streamsampler.protocol.progress import Progress
from streamsampler.workers.base import Outcome, Worker, WorkerContext
from streamsampler.workers.loop import WorkerLoop

N_WORKERS = 2
NOTHING_LARGE = np.empty(0, np.float32)
NO_INFOS = SimpleNamespace(columns={}, length=0)


def length_of(version, index):
    return 1 + (version + index) % 2


def seconds_of(worker, n_timesteps, slowness):
    # So long that the shortest ticket is of one trajectory.
    return 0.005 * n_timesteps * (slowness if worker == 0 else 1.0)


class ModelWorker(Worker):
    """A worker whose rollouts end as the model chooses, and which remembers its updates."""

    row: Any
    spaces: Any = ("an observation space", "an action space")

    def __init__(self, context):
        super().__init__(context)
        self.agent: Any = None
        self.parameters: Any = None
        self.env: Any = None

    def update_agent(self, update):
        self.row.raise_if_it_is_to_fail()
        if update[0] == "agent":
            self.agent, self.parameters = update, None
        else:
            assert self.agent is not None, "parameters without an agent"
            self.parameters = update

    def update_env(self, update):
        self.env = update
        self.runs_lanes = self.row.engine.lanes

    def environments(self):
        return []

    def rollout(self, ticket, seeds):
        process = self.row
        assert len(seeds) == len(ticket.indices)
        updates = (self.agent, self.parameters, self.env)
        assert updates == (("agent", 0), ("parameters", ticket.version), "env"), "on policy, whatever the worker missed"
        if process.failing is not None:
            self.phase = Phase.STEP
            self.trajectory = process.failing
            process.raise_if_it_is_to_fail()
        if process.engine.oldest > ticket.version:
            return Outcome(None, 0, 0, n_abandoned=1)
        lengths = [length_of(ticket.version, index) for index in ticket.indices]
        rollouts: Any = SimpleNamespace(
            observations=NOTHING_LARGE,
            actions=NOTHING_LARGE,
            lengths=np.array(lengths),
            n_trajectories=len(lengths),
            anomalies=(),
            fragments=(),
            policies={},
            remarks=(),
            env_infos=NO_INFOS,
            agent_infos=NO_INFOS,
            episode_infos=NO_INFOS,
            n_timesteps=sum(lengths),
            made_under=self.parameters[1],
        )
        seconds = seconds_of(self.context.worker_number, sum(lengths), process.engine.slowness)
        return Outcome(rollouts, len(lengths), sum(lengths), seconds=(0.0, 0.0, seconds))

    def shutdown(self):
        self.agent = self.parameters = self.env = None


class Process:
    """One worker process, from its start to its death: also the loop's channel and its row of the status board."""

    interruptible = False
    words, phase_word = (0,), 0  # nothing is timed

    def __init__(self, engine, number):
        self.engine, self.number = engine, number
        self.loop = WorkerLoop(self, ModelWorker, WorkerContext(row=self, worker_number=number))  # type: ignore[arg-type]
        # Other tests may have loaded torch. The sampler would look for it in the agents, which are only names here.
        self.loop._is_guest = False
        self.commands = []
        self.answers = []
        self.is_alive = True
        self.in_hand = None  # a ticket that was begun when it was not abandoned yet
        self.failing = None  # the trajectory that raises now
        self.unsendable = False
        self.version, self.trajectory = 0, None

    @property
    def side(self):
        return self.loop._side

    @property
    def first_ticket(self):
        tickets = self.side._tickets
        return tickets[0] if tickets else None

    def begin(self):
        """Take a ticket: it is in hand, or given up."""
        ticket = self.first_ticket
        if self.engine.oldest > ticket.version:
            self.run()
        else:
            self.in_hand = ticket
            self.version, self.trajectory = ticket.version, ticket.indices[-1]

    def run(self):
        """Answer the ticket in hand; a message that arrived later is not received before."""
        commands, self.commands = self.commands, []
        assert self.loop.turn(wait=False)
        self.commands = commands
        self.in_hand = self.trajectory = self.failing = None
        self.unsendable = False

    def hear(self, failing=None):
        """Receive a message, and fail in the updates that it carries if the model says so."""
        self.failing = failing
        self.is_alive = self.loop.turn(wait=True)
        self.failing = None

    def die(self):
        self.is_alive = False
        self.commands.clear()
        self.in_hand = None

    def raise_if_it_is_to_fail(self):
        if self.failing is not None:
            raise OSError("boom")

    # The channel.

    def receive(self, *, wait):
        assert self.commands or not wait
        return self.commands.pop(0) if self.commands else None

    def load(self, payload):
        assert payload not in self.engine.freed, "a payload that a worker is to load was freed"
        return payload

    def answer(self, answer, contents=None):
        if self.unsendable and not isinstance(contents, BaseException):
            raise SerializationError("the rollouts cannot be pickled")
        self.answers.append((answer, None if isinstance(contents, BaseException) else contents))
        assert len(self.answers) <= self.engine.capacity, "the way back is bounded"

    # The row of the status board.

    def may_run(self, version):
        return self.in_hand is not None or self.engine.oldest <= version

    def begin_ticket(self, version):
        self.version = version

    def end_ticket(self, n_timesteps, running=0):
        pass

    set_phase = end_ticket


class ModelEngine(Engine):
    n_workers = N_WORKERS
    can_retire = True

    def __init__(self, capacity, slowness, lanes):
        self.capacity, self.slowness, self.lanes = capacity, slowness, lanes
        self.processes = [Process(self, number) for number in range(N_WORKERS)]
        self.oldest = 0
        self.events = []
        self.freed = []

    def publish(self, payload):
        return payload

    def unpublish(self, handle):
        assert handle not in self.freed
        self.freed.append(handle)

    def abandon_older(self, version):
        assert version >= self.oldest, "the word never goes back"
        self.oldest = version

    def send(self, worker, message):
        process = self.processes[worker]
        if process.is_alive:
            process.commands.append(message)
            # The bound that lets a send never wait.
            assert sum(not isinstance(sent, Stop | Exit) for sent in process.commands) <= self.capacity
            assert sum(isinstance(sent, Stop) for sent in process.commands) <= 2
            assert sum(isinstance(sent, Exit) for sent in process.commands) <= 1

    def wait(self, timeout):
        events, self.events = self.events, []
        return events

    def progress(self, worker):
        process = self.processes[worker]
        return Progress(process.version, 0, process.trajectory, Phase.STEP)

    def request_progress(self, worker):
        raise AssertionError("there is no time limit")

    def stacks(self, worker):
        return ""

    def kill_worker(self, worker):
        self.processes[worker].die()

    def ran_timesteps(self, worker):
        return 0

    memory_bytes = ran_timesteps

    def restart(self, worker):
        assert not self.processes[worker].is_alive
        self.processes[worker] = Process(self, worker)

    def kill(self):
        raise AssertionError("no sampler is closed here")

    def close(self, *, read_answers=True):
        raise AssertionError("no sampler is closed here")
