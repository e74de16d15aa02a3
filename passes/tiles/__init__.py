"""Tiles of stages, by engine."""
