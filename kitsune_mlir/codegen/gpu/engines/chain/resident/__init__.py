"""Chains whose layers have accumulators for all their columns."""
