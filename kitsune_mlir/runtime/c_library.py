"""A program for the host as C: a header, a source and an object file, which any C compiler makes a library of.

    cc -shared -fPIC -O2 -Wl,-Bsymbolic model.c model.o -lm -o libmodel.so

Nothing of Python is in it. The object file is the program's own code; the source holds what the runtime does around a call
(`host_executor.py`): memory of a call, the counts of rows, errors. A call runs on the thread that makes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kitsune_mlir.errors import ArgumentError, UnsupportedError
from kitsune_mlir.runtime.host_code import HostCode, host_cpu
from kitsune_mlir.runtime.host_object import emit_object
from kitsune_mlir.runtime.host_runner import HostRunner
from kitsune_mlir.runtime.program import Program

__all__ = ["write_c_library"]

HEADER = """\
/* Made by kitsune-mlir. Runs on this processor and its like: @CPU@ */
#ifndef KITSUNE_@GUARD@_H
#define KITSUNE_@GUARD@_H
#ifdef __cplusplus
extern "C" {
#endif

enum { @N@_weights = @WEIGHTS@, @N@_inputs = @INPUTS@, @N@_results = @RESULTS@ };

/*
@TABLE@
*/

typedef struct @N@ @N@;

/* What calls of one thread at a time need; NULL where there is no memory. Its weights are set before the first call. */
@N@ *@N@_create(void);
void @N@_destroy(@N@ *self);

/* Weights from @N@.weights; 0, or -1 where the file cannot be read or is not as long as it should be. */
int @N@_load(@N@ *self, const char *path);

/* Another weight, in the caller's memory, which stays his: it is read (where the model changes it, written) by calls from now
   on. 0, or -1 where there is no such weight, or it begins at no multiple of 16 bytes. */
int @N@_set_weight(@N@ *self, int number, void *data);

/* One call. Tensors begin at multiples of 16 bytes, and do not overlap; where a result lies in place of an argument, the
   caller's is not used. 0; -1 where a tensor or weight is missing or lies otherwise; else what @N@_message explains. */
int @N@_run(@N@ *self, void *const *inputs, void *const *results);
const char *@N@_message(int error);

#ifdef __cplusplus
}
#endif
#endif
"""

SOURCE = """\
#include "@N@.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WEIGHTS = @WEIGHTS@, INPUTS = @INPUTS@, RESULTS = @RESULTS@, ARGUMENTS = WEIGHTS + INPUTS + RESULTS + 1 };
enum { CUTS = @CUTS@, COUNTS = @COUNTS@ };
#define CONTROL_BYTES ((size_t)@CONTROL@)
#define ARENA_BYTES ((size_t)@ARENA@)
#define SCRATCH_BYTES ((size_t)@SCRATCH@)
#define PAGE ((size_t)256)
#define ROUNDED(n) (((n) + PAGE - 1) / PAGE * PAGE)

extern void @ENTRY@(void **pointers, int32_t *control, void *scratch, int64_t requests);

static const size_t sizes[] = {@SIZES@};
static const int overwrites[] = {@OVERWRITES@};
static const char *const messages[] = {@MESSAGES@};
/* Of tasks of which tiles are left out: the word of the control block, places, counts that decide; then of each count its
   argument, and where its thresholds begin. */
static const int32_t cuts[][3] = {@CUT_ROWS@};
static const int32_t counts[][2] = {@COUNT_ROWS@};
static const int64_t thresholds[] = {@THRESHOLDS@};

struct @N@ {
  void *weights[WEIGHTS + 1];
  void *held;   /* the weights of a file */
  void *memory;
};

@N@ *@N@_create(void) {
  @N@ *self = calloc(1, sizeof *self);
  if (self != NULL)
    self->memory = malloc(ROUNDED(CONTROL_BYTES) + ROUNDED(ARENA_BYTES) + ROUNDED(SCRATCH_BYTES) + PAGE);
  if (self != NULL && self->memory == NULL) {
    free(self);
    return NULL;
  }
  return self;
}

void @N@_destroy(@N@ *self) {
  if (self == NULL)
    return;
  free(self->held);
  free(self->memory);
  free(self);
}

static int is_aligned(const void *data) { return data != NULL && (uintptr_t)data % 16 == 0; }

