"""Gathers whose index is the same for whole rows read rows; others stay gathers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from kitsune_mlir.frontend.aten import traced_table

aten = torch.ops.aten


def _columns(index: Tensor, *sizes: int) -> Tensor:
    return index.view(-1, *[1] * len(sizes)).expand(-1, *sizes)


ROWS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows": lambda x, i: x.gather(0, _columns(i, x.shape[1])),
    "from_the_end": lambda x, i: x.gather(-2, _columns(i, x.shape[1])),
    "columns": lambda x, i: x.t().gather(1, i.expand(x.shape[1], -1)),
    "of_images": lambda x, i: x.view(-1, 3, 2).gather(0, _columns(i, 3, 2)),
    "broadcast_late": lambda x, i: x.gather(0, i.unsqueeze(1).expand(-1, 1).expand(-1, x.shape[1])),
}
ELEMENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "some_columns": lambda x, i: x.gather(0, _columns(i, x.shape[1] - 1)),
    "own_numbers": lambda x, i: x.gather(0, _columns(i, x.shape[1]).contiguous()),
    "along_the_columns": lambda x, i: x.gather(1, _columns(i, 4)),
}


def _targets(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, index: Tensor) -> list[object]:
    graph = make_fx(function, decomposition_table=traced_table(late=False), tracing_mode="fake")(x, index)
    assert torch.equal(graph(x, index), function(x, index))
    return [node.target for node in graph.graph.nodes]


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    x, index = torch.randn(7, 6), torch.randint(7, (129,))
    targets = _targets(ROWS[name], x, index)
    assert aten.gather.default not in targets and aten.index_select.default in targets


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(name: str) -> None:
    x, index = torch.randn(7, 6), torch.randint(6, (7,))
    assert aten.gather.default in _targets(ELEMENTS[name], x, index)


def test_gradients_of_messages_have_no_index_of_their_own() -> None:
    """Of a sum of messages as graph libraries spell it, beside eager in float64."""

    def loss(x: Tensor, index: Tensor) -> Tensor:
        messages = x[index[0]].sin()
        return x.new_zeros(65, 33).scatter_add_(0, _columns(index[1], 33), messages).square().sum()

    x, index = torch.randn(65, 33, requires_grad=True), torch.randint(65, (2, 391))
    compiled = torch.compile(loss, backend="kitsune", options={"require_full": True})
    compiled(x, index).backward()
    exact = x.detach().double().requires_grad_()
    loss(exact, index).backward()
    assert x.grad is not None and exact.grad is not None
    assert (x.grad.double() - exact.grad).norm() < 1e-6 * exact.grad.norm()
