"""Anything a task may hold, by upstream bufferization and loops."""