int @N@_set_weight(@N@ *self, int number, void *data) {
  if (number < 0 || number >= WEIGHTS || !is_aligned(data))
    return -1;
  self->weights[number] = data;
  return 0;
}

int @N@_load(@N@ *self, const char *path) {
  size_t total = 0, place = 0;
  for (int n = 0; n < WEIGHTS; n++)
    total += ROUNDED(sizes[n]);
  FILE *file = fopen(path, "rb");
  if (file == NULL)
    return -1;
  void *held = malloc(total + PAGE);
  char *base = (char *)ROUNDED((uintptr_t)held);
  int good = held != NULL && fread(base, 1, total, file) == total && fgetc(file) == EOF;
  fclose(file);
  if (!good) {
    free(held);
    return -1;
  }
  free(self->held);
  self->held = held;
  for (int n = 0; n < WEIGHTS; n++) {
    self->weights[n] = base + place;
    place += ROUNDED(sizes[n]);
  }
  return 0;
}

static int32_t left_out(int task, void *const *pointers, int *next) {
  int32_t extent = cuts[task][1], most = 0;
  for (int32_t n = 0; n < cuts[task][2]; n++, ++*next) {
    int64_t count = *(const int64_t *)pointers[counts[*next][0]];
    const int64_t *each = thresholds + counts[*next][1];
    int32_t low = 0, high = extent;
    while (low < high) {
      int32_t middle = low + (high - low) / 2;
      if (each[middle] < count)
        low = middle + 1;
      else
        high = middle;
    }
    most = low > most ? low : most;
  }
  return extent - most;
}

int @N@_run(@N@ *self, void *const *inputs, void *const *results) {
  void *pointers[ARGUMENTS];
  char *base = (char *)ROUNDED((uintptr_t)self->memory);
  int32_t *control = (int32_t *)base;
  int next = 0;
  for (int n = 0; n < WEIGHTS + INPUTS; n++) {
    pointers[n] = n < WEIGHTS ? self->weights[n] : inputs[n - WEIGHTS];
    if (!is_aligned(pointers[n]))
      return -1;
  }
  for (int n = 0; n < RESULTS; n++) {
    pointers[WEIGHTS + INPUTS + n] = overwrites[n] < 0 ? results[n] : pointers[overwrites[n]];
    if (!is_aligned(pointers[WEIGHTS + INPUTS + n]))
      return -1;
  }
  pointers[ARGUMENTS - 1] = base + ROUNDED(CONTROL_BYTES);
  memset(control, 0, CONTROL_BYTES);
  for (int n = 0; n < CUTS; n++)
    control[cuts[n][0]] = left_out(n, pointers, &next);
  @ENTRY@(pointers, control, base + ROUNDED(CONTROL_BYTES) + ROUNDED(ARENA_BYTES), 1);
  return control[@ERROR@];
}

