// A sum and the maximum of each row share the rows: one stage. The minimum of each column shares no parallel dimension with it.
// RUN: kitsune-opt %s --kitsune-form-stages | FileCheck %s
// RUN: kitsune-opt %s --kitsune-form-stages --remarks 2>&1 >/dev/null | FileCheck %s --check-prefix=WHY

// CHECK: "kitsune.pipeline"() ({
// CHECK: "kitsune.stage"() ({
// CHECK: arith.addf
// CHECK: arith.maximumf
// CHECK: "kitsune.stage"() ({
// CHECK: arith.minimumf
// WHY: remark: 'linalg.generic' op not joined with linalg.generic: they share no parallel dimension
#id = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
#column = affine_map<(m, n) -> (n)>
func.func @f(%x: tensor<64x32xf32>, %er: tensor<64xf32>, %ec: tensor<32xf32>) -> (tensor<64xf32>, tensor<32xf32>) {
  %e = tensor.empty() : tensor<64x32xf32>
  %s = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%e : tensor<64x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %a : f32
    linalg.yield %b : f32
  } -> tensor<64x32xf32>
  %r = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]} ins(%s : tensor<64x32xf32>) outs(%er : tensor<64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.maximumf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<64xf32>
  %c = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%s : tensor<64x32xf32>) outs(%ec : tensor<32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.minimumf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<32xf32>
  return %r, %c : tensor<64xf32>, tensor<32xf32>
}
