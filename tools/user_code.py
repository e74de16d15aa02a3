"""A user's own model: `path/to/file.py:make_model`, and example arguments written as text (`f32[4,64]`)."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kitsune_mlir.errors import FrontendError, KitsuneError
from kitsune_mlir.runtime.signature import torch_dtype

_SHAPE = re.compile(r"(?P<dtype>[a-z][a-z0-9]*)\[(?P<dims>[\d, ]*)\]")
_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?")


class UserCodeError(FrontendError):
    """The user's file is missing, has no such function, or fails; names the user's own line."""


def load_model(spec: str, args_text: str | None, functions: bool = False) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Model, example arguments and keyword arguments of `file.py:name` or `package.module:name`; of another file its path.

    `name` is a function or class without arguments that gives a model, `(model, args)` or `(model, args, kwargs)`, or a model
    itself. `args_text` (`"f32[4,64] i64[4]"`) stands in for the arguments. With `functions` a model may be any function, and
    a function that needs arguments is one itself.

    Raises:
        UserCodeError: there is no such file or name, it fails, or gives something else.
        KitsuneError: `args_text` is malformed, or no arguments are known.
    """
    import torch

    from kitsune_mlir.frontend.opening import FILES

    if Path(spec).suffix in FILES:
        return spec, parse_arguments(args_text or ""), {}
    named = _named(spec)
    made = named if functions and _needs_arguments(named) else _made(named, spec)
    model, args, kwargs = made, None, {}
    if isinstance(made, tuple) and 2 <= len(made) <= 3 and (isinstance(made[0], torch.nn.Module) or functions):
        model, args = made[0], made[1]
        kwargs = dict(made[2]) if len(made) == 3 else {}
        args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    if not isinstance(model, torch.nn.Module) and not (functions and callable(model)):
        raise UserCodeError(f"{spec} gave a {type(made).__name__}; a torch.nn.Module or (model, args) was expected")
    if args_text is not None:
        args, kwargs = parse_arguments(args_text), {}
    if args is None:
        raise KitsuneError(f"{spec} gives a model without arguments: return (model, args), or pass --args such as 'f32[4,64]'")
    return model, args, kwargs


def parse_arguments(text: str) -> tuple[Any, ...]:
    """Example arguments from text: `f32[4,64]` a random tensor (integers are 0 or 1), `f32[]` a scalar tensor, `3` a number.

    Arguments are separated by spaces or semicolons.
    """
    found = []
    for word in re.split(r"[;\s]+(?![^\[]*\])", text.strip()):
        shape = _SHAPE.fullmatch(word)
        if shape:
            dims = [int(d) for d in re.findall(r"\d+", shape["dims"])]
            found.append(random_tensor(dims, shape["dtype"]))
        elif _NUMBER.fullmatch(word):
            found.append(float(word) if any(c in word for c in ".eE") else int(word))
        elif word:
            raise KitsuneError(f"argument '{word}' is neither a shape such as 'f32[4,64]' nor a number")
    return tuple(found)


def random_tensor(shape: Sequence[int], dtype: str) -> Any:
    """A random tensor of an element type in MLIR's spelling ("bf16", "i64", "i1").

    Floats are normal; integers and booleans are 0 or 1, so that they may be indices into anything with two entries.
    """
    import torch

    kind = torch_dtype({"bool": "i1"}.get(dtype, dtype))
    if kind.is_floating_point or kind.is_complex:
        wide = torch.complex64 if kind.is_complex else torch.float32
        return torch.randn(list(shape), dtype=wide).to(kind)
    return torch.randint(0, 2, list(shape)).to(kind)


def _named(spec: str) -> Any:
    """What `file.py:name` names."""
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise UserCodeError(f"'{spec}' does not name a model: write path/to/file.py:function")
    module = _file(Path(place)) if place.endswith(".py") else _module(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            names = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
            raise UserCodeError(f"{place} has no '{name}'; it defines {', '.join(names) or 'no functions'}")
        found = getattr(found, part)
    return found


def _file(path: Path) -> Any:
    if not path.is_file():
        raise UserCodeError(f"no file '{path}'")
    name = f"kitsune_user_{re.sub(r'[^A-Za-z0-9]', '_', path.stem)}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and torch.export look a class's module up
    sys.path.insert(0, str(path.resolve().parent))  # as `python file.py` does: files beside it can be imported
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed(error, f"{path} fails on import") from error
    finally:
        sys.path.pop(0)
    return module


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            raise UserCodeError(f"no module '{error.name}' (to name a file, write its path with .py)") from error
        raise _failed(error, f"module {name} fails on import") from error
    except Exception as error:
        raise _failed(error, f"module {name} fails on import") from error


def _needs_arguments(found: Any) -> bool:
    """Whether it is a function that cannot be called without."""
    if not inspect.isfunction(found):
        return False
    parameters = inspect.signature(found).parameters.values()
    return any(one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters)


def _made(found: Any, spec: str) -> Any:
    import torch

    if isinstance(found, (torch.nn.Module, tuple)):
        return found
    if not callable(found):
        raise UserCodeError(f"{spec} is a {type(found).__name__}; a function or a model was expected")
    try:
        return found()
    except Exception as error:
        raise _failed(error, f"{spec} fails") from error


def _failed(error: Exception, what: str) -> UserCodeError:
    """The error of a user's code with the innermost line of that code (not of a library below it)."""
    if isinstance(error, SyntaxError):
        return UserCodeError(f"{what}: {error.msg}", location=f"{error.filename}:{error.lineno}")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__ and "importlib" not in f.filename]
    own = [f for f in frames if "site-packages" not in f.filename] or frames
    location = f"{own[-1].filename}:{own[-1].lineno}" if own else None
    return UserCodeError(f"{what}: {type(error).__name__}: {error}", location=location)
