// What the verifiers of the stage graph refuse.
// RUN: kitsune-opt %s --split-input-file --verify-diagnostics

// A pipeline has a name.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op needs attribute 'sym_name'}}
  %s = "kitsune.pipeline"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {} : () -> tensor<4xf32>
  return
}

// -----

// A pipeline's name is a string.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op 'sym_name' must be a string, got 4 : i64}}
  %s = "kitsune.pipeline"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = 4 : i64} : () -> tensor<4xf32>
  return
}

// -----

// A pipeline yields its result.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op yields nothing, but its result is tensor<4xf32>}}
  %s = "kitsune.pipeline"() ({
    "kitsune.yield"() : () -> ()
  }) {sym_name = "s"} : () -> tensor<4xf32>
  return
}

// -----

// A pipeline yields a value of its result's type.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op yields tensor<4xf32>, but its result is tensor<8xf32>}}
  %s = "kitsune.pipeline"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s"} : () -> tensor<8xf32>
  return
}

// -----

// A pipeline takes no block arguments.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op its block takes no arguments: values from outside are used directly}}
  %s = "kitsune.pipeline"() ({
    ^bb0(%a: index):
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s"} : () -> tensor<4xf32>
  return
}

// -----

// A pipeline ends in a yield.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op body must end in 'kitsune.yield'}}
  %s = "kitsune.pipeline"() ({
    llvm.unreachable
  }) {sym_name = "s"} : () -> tensor<4xf32>
  return
}

// -----

// A pipeline has a body.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op needs one region with one block}}
  %s = "kitsune.pipeline"() ({
  }) {sym_name = "s"} : () -> tensor<4xf32>
  return
}

// -----

// A pipeline has one result.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{op expects exactly 1 results, but got 0}}
  "kitsune.pipeline"() ({
    "kitsune.yield"() : () -> ()
  }) {sym_name = "s"} : () -> ()
  return
}

// -----

// A stage has a name.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op needs attribute 'sym_name'}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {} : () -> tensor<4xf32>
  return
}

// -----

// A stage's name is a string.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'sym_name' must be a string, got 4 : i64}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = 4 : i64} : () -> tensor<4xf32>
  return
}

// -----

// A stage yields its result.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op yields nothing, but its result is tensor<4xf32>}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"() : () -> ()
  }) {sym_name = "s"} : () -> tensor<4xf32>
  return
}

// -----

// A stage yields a value of its result's type.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op yields tensor<4xf32>, but its result is tensor<8xf32>}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s"} : () -> tensor<8xf32>
  return
}

// -----

// A stage takes no block arguments.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op its block takes no arguments: values from outside are used directly}}
  %s = "kitsune.stage"() ({
    ^bb0(%a: index):
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s"} : () -> tensor<4xf32>
  return
}

// -----

// A stage ends in a yield.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op body must end in 'kitsune.yield'}}
  %s = "kitsune.stage"() ({
    llvm.unreachable
  }) {sym_name = "s"} : () -> tensor<4xf32>
  return
}

// -----

// A stage has a body.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op needs one region with one block}}
  %s = "kitsune.stage"() ({
  }) {sym_name = "s"} : () -> tensor<4xf32>
  return
}

// -----

// A stage has one result.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{op expects exactly 1 results, but got 0}}
  "kitsune.stage"() ({
    "kitsune.yield"() : () -> ()
  }) {sym_name = "s"} : () -> ()
  return
}

// -----

// An engine is a string.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'engine' must be a string, got 1 : i64}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", engine = 1 : i64} : () -> tensor<4xf32>
  return
}

// -----

// Tile sizes are positive.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'tile' must be at least 1, got array<i64: 4, 0>}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", tile = array<i64: 4, 0>} : () -> tensor<4xf32>
  return
}

// -----

// Tile sizes are 64-bit integers.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'tile' must be array<i64: ...>, got [4]}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", tile = [4]} : () -> tensor<4xf32>
  return
}

// -----

// Workers are counted.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'workers' must be an integer, got "all"}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", workers = "all"} : () -> tensor<4xf32>
  return
}

// -----

// A buffer for each result.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'buffers' has 0 entries, needs one for each result (1)}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", buffers = []} : () -> tensor<4xf32>
  return
}

// -----

// Buffers are an array.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'buffers' must be an array, got #kitsune.buffer<}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", buffers = #kitsune.buffer<"global", 1 : i64>} : () -> tensor<4xf32>
  return
}

// -----

// A buffer's space is one that exists.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'buffers' has #kitsune.buffer<"attic", 1 : i64>, must be #kitsune.buffer of one of register, shared}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", buffers = [#kitsune.buffer<"attic", 1 : i64>]} : () -> tensor<4xf32>
  return
}

