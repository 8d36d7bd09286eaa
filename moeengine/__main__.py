"""`python -m moeengine` is the command line."""

import sys

from moeengine.cli import main

if __name__ == "__main__":
    sys.exit(main())
