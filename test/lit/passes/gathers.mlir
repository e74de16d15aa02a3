// Rows that indices name: a gather waits for the tiles that hold them, where the model says that it pays or an option asks for it.
// RUN: kitsune-opt %s --split-input-file --pass-pipeline='builtin.module(kitsune-partition-streams{target=h200 mode=temporal gathers=rows},kitsune-place-buffers,kitsune-synchronize,kitsune-materialize,kitsune-check-progress)' | FileCheck %s
// RUN: kitsune-opt %s --split-input-file --pass-pipeline='builtin.module(kitsune-partition-streams{target=h200 mode=temporal gathers=all},kitsune-place-buffers,kitsune-synchronize,kitsune-materialize,kitsune-check-progress)' | FileCheck %s --check-prefix=ALL
// RUN: kitsune-opt %s --split-input-file --remarks --pass-pipeline='builtin.module(kitsune-partition-streams{target=h200 mode=temporal})' 2>&1 | FileCheck %s --check-prefix=WHY
// RUN: not kitsune-opt %s --split-input-file --pass-pipeline='builtin.module(kitsune-partition-streams{target=h200 gathers=some})' 2>&1 | FileCheck %s --check-prefix=WRONG

// ALL-NOT: kitsune.wait_rows
// WRONG: option 'gathers' of kitsune-partition-streams is auto, all, rows, not 'some'

// Indices of a tile: those from its offset on; a block of rows is complete with one post.
// CHECK-LABEL: func.func @rows_p0(
// CHECK: "kitsune.wait_rows"(%{{.*}}, %{{.*}}, %{{.*}}, %arg1) {count = 1 : i64, extent = 4096 : i64, rows = {{[0-9]+}} : i64}
// WHY: gathers from a, waits for {{.*}} rows a tile ({{.*}} us, waiting for all of it {{.*}})
#row = affine_map<(m, n) -> (m)>
#id = affine_map<(m, n) -> (m, n)>
func.func @rows(%x: tensor<4096x64xf32>, %i: tensor<96xi64>, %e: tensor<4096x64xf32>, %f: tensor<96x64xf32>) -> tensor<96x64xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<4096x64xf32>) outs(%e : tensor<4096x64xf32>) {
      ^bb0(%v: f32, %o: f32):
        %w = math.exp %v : f32
        linalg.yield %w : f32
      } -> tensor<4096x64xf32>
      "kitsune.yield"(%r) : (tensor<4096x64xf32>) -> ()
    }) {sym_name = "a"} : () -> tensor<4096x64xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#row, #id], iterator_types = ["parallel", "parallel"]} ins(%i : tensor<96xi64>) outs(%f : tensor<96x64xf32>) {
      ^bb0(%n: i64, %o: f32):
        %zero = arith.constant 0 : i64
        %rows = arith.constant 4096 : i64
        %back = arith.cmpi slt, %n, %zero : i64
        %end = arith.addi %n, %rows : i64
        %some = arith.select %back, %end, %n : i64
        %at = arith.index_cast %some : i64 to index
        %c = linalg.index 1 : index
        %w = tensor.extract %a[%at, %c] : tensor<4096x64xf32>
        linalg.yield %w : f32
      } -> tensor<96x64xf32>
      "kitsune.yield"(%r) : (tensor<96x64xf32>) -> ()
    }) {sym_name = "b"} : () -> tensor<96x64xf32>
    "kitsune.yield"(%b) : (tensor<96x64xf32>) -> ()
  }) {sym_name = "rows_p0"} : () -> tensor<96x64xf32>
  return %p : tensor<96x64xf32>
}

// -----

