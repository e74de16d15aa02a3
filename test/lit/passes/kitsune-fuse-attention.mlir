// Attention is written as one loop nest over batch, heads and rows, whatever reshapes it came in, and becomes one stage.
// RUN: kitsune-opt %s --target h200 --kitsune-fuse-attention | FileCheck %s
// RUN: kitsune-opt %s --target h200 --kitsune-fuse-attention --remarks 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: kitsune-opt %s --target h200 --kitsune-fuse-attention --kitsune-form-stages --kitsune-partition-streams | FileCheck %s --check-prefix=STAGE
// RUN: kitsune-opt %s --target host --kitsune-fuse-attention | FileCheck %s --check-prefix=HOST

#m0 = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1, d3)>
#m1 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#m2 = affine_map<(d0, d1, d2, d3) -> (d0, d3, d1, d2)>
#m3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#m4 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
#m5 = affine_map<(d0, d1, d2, d3) -> (d0, d3, d2)>
#m6 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#m7 = affine_map<(d0) -> (d0)>
#m8 = affine_map<(d0, d1, d2, d3) -> (d3)>
#m9 = affine_map<(d0, d1, d2, d3) -> (d2)>
#m10 = affine_map<(d0, d1) -> (d0, d1)>
#m11 = affine_map<(d0, d1, d2) -> (d0, d1)>
#m12 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3, d2)>

// Four heads of queries, two of keys: every operation walks (batch, rows, groups, heads of a group), and reads q, k and v where
// they lie, [batch, rows, heads, width]. No reshape, no transposition is left but views of arguments and of the result.
// CHECK-LABEL: func.func @grouped
// CHECK: %[[Q:.*]] = tensor.expand_shape %arg0 {{.*}} into tensor<2x256x2x2x64xbf16>
// CHECK: linalg.generic {{.*}} ins(%[[Q]], %arg1 : tensor<2x256x2x2x64xbf16>, tensor<2x256x2x64xbf16>) {{.*}}kitsune.attention = 0
// CHECK: %[[KEEP:.*]] = arith.cmpi sle
// CHECK-NEXT: arith.select %[[KEEP]]
// CHECK: arith.maximumf
// CHECK: math.exp
// CHECK: arith.divf
// CHECK: linalg.generic {{.*}} ins({{.*}}, %arg2 : tensor<2x256x2x2x256xbf16>, tensor<2x256x2x64xbf16>) {{.*}}kitsune.attention = 0
// CHECK-NOT: linalg.transpose
// CHECK: tensor.collapse_shape {{.*}} : tensor<2x256x2x2x64xbf16> into tensor<2x256x256xbf16>
// CHECK-NEXT: return

