"""The benchmark programs: the zoo of models and what measures them."""

import os

# What is measured was made by this version, with what it patches.
os.environ.setdefault("KITSUNE_CACHE", "0")
