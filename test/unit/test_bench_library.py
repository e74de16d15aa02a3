"""Models of libraries as cases of the benchmark: the list, what is said of a missing library, how they are called."""

import importlib.util

import pytest
import torch

from bench.breadth.library import library
from bench.breadth.library.made import Called
from bench.case import BenchCase
from bench.cases import all_cases
from bench.errors import is_right, relative_error, tensors_of
from bench.library import measure, summary_of
from bench.library_models import EXPECTED, MODELS, expected
from bench.peers import SETS, peers_of
from bench.suite import build
from bench.work_counted import Work, _operations, work_of

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention
SMALL = ["lib_pyg_gcn_2k", "lib_electra_b16", "lib_squeezenet_b8"]


def test_the_list_has_every_library_without_any_of_them():
    cases = library()
    assert len(cases) >= 60 and all(all_cases()[case.name].group == "library" for case in cases)
    kinds = {case.library for case in cases}
    assert kinds == {"transformers", "timm", "torchvision", "torch_geometric", "diffusers"}
    assert sum(case.dtype == "f32" for case in cases) >= 10 and sum(case.autotuned for case in cases) == 20


def test_a_missing_library_is_told_and_is_no_failure(tmp_path, capsys):
    def never(device: str, values: bool):
        raise AssertionError("made")

    assert build(tmp_path, [BenchCase("lib_none", "library", never, library="kitsune_no_such_library")]) == 0
    assert "lib_none: missing: kitsune_no_such_library is not installed" in capsys.readouterr().out
    assert not list(tmp_path.glob("*.kit"))


def test_max_autotune_is_added_for_the_models_that_matter_most():
    chosen = BenchCase("a", "library", lambda device, values: None, autotuned=True)
    other = BenchCase("b", "library", lambda device, values: None)
    assert peers_of(chosen, SETS["graph"]) == (*SETS["graph"], "max-autotune, graph")
    assert peers_of(chosen, SETS["all"]) == SETS["all"] and peers_of(other, SETS["graph"]) == SETS["graph"]
    assert peers_of(chosen, ()) == () and peers_of(chosen, ("eager",)) == ("eager",)


def test_arguments_go_by_name_or_place_and_only_tensors_come_out():
    class Given(torch.nn.Module):
        def forward(self, first, *, scale, words=()):
            return {"sum": first + scale, "words": words, "parts": (first, None)}

    called = Called(Given(), ("scale", "0"), {"words": ("a",)})
    one, two = torch.ones(2), torch.full((2,), 2.0)
    total, first = called(two, one)
    assert torch.equal(total, one + two) and first is one


@pytest.mark.parametrize("name", SMALL)
def test_a_model_is_the_same_wherever_it_is_made(name):
    case = all_cases()[name]
    if case.missing:
        pytest.skip(f"{case.missing} is not installed")
    model, args = case.make("cpu", True)
    again, _ = case.make("cpu", True)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    with torch.no_grad():
        assert all(out.isfinite().all() for out in model(*args))


def test_what_is_missing_is_what_cannot_be_imported():
    for case in library():
        assert bool(case.missing) == (importlib.util.find_spec(case.library) is None)


def test_models_of_torch_compile_s_list():
    assert len(MODELS) >= 50 and {name.removesuffix("_bf16") for name in EXPECTED} <= MODELS.keys()
    assert expected("bert", "f32") == expected("t5", "f32", "2.13.0+cpu") == ([1], [])
    assert expected("t5", "bf16", "2.11.0+cu130") == ([1, 1, 1], [])
    assert expected("mixtral", "bf16") == ([1], []) and expected("mixtral", "f32")[0] == [5]


@pytest.mark.parametrize(
    "name, library", [("bert", "transformers"), ("pyg_GATConv", "torch_geometric"), ("tv_squeezenet1_1", "torchvision")]
)
def test_a_model_through_torch_compile(name, library):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    found = measure(name, "cpu", "f32")
    assert found["right"] and found["as_expected"], found


def test_work_of_what_pytorch_runs():
    x, weight = torch.randn(3, 4), torch.randn(5, 4)

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x @ weight.t()) * 2

    product = Work(1, 2 * 3 * 4 * 5, 4 * (12 + 20 + 15))
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8)
    assert _operations(_FLASH, (q, k, k), {}, q) == 2 * 2 * 4 * 3 * 5 * 16, "two heads of queries share one of keys"
    assert work_of(lambda: x @ weight.t()) == product
    whole = work_of(lambda: model(x))
    fast = torch.compile(model, backend="kitsune", options={"min_part": 1})
    torch.testing.assert_close(fast(x), model(x))
    rest = work_of(lambda: fast(x))
    assert whole.operators == 3 and rest.operators == 1, "singular values"
    assert whole.operations - rest.operations == product.operations + 3 and whole.bytes - rest.bytes == product.bytes + 24


def test_summary_of_a_record_names_what_is_slow_and_what_the_guard_left():
    def case(name: str, ours: float, chose: bool) -> dict[str, object]:
        times = {"kitsune": 2.0, "eager": 4.0, "eager, graph": 1.0, "kitsune, graph": ours, "kitsune, guard": 1.0 + 2 * chose}
        work = {"operators": [0, 9], "operations": [5 * chose, 100], "bytes": [0, 50]}
        return {"case": name, "error": 0.0, "milliseconds": times, "chosen": [[1.0, 3.0, chose]], "work": work}

    said = summary_of([case("a", 0.5, False), case("b", 2.0, True), {"case": "c", "problem": "no answer"}])
    assert said[0] == "operations in programs: 97.50% of 2 models" and said[1] == "bytes in programs: 100.00% of 2 models"
    assert said[2] == "kitsune, graph: 1.00 beside the best peer of 2 models, least b 0.50, a 2.00"
    assert said[3].startswith("kitsune: 2.00 ") and said[4].startswith("kitsune, guard: 2.31 ")
    assert said[5] == "the guard took PyTorch for 75.0% of the summed time of 2 models: b"


def test_errors_are_relative_and_beside_eager_s():
    exact = tensors_of({"a": torch.tensor([3.0, 4.0]).double(), "b": [torch.tensor([1, 2]), None]})
    found = [torch.tensor([3.0, 4.5]), torch.tensor([5, 5])]
    assert relative_error(found, exact) == 0.1
    assert is_right(2e-3, 1e-3, "f32") and not is_right(2.1e-3, 1e-3, "f32") and is_right(9e-6, 0.0, "f32")
