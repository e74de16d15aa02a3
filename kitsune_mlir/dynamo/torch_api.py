"""What differs between versions of PyTorch, or is no public part of it: AOTAutograd, and what it knows of the graph at hand."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import sympy
import torch
import torch._dynamo.convert_frame
import torch.fx._lazy_graph_module
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "aot_autograd",
    "bound_of",
    "boxed",
    "cheap_made_again",
    "compiled_bytes",
    "compiled_of",
    "compiling",
    "fake_inputs",
    "functional",
    "graph_bytes",
    "graph_module",
    "graph_of",
    "incompatible_with_cuda_graphs",
    "inductor_compiled",
    "is_nested_size",
    "is_transformed",
    "job_store",
    "min_cut_rematerialization_partition",
    "output_code",
    "register_artifacts",
    "saved",
    "saving",
    "serializable_callable",
    "source_of",
    "told_to_dynamo",
    "traced",
    "traced_whole",
    "tracing_context",
    "tracing_lock",
    "trace_artifact",
]


def boxed(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors as AOTAutograd calls it: of a list, which it empties.

    AOTAutograd watches what operators do in the first call, by a mode that refuses tensors of subclasses.
    """
    first = True

    def call(*args: Any) -> Any:
        nonlocal first
        if first:
            first = False
            if any(isinstance(a, torch.Tensor) and type(a) not in (torch.Tensor, torch.nn.Parameter) for a in args):
                with _disable_current_modes():
                    return run(*args)
        return run(*args)

    return make_boxed_func(call)


@contextmanager
def compiling() -> Iterator[None]:
    """Dynamo's tracing must not see ours: constants would be fake, and its guards be written into programs."""
    with unset_fake_temporarily(), _disable_current_modes(), torch._guards.tracing(None), torch.no_grad():
        yield


tracing_lock = torch._dynamo.convert_frame.compile_lock
"""What traces without Dynamo holds its lock as well: that something is traced is a global variable of torch.fx's."""


def traced(function: Callable[..., Any], args: Sequence[Any], table: dict[Any, Callable[..., Any]]) -> fx.GraphModule:
    """The graph of ATen's operators that a function runs for arguments like these; metadata of nodes that it runs is kept.

    Operators of the table are decomposed.

    `tracing_lock` is to be held. Threads that call compiled functions meanwhile would take it for a trace of their own.
    """

    def unnoticed(*given: Any) -> Any:
        torch.fx._symbolic_trace._is_fx_tracing_flag = False
        return function(*given)

    with torch.no_grad(), preserve_node_meta():
        return make_fx(unnoticed, table, tracing_mode="fake")(*args)


def traced_whole(function: Callable[..., Any], args: Sequence[Any]) -> fx.GraphModule:
    """The graph of ATen's operators that a function runs, gradients' and changes in place among them; none is decomposed.

    `tracing_lock` is to be held.
    """

    def unnoticed(*given: Any) -> Any:
        torch.fx._symbolic_trace._is_fx_tracing_flag = False
        with enable_python_dispatcher():
            return function(*given)

    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # what it holds would be tensors of the trace
    try:
        with torch.no_grad():
            return make_fx(unnoticed, tracing_mode="fake", record_stack_traces=True)(*args)
    finally:
        torch.set_autocast_cache_enabled(cached)


def graph_module(root: Any, graph: fx.Graph) -> fx.GraphModule:
    """A graph with the tensors that it takes of `root`; while `without_code` or Dynamo hold, it has no code before a call."""
    return torch.fx._lazy_graph_module._make_graph_module(root, graph)


@contextmanager
def tracing_context(graph: fx.GraphModule) -> Iterator[None]:
    """What Dynamo enters to call a backend with a graph, for one that `traced_whole` gave; `tracing_lock` is held."""
    fake = next((node.meta["val"].fake_mode for node in graph.graph.find_nodes(op="placeholder")), None)
    with tracing_lock, torch._guards.tracing(torch._guards.TracingContext(fake)):
        yield


def functional(graph: fx.GraphModule, table: dict[Any, Callable[..., Any]]) -> fx.GraphModule:
    """What AOTAutograd makes of a graph that `traced_whole` gave: it changes nothing in place but for inputs, at its end.

    Operators of the table are decomposed. Only within the graph's `tracing_context`.
    """
    made: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        made.append(gm)
        return make_boxed_func(gm.forward)

    backend = aot_autograd(fw_compiler=keep, inference_compiler=keep, decompositions=table, keep_inference_input_mutations=True)
    backend(graph, fake_inputs(graph))
    return made[0]


@contextmanager
def compile_session() -> Iterator[None]:
    """While it is entered, PyTorch's own Python code takes the ways that torch.compile can follow."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True  # a context manager for it is there since PyTorch 2.13
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def fake_inputs(graph: fx.GraphModule) -> list[Any]:
    """Tensors without values like those that a graph is called with."""
    return [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]


def inductor_compiled(gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A graph compiled by Inductor for inputs like these, without guards."""
    from torch._inductor import compile

    return compile(gm, list(inputs))  # type: ignore[return-value]


def incompatible_with_cuda_graphs(gm: Any) -> Any:
    """A node of a graph that a CUDA graph cannot hold, or None."""
    from torch._inductor.utils import get_first_incompatible_cudagraph_node

    return get_first_incompatible_cudagraph_node(gm)


def job_store() -> Any:
    """What the ranks of a distributed job share: bytes by name."""
    return torch.distributed.distributed_c10d._get_default_store()


