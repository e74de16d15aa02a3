"""Where the packages are: `kitsune_mlir` itself, and the top-level folders that are installed below it.

Everything else stands in pyproject.toml, which cannot say that packages found in a folder get another name.
"""

from setuptools import find_packages, setup

BELOW = ("dialects", "passes", "tools")
FOUND = find_packages(include=[pattern for folder in ("kitsune_mlir", *BELOW) for pattern in (folder, f"{folder}.*")])

setup(
    packages=[package if package.startswith("kitsune_mlir") else f"kitsune_mlir.{package}" for package in FOUND],
    package_dir={"kitsune_mlir": "kitsune_mlir", **{f"kitsune_mlir.{folder}": folder for folder in BELOW}},
)
