"""Who reads tensors that `tensor.concat` joins."""

from torch_mlir import ir

from .deep import postorder
from .products import is_contraction


def read_beside_products(value: ir.Value) -> bool:
    """Whether anybody but products reads a joined tensor, directly or as a part of another one."""

    def readers(op: ir.Operation | None) -> list[ir.Operation]:
        if op is not None and op.name != "tensor.concat":
            return []
        return [use.owner.operation for use in (value if op is None else op.results[0]).uses]

    reached = (op for op in postorder([None], readers) if op is not None)
    return any(op.name != "tensor.concat" and not is_contraction(op) for op in reached)
