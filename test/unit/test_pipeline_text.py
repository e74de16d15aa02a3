"""The parser of textual pipelines, and options of passes read from text."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitsune_mlir.machine.target import H200, Target
from kitsune_mlir.passes.base import Pass
from kitsune_mlir.passmanager.options import make_pass, options_of, pass_text
from kitsune_mlir.passmanager.pipeline_text import NestNode, PassNode, PipelineError, leaves, parse_pipeline, split_options


def names(text: str) -> list[tuple[tuple[str, ...], str]]:
    return [(anchors, str(leaf)) for anchors, leaf in leaves(parse_pipeline(text))]


def test_a_pipeline_mixes_passes_and_nested_passes():
    assert names("builtin.module(kitsune-normalize,canonicalize,func.func(cse,gpu.x(a{b=1 c})),k{t=sm_90a max-ops=4})") == [
        ((), "kitsune-normalize"),
        ((), "canonicalize"),
        (("func.func",), "cse"),
        (("func.func", "gpu.x"), "a{b=1 c}"),
        ((), "k{t=sm_90a max-ops=4}"),
    ]


@pytest.mark.parametrize("text", ["", "builtin.module()", " builtin.module( ) ", "any()"])
def test_empty_pipelines(text: str):
    assert parse_pipeline(text) == []


def test_the_outer_module_may_be_left_out():
    assert names("a, func.func(b)") == names("builtin.module(a,func.func(b))")


def test_braces_and_quotes_inside_options():
    assert parse_pipeline("a{x={1,2} y='}' z={p={q}}},b") == [
        PassNode("a", "x={1,2} y='}' z={p={q}}", 0),
        PassNode("b", "", 27),
    ]


@pytest.mark.parametrize(
    "text, column, reason",
    [
        ("builtin.module(cse", 18, "')' is missing"),
        ("builtin.module(cse))", 19, "expected ','"),
        ("a,,b", 2, "expected the name"),
        ("a,", 2, "expected the name"),
        ("a b", 2, "expected ','"),
        ("a{b", 1, "'}' is missing"),
        ("a{b='}", 1, "'}' is missing"),
        ("(a)", 0, "expected the name"),
        ("1a", 0, "expected the name"),
        ("a(b,)", 4, "expected the name"),
        ("a,builtin.module(b)", 2, "must hold the whole pipeline"),
        ("a(" * 100 + ")" * 100, 130, "nested deeper"),
        ("é", 0, "expected the name"),
    ],
)
def test_errors_point_at_the_place(text: str, column: int, reason: str):
    with pytest.raises(PipelineError) as caught:
        parse_pipeline(text)
    assert caught.value.column == column
    assert reason in caught.value.reason
    assert str(caught.value).endswith(f"\n  {text}\n  {' ' * column}^")


ident = st.from_regex(r"[a-z][a-z0-9_.\-]{0,8}", fullmatch=True).filter(lambda s: s not in ("builtin.module", "any"))
option = st.tuples(ident, st.sampled_from(["", "=1", "={1,2}", "='a b'", '="}"', "={a={b}}"])).map("".join)
leaf = st.builds(PassNode, ident, st.lists(option, max_size=3).map(" ".join), st.just(0))
tree = st.recursive(
    leaf, lambda inner: st.builds(NestNode, ident, st.lists(inner, max_size=3).map(tuple), st.just(0)), max_leaves=6
)


@settings(max_examples=100, deadline=None)
@given(st.lists(tree, min_size=1, max_size=4))
def test_what_is_written_is_read_again(nodes: list):
    text = ",".join(map(str, nodes))
    assert ",".join(map(str, parse_pipeline(f"builtin.module({text})"))) == text


@settings(max_examples=200, deadline=None)
@given(st.text("ab(){},='\" \n", max_size=30))
def test_any_text_parses_or_is_a_pipeline_error(text: str):
    try:
        parse_pipeline(text)
    except PipelineError as error:
        assert 0 <= error.column <= len(text)


def test_split_options():
    assert split_options(" a=1  b={2,3} c='x y' d e=f={g h} ") == [
        ("a", "1"),
        ("b", "2,3"),
        ("c", "x y"),
        ("d", None),
        ("e", "f={g h}"),
    ]
    with pytest.raises(PipelineError, match="unclosed brace"):
        split_options("a={1")


@dataclass(frozen=True)
class Every(Pass):
    """A pass with an option of every type."""

    name: ClassVar[str] = "kitsune-every"
    max_ops: int = 4
    slack: float = 1.5
    fuse: bool = False
    word: str = "host"
    sizes: list[int] = ()  # type: ignore[assignment]
    names: tuple[str, ...] = ()
    limit: int | None = None
    mode: Literal["fast", "safe"] = "fast"
    machine: Target | None = None


@pytest.mark.parametrize(
    "text, field, value",
    [
        ("max-ops=7", "max_ops", 7),
        ("max_ops=0x10", "max_ops", 16),
        ("slack=2e-3", "slack", 2e-3),
        ("fuse", "fuse", True),
        ("fuse=false", "fuse", False),
        ("fuse=1", "fuse", True),
        ("word='a b'", "word", "a b"),
        ("sizes=1,2,3", "sizes", [1, 2, 3]),
        ("sizes={4, 5}", "sizes", [4, 5]),
        ("sizes=", "sizes", []),
        ("names=a,b", "names", ("a", "b")),
        ("limit=3", "limit", 3),
        ("mode=safe", "mode", "safe"),
        ("machine=h200", "machine", H200),
    ],
)
def test_options_by_the_types_of_the_fields(text: str, field: str, value: object):
    assert getattr(make_pass(Every, text), field) == value


@pytest.mark.parametrize(
    "text, message",
    [
        ("maxops=7", "pass 'kitsune-every' has no option 'maxops'; did you mean 'max-ops'? Its options: max-ops (integer), "),
        (
            "zzz",
            "pass 'kitsune-every' has no option 'zzz'; its options: max-ops (integer), slack (number), fuse (true or false)",
        ),
        ("max-ops=many", "pass 'kitsune-every': option 'max-ops' must be integer, got 'many'"),
        ("max-ops", "pass 'kitsune-every': option 'max-ops' needs a value (integer)"),
        ("fuse=maybe", "option 'fuse' must be true or false, got 'maybe'"),
        ("sizes=1,x", "option 'sizes' must be list of integer, got '1,x'"),
        ("mode=slow", "option 'mode' must be one of fast, safe, got 'slow'"),
        ("machine=abacus", "option 'machine' must be target, got 'abacus': unknown target 'abacus'; known targets: host"),
        ("fuse fuse", "option 'fuse' is given twice"),
        ("=3", "expected the name of an option"),
    ],
)
def test_wrong_options(text: str, message: str):
    with pytest.raises(PipelineError) as caught:
        make_pass(Every, text)
    assert message in str(caught.value)


def test_run_wide_settings_give_way_to_options():
    assert make_pass(Every, "", word="x", machine="h200", absent=1, limit=None) == Every(word="x", machine=H200)
    assert make_pass(Every, "word=y", word="x").word == "y"  # type: ignore[attr-defined]


def test_pass_text_is_read_again():
    one = Every(max_ops=7, fuse=True, word="a b", sizes=[1, 2], machine=H200)
    text = pass_text(one)
    assert text == "kitsune-every{max-ops=7 fuse=true word='a b' sizes=1,2 machine=h200}"
    (node,) = parse_pipeline(text)
    assert isinstance(node, PassNode)
    assert make_pass(Every, node.options) == one
    assert pass_text(Every()) == "kitsune-every"


def test_options_are_listed_with_types_and_defaults():
    listed = {o.name: (o.type, o.default) for o in options_of(Every)}
    assert listed["max-ops"] == ("integer", "4")
    assert listed["sizes"] == ("list of integer", "")
    assert listed["machine"] == ("target", "")


@dataclass(frozen=True)
class Needy(Pass):
    """A pass with an option that has no default."""

    name: ClassVar[str] = "kitsune-needy"
    rows: int


def test_a_required_option():
    with pytest.raises(PipelineError, match="pass 'kitsune-needy' needs option 'rows'"):
        make_pass(Needy)
    assert options_of(Needy)[0].default == "(required)"
