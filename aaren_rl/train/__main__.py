"""`python -m aaren_rl.train`, and by it `torchrun -m aaren_rl.train`."""

import sys

from ..__main__ import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
