"""`python -m aaren_rl.runs`."""

import sys

from ..starting import start

if __name__ == "__main__":
    sys.exit(start(__package__))
