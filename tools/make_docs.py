"""`python -m kitsune_mlir.tools.make_docs`: write docs/dialect.md, docs/passes.md and docs/rates.md from the sources.

The dialect's page comes from the docstrings of dialects/ and its table of attributes, the passes' page from the docstrings of
the passes and from the first block of each pass's lit test, so that no page can say what the code does not do. `--check` writes
nothing and reports pages that are not up to date.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from torch_mlir import ir
from torch_mlir.dialects import ext

from kitsune_mlir.dialects import attributes, new_context, recurrence, stage_graph, tile_program, types
from kitsune_mlir.dialects.attribute_table import ATTRIBUTES, AttributeSpec, declared
from kitsune_mlir.dialects.kitsune import Kitsune
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.target import find_machine
from kitsune_mlir.passes.base import Pass
from kitsune_mlir.passes.registry import PASSES, PIPELINE
from kitsune_mlir.passmanager.options import options_of

from .opt_input import SPLITTER

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = "<!-- Written by tools/make_docs.py (make docs) from {source}: edit those. -->\n"

DIALECT_INTRO = """# The kitsune dialect

One dialect holds both forms of a program. The *stage graph* is what the planning passes work on: the algorithm stays linalg on
whole tensors, the schedule is attributes. The *tile program* is what the targets run (its rules as a whole:
[tile-program.md](tile-program.md)). `kitsune-materialize` turns the first into the second.

Three conventions follow from the dialect being defined in Python:

- Ops are printed in MLIR's generic syntax, with plain attributes in braces (no properties).
- Pipelines, stages and tasks take no operand lists: their bodies use values from outside directly, because a variadic group of
  an op defined this way holds values of one type only. The inputs of a stage are the tensors that its body uses, in order of
  first use.
- For the same reason a pipeline or stage with several results returns one `tuple`, taken apart by
  `builtin.unrealized_conversion_cast`.

Everything below is checked by the verifiers; `test/lit/dialect/` has every op and attribute, and what the verifiers refuse.
"""

NOTES_INTRO = """## What passes note on other operations

Attributes on operations of other dialects, by which one part of the compiler tells another what it has decided
(`dialects/attribute_table.py`). An attribute `kitsune.NAME` that is not in this table, on an operation that it is not for, or
of another type is an error, after each pass and where `kitsune-opt` reads it.
"""

RATES_INTRO = """# The rates of a machine

What the cost models of the planner, of engines and of the simulator calculate with, from `kitsune_mlir/machine/rates.py`. A
rate is used as it was set; its date says when. *Fitted* rates were chosen so that times of a model come near recorded ones and
mean no more than that.
"""

DISAGREEMENTS_INTRO = """## Where models differ

Quantities for which models have values of their own, each fitted beside the others of its model, and what records say of them.
Which to keep is for a run on a device to decide.
"""

PASSES_INTRO = """# The passes

In the order of the table in `passes/registry.py`. `compile` runs

{pipeline},

then the passes of the target. Any of them can be run alone (`kitsune-opt in.mlir --kitsune-normalize`) and mixed with MLIR's
own passes; `kitsune-opt --show-passes` lists them.

