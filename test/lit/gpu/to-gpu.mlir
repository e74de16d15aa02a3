// One persistent kernel from two tasks: counters, the tile loops in order, a wait and a post.
// RUN: kitsune-opt %s --kitsune-to-gpu | FileCheck %s
// RUN: kitsune-opt %s --kitsune-to-gpu="debug=true" | FileCheck %s --check-prefix=DEBUG
// RUN: kitsune-opt %s --kitsune-to-gpu="workers=4 shared-bytes=65536 threads=256 timestamps=true matmul-precision=high convolution-precision=medium ptxas-seconds=30" | FileCheck %s --check-prefix=TIMES
// RUN: kitsune-opt %s --kitsune-to-gpu | FileCheck %s --check-prefix=UNTIMED
// RUN: kitsune-opt %s --kitsune-to-gpu=requests=4 | FileCheck %s --check-prefix=REQUESTS

// Several requests: one pointer, to a table of them; around each task's loop one over the requests that the block has tiles of.
// REQUESTS: llvm.func @main_p0(%[[TABLE:[^,]*]]: !llvm.ptr<1>)
// REQUESTS: llvm.load %[[TABLE]]
// REQUESTS: scf.for
// REQUESTS: scf.for
// REQUESTS: llvm.call @task_0_scale
// REQUESTS: scf.for
// REQUESTS: scf.for

// TIMES: nvvm.read.ptx.sreg.globaltimer
// UNTIMED-NOT: globaltimer

// CHECK: gpu.module @main_p0 [#nvvm.target<{{.*}}>] attributes {kitsune.manifest = "{{.*}}main_p0{{.*}}workspace{{.*}}scale{{.*}}generic{{.*}}
// CHECK: llvm.mlir.global external @smem() {addr_space = 3 : i32, alignment = 1024 : i64}

// The parameters: input, result, arena, workspace.
// CHECK: llvm.func @main_p0(%[[X:.*]]: !llvm.ptr<1>, %[[Y:.*]]: !llvm.ptr<1>, %[[ARENA:.*]]: !llvm.ptr<1>, %[[WORK:.*]]: !llvm.ptr<1>)
// CHECK-SAME: nvvm.kernel
// CHECK-SAME: nvvm.reqntid = array<i32: 256, 1, 1>
// CHECK: %[[BLOCK:.*]] = nvvm.read.ptx.sreg.ctaid.x
// CHECK: %[[BLOCKS:.*]] = nvvm.read.ptx.sreg.nctaid.x

// Task 0 starts with the first block, and has no wait; all threads meet, then one posts with release.
// CHECK-NOT: arith.remsi
// CHECK: scf.for %{{.*}} = %[[BLOCK]] to %{{.*}} step %[[BLOCKS]]
// CHECK: llvm.call @task_0_scale
// CHECK-NEXT: nvvm.barrier
// CHECK: scf.if
// CHECK: red.release.gpu.global.add.u32

// Task 1 starts with the block after the last tile of task 0: one thread waits with acquire before all meet.
// CHECK: arith.remsi %{{.*}}, %[[BLOCKS]]
// CHECK: scf.for %{{.*}} to %{{.*}} step %[[BLOCKS]]
// CHECK: scf.if
// CHECK: ld.acquire.gpu.global
// CHECK: nvvm.barrier
// CHECK: llvm.call @task_1_shift
// CHECK: nvvm.barrier

// The element-wise loop goes straight from input to result: neighbouring threads take neighbouring elements.
// CHECK: llvm.func internal @task_0_scale(
// CHECK-SAME: always_inline
// CHECK: %[[FROM:.*]] = memref.subview
// CHECK: %[[TO:.*]] = memref.subview
// CHECK: scf.for %[[N:.*]] = %{{.*}} to %c512_i32 step %c256_i32
// CHECK: %[[COLUMN:.*]] = arith.remui %[[N]], %c64_i32
// CHECK: %[[ROW:.*]] = arith.divui %[[N]], %c64_i32
// CHECK: %[[J:.*]] = arith.index_castui %[[COLUMN]]
// CHECK: %[[I:.*]] = arith.index_castui %[[ROW]]
// CHECK: memref.load %[[FROM]][%[[I]], %[[J]]]
// CHECK: memref.store %{{.*}}, %[[TO]][%[[I]], %[[J]]]
// CHECK-NOT: nvvm.barrier
// CHECK: llvm.return

// A debug build counts its polls.
// DEBUG: scf.while
// DEBUG: scf.condition
#map = affine_map<(d0, d1) -> (d0, d1)>
func.func @main_p0(%x: memref<32x64xf32>, %y: memref<32x64xf32>, %arena: memref<8192xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64} {
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
