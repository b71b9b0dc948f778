"""What holds for all tests."""

import os
import signal

from hypothesis import settings

# How progress and colours are shown depends on these. Tests say which of them they are about.
for name in ("CI", "NO_COLOR"):
    os.environ.pop(name, None)
os.environ["TERM"] = "xterm"

# A shell that runs the tests in the background lets them ignore Ctrl-C, and all processes that they start would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How many examples a property is tried with, where examples do not cost so much that the test says it: some each time,
# and many with `-m hypothesis --hypothesis-profile thorough`.
settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("thorough", max_examples=250, deadline=None)
settings.load_profile("quick")
