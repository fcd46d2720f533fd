"""`python -m aaren_rl.import_weights`."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
