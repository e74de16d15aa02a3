"""Attentions of every kind that the engine does: as modules, with random inputs, and what they compute in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = [
    "CASES",
    "SMALL",
    "TIMED",
    "TRAINED",
    "TRAINED_TIMED",
    "Case",
    "inputs_of",
    "keys_of",
    "model_of",
    "reference",
    "thirds",
]


@dataclasses.dataclass(frozen=True)
class Case:
    """One attention.

    Attributes:
        batch, heads, kv_heads, rows, keys, width: extents; `head` those of v's elements (default: width).
        causal: row i attends to keys 0 ... i.
        mask: "" or what is masked: "float" [rows, keys] added, "heads" [batch, heads, rows, keys] added, "padding"
            [batch, 1, 1, keys] bool, "rows" [batch, 1, rows, keys] bool with rows without any key, "length" an i64 that says
            which key is the last one of row 0; each row has one more.
        layout: "bhsd" as torch wants it; "bshd": heads inside rows, transposed in the model; "fused": q, k and v are thirds
            of one tensor.
        cached: keys and values are concatenations of `cached` old ones and `keys - cached` new ones, which come in "bshd".
        dtype: "bf16" or "f16".
        scale: factor of the scores; None is 1 / sqrt(width).
        dropout: chance that a probability is dropped; training only.
        made: q, k and v, but for cached ones, are made by another stage (as the inputs' positive parts).
    """

    batch: int
    heads: int
    kv_heads: int
    rows: int
    keys: int
    width: int
    head: int = 0
    causal: bool = False
    mask: str = ""
    layout: str = "bhsd"
    cached: int = 0
    dtype: str = "bf16"
    scale: float | None = None
    dropout: float = 0.0
    made: bool = False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs, in order."""
        head = self.head or self.width
        found: dict[str, tuple[int, ...]] = {"q": self._shape(self.heads, self.rows, self.width)}
        if self.layout == "fused":
            found = {"qkv": (self.batch, self.rows, 3 * self.heads * self.width)}
        elif self.cached:
            found |= {
                "old_k": (self.batch, self.kv_heads, self.cached, self.width),
                "old_v": (self.batch, self.kv_heads, self.cached, head),
                "k": (self.batch, self.keys - self.cached, self.kv_heads, self.width),
                "v": (self.batch, self.keys - self.cached, self.kv_heads, head),
            }
        else:
            found["k"] = self._shape(self.kv_heads, self.keys, self.width)
            found["v"] = self._shape(self.kv_heads, self.keys, head)
        if self.dropout:
            found["seed"] = ()
        masks = {
            "float": (self.rows, self.keys),
            "heads": (self.batch, self.heads, self.rows, self.keys),
            "padding": (self.batch, 1, 1, self.keys),
            "rows": (self.batch, 1, self.rows, self.keys),
            "length": (),
        }
        return found | ({"mask": masks[self.mask]} if self.mask else {})

    def _shape(self, heads: int, rows: int, width: int) -> tuple[int, ...]:
        return (self.batch, heads, rows, width) if self.layout == "bhsd" else (self.batch, rows, heads, width)


SMALL: dict[str, Case] = {
    "plain": Case(2, 4, 4, 256, 256, 64),
    "causal": Case(2, 4, 4, 512, 512, 128, causal=True),
    "width_128": Case(1, 2, 2, 384, 640, 128),
    "width_80": Case(1, 3, 3, 256, 256, 80),
    "width_96": Case(1, 3, 3, 200, 300, 96, causal=False),
    "width_256": Case(1, 2, 2, 256, 384, 256, causal=False),
    "width_256_causal": Case(1, 2, 2, 320, 320, 256, causal=True),
    "width_16": Case(2, 2, 2, 100, 100, 16),
    "width_40_head_24": Case(1, 2, 2, 130, 150, 40, head=24),
    "f16": Case(2, 4, 4, 256, 256, 64, dtype="f16"),
    "f16_causal": Case(1, 4, 4, 300, 300, 128, causal=True, dtype="f16"),
    "grouped": Case(2, 8, 2, 256, 256, 128, causal=True),
    "grouped_bshd": Case(2, 8, 2, 256, 256, 128, causal=True, layout="bshd"),
    "bshd": Case(2, 4, 4, 256, 256, 64, layout="bshd"),
    "fused": Case(2, 4, 4, 200, 200, 64, causal=True, layout="fused"),
    "keys_1000": Case(1, 2, 2, 1000, 1000, 64),
    "keys_1000_causal": Case(1, 2, 2, 1000, 1000, 128, causal=True),
    "keys_129_causal": Case(2, 2, 2, 129, 129, 64, causal=True),
    "keys_7": Case(2, 3, 3, 7, 7, 64),
    "keys_7_causal": Case(2, 3, 3, 7, 7, 64, causal=True),
    "rows_1": Case(3, 4, 4, 1, 129, 64),
    "cross": Case(2, 4, 4, 300, 77, 64),
    "cross_long": Case(1, 2, 2, 65, 1000, 128),
    "causal_wide": Case(1, 2, 2, 256, 700, 64, causal=True),
    "causal_tall": Case(1, 2, 2, 700, 256, 64, causal=True),
    "float_mask": Case(2, 4, 4, 256, 256, 64, mask="float"),
    "head_mask": Case(2, 4, 4, 200, 264, 64, mask="heads"),
    "head_mask_grouped": Case(2, 4, 2, 200, 264, 64, mask="heads"),
    "padding_mask": Case(3, 4, 4, 128, 200, 64, mask="padding"),
    "row_mask": Case(2, 4, 4, 130, 130, 64, mask="rows"),
    "negative_scale": Case(1, 2, 2, 130, 130, 64, scale=-0.3),
    "large_scale": Case(1, 2, 2, 130, 130, 64, scale=4.0),
    "decode": Case(2, 8, 2, 1, 1000, 128),
    "decode_16": Case(2, 8, 2, 16, 512, 128),
    "decode_mask": Case(2, 8, 2, 1, 500, 64, mask="padding"),
    "decode_cached": Case(2, 8, 2, 1, 513, 128, cached=512),
    "decode_cached_3": Case(2, 8, 2, 3, 103, 64, cached=100),
    "decode_width_256": Case(2, 4, 2, 1, 300, 256),
    "prefill_cached": Case(1, 4, 2, 130, 330, 64, cached=200),
    "plain_many": Case(6, 12, 12, 256, 256, 64),  # these are so many that tiles have 128 rows
    "causal_many": Case(5, 16, 4, 400, 400, 128, causal=True),
    "keys_1000_many": Case(3, 16, 8, 1000, 1000, 64, causal=True, layout="bshd"),
    "row_mask_many": Case(12, 12, 12, 130, 130, 64, mask="rows"),
    "decode_made": Case(2, 8, 2, 1, 1001, 128, cached=1000, made=True),
    "decode_made_many": Case(40, 16, 8, 1, 300, 64, cached=297, made=True),
    "decode_made_7": Case(3, 4, 2, 7, 16, 128, cached=9, made=True),
    "decode_made_256": Case(20, 16, 8, 1, 1001, 256, cached=1000, made=True),
    "decode_length": Case(2, 8, 2, 1, 1000, 128, mask="length"),
    "decode_length_256": Case(1, 4, 2, 1, 300, 256, mask="length"),
    "decode_length_3": Case(2, 8, 2, 3, 500, 64, mask="length"),
    "decode_length_many": Case(40, 16, 8, 1, 300, 64, mask="length"),
    "prefill_length": Case(1, 4, 2, 130, 700, 64, mask="length"),
    "length_many": Case(12, 12, 12, 130, 530, 128, mask="length"),
    "causal_made": Case(2, 4, 4, 300, 300, 128, causal=True, layout="fused", made=True),
}

TIMED: dict[str, Case] = {
    "prefill_4096": Case(1, 32, 32, 4096, 4096, 128, causal=True),
    "prefill_4096_full": Case(1, 32, 32, 4096, 4096, 128),
    "encoder_1024": Case(4, 16, 16, 1024, 1024, 64),
    "bert_512": Case(8, 12, 12, 512, 512, 64, mask="padding"),
    "prefill_4096_64": Case(1, 32, 32, 4096, 4096, 64, causal=True),
    "prefill_2048_256": Case(1, 16, 16, 2048, 2048, 256, causal=True),
    "grouped_2048": Case(1, 32, 8, 2048, 2048, 128, causal=True),
    "decode_16_8192": Case(16, 32, 8, 1, 8192, 128),
    "decode_1_1024": Case(1, 32, 8, 1, 1024, 128),
    "decode_1_8192": Case(1, 32, 8, 1, 8192, 128),
    "decode_16_8192_length": Case(16, 32, 8, 1, 8192, 128, mask="length"),
    "decode_1_8192_length": Case(1, 32, 8, 1, 8192, 128, mask="length"),
}

CASES = {**SMALL, **TIMED}

TRAINED: dict[str, Case] = {
    "plain": Case(2, 4, 4, 256, 256, 64),
    "causal": Case(2, 4, 4, 512, 512, 128, causal=True),
    "grouped": Case(2, 8, 2, 256, 256, 128, causal=True),
    "grouped_plain": Case(1, 8, 2, 200, 136, 64),
    "bshd": Case(2, 4, 2, 256, 256, 64, causal=True, layout="bshd"),
    "f16": Case(1, 4, 4, 300, 300, 128, causal=True, dtype="f16"),
    "width_80": Case(1, 3, 3, 256, 256, 80),
    "width_40_head_24": Case(1, 2, 2, 130, 150, 40, head=24),
    "width_136": Case(1, 3, 3, 150, 200, 136),
    "width_160_causal": Case(1, 2, 2, 300, 300, 160, causal=True),
    "width_192_head_128": Case(1, 2, 2, 256, 256, 192, head=128, causal=True),
    "width_64_head_256": Case(1, 2, 2, 130, 257, 64, head=256),
    "width_200_f16": Case(1, 4, 2, 129, 129, 200, causal=True, dtype="f16"),
    "width_256": Case(2, 2, 2, 300, 300, 256),
    "width_256_causal": Case(1, 4, 2, 500, 500, 256, causal=True),
    "width_256_row_mask": Case(1, 2, 2, 130, 130, 256, mask="rows"),
    "width_256_float_mask": Case(1, 2, 2, 129, 100, 256, mask="float"),
    "keys_1000": Case(1, 2, 2, 1000, 1000, 64),
    "keys_1000_causal": Case(1, 2, 2, 1000, 1000, 128, causal=True),
    "keys_129_causal": Case(2, 2, 2, 129, 129, 64, causal=True),
    "keys_7": Case(2, 3, 3, 7, 7, 64),
    "keys_7_causal": Case(2, 3, 3, 7, 7, 64, causal=True),
    "rows_1": Case(3, 4, 4, 1, 129, 64),
    "cross": Case(2, 4, 4, 300, 77, 64),
    "causal_wide": Case(1, 2, 2, 256, 700, 64, causal=True),
    "causal_tall": Case(1, 2, 2, 700, 256, 64, causal=True),
    "dropout": Case(2, 4, 4, 256, 256, 64, dropout=0.1),
    "dropout_causal": Case(1, 4, 2, 500, 500, 128, causal=True, dropout=0.3),
    "dropout_row_mask": Case(2, 2, 2, 130, 150, 80, mask="rows", dropout=0.5),
    "dropout_256": Case(1, 2, 2, 129, 129, 256, causal=True, dropout=0.2),
    "scale": Case(1, 2, 2, 130, 130, 64, scale=-0.3),
    "many": Case(5, 16, 4, 400, 400, 128, causal=True),
    "row_mask": Case(2, 4, 4, 130, 130, 64, mask="rows"),
    "padding_mask": Case(3, 4, 4, 128, 200, 64, mask="padding"),
    "length": Case(1, 4, 2, 130, 200, 64, mask="length"),
    "float_mask": Case(2, 4, 4, 256, 256, 128, mask="float"),
    "head_mask_grouped": Case(2, 4, 2, 200, 264, 64, mask="heads"),
}
"""Attentions with their gradients."""

TRAINED_TIMED: dict[str, Case] = {
    "step_4096": Case(1, 32, 32, 4096, 4096, 128, causal=True),
    "step_2048_grouped": Case(1, 32, 8, 2048, 2048, 128, causal=True),
    "step_4096_64": Case(1, 32, 32, 4096, 4096, 64, causal=True),
    "step_4096_dropout": Case(1, 32, 32, 4096, 4096, 128, causal=True, dropout=0.1),
    "step_1024_dropout": Case(4, 16, 16, 1024, 1024, 64, dropout=0.1),
    "step_1024_plain": Case(4, 16, 16, 1024, 1024, 64),
    "step_2048_256": Case(1, 16, 16, 2048, 2048, 256, causal=True),
    "step_2048_192": Case(1, 16, 16, 2048, 2048, 192, causal=True),
    "step_1024_256_plain": Case(2, 16, 16, 1024, 1024, 256),
    "step_512_padding": Case(8, 12, 12, 512, 512, 64, mask="padding"),
}


def model_of(case: Case) -> Any:
    """The attention as a module of its inputs."""
    import torch

    class Model(torch.nn.Module):
        def forward(self, q, *rest):
            mask = rest[-1] if case.mask else None
            if case.mask == "length":
                mask = keys_of(case, mask)
            if case.made:
                q, rest = q.relu(), (*rest[:-2], *(tensor.relu() for tensor in rest[-2:]))
            if case.layout == "fused":
                q, k, v = thirds(case, q)
            elif case.cached:
                old_k, old_v, k, v = rest[:4]
                k = torch.cat([old_k, k.transpose(1, 2)], 2)
                v = torch.cat([old_v, v.transpose(1, 2)], 2)
            else:
                k, v = rest[:2]
                if case.layout == "bshd":
                    k, v = k.transpose(1, 2), v.transpose(1, 2)
            if case.layout == "bshd":
                q = q.transpose(1, 2)
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=case.causal, scale=case.scale, enable_gqa=case.heads != case.kv_heads
            )

    return Model()


