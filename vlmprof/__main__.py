"""`python -m vlmprof` is the `vlmprof` program."""

import sys

from vlmprof.commands.main import main

sys.exit(main())
