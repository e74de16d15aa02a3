// A recurrent layer's steps are a stage of their own: what is given and what becomes of the result are other stages'.
// RUN: kitsune-opt %s --kitsune-form-stages=target=h200 --kitsune-partition-streams=target=h200 --split-input-file | FileCheck %s
// RUN: kitsune-opt %s --kitsune-form-stages --kitsune-partition-streams --kitsune-place-buffers --kitsune-synchronize --kitsune-materialize --kitsune-check-progress --kitsune-to-host --split-input-file | FileCheck %s --check-prefix=HOST

#id = affine_map<(t, b, u) -> (t, b, u)>

// CHECK-LABEL: func.func @gru
// CHECK: math.exp
// CHECK: sym_name = "map_0"
// CHECK: %[[R:.*]]:2 = "kitsune.recurrence"
// CHECK-NOT: math.tanh
// CHECK: engine = "recurrence", {{.*}}sym_name = "recurrence_1", tile = array<i64>
// CHECK: math.tanh
// CHECK: sym_name = "map_2"

// On a host it is a loop over the steps, of one task.
// HOST-LABEL: func.func private @gru_p0_body1
// HOST: scf.for
// HOST: arith.divf
// HOST: func.func private @gru_p0_task1
// HOST: kitsune.tiles
func.func @gru(%x: tensor<20x4x96xf32>, %w: tensor<96x32xbf16>, %b: tensor<96xbf16>, %h: tensor<1x4x32xbf16>) -> tensor<20x4x32xbf16> {
  %e = tensor.empty() : tensor<20x4x96xf32>
  %g = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x : tensor<20x4x96xf32>) outs(%e : tensor<20x4x96xf32>) {
  ^bb0(%a: f32, %o: f32):
    %v = math.exp %a : f32
    linalg.yield %v : f32
  } -> tensor<20x4x96xf32>
  %r:2 = "kitsune.recurrence"(%g, %w, %b, %h) {cell = "gru", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<20x4x96xf32>, tensor<96x32xbf16>, tensor<96xbf16>, tensor<1x4x32xbf16>) -> (tensor<20x4x32xbf16>, tensor<1x4x32xbf16>)
  %f = tensor.empty() : tensor<20x4x32xbf16>
  %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel"]} ins(%r#0 : tensor<20x4x32xbf16>) outs(%f : tensor<20x4x32xbf16>) {
  ^bb0(%a: bf16, %o: bf16):
    %v = math.tanh %a : bf16
    linalg.yield %v : bf16
  } -> tensor<20x4x32xbf16>
  return %y : tensor<20x4x32xbf16>
}

// -----

// Two layers: the second one's states come from a slice, which its stage takes for itself.
// CHECK-LABEL: func.func @of_two
// CHECK: "kitsune.recurrence"
// CHECK: sym_name = "recurrence_0"
// CHECK: %[[H:.*]] = tensor.extract_slice %{{.*}}[1, 0, 0] [1, 4, 32] [1, 1, 1]
// CHECK: "kitsune.recurrence"(%{{.*}}, %[[H]])
// CHECK: engine = "recurrence"
func.func @of_two(%g: tensor<20x4x32xf32>, %k: tensor<20x4x32xf32>, %w: tensor<32x32xf32>, %b: tensor<32xf32>, %h: tensor<2x4x32xf32>) -> (tensor<20x4x32xf32>, tensor<1x4x32xf32>) {
  %h0 = tensor.extract_slice %h[0, 0, 0] [1, 4, 32] [1, 1, 1] : tensor<2x4x32xf32> to tensor<1x4x32xf32>
  %h1 = tensor.extract_slice %h[1, 0, 0] [1, 4, 32] [1, 1, 1] : tensor<2x4x32xf32> to tensor<1x4x32xf32>
  %r:2 = "kitsune.recurrence"(%g, %w, %b, %h0) {cell = "rnn_tanh", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<20x4x32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<1x4x32xf32>) -> (tensor<20x4x32xf32>, tensor<1x4x32xf32>)
  %s:2 = "kitsune.recurrence"(%k, %w, %b, %h1) {cell = "rnn_relu", operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (tensor<20x4x32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<1x4x32xf32>) -> (tensor<20x4x32xf32>, tensor<1x4x32xf32>)
  return %r#0, %s#1 : tensor<20x4x32xf32>, tensor<1x4x32xf32>
}