const char *@N@_message(int error) {
  int known = (int)(sizeof messages / sizeof *messages) - 1;
  if (error == -1)
    return "a tensor or weight is missing, or begins at no multiple of 16 bytes";
  return error > 0 && error <= known ? messages[error - 1] : "";
}
"""

ERROR_WORD = 16
"""Of the control block: number of the first failed assertion."""
PAGE = 256


def write_c_library(program: Program, folder: str | os.PathLike[str], name: str = "model") -> list[Path]:
    """Write a program's code as NAME.h, NAME.c and NAME.o, and its weights as NAME.weights, into a folder.

    The header says which tensors a call takes and gives. Outputs that are arguments or plain values are not among its results.

    Args:
        program: for the host.
        name: an identifier of C, which all functions begin with.

    Raises:
        ArgumentError: the program is not for the host, computes nothing, or the name is none.
        OSError: a file cannot be written.
        UnsupportedError: the model changes a tensor that the program does not write where it lies.
    """
    if program.target != "host" or not program.artifacts:
        raise ArgumentError(f"a C library is made of a program with code for the host, not of one for '{program.target}'")
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ArgumentError(f"the name of a C library is an identifier, not {name!r:.60}")
    signature = program.signature
    for output in signature.outputs:
        if output.mutates is not None and not output.in_place:
            raise UnsupportedError(
                "c library", f"'{output.mutates}' is changed by a copy after the run, which C code does not make"
            )
    code, folder = HostRunner.read_code(program.artifacts), Path(folder)
    data = code.object_file if code.cpu == host_cpu() else emit_object(code.llvm_ir)
    words = _words(program, code, name)
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / f"{name}{end}" for end in (".h", ".c", ".o", ".weights")]
    made[0].write_text(_filled(HEADER, words))
    made[1].write_text(_filled(SOURCE, words))
    made[2].write_bytes(data)
    with open(made[3], "wb") as file:
        for tensor, size in zip(program.placed_weights, code.argument_bytes, strict=False):
            file.write(_bytes_of(tensor, size) + bytes(-size % PAGE))
    return made


def _filled(text: str, words: dict[str, str]) -> str:
    return re.sub(r"@(\w+)@", lambda found: words[found[1]], text)


def _words(program: Program, code: HostCode, name: str) -> dict[str, str]:
    signature = program.signature
    weights, inputs, results = len(signature.weights), len(signature.inputs), len(signature.results)
    rows, counts, limits = [], [], list[int]()
    for task in code.cut:
        rows.append(f"{{{task.word}, {task.extent}, {len(task.counts)}}}")
        for count, each in zip(task.counts, task.thresholds, strict=True):
            counts.append(f"{{{count}, {len(limits)}}}")
            limits += each
    messages = [f'"{_escaped(message)}"' for message in code.messages]
    return {
        "N": name, "GUARD": name.upper(), "CPU": _comment(code.cpu.partition(" ")[0]), "ENTRY": code.name,
        "WEIGHTS": str(weights), "INPUTS": str(inputs), "RESULTS": str(results), "TABLE": _table(program),
        "CUTS": str(len(rows)), "COUNTS": str(len(counts)), "CONTROL": str(code.control_bytes), "ERROR": str(ERROR_WORD),
        "ARENA": str(code.arena_bytes), "SCRATCH": str(code.scratch_bytes),
        "SIZES": ", ".join(map(str, (*code.argument_bytes, 0))),
        "OVERWRITES": ", ".join(map(str, (*(code.overwrites or [-1] * results), -1))),
        "MESSAGES": ", ".join([*messages, '""']), "CUT_ROWS": ", ".join([*rows, "{0, 0, 0}"]),
        "COUNT_ROWS": ", ".join([*counts, "{0, 0}"]), "THRESHOLDS": ", ".join(map(str, (*limits, 0))),
    }  # fmt: skip


def _table(program: Program) -> str:
    """Arguments and results in words, as they lie in memory: sizes of dimensions, outermost first."""
    signature = program.signature
    lines = [
        _line("weight", n, weight.name, weight.wide or weight.shape, weight.order, weight.dtype)
        + (" (made of others by the compiler)" if weight.recipe else "")
        for n, weight in enumerate(signature.weights)
    ]
    for n, one in enumerate(signature.inputs):
        part = f" (of it {list(one.shape)}: {one.lies})" if one.lies else ""
        lines.append(_line("input", n, one.name, one.taken, one.order, one.dtype) + part)
    orders = signature.result_orders
    lines += [_line("result", n, "", shape, orders.get(n, ()), dtype) for n, (shape, dtype) in enumerate(signature.results)]
    return "\n".join(lines)


def _line(kind: str, number: int, name: str, shape: Sequence[int], order: Sequence[int], dtype: str) -> str:
    sizes = " x ".join(str(shape[dim]) for dim in (order or range(len(shape)))) or "one element"
    moved = f", dimensions {list(order)}" if order else ""
    return _comment(f"{kind} {number}{f' {name}' if name else ''}: {dtype}, {sizes}{moved}")


def _comment(text: str) -> str:
    return text.replace("*/", "* /")


def _escaped(text: str) -> str:
    return "".join(c if 32 <= ord(c) < 127 and c not in '"\\' else f"\\{ord(c):03o}" if ord(c) < 128 else "?" for c in text)


def _bytes_of(tensor: Any, size: int) -> bytes:
    """The memory that a dense tensor lies in."""
    import ctypes

    return ctypes.string_at(tensor.data_ptr(), size) if size else b""
