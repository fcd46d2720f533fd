"""`python -m aaren_rl.sweep`."""

from .command import main

if __name__ == "__main__":
    raise SystemExit(main())
