// A caller says by an argument how many rows of the result are valid: the loop over a task's tiles ends with theirs, and the tiles
// behind it only wait and post. Without `kitsune.valid_rows`, and in a kernel of several requests, each loop has all tiles.
// RUN: kitsune-opt %s --split-input-file --kitsune-to-gpu | FileCheck %s
// RUN: kitsune-opt %s --split-input-file --kitsune-to-gpu=requests=4 | FileCheck %s --check-prefix=REQUESTS

// The count is between none and all; of eight rows each, four tiles at most.
// CHECK-LABEL: gpu.module @main_p0
// CHECK: llvm.func @main_p0(%{{[^:]*}}: !llvm.ptr<1>, %[[COUNT:[^:]*]]: !llvm.ptr<1>
// CHECK: %[[ROWS:.*]] = llvm.load %[[COUNT]] invariant
// CHECK: arith.divui
// CHECK: %[[LEAST:.*]] = arith.minsi %{{.*}}, %c4_i32
// CHECK: %[[END:.*]] = arith.muli %[[LEAST]], %c1_i32
// CHECK: scf.for %{{.*}} = %{{.*}} to %[[END]] step
// CHECK: llvm.call @task_0_scale
// CHECK: red.release.gpu.global.add.u32
// CHECK: %[[REST:.*]] = arith.addi %[[END]],
// CHECK: scf.for %{{.*}} = %[[REST]] to %c4_i32{{.*}} step
// CHECK-NOT: llvm.call
// CHECK: red.release.gpu.global.add.u32
// The last task posts nothing, so nobody waits for what it leaves out.
// CHECK: llvm.load %[[COUNT]] invariant
// CHECK: scf.for
// CHECK: llvm.call @task_1_shift
// CHECK-NOT: red.release
// CHECK: llvm.func internal @task_0_scale

// CHECK-LABEL: gpu.module @without
// CHECK: llvm.func @without(%{{[^:]*}}: !llvm.ptr<1>, %[[COUNT:[^:]*]]: !llvm.ptr<1>
// CHECK-NOT: llvm.load %[[COUNT]] invariant
// CHECK: llvm.func internal

