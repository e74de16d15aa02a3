"""The tests, and the programs that tests on a device are made of."""

import os

# Tests compile: what they find must not depend on what was kept before, nor on options that they patch.
os.environ.setdefault("KITSUNE_CACHE", "0")
