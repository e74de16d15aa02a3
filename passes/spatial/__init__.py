"""Spatial pipelines: how many multiprocessors each stage owns, and results that go through rings."""
