"""What a computing warpgroup and a block have for a chain."""

__all__ = ["LEAST_STAGES", "REGISTERS", "STAGE_BYTES"]

REGISTERS = 216
"""Of a computing warpgroup's registers, those for sums, factors and tensors between layers."""
STAGE_BYTES, LEAST_STAGES = 32768, 3
"""Of the ring for weights that do not stay, where none of their panels is larger."""
