// Tiles by option: for a stage of that name only; the engine stays the planner's.
// RUN: kitsune-opt %s --target h200 --kitsune-form-stages "--kitsune-partition-streams=tiles=product_0:64x96,product_7:32x32" | FileCheck %s
// RUN: not kitsune-opt %s --target h200 --kitsune-form-stages "--kitsune-partition-streams=tiles=product_0:64" 2>&1 | FileCheck %s --check-prefix=WRONG

// CHECK-LABEL: func.func @product(
// CHECK: }) {engine = "mma", {{.*}}sym_name = "product_0", tile = array<i64: 64, 96>}
// WRONG: has 2 dimensions to tile; option 'tiles' says product_0:64
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
