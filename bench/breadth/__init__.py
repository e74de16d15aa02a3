"""The breadth benchmark: models that the compiler was not built around, beside the same peers."""
