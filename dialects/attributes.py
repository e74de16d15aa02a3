"""Schedule attributes of the stage graph: where an edge lives and how its two ends synchronise."""

from torch_mlir import ir

from .kitsune import Kitsune

SPACES = ("register", "shared", "queue", "global")
POLICIES = ("tile", "row", "strided", "halo", "indexed", "all", "none")


class BufferAttr(Kitsune.Attribute, name="buffer"):
    """`#kitsune.buffer<"space", depth>`: where a stage's result lives. Set by `kitsune-place-buffers`.

    `space` is one of register, shared, queue (ring in L2), global;
    `depth` is the number of tiles a ring holds (1 elsewhere).
    """

    space: ir.StringAttr
    depth: ir.IntegerAttr


class SyncAttr(Kitsune.Attribute, name="sync"):
    """`#kitsune.sync<"policy">`: what a consumer tile waits for. Derived from the affine maps by `kitsune-synchronize`.

    `tile`: the producer tiles that hold its elements; `row`: every producer tile of its rows; `strided`: rows a fixed
    stride apart; `halo`: its rows and their neighbours (convolutions); `indexed`: the tiles that hold the rows which indices
    of the tile name (gathers); `all`: the whole producer stage; `none`: nothing (the operand is an argument of the pipeline).
    (cuSync, section 3.)
    """

    policy: ir.StringAttr


def buffer_attr(space: str, depth: int = 1) -> ir.Attribute:
    """The attribute `#kitsune.buffer<"space", depth : i64>`."""
    return ir.Attribute.parse(f'#kitsune.buffer<"{space}", {depth} : i64>')


def sync_attr(policy: str) -> ir.Attribute:
    """The attribute `#kitsune.sync<"policy">`."""
    return ir.Attribute.parse(f'#kitsune.sync<"{policy}">')