def keys_of(case: Case, length: Any) -> Any:
    """Which keys each row has, [rows, keys] bool."""
    import torch

    keys, rows = (torch.arange(n, device=length.device) for n in (case.keys, case.rows))
    return keys <= (length + rows)[:, None]


def thirds(case: Case, fused: Any) -> list[Any]:
    """q, k and v of a fused tensor, as torch wants them."""
    shape = (case.batch, case.rows, case.heads, case.width)
    return [part.view(shape).transpose(1, 2) for part in fused.split(case.heads * case.width, dim=-1)]


def inputs_of(case: Case, device: str) -> dict[str, Any]:
    """Random inputs."""
    import torch

    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[case.dtype]
    found = {}
    for name, shape in case.shapes.items():
        if name == "mask" and case.mask in ("padding", "rows"):
            mask = torch.rand(shape, device=device) < 0.7
            if case.mask == "rows":
                mask[:, :, ::5] = False
            else:
                mask[..., 0] = True
            found[name] = mask
        elif name == "seed":
            found[name] = torch.randint(0, 1 << 62, shape, device=device)
        elif (name, case.mask) == ("mask", "length"):
            found[name] = torch.tensor(case.keys // 3, device=device)
        else:
            found[name] = torch.randn(shape, device=device).to(dtype)
    return found


def reference(case: Case, given: dict[str, Any]) -> Any:
    """The result in float64; rows without any key are 0."""
    import torch

    from kitsune_mlir.frontend.gradients.attention import Dropout

    q, k, v = thirds(case, given["qkv"].double()) if "qkv" in given else (given[name].double() for name in "qkv")
    if case.made:
        q, k, v = q.relu(), k.relu(), v.relu()
    if case.cached:
        k = torch.cat([given["old_k"].double(), k.transpose(1, 2)], 2)
        v = torch.cat([given["old_v"].double(), v.transpose(1, 2)], 2)
    elif case.layout == "bshd":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    q = q.transpose(1, 2) if case.layout == "bshd" else q
    group = case.heads // case.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (case.width**-0.5 if case.scale is None else case.scale)
    if case.causal:
        keep = torch.ones(case.rows, case.keys, dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~keep, float("-inf"))
    if case.mask == "length":
        scores = scores.masked_fill(~keys_of(case, given["mask"]), float("-inf"))
    elif case.mask in ("padding", "rows"):
        scores = scores.masked_fill(~given["mask"], float("-inf"))
    elif case.mask:
        scores = scores + given["mask"].double()
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    if case.dropout:
        weights = Dropout(given["seed"], case.dropout)(weights)
    return weights @ v
