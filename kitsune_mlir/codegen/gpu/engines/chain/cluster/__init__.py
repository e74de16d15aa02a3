"""Chains by clusters of blocks, each with a slice of every layer."""
