// Who makes rows adds them: the destination is started before it, and rows of the overlapping last tile are added once.
// RUN: kitsune-opt %s --kitsune-form-stages="target=h200 chains=cost" --kitsune-partition-streams=target=h200 --kitsune-place-buffers --kitsune-synchronize --kitsune-materialize --kitsune-check-progress --split-input-file | FileCheck %s

// CHECK-LABEL: func.func @chain_p0
// CHECK: "kitsune.task"
// CHECK: %[[STARTED:.*]], %{{.*}}) : (!kitsune.semaphore, index)
// CHECK: engine = "simt"
// CHECK-SAME: sym_name = "scatter_1_start"
// CHECK: "kitsune.task"
// CHECK: "kitsune.wait"({{.*}}) {count = 2 : i64}
// CHECK: %[[FIRST:.*]] = arith.subi
// CHECK: "kitsune.atomic_scatter"(%{{.*}}, %{{.*}}, %[[FIRST]], %{{.*}}) {kind = "addf"} : (tensor<128x32xbf16>, tensor<128xi64>, index, memref<200x32xbf16>)
// CHECK: engine = "chain"
// CHECK-SAME: sym_name = "product_0"
// CHECK-NOT: "kitsune.task"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
func.func @chain(%x: tensor<65500x64xbf16>, %w: tensor<128x64xbf16>, %v: tensor<32x128xbf16>, %z: tensor<65500x128xbf16>, %z2: tensor<65500x32xbf16>, %i: tensor<65500x1xi64>, %d: tensor<200x32xbf16>) -> tensor<200x32xbf16> {
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %w : tensor<65500x64xbf16>, tensor<128x64xbf16>) outs(%z : tensor<65500x128xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %c: bf16):
    %m = arith.mulf %a, %b : bf16
    %s = arith.addf %c, %m : bf16
    linalg.yield %s : bf16
  } -> tensor<65500x128xbf16>
  %q = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%p, %v : tensor<65500x128xbf16>, tensor<32x128xbf16>) outs(%z2 : tensor<65500x32xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %c: bf16):
    %m = arith.mulf %a, %b : bf16
    %s = arith.addf %c, %m : bf16
    linalg.yield %s : bf16
  } -> tensor<65500x32xbf16>
  %u = tensor.expand_shape %q [[0], [1, 2]] output_shape [65500, 1, 32] : tensor<65500x32xbf16> into tensor<65500x1x32xbf16>
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%u, %i : tensor<65500x1x32xbf16>, tensor<65500x1xi64>) outs(%d : tensor<200x32xbf16>) {
  ^bb0(%a: bf16, %b: bf16):
    %s = arith.addf %b, %a : bf16
    tm_tensor.yield %s : bf16
  } -> tensor<200x32xbf16>
  return %r : tensor<200x32xbf16>
}

// -----

