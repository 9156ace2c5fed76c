"""What holds for every test, whoever runs it and from where."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Hear Ctrl-C also where a shell runs the tests in its background, and has it ignored: what
    they start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
