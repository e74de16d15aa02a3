"""Serving: requests of independent clients, joined into launches and ordered by deadlines."""
