"""The version that the server is to report."""

import os
import subprocess

__version__ = subprocess.check_output([os.environ.get("HOLOGRAM", "hologram"), "--version"], text=True).split()[1]
