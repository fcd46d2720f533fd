"""`python -m aaren_rl.hub`."""

from .command import main

if __name__ == "__main__":
    raise SystemExit(main())
