"""A backend for graphs whose sizes change that compiles nothing, and what its results are compared by."""

import random

import torch
from torch.utils._pytree import tree_leaves

from kitsune_mlir.dynamo import shapes
from kitsune_mlir.dynamo.graph_options import GraphOptions
from kitsune_mlir.dynamo.torch_api import aot_autograd, make_boxed_func, min_cut_rematerialization_partition
from kitsune_mlir.frontend.aten import traced_table
from kitsune_mlir.sized.restride import same_strides


class Watched:
    """A backend that compiles nothing, and puts NaN behind valid rows.

    Attributes:
        made: for which sizes each graph was compiled.
    """

    def __init__(self, **options):
        self.options, self.made, self.graphs = GraphOptions(**options), [], []

    def __call__(self, gm, inputs):
        def compile(graph, _):
            if not shapes.is_symbolic(graph):
                self.made.append("static")
                return make_boxed_func(graph.forward)
            self.graphs.append(shapes.Specialized(graph, self._kept, self.options))
            return make_boxed_func(self._poisoned(self.graphs[-1]))

        training = any(isinstance(t, torch.Tensor) and t.requires_grad for t in inputs)
        given = {"fw_compiler": compile, "bw_compiler": compile, "inference_compiler": compile}
        more = {"partition_fn": min_cut_rematerialization_partition, "keep_inference_input_mutations": True}
        return aot_autograd(**given, decompositions=traced_table(late=not training), **more)(gm, inputs)

    def _kept(self, graph, sizes, same_outputs):
        self.made.append(sizes)
        return graph.forward

    def _poisoned(self, run):
        def call(*args):
            for program in run.known.larger.values():
                for value in program.inputs.values():
                    for buffer in value.buffers():
                        if buffer.is_floating_point():
                            buffer.fill_(float("nan"))
            return run(*args)

        return call


def sizes(count, least=2, most=150):
    return [n for n in (least, 3, 7, 64, 65, 129) if n >= least] + [random.randint(least, most) for _ in range(count)]


def same(got, want):
    for g, w in zip(tree_leaves(got), tree_leaves(want), strict=True):
        if isinstance(w, torch.Tensor):
            assert g.dtype == w.dtype and g.shape == w.shape and same_strides(w.shape, g.stride(), w.stride())
            torch.testing.assert_close(g, w, atol=2e-5, rtol=2e-5, equal_nan=True)
        else:
            assert g == w
