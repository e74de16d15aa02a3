// `chip` is the processor: warpgroup products are there on sm_90a only, elsewhere another engine takes the task.
// DEFINE: %{tiles} = kitsune-form-stages{target=h200},kitsune-partition-streams{target=h200},kitsune-place-buffers,kitsune-synchronize,kitsune-materialize
// RUN: kitsune-opt %s --pass-pipeline="builtin.module(%{tiles},kitsune-to-gpu{chip=sm_90a})" | FileCheck %s
// RUN: kitsune-opt %s --pass-pipeline="builtin.module(%{tiles},kitsune-to-gpu{chip=sm_90})" | FileCheck %s --check-prefix=PLAIN
// RUN: not kitsune-opt %s --kitsune-to-gpu=chip=sm_1 2>&1 | FileCheck %s --check-prefix=UNKNOWN

// CHECK: wgmma.mma_async
// PLAIN-NOT: wgmma
// PLAIN: llvm.func @product_p0
// PLAIN-NOT: wgmma
// UNKNOWN: pass 'kitsune-to-gpu': chip is one of sm_100, {{.*}}, not sm_1
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
func.func @product(%x: tensor<4096x512xbf16>, %w: tensor<2048x512xbf16>, %z: tensor<4096x2048xf32>) -> tensor<4096x2048xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<4096x512xbf16>, tensor<2048x512xbf16>) outs(%z : tensor<4096x2048xf32>) {
  ^bb0(%a: bf16, %b: bf16, %c: f32):
    %af = arith.extf %a : bf16 to f32
    %bf = arith.extf %b : bf16 to f32
    %m = arith.mulf %af, %bf : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<4096x2048xf32>
  return %p : tensor<4096x2048xf32>
}
