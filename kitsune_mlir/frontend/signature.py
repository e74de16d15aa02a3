"""What the inputs and outputs of an exported program are, as arguments and results of one function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from kitsune_mlir.errors import FrontendError
from kitsune_mlir.frontend import prepare
from kitsune_mlir.frontend.aten import TracedProgram
from kitsune_mlir.frontend.dead_code import drop_dead
from kitsune_mlir.frontend.derived import derive_weights
from kitsune_mlir.frontend.empty import drop_empty
from kitsune_mlir.frontend.imported import Argument, FixedInput, Result, dtype_name
from kitsune_mlir.frontend.joined_products import join_products
from kitsune_mlir.frontend.repeated_factors import share_repeated_factors
from kitsune_mlir.frontend.returned_views import returned_views
from kitsune_mlir.frontend.scatter_rows import name_counts
from kitsune_mlir.frontend.source import origin_of_node
from kitsune_mlir.frontend.touched_rows import keep_touched_rows
from kitsune_mlir.frontend.unsigned import widen_bytes
from kitsune_mlir.frontend.valid_rows import take_out_valid_rows
from kitsune_mlir.frontend.zeroed_rows import take_out_zeroed_rows
from kitsune_mlir.runtime.derived import sources_of
from kitsune_mlir.runtime.strided import Strided

__all__ = ["MainGraph"]

_WEIGHT_KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}


def _unknown_input(spec: Any, graph: fx.Graph) -> FrontendError:
    """The error for an input that is neither a tensor nor a number. An operator with effects makes one: a token."""
    effects = [node for node in graph.nodes if "with_effects" in str(node.target)]
    if spec.kind is not InputKind.TOKEN or not effects:
        return FrontendError(f"input '{spec.arg.name}' is no tensor but a {spec.kind.name.lower()}")
    node = effects[0]
    operator = str(node.args[1])
    return FrontendError(
        f"operator '{operator}' does more than to compute its results (it prints, or raises errors that depend on values), "
        "which compiled code cannot",
        operator=operator,
        location=origin_of_node(node),
    )


class MainGraph:
    """The graph of an exported program made ready for the importer, with what its arguments and results mean.

    Attributes:
        graph: placeholders are exactly `arguments`, outputs exactly the computed tensors.
        arguments: of `main`, in order.
        sources: weights that are no arguments, but that derived ones are made of.
        results: what the model's outputs and mutations are made of.
        fixed_inputs: inputs that are no tensors.

    Args:
        program: after decomposition; its graph is changed in place.
        fixed: position → value of inputs that `export` took out of the program's reach.
        strided: by placeholder, sizes and places of inputs that are a part of the dense tensor that it is.
    """

    def __init__(
        self, program: TracedProgram, fixed: Mapping[int, Any], strided: Mapping[str, tuple[tuple[int, ...], Strided]]
    ):
        signature = program.graph_signature
        module = program.graph_module
        self.graph = module.graph
        self._strided = strided
        self._names: dict[str, str] = {}
        self._kinds: dict[str, Any] = {}
        weights: dict[str, torch.Tensor] = {}
        self._positions: dict[str, int] = {}
        constants: list[FixedInput] = []

        position = 0
        for spec in signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                if isinstance(spec.arg, ConstantArgument):
                    constants.append(FixedInput(position, fixed.get(position, spec.arg.value)))
                else:
                    self._positions[spec.arg.name] = position
                position += 1
            elif spec.kind in _WEIGHT_KINDS:
                name = str(spec.target)
                held = program.state_dict if name in program.state_dict else program.constants
                weights[spec.arg.name] = held[name].detach()
                self._names[spec.arg.name] = name
                self._kinds[spec.arg.name] = _WEIGHT_KINDS[spec.kind]
            else:
                raise _unknown_input(spec, self.graph)
        self.fixed_inputs = tuple(constants)
        taken = set(self._names.values())
        for name in self._positions:  # an input may be called as a parameter is
            self._names[name] = name if name not in taken else f"{name}_{self._positions[name]}"

        self._valid = take_out_valid_rows(self.graph)
        self._views = self._returned_views(signature.output_specs)  # before copies are taken out
        take_out_zeroed_rows(self.graph)
        name_counts(self.graph)
        prepare.remove_bookkeeping(self.graph)
        prepare.check_static(self.graph)
        prepare.check_deterministic(self.graph)
        prepare.check_trusted(self.graph)
        widen_bytes(self.graph)
        drop_empty(self.graph)
        keep_touched_rows(self.graph)
        share_repeated_factors(self.graph)
        join_products(self.graph)
        prepare.tidy_dimensions(self.graph)
        prepare.fold_index_lists(module)
        prepare.lift_attributes(module, weights)
        targets = {s.target for s in signature.output_specs if s.kind is OutputKind.BUFFER_MUTATION}
        mutated = {name for name, target in self._names.items() if target in targets}
        prepare.merge_tied(self.graph, weights, mutated)
        self._recipes = derive_weights(self.graph, weights, self._names, mutated)

        self._take_out_empty_outputs(weights)
        self.results = self._split_outputs(signature.output_specs)
        self.arguments = self._arguments(weights)
        self.sources = self._sources(weights)

    def name_of(self, placeholder: str) -> str:
        """The name of an argument by that of its placeholder."""
        return str(self._names.get(placeholder, placeholder))

    def _take_out_empty_outputs(self, weights: dict[str, torch.Tensor]) -> None:
        """Makes outputs without elements constants: code generators need not know of such tensors."""
        output = next(n for n in self.graph.nodes if n.op == "output")
        for node in dict.fromkeys(n for n in output.args[0] if isinstance(n, fx.Node) and n.op != "placeholder"):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.numel() == 0:
                empty = torch.empty(value.shape, dtype=value.dtype)
                output.replace_input_with(node, prepare.add_constant(self.graph, weights, f"c_empty_{node.name}", empty))
        drop_dead(self.graph)

    def _split_outputs(self, specs: Sequence[Any]) -> tuple[Result, ...]:
        """Leaves in the graph's output only the values that it computes, each once."""
        output = next(n for n in self.graph.nodes if n.op == "output")
        computed: list[fx.Node] = []
        leaves: list[Result] = []
        changes: list[Result] = []
        for spec, node in zip(specs, output.args[0], strict=True):
            mutates = None if spec.kind is OutputKind.USER_OUTPUT else spec.target
            if spec.kind is OutputKind.USER_INPUT_MUTATION:  # by its placeholder; a weight by its own name
                mutates = self.name_of(spec.target)
            if not isinstance(node, fx.Node):
                result = Result("python", value=node)
            elif node.name in self._positions and not isinstance(node.meta.get("val"), torch.Tensor):
                result = Result("python", value=node.meta.get("val"))
            else:
                value = node.meta["val"]
                shape, dtype = tuple(value.shape), dtype_name(value.dtype)
                if node.op == "placeholder":
                    name = self._names.get(node.name, node.name)
                    result = Result("alias", shape, dtype, argument=name, mutates=mutates)
                elif node in self._views:
                    source, lies = self._views[node]
                    result = Result("alias", shape, dtype, argument=self.name_of(source.name), lies=lies)
                else:
                    if node not in computed:
                        computed.append(node)
                    count, rows = self._valid.get(node, (None, 0))
                    valid = None if count is None else (self.name_of(count), rows)
                    result = Result("tensor", shape, dtype, computed.index(node), mutates=mutates, valid_rows=valid)
            (leaves if mutates is None else changes).append(result)
        output.args = (tuple(computed),)
        self._needed = {r.argument for r in leaves + changes if r.kind == "alias"} | {r.mutates for r in changes}
        return tuple(leaves + changes)

    def _returned_views(self, specs: Sequence[Any]) -> Mapping[fx.Node, tuple[fx.Node, Strided]]:
        """Outputs that are parts of inputs, of a model that computes nothing and changes nothing."""
        outputs = list(next(n for n in self.graph.nodes if n.op == "output").args[0])
        if self._valid or any(spec.kind is not OutputKind.USER_OUTPUT for spec in specs):
            return {}
        inputs = [node for node in self.graph.nodes if node.op == "placeholder" and node.name in self._positions]
        values = {node.name: node.meta["val"] for node in inputs if node.name not in self._strided}
        return returned_views(outputs, {n for n, v in values.items() if isinstance(v, torch.Tensor) and v.is_contiguous()})

    def _arguments(self, weights: dict[str, torch.Tensor]) -> tuple[Argument, ...]:
        """Erases placeholders that nothing needs and describes the others."""
        found: list[Argument] = []
        for node in [n for n in self.graph.nodes if n.op == "placeholder"]:
            name = str(self._names.get(node.name, node.name))
            if node.name in weights:
                weight = weights[node.name]
                if not node.users and name not in self._needed:
                    self.graph.erase_node(node)
                    continue
                found.append(self._weight(node.name, weight))
            elif node.name in self._positions:
                value = node.meta["val"]
                position = self._positions[node.name]
                shape, lies = self._strided.get(node.name, (tuple(value.shape), None))
                found.append(Argument(name, "input", shape, dtype_name(value.dtype), position=position, lies=lies))
            else:
                self.graph.erase_node(node)
        return tuple(found)

    def _weight(self, place: str, weight: torch.Tensor) -> Argument:
        recipe = self._recipes.get(place, "")
        kind = "derived" if recipe else self._kinds.get(place, "constant")
        name = self._names.get(place, place)
        return Argument(name, kind, tuple(weight.shape), dtype_name(weight.dtype), value=weight, recipe=recipe)

    def _sources(self, weights: dict[str, torch.Tensor]) -> tuple[Argument, ...]:
        """What derived arguments are made of, and is no argument itself."""
        taken = {argument.name for argument in self.arguments}
        read = {name for argument in self.arguments if argument.recipe for name in sources_of(argument.recipe)}
        every = {self._names.get(place, place): place for place in weights}
        return tuple(self._weight(every[name], weights[every[name]]) for name in every if name in read - taken)
