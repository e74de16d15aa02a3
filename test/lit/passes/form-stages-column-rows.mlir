// A sum of few columns is no stage with rows that are stored beside it, even where it adds something else than these: its few tiles
// would be all that the rows have, and blocks cannot share them.
// RUN: kitsune-opt %s --split-input-file --kitsune-form-stages="target=h200" --remarks 2>&1 | FileCheck %s

// CHECK: 2 tiles would store rows beside a sum of columns, and blocks cannot share them
// CHECK-LABEL: func.func @few
// CHECK: sym_name = "map_0"
// CHECK: sym_name = "reduce_1"
#rows = affine_map<(n, c) -> (n, c)>
#column = affine_map<(n, c) -> (c)>
func.func @few(%x: tensor<200704x64xbf16>, %y: tensor<200704x64xbf16>, %z: tensor<64xf32>) -> (tensor<200704x64xbf16>, tensor<64xf32>) {
  %e = tensor.empty() : tensor<200704x64xf32>
  %b = tensor.empty() : tensor<200704x64xbf16>
  %m = linalg.generic {indexing_maps = [#rows, #rows, #rows], iterator_types = ["parallel", "parallel"]} ins(%x, %y : tensor<200704x64xbf16>, tensor<200704x64xbf16>) outs(%e : tensor<200704x64xf32>) {
  ^bb0(%a: bf16, %c: bf16, %o: f32):
    %p = arith.extf %a : bf16 to f32
    %q = arith.extf %c : bf16 to f32
    %r = arith.mulf %p, %q : f32
    linalg.yield %r : f32
  } -> tensor<200704x64xf32>
  %k = linalg.generic {indexing_maps = [#rows, #rows], iterator_types = ["parallel", "parallel"]} ins(%m : tensor<200704x64xf32>) outs(%b : tensor<200704x64xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %p = math.exp %a : f32
    %q = arith.truncf %p : f32 to bf16
    linalg.yield %q : bf16
  } -> tensor<200704x64xbf16>
  %s = linalg.generic {indexing_maps = [#rows, #column], iterator_types = ["reduction", "parallel"]} ins(%m : tensor<200704x64xf32>) outs(%z : tensor<64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %p = arith.addf %a, %o : f32
    linalg.yield %p : f32
  } -> tensor<64xf32>
  return %k, %s : tensor<200704x64xbf16>, tensor<64xf32>
}

// -----

// 8,192 columns are tiles for all multiprocessors.
// CHECK-LABEL: func.func @many
// CHECK: sym_name = "reduce_0"
// CHECK-NOT: sym_name = "{{map|reduce}}_1"
#rows = affine_map<(n, c) -> (n, c)>
#column = affine_map<(n, c) -> (c)>
func.func @many(%x: tensor<2048x8192xbf16>, %y: tensor<2048x8192xbf16>, %z: tensor<8192xf32>) -> (tensor<2048x8192xbf16>, tensor<8192xf32>) {
  %e = tensor.empty() : tensor<2048x8192xf32>
  %b = tensor.empty() : tensor<2048x8192xbf16>
  %m = linalg.generic {indexing_maps = [#rows, #rows, #rows], iterator_types = ["parallel", "parallel"]} ins(%x, %y : tensor<2048x8192xbf16>, tensor<2048x8192xbf16>) outs(%e : tensor<2048x8192xf32>) {
  ^bb0(%a: bf16, %c: bf16, %o: f32):
    %p = arith.extf %a : bf16 to f32
    %q = arith.extf %c : bf16 to f32
    %r = arith.mulf %p, %q : f32
    linalg.yield %r : f32
  } -> tensor<2048x8192xf32>
  %k = linalg.generic {indexing_maps = [#rows, #rows], iterator_types = ["parallel", "parallel"]} ins(%m : tensor<2048x8192xf32>) outs(%b : tensor<2048x8192xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %p = math.exp %a : f32
    %q = arith.truncf %p : f32 to bf16
    linalg.yield %q : bf16
  } -> tensor<2048x8192xbf16>
  %s = linalg.generic {indexing_maps = [#rows, #column], iterator_types = ["reduction", "parallel"]} ins(%m : tensor<2048x8192xf32>) outs(%z : tensor<8192xf32>) {
  ^bb0(%a: f32, %o: f32):
    %p = arith.addf %a, %o : f32
    linalg.yield %p : f32
  } -> tensor<8192xf32>
  return %k, %s : tensor<2048x8192xbf16>, tensor<8192xf32>
}