def told_to_dynamo() -> tuple[type[Exception], ...]:
    """Errors by which a backend tells Dynamo to trace again, or to end the graph before an operator."""
    from torch._dynamo import exc

    return exc.TorchDynamoException, *exc.exceptions_allowed_to_be_fallback


def is_transformed(value: Any) -> bool:
    """Whether a value is one of `torch.func`'s: a sample of a batch, or one that derivatives are taken of."""
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value)


def is_nested_size(value: Any) -> bool:
    """Whether a symbol is a nested tensor's: not a number, but a name of how its parts are long."""
    return isinstance(value, torch.SymInt) and value.node.is_nested_int()


def saving() -> bool:
    """Whether the graph at hand is compiled to be written down (`aot_compile`)."""
    config = torch._functorch.config
    return getattr(config, "force_autograd_cache", False) and getattr(config, "bundled_autograd_cache", False)


@contextmanager
def saved() -> Iterator[None]:
    """AOTAutograd makes what can be written down on its way into its cache.

    What it finds there may be another backend's, or made with other options: nothing is looked for.
    """
    with (
        torch.compiler.config.patch(cache_key_tag=f"kitsune {uuid.uuid4()}"),
        torch._functorch.config.patch(enable_autograd_cache=True),
    ):
        yield


def output_code() -> Any:
    """The class of what compilers give to AOTAutograd where it is to be written down."""
    from torch._inductor.output_code import OutputCode

    return OutputCode


def serializable_callable() -> Any:
    """The class of what backends give to Dynamo where it is to be written down."""
    from torch._dynamo.aot_compile_types import SerializableCallable

    return SerializableCallable


def compiled_bytes(run: Callable[..., Any]) -> bytes:
    """AOTAutograd's function, made while `saved` held, with what our compilers gave to it."""
    from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable as Bundled

    return Bundled.serialize_compile_artifacts(Bundled(run))


def compiled_of(data: bytes) -> Callable[..., Any]:
    """The inverse of `compiled_bytes`."""
    from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable as Bundled

    return Bundled.deserialize_compile_artifacts(data).compiled_fn


def graph_bytes(graph: Any) -> bytes:
    """A graph that Dynamo captured."""
    from torch._dynamo.aot_compile_types import GraphModuleSerializableCallable as Graph

    return Graph.serialize_compile_artifacts(Graph(graph))


def graph_of(data: bytes) -> Any:
    """The inverse of `graph_bytes`."""
    from torch._dynamo.aot_compile_types import GraphModuleSerializableCallable as Graph

    return Graph.deserialize_compile_artifacts(data).graph_module


def _symbol(placeholders: Iterable[fx.Node], name: str) -> tuple[Any, Any]:
    """What holds a graph's symbols, and the one of this name."""
    for node in placeholders:
        value = node.meta.get("val")
        for size in (value,) if isinstance(value, torch.SymInt) else getattr(value, "shape", ()):
            for symbol in size.node.expr.free_symbols if isinstance(size, torch.SymInt) else ():
                if str(symbol) == name:
                    return size.node.shape_env, symbol
    return None, None


def bound_of(placeholders: Iterable[fx.Node], name: str) -> int | None:
    """The largest value that a symbol may have, as far as there is one."""
    env, symbol = _symbol(placeholders, name)
    upper = env.var_to_range[symbol].upper if env is not None and symbol in env.var_to_range else None
    return int(upper) if isinstance(upper, sympy.Integer) and upper < 2**31 else None


def every_size_may_change() -> bool:
    """Whether all sizes are symbols (`dynamic=True`), not only those that were seen to change or are marked."""
    return not torch._dynamo.config.assume_static_by_default


def source_of(placeholders: Iterable[fx.Node], name: str) -> str:
    """What a symbol is in the model, such as `x.size()[0]`; else its own name."""
    env, symbol = _symbol(placeholders, name)
    found = env.var_to_sources.get(symbol) if env is not None else None
    if not found:
        return name
    text = found[0].name
    text = text() if callable(text) else text
    return re.sub(r"^L\['(\w+)'\]", r"\1", str(text))


def register_artifacts(kind: str, populate: Callable[[str, bytes], None]) -> Callable[[str, bytes], None]:
    """Make files a part of what `torch.compiler.save_cache_artifacts` gives and `load_cache_artifacts` takes.

    Args:
        kind: what they are called there.
        populate: keeps a file, of its key and its bytes.

    Returns:
        What is to be called with each file that a compilation used.
    """
    from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager

    @CacheArtifactFactory.register
    class Artifact(CacheArtifact):
        def populate_cache(self) -> None:
            populate(self.key, self.content)

        @staticmethod
        def type() -> str:
            return kind

    return lambda key, content: CacheArtifactManager.record_artifact(kind, key, content)


def trace_artifact(name: str, text: Callable[[], str]) -> None:
    """A text for tlparse, where somebody has asked for traces (`TORCH_TRACE=FOLDER`); `text` is not called else."""
    from torch._logging._internal import trace_structured

    trace_structured("artifact", lambda: {"name": name, "encoding": "string"}, payload_fn=text, expect_trace_id=False)


def cheap_made_again() -> AbstractContextManager[Any]:
    """While it is entered, backward graphs are given what views are of, and not the views; nor what maps make of values that
    are given, even if the forward graph has made these long before."""
    return torch._functorch.config.patch(recompute_views=True, ban_recompute_used_far_apart=False)
