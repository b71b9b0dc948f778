"""Ctrl-C in programs that a shell runs in the background."""

import signal

__all__ = ["restore_ctrl_c"]


def restore_ctrl_c() -> None:
    """Undo that a shell lets what it runs in the background ignore SIGINT: every process started here would, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
