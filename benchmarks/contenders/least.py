"""Collect with as little work in the parent as possible: a lower bound, not a library.

Forked workers run tickets of whole trajectories, seeded as in the bare loop, and store them in memory that is shared.
The parent sleeps until a worker answers, appends a copy of the worker's data to the batch, and sends the next ticket.
A call ends with the last ticket's answer; the batch belongs to its caller. The parent orders, checks and restarts
nothing, and gets no lengths, ends and infos.

Settings:
    ticket: Timesteps after whose trajectory a ticket ends (default: what a report of this library holds, nearly).
    copied: Whether the parent copies the data (default True). Otherwise they stay where the worker wrote them, in
        memory for a whole batch.
    anew: Whether that memory is new for each batch (default False: the next batch reuses it). Callers that keep their
        batches need that, and callers whose forked copies may still hold them.
"""

from __future__ import annotations

import mmap
import os
import pickle
import selectors
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.contenders.bare import seeded_begin
from benchmarks.harness.contender import Measure, serve
from benchmarks.problems.workloads import Workload, checksum

_LONGEST = 1000
_TICKETS = {
    "cheap_20": 3_300,
    "cheap_500": 3_500,
    "short": 3_000,
    "mlp_cartpole": 500,
    "mlp_cartpole_500": 500,
    "pixels": 500,
    "sleepers": 20,
    "sleepers_128": 20,
}
_LONG_TICKET = 1_000
_LARGEST_MESSAGE = 1 << 16
_ANSWER = struct.Struct("=qq")  # the region's number, and timesteps in it

Columns = list[np.ndarray]


