"""The helper's first line of Python.

It makes the helper's package importable, and gives calls back the variables that
`supervisor init` keeps away from the helper's own C library.
"""

import os
import sys

SET_ASIDE = "RUNNER_SET_ASIDE_"

for name in [name for name in os.environ if name.startswith(SET_ASIDE)]:
    os.environ[name.removeprefix(SET_ASIDE)] = os.environ.pop(name)

sys.path.append("/.runner/app")

from runner.helper.__main__ import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
