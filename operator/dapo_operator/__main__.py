"""`python -m dapo_operator`: the operator, set up by its environment (docs/operator.md)."""

import sys

from dapo_operator.main import main

if __name__ == "__main__":
    sys.exit(main())
