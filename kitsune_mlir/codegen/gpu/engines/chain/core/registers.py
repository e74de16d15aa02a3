"""What a computing warpgroup has for a chain."""

__all__ = ["REGISTERS"]

REGISTERS = 216
"""Of a computing warpgroup's registers, those for sums, factors and tensors between layers."""
