// Weights stored as [n, k] are packed a panel at a time by transposing squares of vectors; the sums stay in registers.
// RUN: kitsune-opt %s --kitsune-to-host=vector-bytes=32 | FileCheck %s
// RUN: kitsune-opt %s --kitsune-to-host=vector-bytes=64 | FileCheck %s --check-prefix=WIDE

// CHECK-LABEL: func.func private @f_body0(
// CHECK-SAME: %[[SCRATCH:[a-z0-9]+]]: memref<{{[0-9]+}}xi8> {llvm.noalias})
// CHECK: vector.shuffle {{.*}} : vector<8xf32>, vector<8xf32>
// CHECK: scf.for {{.*}} iter_args({{.*}}) -> (vector<8xf32>, vector<8xf32>,
// CHECK: arith.mulf {{.*}} fastmath<contract> : vector<8xf32>
// CHECK: arith.addf {{.*}} fastmath<contract> : vector<8xf32>

// WIDE-LABEL: func.func private @f_body0(
// WIDE: vector.shuffle {{.*}} : vector<16xf32>, vector<16xf32>
// WIDE: scf.for {{.*}} iter_args({{.*}}) -> (vector<16xf32>, vector<16xf32>,
func.func @f(%x: memref<32x64xf32>, %w: memref<32x64xf32>, %out: memref<32x32xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    %zero = arith.constant 0.0 : f32
    %xt = bufferization.to_tensor %x restrict : memref<32x64xf32> to tensor<32x64xf32>
    %wt = bufferization.to_tensor %w restrict : memref<32x64xf32> to tensor<32x64xf32>
    %e = tensor.empty() : tensor<32x32xf32>
    %z = linalg.fill ins(%zero : f32) outs(%e : tensor<32x32xf32>) -> tensor<32x32xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
        iterator_types = ["parallel", "parallel", "reduction"]} ins(%xt, %wt : tensor<32x64xf32>, tensor<32x64xf32>) outs(%z : tensor<32x32xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %p = arith.mulf %a, %b : f32
      %s = arith.addf %o, %p : f32
      linalg.yield %s : f32
    } -> tensor<32x32xf32>
    bufferization.materialize_in_destination %r in restrict writable %out : (tensor<32x32xf32>, memref<32x32xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "product", grid = array<i64: 1>, engine = "mma"} : () -> ()
  return
}