// Indices that are a part of a tensor are read where they lie.
// CHECK-LABEL: func.func @slice_p0
// CHECK: %[[FLAT:.*]] = memref.collapse_shape %{{.*}} {{\[}}[0, 1]] : memref<2x65500xi64> into memref<131000xi64>
// CHECK: "kitsune.task"
// CHECK: %[[STARTED:.*]], %{{.*}}) : (!kitsune.semaphore, index)
// CHECK: engine = "simt"
// CHECK-SAME: sym_name = "scatter_1_start"
// CHECK: "kitsune.task"
// CHECK: "kitsune.wait"({{.*}}) {count = 2 : i64}
// CHECK: %[[FIRST:.*]] = arith.subi
// CHECK: %[[PLACE:.*]] = arith.addi %{{.*}}, %c65500
// CHECK: memref.subview %[[FLAT]][%[[PLACE]]] [128] [1]
// CHECK: "kitsune.atomic_scatter"(%{{.*}}, %{{.*}}, %[[FIRST]], %{{.*}}) {kind = "addf"} : (tensor<128x32xbf16>, tensor<128xi64>, index, memref<200x32xbf16>)
// CHECK: engine = "chain"
// CHECK-SAME: sym_name = "product_0"
// CHECK-NOT: "kitsune.task"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
func.func @slice(%x: tensor<65500x64xbf16>, %w: tensor<128x64xbf16>, %v: tensor<32x128xbf16>, %z: tensor<65500x128xbf16>, %z2: tensor<65500x32xbf16>, %ij: tensor<2x65500xi64>, %d: tensor<200x32xbf16>) -> tensor<200x32xbf16> {
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %w : tensor<65500x64xbf16>, tensor<128x64xbf16>) outs(%z : tensor<65500x128xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %c: bf16):
    %m = arith.mulf %a, %b : bf16
    %s = arith.addf %c, %m : bf16
    linalg.yield %s : bf16
  } -> tensor<65500x128xbf16>
  %q = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%p, %v : tensor<65500x128xbf16>, tensor<32x128xbf16>) outs(%z2 : tensor<65500x32xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %c: bf16):
    %m = arith.mulf %a, %b : bf16
    %s = arith.addf %c, %m : bf16
    linalg.yield %s : bf16
  } -> tensor<65500x32xbf16>
  %u = tensor.expand_shape %q [[0], [1, 2]] output_shape [65500, 1, 32] : tensor<65500x32xbf16> into tensor<65500x1x32xbf16>
  %j = tensor.extract_slice %ij[1, 0] [1, 65500] [1, 1] : tensor<2x65500xi64> to tensor<65500xi64>
  %i = tensor.expand_shape %j [[0, 1]] output_shape [65500, 1] : tensor<65500xi64> into tensor<65500x1xi64>
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%u, %i : tensor<65500x1x32xbf16>, tensor<65500x1xi64>) outs(%d : tensor<200x32xbf16>) {
  ^bb0(%a: bf16, %b: bf16):
    %s = arith.addf %b, %a : bf16
    tm_tensor.yield %s : bf16
  } -> tensor<200x32xbf16>
  return %r : tensor<200x32xbf16>
}

// -----

// Every other number of a tensor is copied first, and the rows go through memory.
// CHECK-LABEL: func.func @strided_p0
// CHECK: "kitsune.atomic_scatter"
// CHECK: engine = "scatter"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
func.func @strided(%x: tensor<65500x64xbf16>, %w: tensor<128x64xbf16>, %v: tensor<32x128xbf16>, %z: tensor<65500x128xbf16>, %z2: tensor<65500x32xbf16>, %ij: tensor<65500x2xi64>, %d: tensor<200x32xbf16>) -> tensor<200x32xbf16> {
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %w : tensor<65500x64xbf16>, tensor<128x64xbf16>) outs(%z : tensor<65500x128xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %c: bf16):
    %m = arith.mulf %a, %b : bf16
    %s = arith.addf %c, %m : bf16
    linalg.yield %s : bf16
  } -> tensor<65500x128xbf16>
  %q = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]} ins(%p, %v : tensor<65500x128xbf16>, tensor<32x128xbf16>) outs(%z2 : tensor<65500x32xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %c: bf16):
    %m = arith.mulf %a, %b : bf16
    %s = arith.addf %c, %m : bf16
    linalg.yield %s : bf16
  } -> tensor<65500x32xbf16>
  %u = tensor.expand_shape %q [[0], [1, 2]] output_shape [65500, 1, 32] : tensor<65500x32xbf16> into tensor<65500x1x32xbf16>
  %i = tensor.extract_slice %ij[0, 1] [65500, 1] [1, 1] : tensor<65500x2xi64> to tensor<65500x1xi64>
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%u, %i : tensor<65500x1x32xbf16>, tensor<65500x1xi64>) outs(%d : tensor<200x32xbf16>) {
  ^bb0(%a: bf16, %b: bf16):
    %s = arith.addf %b, %a : bf16
    tm_tensor.yield %s : bf16
  } -> tensor<200x32xbf16>
  return %r : tensor<200x32xbf16>
}


// -----

