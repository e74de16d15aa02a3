// A division that could trap divides by 1 instead; an index that comes from data is asserted to be in range, and the body gets
// the control block, where a failed assertion leaves its number.
// RUN: kitsune-opt %s --kitsune-to-host=vector-bytes=32 | FileCheck %s

// CHECK-LABEL: func.func private @f_body0(
// CHECK-SAME: memref<33xi32>)
// CHECK: cf.assert {{.*}}, "index out of range for a dimension of size 5"
// CHECK: %[[ZERO:.*]] = arith.cmpi eq, %[[BY:.*]], %{{.*}} : vector<4xi64>
// CHECK: %[[SAFE:.*]] = arith.select %{{.*}}, %{{.*}}, %[[BY]]
// CHECK: arith.divsi %{{.*}}, %[[SAFE]] : vector<4xi64>
// CHECK-LABEL: func.func private @f_task0(
// CHECK: call @f_body0
func.func @f(%x: memref<4xi64>, %table: memref<5xi64>, %out: memref<4xi64>, %arena: memref<1xi8>) attributes {kitsune.program} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<4xi64> to tensor<4xi64>
    %all = bufferization.to_tensor %table restrict : memref<5xi64> to tensor<5xi64>
    %e = tensor.empty() : tensor<4xi64>
    %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
        ins(%t : tensor<4xi64>) outs(%e : tensor<4xi64>) {
    ^bb0(%a: i64, %b: i64):
      %k = arith.index_cast %a : i64 to index
      %v = tensor.extract %all[%k] : tensor<5xi64>
      %q = arith.divsi %v, %a : i64
      linalg.yield %q : i64
    } -> tensor<4xi64>
    bufferization.materialize_in_destination %r in restrict writable %out : (tensor<4xi64>, memref<4xi64>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "divide", grid = array<i64: 1>, engine = "generic"} : () -> ()
  return
}