// REQUESTS-LABEL: gpu.module @main_p0
// REQUESTS-COUNT-2: llvm.call @task
// REQUESTS-NOT: llvm.call @task
// REQUESTS: gpu.module @without
#map = affine_map<(d0, d1) -> (d0, d1)>
func.func @main_p0(%x: memref<32x64xf32>, %n: memref<i64>, %y: memref<32x64xf32>, %arena: memref<8192xi8>)
    attributes {kitsune.program, kitsune.arguments = 2 : i64, kitsune.results = 1 : i64, kitsune.valid_rows = array<i64: 1, 32>} {
  %c0 = arith.constant 0 : index
  %t = memref.view %arena[%c0][] : memref<8192xi8> to memref<32x64xf32>
  %s = "kitsune.make_semaphore"() {slots = 4 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c8 = arith.constant 8 : index
    %two = arith.constant 2.0 : f32
    %off = arith.muli %i, %c8 : index
    %xs = memref.subview %x[%off, 0] [8, 64] [1, 1] : memref<32x64xf32> to memref<8x64xf32, strided<[64, 1], offset: ?>>
    %xt = bufferization.to_tensor %xs restrict : memref<8x64xf32, strided<[64, 1], offset: ?>> to tensor<8x64xf32>
    %e = tensor.empty() : tensor<8x64xf32>
    %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
      ins(%xt : tensor<8x64xf32>) outs(%e : tensor<8x64xf32>) {
    ^bb0(%a: f32, %o: f32):
      %m = arith.mulf %a, %two : f32
      linalg.yield %m : f32
    } -> tensor<8x64xf32>
    %ts = memref.subview %t[%off, 0] [8, 64] [1, 1] : memref<32x64xf32> to memref<8x64xf32, strided<[64, 1], offset: ?>>
    bufferization.materialize_in_destination %r in restrict writable %ts : (tensor<8x64xf32>, memref<8x64xf32, strided<[64, 1], offset: ?>>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "scale", grid = array<i64: 4>, engine = "generic"} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c8 = arith.constant 8 : index
    %c1 = arith.constant 1 : index
    %one = arith.constant 1.0 : f32
    %off = arith.muli %i, %c8 : index
    %next = arith.addi %i, %c1 : index
    "kitsune.wait"(%s, %i, %next) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %ts = memref.subview %t[%off, 0] [8, 64] [1, 1] : memref<32x64xf32> to memref<8x64xf32, strided<[64, 1], offset: ?>>
    %tt = bufferization.to_tensor %ts restrict : memref<8x64xf32, strided<[64, 1], offset: ?>> to tensor<8x64xf32>
    %e = tensor.empty() : tensor<8x64xf32>
    %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
      ins(%tt : tensor<8x64xf32>) outs(%e : tensor<8x64xf32>) {
    ^bb0(%a: f32, %o: f32):
      %m = arith.addf %a, %one : f32
      linalg.yield %m : f32
    } -> tensor<8x64xf32>
    %ys = memref.subview %y[%off, 0] [8, 64] [1, 1] : memref<32x64xf32> to memref<8x64xf32, strided<[64, 1], offset: ?>>
    bufferization.materialize_in_destination %r in restrict writable %ys : (tensor<8x64xf32>, memref<8x64xf32, strided<[64, 1], offset: ?>>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "shift", grid = array<i64: 4>, engine = "generic"} : () -> ()
  return
}

// -----

#map = affine_map<(d0, d1) -> (d0, d1)>
func.func @without(%x: memref<32x64xf32>, %n: memref<i64>, %y: memref<32x64xf32>, %arena: memref<8192xi8>)
    attributes {kitsune.program, kitsune.arguments = 2 : i64, kitsune.results = 1 : i64} {
  %c0 = arith.constant 0 : index
  %t = memref.view %arena[%c0][] : memref<8192xi8> to memref<32x64xf32>
  %s = "kitsune.make_semaphore"() {slots = 4 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c8 = arith.constant 8 : index
    %two = arith.constant 2.0 : f32
    %off = arith.muli %i, %c8 : index
    %xs = memref.subview %x[%off, 0] [8, 64] [1, 1] : memref<32x64xf32> to memref<8x64xf32, strided<[64, 1], offset: ?>>
    %xt = bufferization.to_tensor %xs restrict : memref<8x64xf32, strided<[64, 1], offset: ?>> to tensor<8x64xf32>
    %e = tensor.empty() : tensor<8x64xf32>
    %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
      ins(%xt : tensor<8x64xf32>) outs(%e : tensor<8x64xf32>) {
    ^bb0(%a: f32, %o: f32):
      %m = arith.mulf %a, %two : f32
      linalg.yield %m : f32
    } -> tensor<8x64xf32>
    %ts = memref.subview %t[%off, 0] [8, 64] [1, 1] : memref<32x64xf32> to memref<8x64xf32, strided<[64, 1], offset: ?>>
    bufferization.materialize_in_destination %r in restrict writable %ts : (tensor<8x64xf32>, memref<8x64xf32, strided<[64, 1], offset: ?>>) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "scale", grid = array<i64: 4>, engine = "generic"} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c8 = arith.constant 8 : index
    %c1 = arith.constant 1 : index
    %one = arith.constant 1.0 : f32
    %off = arith.muli %i, %c8 : index
    %next = arith.addi %i, %c1 : index
    "kitsune.wait"(%s, %i, %next) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %ts = memref.subview %t[%off, 0] [8, 64] [1, 1] : memref<32x64xf32> to memref<8x64xf32, strided<[64, 1], offset: ?>>
    %tt = bufferization.to_tensor %ts restrict : memref<8x64xf32, strided<[64, 1], offset: ?>> to tensor<8x64xf32>
    %e = tensor.empty() : tensor<8x64xf32>
    %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
      ins(%tt : tensor<8x64xf32>) outs(%e : tensor<8x64xf32>) {
    ^bb0(%a: f32, %o: f32):
      %m = arith.addf %a, %one : f32
      linalg.yield %m : f32
    } -> tensor<8x64xf32>
    %ys = memref.subview %y[%off, 0] [8, 64] [1, 1] : memref<32x64xf32> to memref<8x64xf32, strided<[64, 1], offset: ?>>
    bufferization.materialize_in_destination %r in restrict writable %ys : (tensor<8x64xf32>, memref<8x64xf32, strided<[64, 1], offset: ?>>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "shift", grid = array<i64: 4>, engine = "generic"} : () -> ()
  return
}
