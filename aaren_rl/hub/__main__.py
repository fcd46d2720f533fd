"""`python -m aaren_rl.hub`."""

import sys

from ..base.entry import start

if __name__ == "__main__":
    sys.exit(start(__package__))
