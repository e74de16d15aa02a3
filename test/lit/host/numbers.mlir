// Inline math: exp of a vector is arithmetic, and what has no inline form (f64) stays for libm.
// RUN: kitsune-opt %s --kitsune-to-host=vector-bytes=32 | FileCheck %s

// CHECK-LABEL: func.func private @f_body0(
// CHECK-NOT: math.exp {{.*}}f32
// CHECK: math.fma {{.*}} : vector<8xf32>
// CHECK: math.exp {{.*}} : vector<4xf64>
func.func @f(%x: memref<8xf32>, %y: memref<8xf64>, %out: memref<8xf32>, %out2: memref<8xf64>, %arena: memref<1xi8>)
    attributes {kitsune.program} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    %u = bufferization.to_tensor %y restrict : memref<8xf64> to tensor<8xf64>
    %e = tensor.empty() : tensor<8xf32>
    %r = linalg.exp ins(%t : tensor<8xf32>) outs(%e : tensor<8xf32>) -> tensor<8xf32>
    %e2 = tensor.empty() : tensor<8xf64>
    %s = linalg.exp ins(%u : tensor<8xf64>) outs(%e2 : tensor<8xf64>) -> tensor<8xf64>
    bufferization.materialize_in_destination %r in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    bufferization.materialize_in_destination %s in restrict writable %out2 : (tensor<8xf64>, memref<8xf64>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "exps", grid = array<i64: 1>, engine = "simt"} : () -> ()
  return
}
