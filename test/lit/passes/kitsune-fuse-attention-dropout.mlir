// Probabilities some of which are dropped after the softmax are still an attention, if which does not depend on the scores.
// RUN: kitsune-opt %s --target h200 --kitsune-fuse-attention | FileCheck %s
// RUN: kitsune-opt %s --target h200 --kitsune-fuse-attention --kitsune-form-stages --kitsune-partition-streams | FileCheck %s --check-prefix=STAGE

#map = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map1 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
#map2 = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map4 = affine_map<(d0, d1) -> (d0, d1)>
#map5 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map6 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map7 = affine_map<(d0, d1, d2, d3) -> (d0, d3, d2)>

// CHECK-LABEL: func.func @dropped
// CHECK: math.exp
// CHECK: %[[P:.*]] = arith.divf {{.*}} : f32
// CHECK: arith.mulf %[[P]], {{.*}} : f32
// CHECK-NEXT: arith.select
// CHECK: ins({{.*}}, %arg2 : {{.*}}kitsune.attention = 0
// STAGE-LABEL: func.func @dropped
// STAGE-COUNT-1: "kitsune.stage"
// STAGE: engine = "attention"
func.func @dropped(%arg0: tensor<2x128x64xbf16>, %arg1: tensor<2x128x64xbf16>, %arg2: tensor<2x128x64xbf16>, %arg3: tensor<128x128xi1>) -> tensor<2x128x64xbf16> {
  %cst = arith.constant 0xFF800000 : f32
  %cst_0 = arith.constant 0.000000e+00 : f32
  %cst_1 = arith.constant 1.250000e+00 : f32
  %0 = tensor.empty() : tensor<2x128x64xf32>
  %1 = tensor.empty() : tensor<2x128x128xf32>
  %2 = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel", "parallel", "parallel"]} outs(%1 : tensor<2x128x128xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst_0 : f32
  } -> tensor<2x128x128xf32>
  %3 = linalg.generic {indexing_maps = [#map1, #map2, #map3], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<2x128x64xbf16>, tensor<2x128x64xbf16>) outs(%2 : tensor<2x128x128xf32>) {
  ^bb0(%in: bf16, %in_2: bf16, %out: f32):
    %16 = arith.extf %in : bf16 to f32
    %17 = arith.extf %in_2 : bf16 to f32
    %18 = arith.mulf %16, %17 : f32
    %19 = arith.addf %out, %18 : f32
    linalg.yield %19 : f32
  } -> tensor<2x128x128xf32>
  %4 = tensor.empty() : tensor<2x128xf32>
  %5 = linalg.generic {indexing_maps = [#map4], iterator_types = ["parallel", "parallel"]} outs(%4 : tensor<2x128xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst : f32
  } -> tensor<2x128xf32>
  %6 = linalg.generic {indexing_maps = [#map, #map5], iterator_types = ["parallel", "parallel", "reduction"]} ins(%3 : tensor<2x128x128xf32>) outs(%5 : tensor<2x128xf32>) {
  ^bb0(%in: f32, %out: f32):
    %16 = arith.maximumf %in, %out : f32
    linalg.yield %16 : f32
  } -> tensor<2x128xf32>
  %7 = linalg.generic {indexing_maps = [#map, #map5, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%3, %6 : tensor<2x128x128xf32>, tensor<2x128xf32>) outs(%1 : tensor<2x128x128xf32>) {
  ^bb0(%in: f32, %in_2: f32, %out: f32):
    %16 = arith.subf %in, %in_2 : f32
    %17 = math.exp %16 : f32
    linalg.yield %17 : f32
  } -> tensor<2x128x128xf32>
  %8 = linalg.generic {indexing_maps = [#map4], iterator_types = ["parallel", "parallel"]} outs(%4 : tensor<2x128xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst_0 : f32
  } -> tensor<2x128xf32>
  %9 = linalg.generic {indexing_maps = [#map, #map5], iterator_types = ["parallel", "parallel", "reduction"]} ins(%7 : tensor<2x128x128xf32>) outs(%8 : tensor<2x128xf32>) {
  ^bb0(%in: f32, %out: f32):
    %16 = arith.addf %in, %out : f32
    linalg.yield %16 : f32
  } -> tensor<2x128xf32>
  %10 = tensor.empty() : tensor<2x128x128xbf16>
  %11 = linalg.generic {indexing_maps = [#map6, #map, #map5, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg3, %7, %9 : tensor<128x128xi1>, tensor<2x128x128xf32>, tensor<2x128xf32>) outs(%10 : tensor<2x128x128xbf16>) {
  ^bb0(%in: i1, %in_2: f32, %in_3: f32, %out: bf16):
    %16 = arith.divf %in_2, %in_3 : f32
    %17 = arith.mulf %16, %cst_1 : f32
    %18 = arith.select %in, %17, %cst_0 : f32
    %19 = arith.truncf %18 : f32 to bf16
    linalg.yield %19 : bf16
  } -> tensor<2x128x128xbf16>
  %12 = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel", "parallel", "parallel"]} outs(%0 : tensor<2x128x64xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst_0 : f32
  } -> tensor<2x128x64xf32>
  %13 = linalg.generic {indexing_maps = [#map1, #map7, #map3], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%11, %arg2 : tensor<2x128x128xbf16>, tensor<2x128x64xbf16>) outs(%12 : tensor<2x128x64xf32>) {
  ^bb0(%in: bf16, %in_2: bf16, %out: f32):
    %16 = arith.extf %in : bf16 to f32
    %17 = arith.extf %in_2 : bf16 to f32
    %18 = arith.mulf %16, %17 : f32
    %19 = arith.addf %out, %18 : f32
    linalg.yield %19 : f32
  } -> tensor<2x128x64xf32>
  %14 = tensor.empty() : tensor<2x128x64xbf16>
  %15 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%13 : tensor<2x128x64xf32>) outs(%14 : tensor<2x128x64xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %16 = arith.truncf %in : f32 to bf16
    linalg.yield %16 : bf16
  } -> tensor<2x128x64xbf16>
  return %15 : tensor<2x128x64xbf16>
}

// CHECK-LABEL: func.func @by_scores
// CHECK-NOT: kitsune.attention
// STAGE-LABEL: func.func @by_scores
// STAGE-NOT: engine = "attention"
func.func @by_scores(%arg0: tensor<2x128x64xbf16>, %arg1: tensor<2x128x64xbf16>, %arg2: tensor<2x128x64xbf16>, %arg3: tensor<128x128xi1>) -> tensor<2x128x64xbf16> {
  %cst = arith.constant 0xFF800000 : f32
  %cst_0 = arith.constant 5.000000e-01 : f32
  %cst_1 = arith.constant 0.000000e+00 : f32
  %cst_2 = arith.constant 1.250000e+00 : f32
  %0 = tensor.empty() : tensor<2x128x64xf32>
  %1 = tensor.empty() : tensor<2x128x128xf32>
  %2 = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel", "parallel", "parallel"]} outs(%1 : tensor<2x128x128xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst_1 : f32
  } -> tensor<2x128x128xf32>
  %3 = linalg.generic {indexing_maps = [#map1, #map2, #map3], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<2x128x64xbf16>, tensor<2x128x64xbf16>) outs(%2 : tensor<2x128x128xf32>) {
  ^bb0(%in: bf16, %in_3: bf16, %out: f32):
    %16 = arith.extf %in : bf16 to f32
    %17 = arith.extf %in_3 : bf16 to f32
    %18 = arith.mulf %16, %17 : f32
    %19 = arith.addf %out, %18 : f32
    linalg.yield %19 : f32
  } -> tensor<2x128x128xf32>
  %4 = tensor.empty() : tensor<2x128xf32>
  %5 = linalg.generic {indexing_maps = [#map4], iterator_types = ["parallel", "parallel"]} outs(%4 : tensor<2x128xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst : f32
  } -> tensor<2x128xf32>
  %6 = linalg.generic {indexing_maps = [#map, #map5], iterator_types = ["parallel", "parallel", "reduction"]} ins(%3 : tensor<2x128x128xf32>) outs(%5 : tensor<2x128xf32>) {
  ^bb0(%in: f32, %out: f32):
    %16 = arith.maximumf %in, %out : f32
    linalg.yield %16 : f32
  } -> tensor<2x128xf32>
  %7 = linalg.generic {indexing_maps = [#map, #map5, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%3, %6 : tensor<2x128x128xf32>, tensor<2x128xf32>) outs(%1 : tensor<2x128x128xf32>) {
  ^bb0(%in: f32, %in_3: f32, %out: f32):
    %16 = arith.subf %in, %in_3 : f32
    %17 = math.exp %16 : f32
    linalg.yield %17 : f32
  } -> tensor<2x128x128xf32>
  %8 = linalg.generic {indexing_maps = [#map4], iterator_types = ["parallel", "parallel"]} outs(%4 : tensor<2x128xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst_1 : f32
  } -> tensor<2x128xf32>
  %9 = linalg.generic {indexing_maps = [#map, #map5], iterator_types = ["parallel", "parallel", "reduction"]} ins(%7 : tensor<2x128x128xf32>) outs(%8 : tensor<2x128xf32>) {
  ^bb0(%in: f32, %out: f32):
    %16 = arith.addf %in, %out : f32
    linalg.yield %16 : f32
  } -> tensor<2x128xf32>
  %10 = tensor.empty() : tensor<2x128x128xbf16>
  %11 = linalg.generic {indexing_maps = [#map, #map5, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%7, %9 : tensor<2x128x128xf32>, tensor<2x128xf32>) outs(%10 : tensor<2x128x128xbf16>) {
  ^bb0(%in: f32, %in_3: f32, %out: bf16):
    %16 = arith.divf %in, %in_3 : f32
    %17 = arith.mulf %16, %cst_2 : f32
    %18 = arith.cmpf ogt, %16, %cst_0 : f32
    %19 = arith.select %18, %17, %cst_1 : f32
    %20 = arith.truncf %19 : f32 to bf16
    linalg.yield %20 : bf16
  } -> tensor<2x128x128xbf16>
  %12 = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel", "parallel", "parallel"]} outs(%0 : tensor<2x128x64xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst_1 : f32
  } -> tensor<2x128x64xf32>
  %13 = linalg.generic {indexing_maps = [#map1, #map7, #map3], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%11, %arg2 : tensor<2x128x128xbf16>, tensor<2x128x64xbf16>) outs(%12 : tensor<2x128x64xf32>) {
  ^bb0(%in: bf16, %in_3: bf16, %out: f32):
    %16 = arith.extf %in : bf16 to f32
    %17 = arith.extf %in_3 : bf16 to f32
    %18 = arith.mulf %16, %17 : f32
    %19 = arith.addf %out, %18 : f32
    linalg.yield %19 : f32
  } -> tensor<2x128x64xf32>
  %14 = tensor.empty() : tensor<2x128x64xbf16>
  %15 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%13 : tensor<2x128x64xf32>) outs(%14 : tensor<2x128x64xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %16 = arith.truncf %in : f32 to bf16
    linalg.yield %16 : bf16
  } -> tensor<2x128x64xbf16>
  return %15 : tensor<2x128x64xbf16>
}