// Half of a number is another row than the wait would be for, and so is what another stage makes of indices.
// CHECK-LABEL: func.func @half_p0(
// CHECK-NOT: kitsune.wait_rows
#row = affine_map<(m, n) -> (m)>
#id = affine_map<(m, n) -> (m, n)>
func.func @half(%x: tensor<4096x64xf32>, %i: tensor<96xi64>, %e: tensor<4096x64xf32>, %f: tensor<96x64xf32>) -> tensor<96x64xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<4096x64xf32>) outs(%e : tensor<4096x64xf32>) {
      ^bb0(%v: f32, %o: f32):
        %w = math.exp %v : f32
        linalg.yield %w : f32
      } -> tensor<4096x64xf32>
      "kitsune.yield"(%r) : (tensor<4096x64xf32>) -> ()
    }) {sym_name = "a"} : () -> tensor<4096x64xf32>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#row, #id], iterator_types = ["parallel", "parallel"]} ins(%i : tensor<96xi64>) outs(%f : tensor<96x64xf32>) {
      ^bb0(%n: i64, %o: f32):
        %two = arith.constant 2 : i64
        %half = arith.divui %n, %two : i64
        %at = arith.index_cast %half : i64 to index
        %c = linalg.index 1 : index
        %w = tensor.extract %a[%at, %c] : tensor<4096x64xf32>
        linalg.yield %w : f32
      } -> tensor<96x64xf32>
      "kitsune.yield"(%r) : (tensor<96x64xf32>) -> ()
    }) {sym_name = "b"} : () -> tensor<96x64xf32>
    "kitsune.yield"(%b) : (tensor<96x64xf32>) -> ()
  }) {sym_name = "half_p0"} : () -> tensor<96x64xf32>
  return %p : tensor<96x64xf32>
}

// -----

// CHECK-LABEL: func.func @made_p0(
// CHECK-NOT: kitsune.wait_rows
#row = affine_map<(m, n) -> (m)>
#one = affine_map<(m) -> (m)>
#id = affine_map<(m, n) -> (m, n)>
func.func @made(%x: tensor<4096x64xf32>, %i: tensor<96xi64>, %e: tensor<4096x64xf32>, %f: tensor<96x64xf32>, %g: tensor<96xi64>) -> tensor<96x64xf32> {
  %p = "kitsune.pipeline"() ({
    %a = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<4096x64xf32>) outs(%e : tensor<4096x64xf32>) {
      ^bb0(%v: f32, %o: f32):
        %w = math.exp %v : f32
        linalg.yield %w : f32
      } -> tensor<4096x64xf32>
      "kitsune.yield"(%r) : (tensor<4096x64xf32>) -> ()
    }) {sym_name = "a"} : () -> tensor<4096x64xf32>
    %j = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#one, #one], iterator_types = ["parallel"]} ins(%i : tensor<96xi64>) outs(%g : tensor<96xi64>) {
      ^bb0(%n: i64, %o: i64):
        %two = arith.constant 2 : i64
        %half = arith.divui %n, %two : i64
        linalg.yield %half : i64
      } -> tensor<96xi64>
      "kitsune.yield"(%r) : (tensor<96xi64>) -> ()
    }) {sym_name = "j"} : () -> tensor<96xi64>
    %b = "kitsune.stage"() ({
      %r = linalg.generic {indexing_maps = [#row, #id], iterator_types = ["parallel", "parallel"]} ins(%j : tensor<96xi64>) outs(%f : tensor<96x64xf32>) {
      ^bb0(%n: i64, %o: f32):
        %at = arith.index_cast %n : i64 to index
        %c = linalg.index 1 : index
        %w = tensor.extract %a[%at, %c] : tensor<4096x64xf32>
        linalg.yield %w : f32
      } -> tensor<96x64xf32>
      "kitsune.yield"(%r) : (tensor<96x64xf32>) -> ()
    }) {sym_name = "b"} : () -> tensor<96x64xf32>
    "kitsune.yield"(%b) : (tensor<96x64xf32>) -> ()
  }) {sym_name = "made_p0"} : () -> tensor<96x64xf32>
  return %p : tensor<96x64xf32>
}