The example of each pass is its lit test (`test/lit/passes/`): lines with `CHECK` are what the pass makes of the rest, and
`expected-error` what it says about the line they point to.
"""


def dialect_page() -> str:
    """docs/dialect.md."""
    parts = [WRITTEN.format(source="the docstrings of dialects/"), DIALECT_INTRO]
    with new_context():
        for title, module in (("The stage graph", stage_graph), ("The tile program", tile_program), ("In both", recurrence)):
            parts.append(f"## {title}\n\n{_body(module)}\n")
            parts += [_op(cls) for cls in _classes(module, Kitsune.Operation)]
        parts.append("## Attributes\n")
        parts += [_entry(f"#{Kitsune.DIALECT_NAMESPACE}.", cls) for cls in _classes(attributes, Kitsune.Attribute)]
        parts += [NOTES_INTRO, _attributes(spec for spec in ATTRIBUTES if spec.name.startswith("kitsune."))]
        parts.append("## Types\n")
        parts += [_entry(f"!{Kitsune.DIALECT_NAMESPACE}.", cls) for cls in _classes(types, Kitsune.Type)]
    return "\n".join(parts)


def rates_page() -> str:
    """docs/rates.md."""
    parts = [WRITTEN.format(source="kitsune_mlir/machine/rates.py"), RATES_INTRO]
    rows = [(f"`{n}`", _value(r), r.unit, r.meaning, r.source, r.device, r.date) for n, r in rates.rates().items()]
    parts.append(_table(("rate", "value", "unit", "of what", "source", "device", "date"), rows))
    fields = [f.name for f in dataclasses.fields(rates.EngineRates) if f.type == "float"]
    every = (*rates.ENGINES.values(), *rates.SIMULATED.values())
    sources = {f"{engine.source} ({engine.device}, {engine.date})" for engine in every}
    parts += ["## Engines\n", f"{inspect.getdoc(rates.EngineRates)}\n", f"Here {'; '.join(sorted(sources))}.\n"]
    named = [*rates.ENGINES.items(), *((f"{n}, simulated", e) for n, e in rates.SIMULATED.items())]
    rows = [(f"`{n}`", *(_value(getattr(e, f)) for f in fields)) for n, e in named]
    parts += [_table(("engine", *fields), rows), DISAGREEMENTS_INTRO]
    rows = [(d.quantity, ", ".join(map(_used, d.used)), d.measured) for d in rates.DISAGREEMENTS]
    return "\n".join([*parts, _table(("quantity", "used", "measured"), rows)])


def _used(name: str) -> str:
    """A rate, or a field of an engine's or of the reference machine, with its value and unit."""
    known = {**rates.rates(), "ENGINES": rates.ENGINES, "SIMULATED": rates.SIMULATED, "Target": find_machine("h200")}
    if isinstance(rate := known.get(name), rates.Rate):
        return f"`{name}` {_value(rate)} {rate.unit}"
    owner, _, field = name.partition(".")
    owner, _, key = owner.partition("[")
    value = getattr(known[owner][key.strip("'\"]")] if key else known[owner], field)
    return f"`{name}` {_value(value)} {'s' if field == 'turn' else 'B/s'}"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {number:g}" for key, number in value.items())
    return f"{value:g}" if isinstance(value, float | int) else str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines) + "\n"


def _attributes(specs: Iterable[AttributeSpec]) -> str:
    """A table of attributes."""
    rows = [(f"`{s.name}`", s.meaning, ", ".join(s.on), _allowed(s), s.written, s.read) for s in specs]
    return _table(("attribute", "meaning", "on", "type", "written by", "read by"), rows)


def _allowed(spec: AttributeSpec) -> str:
    least = "" if spec.least is None else f", at least {spec.least}"
    return f"{spec.type}{least}{': ' * bool(spec.one_of)}{', '.join(spec.one_of)}"


def passes_page(lit: Path = ROOT / "test" / "lit" / "passes") -> str:
    """docs/passes.md; the examples are read from the folder `lit`."""
    intro = PASSES_INTRO.format(pipeline=" → ".join(f"`{name}`" for name in PIPELINE))
    parts = [WRITTEN.format(source="the docstrings of passes/ and the tests in test/lit/passes/"), intro]
    return "\n".join(parts + [_pass(name, cls, lit / f"{name}.mlir") for name, cls in PASSES.items()])


def example_of(path: Path) -> str | None:
    """The first block of a lit test (up to the first `// -----`), or None where there is no such test."""
    if not path.is_file():
        return None
    return SPLITTER.split(path.read_text(), 1)[0].strip()


