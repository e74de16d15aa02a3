"""What only looks at its inputs otherwise returns views of them, as PyTorch does; what copies returns tensors of its own."""

import pytest
import torch

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError

VIEWS = {
    "flat": lambda x: x.reshape(-1),
    "slice": lambda x: x.reshape(4, -1)[1:3],
    "turned": lambda x: x.t(),
    "two": lambda x: (x[2], x.reshape(2, -1)),
    "itself too": lambda x: (x, x[1]),
    "windows": lambda x: x.unfold(0, 2, 2),
    "repeated": lambda x: x[None].expand(3, -1, -1),
}
COPIES = {
    "reshape of turned": lambda x: x.t().reshape(-1),
    "clone": lambda x: x.clone()[1:],
    "beside what is computed": lambda x: (x[1:], x + 1),
}


def leaves(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("name", VIEWS)
def test_views_share_memory_and_have_torchs_strides(name, tmp_path):
    x = torch.randn(4, 6)
    program = kitsune_mlir.compile(VIEWS[name], (x,), target="host")
    program.save(tmp_path / "views.kit")
    for one in (program, kitsune_mlir.load(tmp_path / "views.kit")):
        for y in (x, torch.randn(9, 6)[2:6]):
            for got, wanted in zip(leaves(one(y)), leaves(VIEWS[name](y)), strict=True):
                assert got.data_ptr() == wanted.data_ptr() and got.stride() == wanted.stride() and torch.equal(got, wanted)
        turned = torch.randn(6, 4).t()
        for got, wanted in zip(leaves(one(turned)), leaves(VIEWS[name](turned)), strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", COPIES)
def test_copies_have_memory_of_their_own(name):
    x = torch.randn(4, 6)
    for got, wanted in zip(
        leaves(kitsune_mlir.compile(COPIES[name], (x,), target="host")(x)), leaves(COPIES[name](x)), strict=True
    ):
        assert torch.equal(got, wanted)
        assert got.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_a_view_is_not_written_into_what_is_given():
    x = torch.randn(4, 6)
    program = kitsune_mlir.compile(VIEWS["flat"], (x,), target="host")
    with pytest.raises(ArgumentError, match="is a view of argument"):
        program.run(x, into=torch.empty(24))


def test_a_changed_input_is_not_handed_back_as_it_was():
    def changed(x):
        before = x[1:].clone()
        x.add_(1)
        return before

    x = torch.randn(4, 6)
    wanted = x[1:].clone()
    program = kitsune_mlir.compile(changed, (x.clone(),), target="host")
    y = x.clone()
    assert torch.equal(program(y), wanted) and torch.equal(y, x + 1)
