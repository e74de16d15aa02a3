"""Rows added at indices: by atomics, or in a fixed order."""
