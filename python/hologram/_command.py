"""The `hologram` command, which is part of the native module."""

import signal
import sys

from . import _native


def main() -> int:
    # Ctrl-C ends the command as it ends the binary; Python's handler would wait for the interpreter.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.command(["hologram", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
