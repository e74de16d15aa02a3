// What is refused of the attributes that passes write (dialects/attribute_table.py).
// RUN: kitsune-opt %s --split-input-file --verify-diagnostics

// A stage has the attributes of the table only.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op has no attribute 'tiles'; it has sym_name, engine, tile, groups, updates, ordered, into, indexed, workers, launch, ring, buffers, offsets, after, overwrites, sync}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", tiles = array<i64: 4>} : () -> tensor<4xf32>
  return
}

// -----

// `groups` is of its type and range.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'groups' must be at least 1, got 0 : i64}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", groups = 0 : i64} : () -> tensor<4xf32>
  return
}

// -----

// `updates` is of its type and range.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'updates' must be an integer, got "8"}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", updates = "8"} : () -> tensor<4xf32>
  return
}

// -----

// `updates` is of its type and range.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'updates' must be at least 1, got 0 : i64}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", updates = 0 : i64} : () -> tensor<4xf32>
  return
}

// -----

// `ordered` is of its type and range.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'ordered' must be an integer, got array<i64: 4>}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", ordered = array<i64: 4>} : () -> tensor<4xf32>
  return
}

// -----

// `ordered` is of its type and range.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'ordered' must be at least 0, got -1 : i64}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", ordered = -1 : i64} : () -> tensor<4xf32>
  return
}

// -----

// `into` is of its type and range.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'into' must be a string, got 0 : i64}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", into = 0 : i64} : () -> tensor<4xf32>
  return
}

// -----

// `indexed` is of its type and range.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'indexed' must be an array of strings, got [1, 2]}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", indexed = [1, 2]} : () -> tensor<4xf32>
  return
}

// -----

// `ring` is of its type and range.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'ring' must be at least 1, got 0 : i64}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", ring = 0 : i64} : () -> tensor<4xf32>
  return
}

// -----

// `offsets` is of its type and range.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'offsets' must be array<i64: ...>, got [0]}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", offsets = [0]} : () -> tensor<4xf32>
  return
}

// -----

// `offsets` is of its type and range.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'offsets' must be at least -1, got array<i64: -2>}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", offsets = array<i64: -2>} : () -> tensor<4xf32>
  return
}

// -----

// `after` is of its type and range.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'after' must be an array of strings, got [@a]}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", after = [@a]} : () -> tensor<4xf32>
  return
}

// -----

// A pipeline has the attributes of the table only.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op has no attribute 'engine'; it has sym_name, mode, arena}}
  %s = "kitsune.pipeline"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", engine = "mma"} : () -> tensor<4xf32>
  return
}

// -----

// The arena has a size.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op 'arena' must be an integer, got "4"}}
  %s = "kitsune.pipeline"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", arena = "4"} : () -> tensor<4xf32>
  return
}

// -----

// The size of the arena is not negative.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op 'arena' must be at least 0, got -4 : i64}}
  %s = "kitsune.pipeline"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", arena = -4 : i64} : () -> tensor<4xf32>
  return
}

// -----

// A task has the attributes of the table only.
func.func @f() {
  // expected-error@+1 {{'kitsune.task' op has no attribute 'tile'; it has sym_name, workers, launch, grid, engine, first}}
  "kitsune.task"() ({
    ^bb0(%i: index):
    "kitsune.yield"() : () -> ()
  }) {sym_name = "t", grid = array<i64: 1>, tile = array<i64: 4>} : () -> ()
  return
}

// -----

// The first multiprocessor is a number.
func.func @f() {
  // expected-error@+1 {{'kitsune.task' op 'first' must be at least 0, got -1 : i64}}
  "kitsune.task"() ({
    ^bb0(%i: index):
    "kitsune.yield"() : () -> ()
  }) {sym_name = "t", grid = array<i64: 1>, first = -1 : i64} : () -> ()
  return
}

// -----

// An attribute of the dialect that there is not.
// expected-error@+1 {{'func.func' op has attribute 'kitsune.unknown', which is none of the dialect's}}
func.func @f() attributes {kitsune.unknown} { return }

// -----

// A mark of the wrong type.
// expected-error@+1 {{'func.func' op 'kitsune.program' must be a unit, got 1 : i64}}
func.func @f() attributes {kitsune.program = 1 : i64} { return }

// -----

// A mode that there is not.
// expected-error@+1 {{'func.func' op 'kitsune.mode' must be one of temporal, spatial, separate, got 'steam'}}
func.func @f() attributes {kitsune.mode = "steam"} { return }

// -----

// Counts are not negative.
// expected-error@+1 {{'func.func' op 'kitsune.arguments' must be at least 0, got -1 : i64}}
func.func @f() attributes {kitsune.arguments = -1 : i64} { return }

// -----

// What an argument has, a function has not.
// expected-error@+1 {{'func.func' op has attribute 'kitsune.kind', which is for argument of func.func, not for func.func}}
func.func @f() attributes {kitsune.kind = "input"} { return }

// -----

// An argument is of one of four kinds.
// expected-error@+1 {{'func.func' op 'kitsune.kind' must be one of parameter, buffer, constant, derived, input, got 'weight'}}
func.func @f(%x: f32 {kitsune.kind = "weight"}) { return }

// -----

// Orders of dimensions are arrays.
// expected-error@+1 {{'func.func' op 'kitsune.dim_order' must be array<i64: ...>, got [0, 1]}}
func.func @f(%x: tensor<2x2xf32> {kitsune.dim_order = [0, 1]}) { return }

// -----

// What the caller's memory is like is for arguments.
// expected-error@+1 {{'func.func' op has attribute 'kitsune.padded_shape', which is for argument of func.func, not for result of func.func}}
func.func @f(%x: tensor<2xf32>) -> (tensor<2xf32> {kitsune.padded_shape = array<i64: 2>}) { return %x : tensor<2xf32> }

// -----

// Only padding has a halo.
func.func @f(%x: tensor<4xf32>, %i: index) {
  // expected-error@+1 {{'tensor.empty' op has attribute 'kitsune.halo', which is for tensor.pad, not for tensor.empty}}
  %0 = tensor.empty() {kitsune.halo} : tensor<4xf32>
  return
}

// -----

// Only products and joined keys are of an attention.
func.func @f(%x: tensor<4xf32>, %i: index) {
  // expected-error@+1 {{'tensor.dim' op has attribute 'kitsune.attention', which is for linalg.generic and tensor.concat, not for tensor.dim}}
  %0 = "tensor.dim"(%x, %i) {kitsune.attention = 0 : i64} : (tensor<4xf32>, index) -> index
  return
}

// -----

// Pairs have numbers.
func.func @f(%x: tensor<4xf32>, %i: index) {
  // expected-error@+1 {{'tensor.concat' op 'kitsune.pairs' must be an integer, got unit}}
  %0 = tensor.concat dim(0) %x {kitsune.pairs} : (tensor<4xf32>) -> tensor<4xf32>
  return
}
