"""The protocol's messages as bytes.

Every ticket costs one message each way, between two sleeps, with caches gone cold. The frequent ones are therefore
written as flat tuples by `marshal`, in a few microseconds, the others by `pickle`. Both ends run the same Python.
"""

from __future__ import annotations

import marshal
import pickle
import struct
from collections.abc import Sequence
from typing import Any

from streamsampler.engines.processes.shared_memory import Region
from streamsampler.protocol.messages import Answer, Checked, Continue, Failure, Message, Report, Ticket

__all__ = ["decode_answer", "decode_command", "encode_answer", "encode_command", "split_records", "with_records"]

_FLAT, _PICKLED, _LOGGED = b"f", b"p", b"l"
_SIZE = struct.Struct("<q")
_LOGGED_BYTE = _LOGGED[0]


def encode_answer(answer: Answer) -> bytes:
    """Return an answer as bytes."""
    if not isinstance(answer, Report):
        return _PICKLED + pickle.dumps(answer, protocol=5)
    # Python's own numbers: marshal takes one of NumPy's for a buffer, and makes bytes of it.
    finished = int(answer.n_trajectories), int(answer.n_timesteps)
    in_vain = int(answer.n_abandoned), int(answer.abandoned_timesteps), int(answer.lost_timesteps)
    seconds, dropped = tuple(map(float, answer.seconds)), tuple(answer.dropped)
    told = None if answer.checked is None else _of_checked(answer.checked)
    values = _of_ticket(answer.ticket), bool(answer.given_up), finished, in_vain, seconds, dropped, told
    return _FLAT + marshal.dumps(values)


def decode_answer(data: memoryview) -> Answer:
    """Return what `encode_answer` wrote."""
    if data[:1] == _PICKLED:
        answer: Answer = pickle.loads(data[1:])
        if not isinstance(answer, Failure | Report):
            raise TypeError(f"{type(answer).__name__} is no answer")
        return answer
    values: Any = marshal.loads(data[1:])  # noqa: S302 - our own worker wrote it
    ticket, given_up, (n_trajectories, n_timesteps), (n_abandoned, n_cut, n_lost), seconds, dropped, told = values
    n_vain = n_abandoned, n_cut
    checked = told and Checked(*told)
    return Report(_ticket(ticket), given_up, n_trajectories, n_timesteps, *n_vain, seconds, dropped, n_lost, checked)


def with_records(records: bytes, answer: bytes = b"") -> bytes:
    """Return an encoded answer, or nothing, with the log records that were made before it."""
    return b"".join((_LOGGED, _SIZE.pack(len(records)), records, answer))


def split_records(data: memoryview) -> tuple[bytes, memoryview]:
    """Return the log records that travel with an encoded answer, none for most, and the answer, if there is one."""
    if data[0] != _LOGGED_BYTE:
        return b"", data
    begin = len(_LOGGED) + _SIZE.size
    end = begin + _SIZE.unpack_from(data, len(_LOGGED))[0]
    return bytes(data[begin:end]), data[end:]


def encode_command(message: Message, released: Sequence[Region]) -> bytes:
    """Return a message to a worker, and the regions of its arena that are free again, as bytes."""
    if isinstance(message, Continue):
        tickets = [_of_ticket(ticket) for ticket in message.tickets]
        return _FLAT + marshal.dumps((tickets, [tuple(region) for region in released]))
    return _PICKLED + pickle.dumps((message, list(released)), protocol=5)


def decode_command(data: bytes) -> tuple[Message, list[Region]]:
    """Return what `encode_command` wrote."""
    if data[:1] == _PICKLED:
        message, released = pickle.loads(memoryview(data)[1:])
        return message, released
    tickets, regions = marshal.loads(memoryview(data)[1:])  # noqa: S302 - our own sampler wrote it
    return Continue(tuple(map(_ticket, tickets))), [Region(*region) for region in regions]


def _of_checked(checked: Checked) -> tuple[Any, ...]:
    numbers = checked.trajectories, checked.timesteps, float(checked.seconds)
    return checked.kind, checked.complete, *numbers, checked.finding, checked.files


def _of_ticket(ticket: Ticket) -> tuple[int, ...]:
    indices = ticket.indices
    return ticket.version, indices.start, indices.stop, indices.step, ticket.block, ticket.enough


def _ticket(values: tuple[int, ...]) -> Ticket:
    version, start, stop, step, block, enough = values
    return Ticket(version, range(start, stop, step), block, enough)