// -----

// A buffer is a buffer.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'buffers' has "global", must be #kitsune.buffer of one of}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", buffers = ["global"]} : () -> tensor<4xf32>
  return
}

// -----

// A policy for each input.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'sync' has 2 entries, needs one for each input (1)}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", sync = [#kitsune.sync<"all">, #kitsune.sync<"all">]} : () -> tensor<4xf32>
  return
}

// -----

// A policy is one that exists.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'sync' has #kitsune.sync<"maybe">, must be #kitsune.sync of one of tile, row, strided, halo, indexed, all, none}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", sync = [#kitsune.sync<"maybe">]} : () -> tensor<4xf32>
  return
}

// -----

// A policy is a policy.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'sync' has #kitsune.buffer<"global", 1 : i64>, must be #kitsune.sync of}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", sync = [#kitsune.buffer<"global", 1 : i64>]} : () -> tensor<4xf32>
  return
}

// -----

// A mode is one that exists.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op 'mode' must be one of temporal, spatial, separate, got 'steam'}}
  %s = "kitsune.pipeline"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "p", mode = "steam"} : () -> tensor<4xf32>
  return
}

// -----

// A mode is a string.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op 'mode' must be a string, got 1 : i64}}
  %s = "kitsune.pipeline"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "p", mode = 1} : () -> tensor<4xf32>
  return
}

// -----

// A stage of a spatial pipeline owns multiprocessors.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op is spatial, but its stage "s" has no 'workers'}}
  %p = "kitsune.pipeline"() ({
    %s = "kitsune.stage"() ({
      "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
    }) {sym_name = "s"} : () -> tensor<4xf32>
    "kitsune.yield"(%s) : (tensor<4xf32>) -> ()
  }) {sym_name = "p", mode = "spatial"} : () -> tensor<4xf32>
  return
}

// -----

// A stage owns at least one multiprocessor.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'workers' must be at least 1, got 0 : i64}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", workers = 0} : () -> tensor<4xf32>
  return
}

// -----

// A stage of a separate pipeline is part of a launch.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op is separate, but its stage "s" has no 'launch'}}
  %p = "kitsune.pipeline"() ({
    %s = "kitsune.stage"() ({
      "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
    }) {sym_name = "s"} : () -> tensor<4xf32>
    "kitsune.yield"(%s) : (tensor<4xf32>) -> ()
  }) {sym_name = "p", mode = "separate"} : () -> tensor<4xf32>
  return
}

// -----

// Launches are in the order of the stages.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.pipeline' op has stage "t" of launch 0 after one of launch 1}}
  %p = "kitsune.pipeline"() ({
    %s = "kitsune.stage"() ({
      "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
    }) {sym_name = "s", launch = 1} : () -> tensor<4xf32>
    %t = "kitsune.stage"() ({
      "kitsune.yield"(%s) : (tensor<4xf32>) -> ()
    }) {sym_name = "t", launch = 0} : () -> tensor<4xf32>
    "kitsune.yield"(%t) : (tensor<4xf32>) -> ()
  }) {sym_name = "p", mode = "separate"} : () -> tensor<4xf32>
  return
}

// -----

// A ring holds a number of tiles.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'ring' must be an integer, got "deep"}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", ring = "deep"} : () -> tensor<4xf32>
  return
}

// -----

// A launch has a number.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.stage' op 'launch' must be at least 0, got -1 : i64}}
  %s = "kitsune.stage"() ({
    "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
  }) {sym_name = "s", launch = -1} : () -> tensor<4xf32>
  return
}

// -----

// A yield stands in a pipeline, a stage or a task.
func.func @f(%x: tensor<4xf32>) {
  // expected-error@+1 {{'kitsune.yield' op must be inside kitsune.pipeline, kitsune.stage or kitsune.task}}
  "kitsune.yield"(%x) : (tensor<4xf32>) -> ()
}

// -----

// A buffer's depth is an integer, its space a string.
// expected-error@+1 {{expected base attribute 'builtin.string' but got 'builtin.integer'}}
func.func private @f() attributes {a = #kitsune.buffer<3 : i64, 1 : i64>}

// -----

// expected-error@+1 {{expected base attribute 'builtin.integer' but got 'builtin.string'}}
func.func private @f() attributes {a = #kitsune.buffer<"shared", "deep">}

// -----

// A policy is a string.
// expected-error@+1 {{expected base attribute 'builtin.string' but got 'builtin.integer'}}
func.func private @f() attributes {a = #kitsune.sync<3>}

// -----

// What the dialect does not have is an error.
func.func @f() {
  // expected-error@+1 {{unregistered operation 'kitsune.nothing' found in dialect ('kitsune')}}
  "kitsune.nothing"() : () -> ()
  return
}