def _pass(name: str, cls: type[Pass], path: Path) -> str:
    options = [f"| `{o.name}` | {o.type} | {f'`{o.default}`' if o.default else ''} |" for o in options_of(cls)]
    table = "\n".join(["", "| option | type | default |", "|---|---|---|", *options, ""]) if options else ""
    example = example_of(path)
    block = f"\n```mlir\n{example}\n```\n" if example else ""
    return f"## `{name}`\n\n{inspect.getdoc(cls)}\n{table}{block}"


def _body(module: ModuleType) -> str:
    """A module's docstring without its first line, which only lists its contents."""
    return (inspect.getdoc(module) or "").partition("\n")[2].strip()


def _classes(module: ModuleType, base: type) -> list[type]:
    """The subclasses of `base` that a module defines, in the order of the source."""
    return [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, base) and c.__module__ == module.__name__]


def _entry(prefix: str, cls: type) -> str:
    name = getattr(cls, "name", None) or getattr(cls, "_name", None)
    fields = [f"`{n}` ({_kind(h)})" for n, h in _hints(cls).items()]
    listed = f"\nParameters: {', '.join(fields)}.\n" if fields else ""
    return f"### `{_full_name(prefix, cls, name)}`\n\n{inspect.getdoc(cls)}\n{listed}"


def _full_name(prefix: str, cls: type, name: str | None) -> str:
    """The name as it is written in IR: the docstring starts with it."""
    found = re.match(r"`([#!]kitsune\.\w+)", inspect.getdoc(cls) or "")
    return found.group(1) if found else f"{prefix}{name}"


def _op(cls: type) -> str:
    rows: dict[str, list[str]] = {"Operands": [], "Results": [], "Regions": []}
    for name, hint in _hints(cls).items():
        base = typing.get_origin(_without_none(hint)) or hint
        optional = " (may be missing)" if type(None) in typing.get_args(hint) else ""
        kinds = {ext.Region: "Regions", ir.OpResult: "Results", ir.Value: "Operands"}
        if base in kinds:  # attributes are in the table
            rows[kinds[base]].append(f"`{name}`{_of(hint)}{optional}")
    op: str = cls.OPERATION_NAME  # type: ignore[attr-defined]
    specs = declared(op).values()
    listed = [f"- {kind}: {', '.join(names)}" for kind, names in rows.items() if names]
    return "\n".join([f"### `{op}`\n\n{inspect.getdoc(cls)}\n", *listed, "", *([_attributes(specs)] if specs else [])])


def _hints(cls: type) -> dict[str, typing.Any]:
    return dict(cls.__dict__.get("__annotations__", {}))


def _without_none(hint: typing.Any) -> typing.Any:
    """`X | None` as `X`."""
    rest = [a for a in typing.get_args(hint) if a is not type(None)]
    return rest[0] if len(rest) < len(typing.get_args(hint)) else hint


def _of(hint: typing.Any) -> str:
    """The type of an operand or result in brackets, where it is one particular type."""
    args = [a for a in typing.get_args(hint) if a is not type(None) and a is not typing.Any]
    inner = args[0] if args else None
    found = re.match(r"`(!kitsune\.\w+)", inspect.getdoc(inner) or "") if isinstance(inner, type) else None
    return f" (`{found.group(1)}`)" if found else ""


def _kind(hint: typing.Any) -> str:
    names = {ir.StringAttr: "string", ir.IntegerAttr: "integer", ir.TypeAttr: "type"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def pages() -> dict[Path, str]:
    """Every generated page by its path."""
    made = {"dialect": dialect_page(), "passes": passes_page(), "rates": rates_page()}
    return {ROOT / "docs" / f"{name}.md": text for name, text in made.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or with `--check` report those that differ; the exit status is 1 when any does."""
    check = "--check" in (sys.argv[1:] if argv is None else argv)
    stale = [path for path, text in pages().items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is not up to date: run 'make docs'", file=sys.stderr)
        else:
            path.write_text(pages()[path])
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
