"""Remove unwanted infos from trajectories for files, and check the others on arrival."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from streamsampler.data.assembly import info_pieces
from streamsampler.data.batch_fields import INFOS
from streamsampler.data.info_columns import InfoColumns
from streamsampler.data.info_selection import InfoSelection, check_pieces, info_name
from streamsampler.data.multi_agent import segments_of_policies
from streamsampler.data.recorder import Rollouts
from streamsampler.data.segments import Segment
from streamsampler.samplers.failures import logger


class FileInfos:
    """Applies the `infos` argument of a call that writes files; inactive while `kept` is None."""

    def __init__(self) -> None:
        self.kept: InfoSelection | None = None
        self._missing: set[str] = set()  # requested names not seen in any info so far

    @contextlib.contextmanager
    def entered(self, kept: InfoSelection) -> Iterator[None]:
        """Be active until the context is left; then warn of requested names that no info had."""
        self.kept, self._missing = kept, set(kept.mentioned)
        try:
            yield
            if self._missing:
                logger.warning("no trajectory had an info %s", " or ".join(map(repr, sorted(self._missing))))
        finally:
            self.kept = None

    def leave_out(self, rollouts: Rollouts) -> None:
        if self.kept is None or self.kept.is_all:
            return
        for each in (rollouts, *(it.rollouts for it in rollouts.policies)):
            for name in INFOS:
                columns: InfoColumns = getattr(each, name)
                if columns.columns:
                    self._missing.difference_update(filter(None, map(info_name, columns.columns)))
                    setattr(each, name, self.kept.of_columns(columns))

    def check(self, segments: Sequence[Segment]) -> None:
        if self.kept is not None and segments:
            each = [segments, *segments_of_policies(segments)]
            check_pieces([(name, piece) for name in INFOS for part in each for piece in info_pieces(part, name)])
