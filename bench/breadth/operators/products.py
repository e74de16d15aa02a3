"""Products in every form, distances, and attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.breadth.operators.table import flags, layers, table
from bench.case import BenchCase

__all__ = ["products"]


def _matrices() -> list[BenchCase]:
    square, odd = [(2048, 2048)] * 2, [(63, 27), (27, 129)]
    mixed = "bij,bjk->bik"
    wave = [(1 << 17, 128), (128, 128)], [(63, 27), (27, 27)]
    return [
        *table("product", {"mm": torch.mm}, square, odd),
        *table("product", {"mm_odd": torch.mm}, [(2000, 1677), (1677, 1001)], [(7, 1677), (1677, 1)]),
        *table("product", {"tn": lambda a, b: a.t() @ b}, square, [(27, 63), (27, 129)]),
        *table("product", {"nt": lambda a, b: a @ b.t()}, square, [(63, 27), (129, 27)]),
        *table("product", {"tall": torch.mm}, [(1 << 20, 16), (16, 16)], [(1000, 3), (3, 5)]),
        *table("product", {"deep": torch.mm}, [(64, 1 << 16), (1 << 16, 64)], [(5, 1000), (1000, 7)]),
        *table("product", {"addmm": torch.addmm}, [(2048, 2048)] * 3, [(63, 129), *odd]),
        *table("product", {"mm_sin": lambda a, b: torch.sin(a @ b)}, *wave),
        *table("product", {"mm_sin_mm": lambda a, b: torch.sin(a @ b) @ b}, *wave),
        *table("product", {"bmm": torch.bmm}, [(64, 512, 512)] * 2, [(3, 17, 9), (3, 9, 5)]),
        *table("product", {"bmm_many": torch.bmm}, [(8192, 32, 32)] * 2, [(65, 4, 4)] * 2),
        *table("product", {"baddbmm": torch.baddbmm}, [(64, 512, 512)] * 3, [(3, 17, 5), (3, 17, 9), (3, 9, 5)]),
        *table("product", {"broadcast": torch.matmul}, [(16, 8, 256, 64), (64, 256)], [(2, 3, 5, 9), (9, 7)]),
        *table(
            "product",
            {"einsum": lambda a, b: torch.einsum(mixed, a, b)},
            [(64, 256, 512), (64, 512, 256)],
            [(3, 17, 9), (3, 9, 5)],
        ),
        *table(
            "product",
            {"einsum_heads": lambda a, b: torch.einsum("bthd,bshd->bhts", a, b)},
            [(8, 512, 8, 64)] * 2,
            [(2, 9, 3, 8)] * 2,
        ),
        *table(
            "product",
            {"einsum_three": lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c)},
            [(2048, 1024), (1024, 1024), (1024, 512)],
            [(63, 9), (9, 7), (7, 5)],
        ),
        *table(
            "product",
            {"einsum_weighted": lambda a, b, c: torch.einsum("tf,tw,wfo->to", a, b, c)},
            [(4096, 128), (4096, 8), (8, 128, 128)],
            [(17, 9), (17, 3), (3, 9, 5)],
        ),
        *table(
            "product",
            {"tensordot": lambda a, b: torch.tensordot(a, b, 2)},
            [(1024, 32, 64), (32, 64, 512)],
            [(7, 3, 5), (3, 5, 9)],
        ),
        *table(
            "product",
            {"mixing": lambda a, b: (a.transpose(1, 2) @ b).transpose(1, 2)},
            [(32, 196, 768), (196, 384)],
            [(2, 9, 5), (9, 7)],
        ),
        *layers("product", {"linear": lambda: nn.Linear(1024, 4096)}, (4096, 1024), (5, 1024)),
        *layers("product", {"bilinear": lambda: nn.Bilinear(64, 64, 64)}, [(4096, 64)] * 2, [(9, 64)] * 2),
    ]


def _pooled(x: Tensor, y: Tensor) -> Tensor:
    """Rows weighed by how well they match, as in attention pooling."""
    return torch.einsum("bij,bi->bj", x, torch.einsum("bij,bj->bi", x, y).softmax(-1))


def _vectors() -> list[BenchCase]:
    batch = [(4096, 129, 64), (4096, 64)], [(128, 31, 100), (128, 100)]
    columns = [(4096, 129, 64), (4096, 129)], [(128, 31, 100), (128, 31)]
    return [
        *table("product", {"mv": torch.mv}, [(8192, 4096), (4096,)], [(63, 129), (129,)]),
        *table("product", {"vm": lambda x, v: v @ x}, [(8192, 4096), (8192,)], [(63, 129), (63,)]),
        *table("product", {"outer": torch.outer}, [(8192,), (4096,)], [(63,), (129,)]),
        *table("product", {"addr": torch.addr}, [(8192, 4096), (8192,), (4096,)], [(63, 129), (63,), (129,)]),
        *table("product", {"kron": torch.kron}, [(64, 64), (64, 64)], [(3, 5), (7, 9)]),
        *table("product", {"batched_dot": lambda a, b: torch.einsum("bi,bi->b", a, b)}, [(8192, 4096)] * 2, [(63, 129)] * 2),
        *table("product", {"batched_mv": lambda a, b: torch.einsum("bij,bj->bi", a, b)}, *batch),
        *table("product", {"batched_vm": lambda a, b: torch.einsum("bij,bi->bj", a, b)}, *columns),
        *table("product", {"pooled": _pooled}, *batch),
        *table("product", {"cross": lambda a, b: torch.linalg.cross(a, b)}, [(1 << 20, 3)] * 2, [(129, 3)] * 2),
        *table("product", {"cdist": torch.cdist}, [(4096, 64), (2048, 64)], [(63, 3), (27, 3)], ["f32"]),
        *table(
            "product",
            {"squared_distance": lambda a, b: ((a[:, None] - b) ** 2).sum(-1)},
            [(4096, 16), (1024, 16)],
            [(63, 3), (27, 3)],
        ),
        *table("product", {"gram": lambda a: a @ a.t()}, (2048, 1024), (63, 27)),
        *table("product", {"power": lambda a: torch.linalg.matrix_power(a, 3)}, (1024, 1024), (27, 27)),
        *table(
            "product",
            {"chain": lambda a, b, c: torch.chain_matmul(a, b, c)},
            [(1024, 64), (64, 1024), (1024, 512)],
            [(9, 3), (3, 7), (7, 5)],
        ),
    ]


def _attention() -> list[BenchCase]:
    sdpa = F.scaled_dot_product_attention
    large, small = [(4, 16, 1024, 64)] * 3, [(1, 2, 17, 16)] * 3
    forms = {
        "full": sdpa,
        "causal": lambda q, k, v: sdpa(q, k, v, is_causal=True),
        "written": lambda q, k, v: ((q @ k.transpose(-1, -2)) * 0.125).softmax(-1) @ v,
        "linear": lambda q, k, v: F.elu(q) @ (F.elu(k).transpose(-1, -2) @ v),
    }
    grouped = [[(4, 16, 1024, 64), *[(4, 4, 1024, 64)] * 2], [(1, 4, 17, 16), *[(1, 2, 17, 16)] * 2]]
    decode = [[(16, 32, 1, 128), *[(16, 8, 2048, 128)] * 2], [(1, 4, 1, 16), *[(1, 2, 33, 16)] * 2]]
    return [
        *table("attention", forms, large, small),
        *table("attention", {"grouped": lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True)}, *grouped),
        *table("attention", {"decode": lambda q, k, v: sdpa(q, k, v, enable_gqa=True)}, *decode),
        *table(
            "attention",
            {"masked": sdpa},
            [*large, flags(1024, 1024)],
            [*small, lambda m: torch.ones(17, 17, dtype=torch.bool, device=m.device)],
        ),
        *table("attention", {"biased": sdpa}, [*large, (1, 16, 1024, 1024)], [*small, (1, 2, 17, 17)]),
    ]


def products() -> list[BenchCase]:
    """All of them."""
    return [*_matrices(), *_vectors(), *_attention()]
