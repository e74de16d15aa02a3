"""Some of PyTorch's own operator samples on the host target, others each turn; `make opinfo` runs all of them."""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from test.opinfo import try_gradients, try_sample
from test.rotation import in_turn

NAMES = (
    ["add", "mul", "div", "exp", "tanh", "sigmoid", "erf", "where", "clamp", "sum", "mean", "amax", "prod", "cumsum", "matmul"]
    + ["bmm", "addmm", "linalg.vecdot", "softmax", "log_softmax", "cat", "stack", "gather", "index_select", "index_add", "roll"]
    + ["scatter_add", "transpose", "permute", "reshape", "expand", "flip", "tril", "masked_fill", "sort", "argmax", "topk"]
    + ["nn.functional.linear", "nn.functional.conv2d", "nn.functional.layer_norm", "nn.functional.gelu", "nn.functional.pad"]
    + [
        "nn.functional.max_pool2d",
        "nn.functional.embedding",
        "nn.functional.batch_norm",
        "nn.functional.scaled_dot_product_attention",
    ]
)
OPS = [op for op in op_db if op.name in NAMES]
pytestmark = pytest.mark.timeout(7200)  # where all samples are asked for, one operator has hundreds


@pytest.mark.rotated(14)
@pytest.mark.parametrize("op", OPS, ids=lambda op: f"{op.name}.{op.variant_test_name}".rstrip("."))
def test_samples(op) -> None:
    for dtype in (torch.float32, torch.int64):
        if not op.supports_dtype(dtype, "cpu"):
            continue
        torch.manual_seed(0)
        for sample in in_turn(list(op.sample_inputs("cpu", dtype, requires_grad=False)), 1):
            outcome, detail = try_sample(op, sample)
            assert outcome not in ("wrong", "crash"), detail


@pytest.mark.parametrize("op", in_turn([op for op in OPS if op.supports_autograd], 5), ids=lambda op: op.name)
def test_gradients(op) -> None:
    torch.manual_seed(0)
    for sample in in_turn(list(op.sample_inputs("cpu", torch.float32, requires_grad=False)), 1):
        outcome, detail = try_gradients(op, sample)
        assert outcome not in ("wrong", "crash"), detail
