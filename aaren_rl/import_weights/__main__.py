"""`python -m aaren_rl.import_weights`."""

import sys

from ..base.entry import start

if __name__ == "__main__":
    sys.exit(start(__package__))
