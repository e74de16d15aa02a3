"""Who reads tensors that `tensor.concat` joins."""

from torch_mlir import ir

from .products import is_contraction


def read_beside_products(value: ir.Value) -> bool:
    """Whether anybody but products reads a joined tensor, directly or as a part of another one."""
    users = [use.owner.operation for use in value.uses]
    return any(
        read_beside_products(user.results[0]) if user.name == "tensor.concat" else not is_contraction(user) for user in users
    )
