"""What a stage computes, as a hash: equal for equal stages of different models, whatever they are called."""

from __future__ import annotations

import hashlib

from torch_mlir import ir

from kitsune_mlir.dialects.attribute_table import STAGE, declared
from kitsune_mlir.dialects.structure import structure

__all__ = ["stage_key"]

_IGNORED = set(declared(STAGE))


def stage_key(stage: ir.Operation, *context: str) -> str:
    """A hash of a stage's operations, types and attributes, without names, locations and its schedule.

    Args:
        context: what else a measurement depends on (target, version of the compiler).
    """
    text = "\n".join([*context, *structure(stage, {}, _IGNORED)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
