"""What holds for all tests."""

import signal

# A shell that runs the tests in the background lets them ignore Ctrl-C, and all processes that they start would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
