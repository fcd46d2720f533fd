"""Takes away what only some systems have, before anything else is imported; the standard library keeps what it has."""

import os
import signal
import subprocess
import sys
import types

subprocess.signal = types.SimpleNamespace(**vars(signal))  # Popen.kill() of a system that has signals
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for module, names in (
    (os, ("fork", "killpg", "getuid", "sched_getaffinity", "sysconf", "getloadavg")),
    (signal, ("SIGKILL", "SIGHUP", "SIGPIPE", "SIGXCPU")),
):
    for name in names:
        delattr(module, name)