// Rows that a map makes are put where they belong by its tasks, of whole rows.
// CHECK-LABEL: func.func @map_p0
// CHECK: sym_name = "scatter_1_start"
// CHECK: "kitsune.wait"
// CHECK: linalg.generic
// CHECK-NOT: bufferization.materialize_in_destination
// CHECK: "kitsune.atomic_scatter"(%{{.*}}, {{.*}} {kind = "addf"} : (tensor<{{[0-9]+}}x32xf32>,
// CHECK: sym_name = "map_0"
// CHECK-NOT: "kitsune.task"
#id = affine_map<(m, n) -> (m, n)>
func.func @map(%x: tensor<65500x32xf32>, %i: tensor<65500x1xi64>, %d: tensor<200x32xf32>) -> tensor<200x32xf32> {
  %e = tensor.empty() : tensor<65500x32xf32>
  %q = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<65500x32xf32>) outs(%e : tensor<65500x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = math.tanh %a : f32
    linalg.yield %b : f32
  } -> tensor<65500x32xf32>
  %u = tensor.expand_shape %q [[0], [1, 2]] output_shape [65500, 1, 32] : tensor<65500x32xf32> into tensor<65500x1x32xf32>
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%u, %i : tensor<65500x1x32xf32>, tensor<65500x1xi64>) outs(%d : tensor<200x32xf32>) {
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %b, %a : f32
    tm_tensor.yield %s : f32
  } -> tensor<200x32xf32>
  return %r : tensor<200x32xf32>
}

// -----

// Rows that no vector divides go through memory: three tasks.
// CHECK-LABEL: func.func @odd_p0
// CHECK: sym_name = "map_0"
// CHECK: sym_name = "scatter_1_start"
// CHECK: "kitsune.atomic_scatter"
// CHECK: sym_name = "scatter_1"
#id = affine_map<(m, n) -> (m, n)>
func.func @odd(%x: tensor<65500x33xf32>, %i: tensor<65500x1xi64>, %d: tensor<200x33xf32>) -> tensor<200x33xf32> {
  %e = tensor.empty() : tensor<65500x33xf32>
  %q = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<65500x33xf32>) outs(%e : tensor<65500x33xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = math.tanh %a : f32
    linalg.yield %b : f32
  } -> tensor<65500x33xf32>
  %u = tensor.expand_shape %q [[0], [1, 2]] output_shape [65500, 1, 33] : tensor<65500x33xf32> into tensor<65500x1x33xf32>
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%u, %i : tensor<65500x1x33xf32>, tensor<65500x1xi64>) outs(%d : tensor<200x33xf32>) {
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %b, %a : f32
    tm_tensor.yield %s : f32
  } -> tensor<200x33xf32>
  return %r : tensor<200x33xf32>
}

// -----

// What is put there starts from what another stage makes of the rows themselves: these are in memory before.
// CHECK-LABEL: func.func @kept_p0
// CHECK: sym_name = "map_0"
// CHECK: "kitsune.atomic_scatter"
// CHECK: sym_name = "scatter_2"
#id = affine_map<(m, n) -> (m, n)>
func.func @kept(%x: tensor<65500x32xf32>, %i: tensor<65500x1xi64>, %d0: tensor<200x32xf32>) -> tensor<200x32xf32> {
  %e = tensor.empty() : tensor<65500x32xf32>
  %q = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<65500x32xf32>) outs(%e : tensor<65500x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = math.tanh %a : f32
    linalg.yield %b : f32
  } -> tensor<65500x32xf32>
  %part = tensor.extract_slice %q[0, 0] [200, 32] [1, 1] : tensor<65500x32xf32> to tensor<200x32xf32>
  %ed = tensor.empty() : tensor<200x32xf32>
  %d = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]} ins(%part, %d0 : tensor<200x32xf32>, tensor<200x32xf32>) outs(%ed : tensor<200x32xf32>) {
  ^bb0(%a: f32, %c: f32, %o: f32):
    %b = arith.addf %a, %c : f32
    linalg.yield %b : f32
  } -> tensor<200x32xf32>
  %u = tensor.expand_shape %q [[0], [1, 2]] output_shape [65500, 1, 32] : tensor<65500x32xf32> into tensor<65500x1x32xf32>
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false) ins(%u, %i : tensor<65500x1x32xf32>, tensor<65500x1xi64>) outs(%d : tensor<200x32xf32>) {
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %b, %a : f32
    tm_tensor.yield %s : f32
  } -> tensor<200x32xf32>
  return %r : tensor<200x32xf32>
}
