// How many rows of a result callers want: of the program, and of the tasks that make them, which leave out tiles behind.
// RUN: kitsune-opt %s --kitsune-materialize | FileCheck %s
// RUN: kitsune-opt %s --kitsune-materialize --kitsune-to-host | FileCheck %s --check-prefix=HOST

// Programs stand in front of each other: the last one comes first. What is returned twice is wanted whole, and so is what lies
// in memory in another order, in which rows are not outermost.
// CHECK: func.func @twice_p0({{.*}}kitsune.results = 1 : i64} {
// CHECK: func.func @whole_p0({{.*}}kitsune.results = 1 : i64} {
// CHECK: func.func @f_p0({{.*}}, %{{.*}}: memref<i64>, {{.*}}) attributes {{.*}}kitsune.valid_rows = array<i64: 2, 64>

// Words 36 and 37, behind four slots; four tiles of 16 rows each; one count, argument 2; a tile is needed where there are more
// rows than come before it.
// HOST: func.func private @twice_p0_task0
// HOST-NOT: call @kitsune_left_out
// HOST: func.func private @f_p0_task0
// HOST: llvm.call @kitsune_left_out
// HOST: scf.if
// HOST: func.call @f_p0_body0
// HOST: llvm.call @kitsune_post
// HOST: func.func private @f_p0_task1
// HOST: llvm.call @kitsune_wait
// HOST: llvm.call @kitsune_left_out
// HOST: func.func @f_p0_worker
// HOST-SAME: kitsune.live_tiles = array<i64: 36, 4, 1, 2, 0, 16, 32, 48, 37, 4, 1, 2, 0, 16, 32, 48>
#id = affine_map<(m, n) -> (m, n)>
func.func @f(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %n: tensor<i64>) -> (tensor<64x32xf32> {kitsune.valid_rows = array<i64: 2, 64>}) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>, after = [],
        buffers = [#kitsune.buffer<"global", 1 : i64>], offsets = array<i64: 0>, sync = [#kitsune.sync<"none">, #kitsune.sync<"none">]} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>, after = [],
        buffers = [#kitsune.buffer<"global", 1 : i64>], offsets = array<i64: -1>, sync = [#kitsune.sync<"tile">, #kitsune.sync<"none">]} : () -> tensor<64x32xf32>
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "f_p0", arena = 8192 : i64} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}
func.func @whole(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %n: tensor<i64>) -> (tensor<64x32xf32> {kitsune.dim_order = array<i64: 1, 0>, kitsune.valid_rows = array<i64: 2, 64>}) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>, after = [],
        buffers = [#kitsune.buffer<"global", 1 : i64>], offsets = array<i64: 0>, sync = [#kitsune.sync<"none">, #kitsune.sync<"none">]} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>, after = [],
        buffers = [#kitsune.buffer<"global", 1 : i64>], offsets = array<i64: -1>, sync = [#kitsune.sync<"tile">, #kitsune.sync<"none">]} : () -> tensor<64x32xf32>
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "whole_p0", arena = 8192 : i64} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}
func.func @twice(%x: tensor<64x32xf32>, %e: tensor<64x32xf32>, %n: tensor<i64>) -> (tensor<64x32xf32> {kitsune.valid_rows = array<i64: 2, 64>}, tensor<64x32xf32>) {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.exp %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "a", engine = "simt", tile = array<i64: 16, 32>, after = [],
        buffers = [#kitsune.buffer<"global", 1 : i64>], offsets = array<i64: 0>, sync = [#kitsune.sync<"none">, #kitsune.sync<"none">]} : () -> tensor<64x32xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%i: f32, %o: f32):
        %v = math.tanh %i : f32
        linalg.yield %v : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "b", engine = "simt", tile = array<i64: 16, 32>, after = [],
        buffers = [#kitsune.buffer<"global", 1 : i64>], offsets = array<i64: -1>, sync = [#kitsune.sync<"tile">, #kitsune.sync<"none">]} : () -> tensor<64x32xf32>
    "kitsune.yield"(%b) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "twice_p0", arena = 8192 : i64} : () -> tensor<64x32xf32>
  return %p, %p : tensor<64x32xf32>, tensor<64x32xf32>
}
