"""Tests send signals to processes that they start, and those ignore what is ignored here, as it is under nohup."""

import signal

for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        # A handler is not inherited, as SIG_IGN is: this process stays deaf, those that it starts are not.
        signal.signal(number, lambda *_: None)
