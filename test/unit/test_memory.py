"""What a call needs at most, as it is said before the first one, beside what calls have."""

import pytest
import torch
from torch import fx, nn

import kitsune_mlir
from kitsune_mlir.dynamo.peak import peak_bytes
from kitsune_mlir.errors import PackageError, TargetError
from kitsune_mlir.runtime.memory import Memory, bytes_of


def test_bytes_of_types():
    kinds = {"f32": 4, "bf16": 2, "i1": 1, "i64": 8, "ui8": 1, "complex<f32>": 8}
    assert {kind: bytes_of((3, 5), kind) for kind in kinds} == {kind: 15 * each for kind, each in kinds.items()}


def test_a_program_s_memory():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(33, 65), nn.Linear(65, 9)
            self.register_buffer("mean", torch.zeros(9))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.second(self.first(x).softmax(1))
            self.mean.mul_(0.9).add_(y.mean(0))
            return y, x

    model, x = Model().eval(), torch.randn(31, 33)
    program = kitsune_mlir.compile(model, (x,), target="host")
    memory = program.memory
    weights = [*model.parameters(), model.mean]
    assert memory.arguments == x.nbytes and memory.weights == sum(w.nbytes for w in weights)
    assert memory.arena == program.summary["arena_bytes"]
    y, same = program(x)
    assert same is x and memory.results == y.nbytes
    assert memory.copies == sum(copy.placed.nbytes for copy in program.copies)
    (mean,) = [out for out in program.signature.outputs if out.mutates]
    assert memory.apart == (0 if mean.in_place else model.mean.nbytes)
    assert memory.total >= sum(w.nbytes for w in weights) + x.nbytes + y.nbytes
    assert f"at most {memory}." in program.explain() and "arguments" in str(memory)
    assert str(Memory(arena=1500)) == "1.5 kB"


def test_tensors_go_after_their_last_use():
    def function(x: torch.Tensor) -> torch.Tensor:
        a = x.sin()  # 1
        b = a.cos()  # a, b
        c = torch.cat([b, b])  # b and twice that
        values, _ = c.view(-1).sort()  # c, its values, and twice as much for their places
        return values[:1].exp()

    x = torch.empty(1000, device="meta")
    graph = fx.experimental.proxy_tensor.make_fx(function)(x).graph
    assert peak_bytes(graph) == 4 * 2000 + 4 * 2000 + 8 * 2000


def test_explain_says_what_a_graph_needs():
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(x.sin() @ x)[0].cos() @ x

    torch._dynamo.reset()
    x = torch.randn(40, 40)
    found = kitsune_mlir.explain(function, (x,), options={"min_part": 1})
    (graph,) = found.graphs
    assert len(graph.programs) == 2 and graph.between >= 2 * x.nbytes
    own = sum(program.memory.arena for program in graph.programs)
    assert "A call needs at most" in str(found) and (own > 0) == ("0 B of programs' own" not in str(found))


def test_weights_that_the_program_has_copies_of_can_go():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.folded, self.norm, self.read = nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5), nn.Linear(7, 4)
            self.scale = nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.read(self.norm(self.folded(x))) + self.scale.exp(), self.scale

    model, x = Model().eval(), torch.randn(2, 3, 9, 9)
    program = kitsune_mlir.compile(model, (x,), target="host")
    wanted, weight = program(x)[0].clone(), model.read.weight.clone()
    held = {name: tensor.untyped_storage().nbytes() for name, tensor in model.named_parameters()}
    gone = program.discard_weights()
    left = {name: tensor.untyped_storage().nbytes() for name, tensor in model.named_parameters()}
    assert left["folded.weight"] == 0 and gone >= held["folded.weight"] == model.folded.weight.nbytes
    assert left["scale"] == held["scale"] and program(x)[1].data_ptr() == model.scale.data_ptr(), "is returned"
    assert torch.equal(program(x)[0], wanted) and torch.equal(model.read.weight, weight)
    assert program.discard_weights() == 0
    with pytest.raises(PackageError, match="weights=False"):
        program.save("never.kit")
    with pytest.raises(TargetError, match=r"folded\.weight.*meta"):
        program.with_weights({"read.weight": weight})(x)
    again = program.with_weights({n: torch.randn(t.shape) if t.is_meta else t for n, t in program.weights.items()})
    assert again(x)[0].shape == wanted.shape
