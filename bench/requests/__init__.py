"""Measurements of work that is known only when it arrives: requests of independent clients."""