// One stage, whose tiles are 64 rows of one head (there are few); two stages on the host.
// STAGE-LABEL: func.func @grouped
// STAGE-COUNT-1: "kitsune.stage"
// STAGE: engine = "attention"
// STAGE-SAME: tile = array<i64: 1, 64, 1, 1>
// HOST-LABEL: func.func @grouped
// HOST-NOT: kitsune.attention
func.func @grouped(%arg0: tensor<2x256x4x64xbf16>, %arg1: tensor<2x256x2x64xbf16>, %arg2: tensor<2x256x2x64xbf16>) -> tensor<2x256x256xbf16> {
  %cst = arith.constant 0.000000e+00 : f32
  %cst_0 = arith.constant 0xFF800000 : f32
  %cst_1 = arith.constant 1.250000e-01 : f32
  %0 = tensor.empty() : tensor<2x4x256x64xbf16>
  %1 = linalg.generic {indexing_maps = [#m0, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg0 : tensor<2x256x4x64xbf16>) outs(%0 : tensor<2x4x256x64xbf16>) {
  ^bb0(%in: bf16, %out: bf16):
    linalg.yield %in : bf16
  } -> tensor<2x4x256x64xbf16>
  %2 = tensor.empty() : tensor<2x2x256x64xbf16>
  %3 = linalg.generic {indexing_maps = [#m0, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg2 : tensor<2x256x2x64xbf16>) outs(%2 : tensor<2x2x256x64xbf16>) {
  ^bb0(%in: bf16, %out: bf16):
    linalg.yield %in : bf16
  } -> tensor<2x2x256x64xbf16>
  %collapsed = tensor.collapse_shape %1 [[0], [1, 2], [3]] : tensor<2x4x256x64xbf16> into tensor<2x1024x64xbf16>
  %expanded = tensor.expand_shape %collapsed [[0], [1, 2], [3]] output_shape [2, 2, 512, 64] : tensor<2x1024x64xbf16> into tensor<2x2x512x64xbf16>
  %4 = tensor.empty() : tensor<2x2x64x256xbf16>
  %5 = linalg.generic {indexing_maps = [#m2, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg1 : tensor<2x256x2x64xbf16>) outs(%4 : tensor<2x2x64x256xbf16>) {
  ^bb0(%in: bf16, %out: bf16):
    linalg.yield %in : bf16
  } -> tensor<2x2x64x256xbf16>
  %collapsed_2 = tensor.collapse_shape %expanded [[0, 1], [2], [3]] : tensor<2x2x512x64xbf16> into tensor<4x512x64xbf16>
  %collapsed_3 = tensor.collapse_shape %5 [[0, 1], [2], [3]] : tensor<2x2x64x256xbf16> into tensor<4x64x256xbf16>
  %6 = tensor.empty() : tensor<4x512x256xf32>
  %7 = linalg.generic {indexing_maps = [#m3], iterator_types = ["parallel", "parallel", "parallel"]} outs(%6 : tensor<4x512x256xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst : f32
  } -> tensor<4x512x256xf32>
  %8 = linalg.generic {indexing_maps = [#m4, #m5, #m6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%collapsed_2, %collapsed_3 : tensor<4x512x64xbf16>, tensor<4x64x256xbf16>) outs(%7 : tensor<4x512x256xf32>) {
  ^bb0(%in: bf16, %in_15: bf16, %out: f32):
    %29 = arith.extf %in : bf16 to f32
    %30 = arith.extf %in_15 : bf16 to f32
    %31 = arith.mulf %29, %30 : f32
    %32 = arith.addf %out, %31 : f32
    linalg.yield %32 : f32
  } -> tensor<4x512x256xf32>
  %expanded_4 = tensor.expand_shape %8 [[0, 1], [2], [3]] output_shape [2, 2, 512, 256] : tensor<4x512x256xf32> into tensor<2x2x512x256xf32>
  %9 = tensor.empty() : tensor<2x2x512x256xf32>
  %10 = linalg.generic {indexing_maps = [#m1, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded_4 : tensor<2x2x512x256xf32>) outs(%9 : tensor<2x2x512x256xf32>) {
  ^bb0(%in: f32, %out: f32):
    %29 = arith.mulf %in, %cst_1 : f32
    linalg.yield %29 : f32
  } -> tensor<2x2x512x256xf32>
  %collapsed_5 = tensor.collapse_shape %10 [[0], [1, 2], [3]] : tensor<2x2x512x256xf32> into tensor<2x1024x256xf32>
  %expanded_6 = tensor.expand_shape %collapsed_5 [[0], [1, 2], [3]] output_shape [2, 4, 256, 256] : tensor<2x1024x256xf32> into tensor<2x4x256x256xf32>
  %11 = tensor.empty() : tensor<256xi64>
  %12 = linalg.generic {indexing_maps = [#m7], iterator_types = ["parallel"]} outs(%11 : tensor<256xi64>) {
  ^bb0(%out: i64):
    %29 = linalg.index 0 : index
    %30 = arith.index_cast %29 : index to i64
    linalg.yield %30 : i64
  } -> tensor<256xi64>
  %13 = tensor.empty() : tensor<2x4x256x256xf32>
  %14 = linalg.generic {indexing_maps = [#m8, #m9, #m1, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%12, %12, %expanded_6 : tensor<256xi64>, tensor<256xi64>, tensor<2x4x256x256xf32>) outs(%13 : tensor<2x4x256x256xf32>) {
  ^bb0(%in: i64, %in_15: i64, %in_16: f32, %out: f32):
    %29 = arith.cmpi sle, %in, %in_15 : i64
    %30 = arith.select %29, %in_16, %cst_0 : f32
    linalg.yield %30 : f32
  } -> tensor<2x4x256x256xf32>
  %15 = tensor.empty() : tensor<2x4x256xf32>
  %16 = linalg.generic {indexing_maps = [#m3], iterator_types = ["parallel", "parallel", "parallel"]} outs(%15 : tensor<2x4x256xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst_0 : f32
  } -> tensor<2x4x256xf32>
  %17 = linalg.generic {indexing_maps = [#m1, #m6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%14 : tensor<2x4x256x256xf32>) outs(%16 : tensor<2x4x256xf32>) {
  ^bb0(%in: f32, %out: f32):
    %29 = arith.maximumf %in, %out : f32
    linalg.yield %29 : f32
  } -> tensor<2x4x256xf32>
  %18 = linalg.generic {indexing_maps = [#m1, #m6, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%14, %17 : tensor<2x4x256x256xf32>, tensor<2x4x256xf32>) outs(%13 : tensor<2x4x256x256xf32>) {
  ^bb0(%in: f32, %in_15: f32, %out: f32):
    %29 = arith.subf %in, %in_15 : f32
    %30 = math.exp %29 : f32
    linalg.yield %30 : f32
  } -> tensor<2x4x256x256xf32>
  %19 = linalg.generic {indexing_maps = [#m3], iterator_types = ["parallel", "parallel", "parallel"]} outs(%15 : tensor<2x4x256xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst : f32
  } -> tensor<2x4x256xf32>
  %20 = linalg.generic {indexing_maps = [#m1, #m6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%18 : tensor<2x4x256x256xf32>) outs(%19 : tensor<2x4x256xf32>) {
  ^bb0(%in: f32, %out: f32):
    %29 = arith.addf %in, %out : f32
    linalg.yield %29 : f32
  } -> tensor<2x4x256xf32>
  %21 = tensor.empty() : tensor<2x4x256x256xbf16>
  %22 = linalg.generic {indexing_maps = [#m1, #m6, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%18, %20 : tensor<2x4x256x256xf32>, tensor<2x4x256xf32>) outs(%21 : tensor<2x4x256x256xbf16>) {
  ^bb0(%in: f32, %in_15: f32, %out: bf16):
    %29 = arith.divf %in, %in_15 : f32
    %30 = arith.truncf %29 : f32 to bf16
    linalg.yield %30 : bf16
  } -> tensor<2x4x256x256xbf16>
  %collapsed_7 = tensor.collapse_shape %22 [[0], [1, 2], [3]] : tensor<2x4x256x256xbf16> into tensor<2x1024x256xbf16>
  %expanded_8 = tensor.expand_shape %collapsed_7 [[0], [1, 2], [3]] output_shape [2, 2, 512, 256] : tensor<2x1024x256xbf16> into tensor<2x2x512x256xbf16>
  %collapsed_9 = tensor.collapse_shape %expanded_8 [[0, 1], [2], [3]] : tensor<2x2x512x256xbf16> into tensor<4x512x256xbf16>
  %collapsed_10 = tensor.collapse_shape %3 [[0, 1], [2], [3]] : tensor<2x2x256x64xbf16> into tensor<4x256x64xbf16>
  %23 = tensor.empty() : tensor<4x512x64xf32>
  %24 = linalg.generic {indexing_maps = [#m3], iterator_types = ["parallel", "parallel", "parallel"]} outs(%23 : tensor<4x512x64xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst : f32
  } -> tensor<4x512x64xf32>
  %25 = linalg.generic {indexing_maps = [#m4, #m5, #m6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%collapsed_9, %collapsed_10 : tensor<4x512x256xbf16>, tensor<4x256x64xbf16>) outs(%24 : tensor<4x512x64xf32>) {
  ^bb0(%in: bf16, %in_15: bf16, %out: f32):
    %29 = arith.extf %in : bf16 to f32
    %30 = arith.extf %in_15 : bf16 to f32
    %31 = arith.mulf %29, %30 : f32
    %32 = arith.addf %out, %31 : f32
    linalg.yield %32 : f32
  } -> tensor<4x512x64xf32>
  %expanded_11 = tensor.expand_shape %25 [[0, 1], [2], [3]] output_shape [2, 2, 512, 64] : tensor<4x512x64xf32> into tensor<2x2x512x64xf32>
  %collapsed_12 = tensor.collapse_shape %expanded_11 [[0], [1, 2], [3]] : tensor<2x2x512x64xf32> into tensor<2x1024x64xf32>
  %expanded_13 = tensor.expand_shape %collapsed_12 [[0], [1, 2], [3]] output_shape [2, 4, 256, 64] : tensor<2x1024x64xf32> into tensor<2x4x256x64xf32>
  %26 = linalg.generic {indexing_maps = [#m1, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded_13 : tensor<2x4x256x64xf32>) outs(%0 : tensor<2x4x256x64xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %29 = arith.truncf %in : f32 to bf16
    linalg.yield %29 : bf16
  } -> tensor<2x4x256x64xbf16>
  %27 = tensor.empty() : tensor<2x256x4x64xbf16>
  %28 = linalg.generic {indexing_maps = [#m0, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%26 : tensor<2x4x256x64xbf16>) outs(%27 : tensor<2x256x4x64xbf16>) {
  ^bb0(%in: bf16, %out: bf16):
    linalg.yield %in : bf16
  } -> tensor<2x256x4x64xbf16>
  %collapsed_14 = tensor.collapse_shape %28 [[0], [1], [2, 3]] : tensor<2x256x4x64xbf16> into tensor<2x256x256xbf16>
  return %collapsed_14 : tensor<2x256x256xbf16>
}

// The scores go through tanh: no softmax of scaled and masked scores.
// CHECK-LABEL: func.func @tanh_of_scores
// CHECK-NOT: kitsune.attention
func.func @tanh_of_scores(%arg0: tensor<1x64x2x64xbf16>, %arg1: tensor<1x64x2x64xbf16>, %arg2: tensor<1x64x2x64xbf16>) -> tensor<1x2x64x64xbf16> {
  %cst = arith.constant 0xFF800000 : f32
  %cst_0 = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<1x2x64x64xbf16>
  %1 = linalg.generic {indexing_maps = [#m0, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg0 : tensor<1x64x2x64xbf16>) outs(%0 : tensor<1x2x64x64xbf16>) {
  ^bb0(%in: bf16, %out: bf16):
    linalg.yield %in : bf16
  } -> tensor<1x2x64x64xbf16>
  %2 = linalg.generic {indexing_maps = [#m0, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg2 : tensor<1x64x2x64xbf16>) outs(%0 : tensor<1x2x64x64xbf16>) {
  ^bb0(%in: bf16, %out: bf16):
    linalg.yield %in : bf16
  } -> tensor<1x2x64x64xbf16>
  %3 = linalg.generic {indexing_maps = [#m2, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg1 : tensor<1x64x2x64xbf16>) outs(%0 : tensor<1x2x64x64xbf16>) {
  ^bb0(%in: bf16, %out: bf16):
    linalg.yield %in : bf16
  } -> tensor<1x2x64x64xbf16>
  %collapsed = tensor.collapse_shape %1 [[0, 1], [2], [3]] : tensor<1x2x64x64xbf16> into tensor<2x64x64xbf16>
  %collapsed_1 = tensor.collapse_shape %3 [[0, 1], [2], [3]] : tensor<1x2x64x64xbf16> into tensor<2x64x64xbf16>
  %4 = tensor.empty() : tensor<2x64x64xf32>
  %5 = linalg.generic {indexing_maps = [#m3], iterator_types = ["parallel", "parallel", "parallel"]} outs(%4 : tensor<2x64x64xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst_0 : f32
  } -> tensor<2x64x64xf32>
  %6 = linalg.generic {indexing_maps = [#m4, #m5, #m6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%collapsed, %collapsed_1 : tensor<2x64x64xbf16>, tensor<2x64x64xbf16>) outs(%5 : tensor<2x64x64xf32>) {
  ^bb0(%in: bf16, %in_3: bf16, %out: f32):
    %18 = arith.extf %in : bf16 to f32
    %19 = arith.extf %in_3 : bf16 to f32
    %20 = arith.mulf %18, %19 : f32
    %21 = arith.addf %out, %20 : f32
    linalg.yield %21 : f32
  } -> tensor<2x64x64xf32>
  %7 = linalg.generic {indexing_maps = [#m3, #m3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%6 : tensor<2x64x64xf32>) outs(%4 : tensor<2x64x64xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = math.tanh %in : f32
    linalg.yield %18 : f32
  } -> tensor<2x64x64xf32>
  %8 = tensor.empty() : tensor<2x64xf32>
  %9 = linalg.generic {indexing_maps = [#m10], iterator_types = ["parallel", "parallel"]} outs(%8 : tensor<2x64xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst : f32
  } -> tensor<2x64xf32>
  %10 = linalg.generic {indexing_maps = [#m3, #m11], iterator_types = ["parallel", "parallel", "reduction"]} ins(%7 : tensor<2x64x64xf32>) outs(%9 : tensor<2x64xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = arith.maximumf %in, %out : f32
    linalg.yield %18 : f32
  } -> tensor<2x64xf32>
  %11 = linalg.generic {indexing_maps = [#m3, #m11, #m3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%7, %10 : tensor<2x64x64xf32>, tensor<2x64xf32>) outs(%4 : tensor<2x64x64xf32>) {
  ^bb0(%in: f32, %in_3: f32, %out: f32):
    %18 = arith.subf %in, %in_3 : f32
    %19 = math.exp %18 : f32
    linalg.yield %19 : f32
  } -> tensor<2x64x64xf32>
  %12 = linalg.generic {indexing_maps = [#m10], iterator_types = ["parallel", "parallel"]} outs(%8 : tensor<2x64xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst_0 : f32
  } -> tensor<2x64xf32>
  %13 = linalg.generic {indexing_maps = [#m3, #m11], iterator_types = ["parallel", "parallel", "reduction"]} ins(%11 : tensor<2x64x64xf32>) outs(%12 : tensor<2x64xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = arith.addf %in, %out : f32
    linalg.yield %18 : f32
  } -> tensor<2x64xf32>
  %14 = tensor.empty() : tensor<2x64x64xbf16>
  %15 = linalg.generic {indexing_maps = [#m3, #m11, #m3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%11, %13 : tensor<2x64x64xf32>, tensor<2x64xf32>) outs(%14 : tensor<2x64x64xbf16>) {
  ^bb0(%in: f32, %in_3: f32, %out: bf16):
    %18 = arith.divf %in, %in_3 : f32
    %19 = arith.truncf %18 : f32 to bf16
    linalg.yield %19 : bf16
  } -> tensor<2x64x64xbf16>
  %collapsed_2 = tensor.collapse_shape %2 [[0, 1], [2], [3]] : tensor<1x2x64x64xbf16> into tensor<2x64x64xbf16>
  %16 = linalg.generic {indexing_maps = [#m4, #m5, #m6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%15, %collapsed_2 : tensor<2x64x64xbf16>, tensor<2x64x64xbf16>) outs(%5 : tensor<2x64x64xf32>) {
  ^bb0(%in: bf16, %in_3: bf16, %out: f32):
    %18 = arith.extf %in : bf16 to f32
    %19 = arith.extf %in_3 : bf16 to f32
    %20 = arith.mulf %18, %19 : f32
    %21 = arith.addf %out, %20 : f32
    linalg.yield %21 : f32
  } -> tensor<2x64x64xf32>
  %17 = linalg.generic {indexing_maps = [#m3, #m3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%16 : tensor<2x64x64xf32>) outs(%14 : tensor<2x64x64xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %18 = arith.truncf %in : f32 to bf16
    linalg.yield %18 : bf16
  } -> tensor<2x64x64xbf16>
  %expanded = tensor.expand_shape %17 [[0, 1], [2], [3]] output_shape [1, 2, 64, 64] : tensor<2x64x64xbf16> into tensor<1x2x64x64xbf16>
  return %expanded : tensor<1x2x64x64xbf16>
}

// Two products, but the weights are no quotient.
// CHECK-LABEL: func.func @no_softmax
// CHECK-NOT: kitsune.attention
func.func @no_softmax(%arg0: tensor<1x64x2x64xbf16>, %arg1: tensor<1x64x2x64xbf16>, %arg2: tensor<1x64x2x64xbf16>) -> tensor<1x2x64x64xbf16> {
  %cst = arith.constant 0.000000e+00 : f32
  %cst_0 = arith.constant 1.000000e+00 : f32
  %0 = tensor.empty() : tensor<1x2x64x64xbf16>
  %1 = linalg.generic {indexing_maps = [#m0, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg0 : tensor<1x64x2x64xbf16>) outs(%0 : tensor<1x2x64x64xbf16>) {
  ^bb0(%in: bf16, %out: bf16):
    linalg.yield %in : bf16
  } -> tensor<1x2x64x64xbf16>
  %2 = linalg.generic {indexing_maps = [#m0, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg2 : tensor<1x64x2x64xbf16>) outs(%0 : tensor<1x2x64x64xbf16>) {
  ^bb0(%in: bf16, %out: bf16):
    linalg.yield %in : bf16
  } -> tensor<1x2x64x64xbf16>
  %3 = linalg.generic {indexing_maps = [#m2, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg1 : tensor<1x64x2x64xbf16>) outs(%0 : tensor<1x2x64x64xbf16>) {
  ^bb0(%in: bf16, %out: bf16):
    linalg.yield %in : bf16
  } -> tensor<1x2x64x64xbf16>
  %collapsed = tensor.collapse_shape %1 [[0, 1], [2], [3]] : tensor<1x2x64x64xbf16> into tensor<2x64x64xbf16>
  %collapsed_1 = tensor.collapse_shape %3 [[0, 1], [2], [3]] : tensor<1x2x64x64xbf16> into tensor<2x64x64xbf16>
  %4 = tensor.empty() : tensor<2x64x64xf32>
  %5 = linalg.generic {indexing_maps = [#m3], iterator_types = ["parallel", "parallel", "parallel"]} outs(%4 : tensor<2x64x64xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst : f32
  } -> tensor<2x64x64xf32>
  %6 = linalg.generic {indexing_maps = [#m4, #m5, #m6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%collapsed, %collapsed_1 : tensor<2x64x64xbf16>, tensor<2x64x64xbf16>) outs(%5 : tensor<2x64x64xf32>) {
  ^bb0(%in: bf16, %in_3: bf16, %out: f32):
    %11 = arith.extf %in : bf16 to f32
    %12 = arith.extf %in_3 : bf16 to f32
    %13 = arith.mulf %11, %12 : f32
    %14 = arith.addf %out, %13 : f32
    linalg.yield %14 : f32
  } -> tensor<2x64x64xf32>
  %7 = tensor.empty() : tensor<2x64x64xbf16>
  %8 = linalg.generic {indexing_maps = [#m3, #m3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%6 : tensor<2x64x64xf32>) outs(%7 : tensor<2x64x64xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %11 = arith.negf %in : f32
    %12 = math.exp %11 : f32
    %13 = arith.addf %12, %cst_0 : f32
    %14 = arith.divf %cst_0, %13 : f32
    %15 = arith.truncf %14 : f32 to bf16
    linalg.yield %15 : bf16
  } -> tensor<2x64x64xbf16>
  %collapsed_2 = tensor.collapse_shape %2 [[0, 1], [2], [3]] : tensor<1x2x64x64xbf16> into tensor<2x64x64xbf16>
  %9 = linalg.generic {indexing_maps = [#m4, #m5, #m6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%8, %collapsed_2 : tensor<2x64x64xbf16>, tensor<2x64x64xbf16>) outs(%5 : tensor<2x64x64xf32>) {
  ^bb0(%in: bf16, %in_3: bf16, %out: f32):
    %11 = arith.extf %in : bf16 to f32
    %12 = arith.extf %in_3 : bf16 to f32
    %13 = arith.mulf %11, %12 : f32
    %14 = arith.addf %out, %13 : f32
    linalg.yield %14 : f32
  } -> tensor<2x64x64xf32>
  %10 = linalg.generic {indexing_maps = [#m3, #m3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%9 : tensor<2x64x64xf32>) outs(%7 : tensor<2x64x64xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %11 = arith.truncf %in : f32 to bf16
    linalg.yield %11 : bf16
  } -> tensor<2x64x64xbf16>
  %expanded = tensor.expand_shape %10 [[0, 1], [2], [3]] output_shape [1, 2, 64, 64] : tensor<2x64x64xbf16> into tensor<1x2x64x64xbf16>
  return %expanded : tensor<1x2x64x64xbf16>
}

// Rows of 24 bytes: TMA cannot read them.
// REMARK: attention stays two products: heads of 12 and 12 elements; multiples of 8 up to 256 are done
// CHECK-LABEL: func.func @odd_width
// CHECK-NOT: kitsune.attention
func.func @odd_width(%arg0: tensor<1x2x64x12xbf16>, %arg1: tensor<1x2x64x12xbf16>, %arg2: tensor<1x2x64x12xbf16>) -> tensor<1x2x64x12xbf16> {
  %cst = arith.constant 0xFF800000 : f32
  %cst_0 = arith.constant 0.000000e+00 : f32
  %cst_1 = arith.constant 0.288675129 : f32
  %0 = tensor.empty() : tensor<1x2x12x64xbf16>
  %1 = linalg.generic {indexing_maps = [#m12, #m1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg1 : tensor<1x2x64x12xbf16>) outs(%0 : tensor<1x2x12x64xbf16>) {
  ^bb0(%in: bf16, %out: bf16):
    linalg.yield %in : bf16
  } -> tensor<1x2x12x64xbf16>
  %collapsed = tensor.collapse_shape %arg0 [[0, 1], [2], [3]] : tensor<1x2x64x12xbf16> into tensor<2x64x12xbf16>
  %collapsed_2 = tensor.collapse_shape %1 [[0, 1], [2], [3]] : tensor<1x2x12x64xbf16> into tensor<2x12x64xbf16>
  %2 = tensor.empty() : tensor<2x64x64xf32>
  %3 = linalg.generic {indexing_maps = [#m3], iterator_types = ["parallel", "parallel", "parallel"]} outs(%2 : tensor<2x64x64xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst_0 : f32
  } -> tensor<2x64x64xf32>
  %4 = linalg.generic {indexing_maps = [#m4, #m5, #m6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%collapsed, %collapsed_2 : tensor<2x64x12xbf16>, tensor<2x12x64xbf16>) outs(%3 : tensor<2x64x64xf32>) {
  ^bb0(%in: bf16, %in_4: bf16, %out: f32):
    %19 = arith.extf %in : bf16 to f32
    %20 = arith.extf %in_4 : bf16 to f32
    %21 = arith.mulf %19, %20 : f32
    %22 = arith.addf %out, %21 : f32
    linalg.yield %22 : f32
  } -> tensor<2x64x64xf32>
  %5 = linalg.generic {indexing_maps = [#m3, #m3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%4 : tensor<2x64x64xf32>) outs(%2 : tensor<2x64x64xf32>) {
  ^bb0(%in: f32, %out: f32):
    %19 = arith.mulf %in, %cst_1 : f32
    linalg.yield %19 : f32
  } -> tensor<2x64x64xf32>
  %6 = tensor.empty() : tensor<2x64xf32>
  %7 = linalg.generic {indexing_maps = [#m10], iterator_types = ["parallel", "parallel"]} outs(%6 : tensor<2x64xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst : f32
  } -> tensor<2x64xf32>
  %8 = linalg.generic {indexing_maps = [#m3, #m11], iterator_types = ["parallel", "parallel", "reduction"]} ins(%5 : tensor<2x64x64xf32>) outs(%7 : tensor<2x64xf32>) {
  ^bb0(%in: f32, %out: f32):
    %19 = arith.maximumf %in, %out : f32
    linalg.yield %19 : f32
  } -> tensor<2x64xf32>
  %9 = linalg.generic {indexing_maps = [#m3, #m11, #m3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%5, %8 : tensor<2x64x64xf32>, tensor<2x64xf32>) outs(%2 : tensor<2x64x64xf32>) {
  ^bb0(%in: f32, %in_4: f32, %out: f32):
    %19 = arith.subf %in, %in_4 : f32
    %20 = math.exp %19 : f32
    linalg.yield %20 : f32
  } -> tensor<2x64x64xf32>
  %10 = linalg.generic {indexing_maps = [#m10], iterator_types = ["parallel", "parallel"]} outs(%6 : tensor<2x64xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst_0 : f32
  } -> tensor<2x64xf32>
  %11 = linalg.generic {indexing_maps = [#m3, #m11], iterator_types = ["parallel", "parallel", "reduction"]} ins(%9 : tensor<2x64x64xf32>) outs(%10 : tensor<2x64xf32>) {
  ^bb0(%in: f32, %out: f32):
    %19 = arith.addf %in, %out : f32
    linalg.yield %19 : f32
  } -> tensor<2x64xf32>
  %12 = tensor.empty() : tensor<2x64x64xbf16>
  %13 = linalg.generic {indexing_maps = [#m3, #m11, #m3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%9, %11 : tensor<2x64x64xf32>, tensor<2x64xf32>) outs(%12 : tensor<2x64x64xbf16>) {
  ^bb0(%in: f32, %in_4: f32, %out: bf16):
    %19 = arith.divf %in, %in_4 : f32
    %20 = arith.truncf %19 : f32 to bf16
    linalg.yield %20 : bf16
  } -> tensor<2x64x64xbf16>
  %collapsed_3 = tensor.collapse_shape %arg2 [[0, 1], [2], [3]] : tensor<1x2x64x12xbf16> into tensor<2x64x12xbf16>
  %14 = tensor.empty() : tensor<2x64x12xf32>
  %15 = linalg.generic {indexing_maps = [#m3], iterator_types = ["parallel", "parallel", "parallel"]} outs(%14 : tensor<2x64x12xf32>) {
  ^bb0(%out: f32):
    linalg.yield %cst_0 : f32
  } -> tensor<2x64x12xf32>
  %16 = linalg.generic {indexing_maps = [#m4, #m5, #m6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%13, %collapsed_3 : tensor<2x64x64xbf16>, tensor<2x64x12xbf16>) outs(%15 : tensor<2x64x12xf32>) {
  ^bb0(%in: bf16, %in_4: bf16, %out: f32):
    %19 = arith.extf %in : bf16 to f32
    %20 = arith.extf %in_4 : bf16 to f32
    %21 = arith.mulf %19, %20 : f32
    %22 = arith.addf %out, %21 : f32
    linalg.yield %22 : f32
  } -> tensor<2x64x12xf32>
  %17 = tensor.empty() : tensor<2x64x12xbf16>
  %18 = linalg.generic {indexing_maps = [#m3, #m3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%16 : tensor<2x64x12xf32>) outs(%17 : tensor<2x64x12xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %19 = arith.truncf %in : f32 to bf16
    linalg.yield %19 : bf16
  } -> tensor<2x64x12xbf16>
  %expanded = tensor.expand_shape %18 [[0, 1], [2], [3]] output_shape [1, 2, 64, 12] : tensor<2x64x12xbf16> into tensor<1x2x64x12xbf16>
  return %expanded : tensor<1x2x64x12xbf16>
}
