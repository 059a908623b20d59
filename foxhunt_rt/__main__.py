"""`python -m foxhunt_rt` is the command `foxhunt-rt`."""

import sys

from foxhunt_rt.cli import main

if __name__ == "__main__":
    sys.exit(main())
