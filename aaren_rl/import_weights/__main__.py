"""`python -m aaren_rl.import_weights`."""

from .command import main

if __name__ == "__main__":
    raise SystemExit(main())
