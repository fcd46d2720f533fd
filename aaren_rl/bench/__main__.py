"""`python -m aaren_rl.bench`."""

from .command import main

if __name__ == "__main__":
    raise SystemExit(main())
