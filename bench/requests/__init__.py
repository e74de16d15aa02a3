"""Workloads of requests and of work that is known only at run time."""
