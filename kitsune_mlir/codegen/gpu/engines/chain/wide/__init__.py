"""Chains of wide layers, in passes over their columns."""
