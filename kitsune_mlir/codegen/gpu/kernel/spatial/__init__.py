"""Spatial programs: stages that own multiprocessors, and queues between them."""
