"""`python -m aaren_rl.train`, and by it `torchrun -m aaren_rl.train`."""

import sys

from ..base.process import start

if __name__ == "__main__":
    sys.exit(start("aaren_rl.train"))
