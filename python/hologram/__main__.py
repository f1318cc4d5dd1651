"""`python -m hologram` is the `hologram` command."""

import sys

from ._command import main

sys.exit(main())
