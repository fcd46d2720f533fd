"""`python -m aaren_rl.export`."""

from .command import main

if __name__ == "__main__":
    raise SystemExit(main())
