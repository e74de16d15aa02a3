"""Layers of few rows by mma.sync."""