class Regions:
    """Hold memory that a worker writes and the parent reads, allocated before the worker starts.

    Args:
        workload: Its spaces and an agent's action say what a row is.
        n_regions: How many there are.
        n_rows: The timesteps that each of them holds.
    """

    def __init__(self, workload: Workload, n_regions: int, n_rows: int) -> None:
        env, agent = workload.make_env(), workload.bare_agent()
        if workload.parameters is not None:
            agent.set_param_values(workload.parameters(0))
        action = np.asarray(agent.get_action(env.reset(seed=0)[0])[0])
        space = env.observation_space
        self._memory: list[mmap.mmap] = []
        self.kinds = [(space.shape, space.dtype), (action.shape, action.dtype), ((), np.dtype(np.float64))]
        self.columns = [self._columns(n_rows) for _ in range(n_regions)]

    def _columns(self, n_rows: int) -> Columns:
        return [self._column(n_rows, shape, dtype) for shape, dtype in self.kinds]

    def _column(self, n_rows: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        memory = mmap.mmap(-1, max(1, n_rows * int(np.prod(shape)) * dtype.itemsize))
        self._memory.append(memory)
        return np.frombuffer(memory, dtype, n_rows * int(np.prod(shape))).reshape(n_rows, *shape)

    def renew(self) -> None:
        """Return the memory to the system; the next write gets new pages."""
        for memory in self._memory:
            memory.madvise(mmap.MADV_REMOVE)

    def fresh(self, n_rows: int) -> Columns:
        """Return private memory of the same kind."""
        return [np.empty((n_rows, *shape), dtype) for shape, dtype in self.kinds]


def work(workload: Workload, number: int, ticket: int, regions: Regions, link: socket.socket) -> None:
    """Run tickets until the parent is gone: a message is a region's number and perhaps pickled parameters."""
    env, agent = workload.make_env(), workload.bare_agent()
    begin = seeded_begin(env, agent, number)
    while message := link.recv(_LARGEST_MESSAGE):
        if message[1:]:
            agent.set_param_values(pickle.loads(message[1:]))
        n = _run(env, agent, begin, ticket, regions.columns[message[0]])
        link.send(_ANSWER.pack(message[0], n))


def _run(env: Any, agent: Any, begin: Any, ticket: int, columns: Columns) -> int:
    step, get_action = env.step, agent.get_action
    rows, actions, rewards = columns
    kept_actions, kept_rewards = [], []
    t = 0
    while t < ticket:
        observation = begin()
        ended = False
        while not ended:
            rows[t] = observation
            action, _ = get_action(observation)
            observation, reward, terminated, truncated, _ = step(action)
            kept_actions.append(action)
            kept_rewards.append(reward)
            t += 1
            ended = terminated or truncated
    actions[:t] = kept_actions
    rewards[:t] = kept_rewards
    return t


class Call:
    """One batch.

    Args:
        parent: The parent that collects it.
        parameters: What each worker gets with its first ticket, pickled.
    """

    def __init__(self, parent: Parent, parameters: bytes) -> None:
        self.parent = parent
        self.n = self.n_reports = 0
        self._news = [parameters] * len(parent.links)
        self._free = [list(range(len(regions.columns))) for regions in parent.regions]
        self._handed = self._under_way = 0
        batch, ticket = parent.workload.batch, parent.ticket
        room = batch + (len(parent.links) + 1) * (ticket + _LONGEST) if parent.copied else 0
        self._whole = parent.regions[0].fresh(room)
        self._parts: list[np.ndarray] = []

    def run(self) -> None:
        """Send tickets, and join what comes back."""
        parent = self.parent
        for _ in range(2):  # one in hand, and the next
            for number in range(len(parent.links)):
                self._hand(number)
        while self._under_way:
            for key, _ in parent.selector.select():
                region, count = _ANSWER.unpack(parent.links[key.data].recv(_LARGEST_MESSAGE))
                self._take(key.data, region, count)
                self._hand(key.data)
        if parent.workload.reads_batch:
            for part in self._parts or [self._whole[0][: self.n]]:
                checksum(part)
        for regions in parent.regions if parent.anew else ():
            regions.renew()

    def _hand(self, number: int) -> None:
        parent = self.parent
        if self._handed >= parent.workload.batch or not self._free[number]:
            return
        parent.links[number].send(bytes([self._free[number].pop()]) + self._news[number])
        self._news[number] = b""
        self._handed += parent.ticket
        self._under_way += 1

    def _take(self, number: int, region: int, count: int) -> None:
        columns = self.parent.regions[number].columns[region]
        if self.parent.copied:
            for into, column in zip(self._whole, columns, strict=True):
                into[self.n : self.n + count] = column[:count]
            self._free[number].append(region)
        else:
            self._parts.append(columns[0][:count])
        self._handed += count - self.parent.ticket
        self.n += count
        self.n_reports += 1
        self._under_way -= 1


class Parent:
    """Makes one call after the other."""

    def __init__(
        self, workload: Workload, ticket: int, settings: dict[str, Any], links: list[socket.socket],
        regions: list[Regions],
    ) -> None:  # fmt: skip
        self.workload, self.ticket = workload, ticket
        self.copied, self.anew = settings.get("copied", True), settings.get("anew", False)
        self.links, self.regions = links, regions
        self.iteration = 0
        self.selector = selectors.DefaultSelector()
        for number, link in enumerate(links):
            self.selector.register(link, selectors.EVENT_READ, number)

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call until the time is over or there are timesteps enough."""
        seconds, enough = request.get("seconds", 1e9), request.get("timesteps", 2**62)
        timesteps = reports = 0
        parent, begin = time.process_time(), time.perf_counter()
        now = begin
        while now - begin < seconds and timesteps < enough:
            call = Call(self, self._parameters())
            call.run()
            timesteps, reports = timesteps + call.n, reports + call.n_reports
            now = time.perf_counter()
        return {
            "timesteps": timesteps,
            "seconds": now - begin,
            "parent_cpu": time.process_time() - parent,
            "reports": reports,
        }

    def _parameters(self) -> bytes:
        if self.workload.parameters is None:
            return b""
        self.iteration += 1
        return pickle.dumps(self.workload.parameters(self.iteration), pickle.HIGHEST_PROTOCOL)


@contextmanager
def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> Iterator[Measure]:
    """Fork the workers."""
    ticket, copied = settings.get("ticket", _TICKETS.get(workload.name, _LONG_TICKET)), settings.get("copied", True)
    # In hand and the next; or a worker's share twice over, if the others are slow.
    n_regions = 2 if copied else 2 * -(-workload.batch // (n_processes * ticket)) + 2
    links, all_regions, pids = [], [], []
    for number in range(n_processes):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        regions = Regions(workload, n_regions, ticket + _LONGEST)
        pid = os.fork()
        if pid == 0:
            for link in [*links, ours]:
                link.close()
            try:
                work(workload, number, ticket, regions, theirs)
            finally:
                os._exit(0)
        theirs.close()
        links.append(ours)
        all_regions.append(regions)
        pids.append(pid)
    parent = Parent(workload, ticket, settings, links, all_regions)
    parent.measure({"timesteps": 2 * workload.batch})
    try:
        yield parent.measure
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    serve(contender, packages=["gymnasium", "numpy"])
