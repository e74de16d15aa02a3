// A convolution reads and writes images with the channels innermost, and what is around it follows: padding, the bias as an
// addition of its own, ReLU. The weight becomes an argument in that order; the image is turned where it comes in and goes out.
// RUN: kitsune-opt %s --split-input-file --kitsune-channels-last=target=sm_90a | FileCheck %s
// RUN: kitsune-opt %s --split-input-file --kitsune-channels-last=target=host | FileCheck %s --check-prefix=HOST

// The host's convolutions stay as they came.
// HOST-NOT: nhwc

// CHECK-LABEL: func.func @block
// CHECK-SAME: %[[X:.*]]: tensor<2x16x8x8xbf16>
// CHECK-SAME: %[[W:.*]]: tensor<32x3x3x16xbf16> {kitsune.dim_order = array<i64: 0, 2, 3, 1>, kitsune.kind = "parameter"}
// CHECK-SAME: %[[B:.*]]: tensor<32xf32>
// CHECK: %[[T:.*]] = linalg.transpose ins(%[[X]] {{.*}} permutation = [0, 2, 3, 1]
// CHECK: %[[P:.*]] = tensor.pad %[[T]] low[0, 1, 1, 0] high[0, 1, 1, 0]
// CHECK: %[[C:.*]] = linalg.conv_2d_nhwc_fhwc {{.*}} ins(%[[P]], %[[W]] : tensor<2x10x10x16xbf16>, tensor<32x3x3x16xbf16>)
// CHECK: %[[S:.*]] = linalg.generic {{.*}} ins(%[[C]], %[[B]] : tensor<2x8x8x32xf32>, tensor<32xf32>)
// CHECK: %[[R:.*]] = linalg.generic {{.*}} ins(%[[S]] : tensor<2x8x8x32xf32>)
// CHECK: %[[O:.*]] = linalg.transpose ins(%[[R]] {{.*}} permutation = [0, 3, 1, 2]
// CHECK: return %[[O]]
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
func.func @block(%x: tensor<2x16x8x8xbf16>, %w: tensor<32x16x3x3xbf16> {kitsune.kind = "parameter"}, %b: tensor<32xf32>) -> tensor<2x32x8x8xbf16> {
  %zero = arith.constant 0.0 : bf16
  %padded = tensor.pad %x low[0, 0, 1, 1] high[0, 0, 1, 1] {
  ^bb0(%i: index, %j: index, %k: index, %l: index):
    tensor.yield %zero : bf16
  } : tensor<2x16x8x8xbf16> to tensor<2x16x10x10xbf16>
  %e = tensor.empty() : tensor<2x32x8x8xf32>
  %start = linalg.broadcast ins(%b : tensor<32xf32>) outs(%e : tensor<2x32x8x8xf32>) dimensions = [0, 2, 3]
  %c = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>} ins(%padded, %w : tensor<2x16x10x10xbf16>, tensor<32x16x3x3xbf16>) outs(%start : tensor<2x32x8x8xf32>) -> tensor<2x32x8x8xf32>
  %n = tensor.empty() : tensor<2x32x8x8xbf16>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%c : tensor<2x32x8x8xf32>) outs(%n : tensor<2x32x8x8xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %t = arith.truncf %in : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<2x32x8x8xbf16>
  return %r : tensor<2x32x8x8xbf16>
}

// -----

// An input that the caller has in channels-last memory is taken so, and so is the result: nothing is transposed.
// CHECK-LABEL: func.func @last
// CHECK-SAME: %[[X:.*]]: tensor<2x8x8x16xbf16> {kitsune.caller_dim_order = array<i64: 0, 2, 3, 1>, kitsune.dim_order = array<i64: 0, 2, 3, 1>}
// CHECK-SAME: -> (tensor<2x4x4x32xf32> {kitsune.dim_order = array<i64: 0, 2, 3, 1>})
// CHECK: %[[C:.*]] = linalg.conv_2d_nhwc_fhwc {dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>} ins(%[[X]]
// CHECK: return %[[C]]
func.func @last(%x: tensor<2x16x8x8xbf16> {kitsune.caller_dim_order = array<i64: 0, 2, 3, 1>}, %w: tensor<32x16x2x2xbf16> {kitsune.kind = "parameter"}) -> tensor<2x32x4x4xf32> {
  %f = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x32x4x4xf32>
  %z = linalg.fill ins(%f : f32) outs(%e : tensor<2x32x4x4xf32>) -> tensor<2x32x4x4xf32>
  %c = linalg.conv_2d_nchw_fchw {dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>} ins(%x, %w : tensor<2x16x8x8xbf16>, tensor<32x16x2x2xbf16>) outs(%z : tensor<2x32x4x4xf32>) -> tensor<2x32x4x4xf32>
  return %c : tensor<2x32x4x4xf32>
}

// -----

// Factors of 64 bits stay as they are.
// CHECK-LABEL: func.func @wide
// CHECK-NOT: transpose
// CHECK: linalg.conv_2d_nchw_fchw
func.func @wide(%x: tensor<2x16x8x8xf64>, %w: tensor<32x16x3x3xf64>, %z: tensor<2x32x6x6xf64>) -> tensor<2x32x6x6xf64> {
  %c = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>} ins(%x, %w : tensor<2x16x8x8xf64>, tensor<32x16x3x3xf64>) outs(%z : tensor<2x32x6x6xf64>) -> tensor<2x32x6x6xf64>
  return %c : tensor<2x32x6x6xf64>
}

// -----

// Factors of 32 bits are of rows of four channels at least: 16 bytes.
// CHECK-LABEL: func.func @exact
// CHECK: linalg.conv_2d_nhwc_fhwc {{.*}} ins(%{{.*}}, %{{.*}} : tensor<2x8x8x4xf32>, tensor<32x3x3x4xf32>)
func.func @exact(%x: tensor<2x3x8x8xf32>, %w: tensor<32x3x3x3xf32>, %z: tensor<2x32x6x6xf32>) -> tensor<2x32x6x6xf32> {
  %c = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>} ins(%x, %w : tensor<2x3x8x8xf32>, tensor<32x3x3x3xf32>) outs(%z : tensor<2x32x6x6xf32>) -> tensor<2x32x6x6xf32>
  return %c : tensor<2x32x6x6xf32>
}

// -----

// A depthwise convolution's weight is an argument with its channels innermost: taps by channels.
// CHECK-LABEL: func.func @depthwise
// CHECK-SAME: tensor<3x3x32x1xbf16> {kitsune.dim_order = array<i64: 2, 3, 0, 1>, kitsune.kind = "parameter"}
// CHECK: %[[W:.*]] = tensor.collapse_shape %{{.*}} {{\[\[}}0], [1], [2, 3]] : tensor<3x3x32x1xbf16> into tensor<3x3x32xbf16>
// CHECK: linalg.depthwise_conv_2d_nhwc_hwc {{.*}} ins(%{{.*}}, %[[W]] : tensor<2x8x8x32xbf16>, tensor<3x3x32xbf16>)
// CHECK-NOT: nchw
func.func @depthwise(%x: tensor<2x32x8x8xbf16>, %w: tensor<32x1x3x3xbf16> {kitsune.kind = "parameter"}, %z: tensor<2x32x6x6xf32>) -> tensor<2x32x6x6xf32> {
  %t = tensor.collapse_shape %w [[0, 1], [2], [3]] : tensor<32x1x3x3xbf16> into tensor<32x3x3xbf16>
  %c = linalg.depthwise_conv_2d_nchw_chw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>} ins(%x, %t : tensor<2x32x8x8xbf16>, tensor<32x3x3xbf16>) outs(%z : tensor<2x32x6x6xf32>) -> tensor<2x32x6x6xf32>
  return %c : tensor<2x32x6x6xf32>
}

// -----

// A weight that is no argument or value of four dimensions keeps its order.
// CHECK-LABEL: func.func @three
// CHECK: linalg.depthwise_conv_2d_nchw_chw
func.func @three(%x: tensor<2x32x8x8xbf16>, %w: tensor<32x3x3xbf16>, %z: tensor<2x32x6x6xf32>) -> tensor<2x32x6x6xf32> {
  %c = linalg.depthwise_conv_2d_nchw_chw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>} ins(%x, %w : tensor<2x32x8x8xbf16>, tensor<32x3x3xbf16>) outs(%z : tensor<2x32x6x6xf32>) -> tensor<2x32x6x6xf32>
  return %c : tensor<2x32x6x6xf32>
}

// -----

// A grouped convolution along one dimension: its height of 1 is lost where its groups are joined.
// CHECK-LABEL: func.func @groups_of_a_line
// CHECK: linalg.conv_2d_nhwc_fhwc {{.*}} : tensor<2x1x9x32xf32>, tensor<32x1x4x32xf32>) {{.*}} -> tensor<2x1x6x32xf32>
// CHECK-NOT: ngchw
// CHECK: tensor.collapse_shape {{.*}} {{.*}}: tensor<2x32x1x6xf32> into tensor<2x32x6xf32>
func.func @groups_of_a_line(%image: tensor<2x32x9xf32>, %weight: tensor<32x8x4xf32> {kitsune.kind = "parameter"}) -> tensor<2x32x6xf32> {
  %zero = arith.constant 0.0 : f32
  %wide = tensor.expand_shape %image [[0], [1], [2, 3]] output_shape [2, 32, 1, 9] : tensor<2x32x9xf32> into tensor<2x32x1x9xf32>
  %taps = tensor.expand_shape %weight [[0], [1], [2, 3]] output_shape [32, 8, 1, 4] : tensor<32x8x4xf32> into tensor<32x8x1x4xf32>
  %images = tensor.expand_shape %wide [[0], [1, 2], [3], [4]] output_shape [2, 4, 8, 1, 9] : tensor<2x32x1x9xf32> into tensor<2x4x8x1x9xf32>
  %weights = tensor.expand_shape %taps [[0, 1], [2], [3], [4]] output_shape [4, 8, 8, 1, 4] : tensor<32x8x1x4xf32> into tensor<4x8x8x1x4xf32>
  %empty = tensor.empty() : tensor<2x4x8x1x6xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x4x8x1x6xf32>) -> tensor<2x4x8x1x6xf32>
  %sums = linalg.conv_2d_ngchw_gfchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%images, %weights : tensor<2x4x8x1x9xf32>, tensor<4x8x8x1x4xf32>) outs(%start : tensor<2x4x8x1x6xf32>) -> tensor<2x4x8x1x6xf32>
  %line = tensor.collapse_shape %sums [[0], [1, 2, 3], [4]] : tensor<2x4x8x1x6xf32> into tensor<2x32x6xf32>
  return %line : tensor<2x32x6xf32>
}

// -----

// Groups that are not joined stay as they are.
// CHECK-LABEL: func.func @apart
// CHECK: linalg.conv_2d_ngchw_gfchw
func.func @apart(%image: tensor<2x32x9xf32>, %weight: tensor<32x8x4xf32> {kitsune.kind = "parameter"}) -> tensor<8x8x6xf32> {
  %zero = arith.constant 0.0 : f32
  %wide = tensor.expand_shape %image [[0], [1], [2, 3]] output_shape [2, 32, 1, 9] : tensor<2x32x9xf32> into tensor<2x32x1x9xf32>
  %taps = tensor.expand_shape %weight [[0], [1], [2, 3]] output_shape [32, 8, 1, 4] : tensor<32x8x4xf32> into tensor<32x8x1x4xf32>
  %images = tensor.expand_shape %wide [[0], [1, 2], [3], [4]] output_shape [2, 4, 8, 1, 9] : tensor<2x32x1x9xf32> into tensor<2x4x8x1x9xf32>
  %weights = tensor.expand_shape %taps [[0, 1], [2], [3], [4]] output_shape [4, 8, 8, 1, 4] : tensor<32x8x1x4xf32> into tensor<4x8x8x1x4xf32>
  %empty = tensor.empty() : tensor<2x4x8x1x6xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x4x8x1x6xf32>) -> tensor<2x4x8x1x6xf32>
  %sums = linalg.conv_2d_ngchw_gfchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%images, %weights : tensor<2x4x8x1x9xf32>, tensor<4x8x8x1x4xf32>) outs(%start : tensor<2x4x8x1x6xf32>) -> tensor<2x4x8x1x6xf32>
  %line = tensor.collapse_shape %sums [[0, 1], [2, 3], [4]] : tensor<2x4x8x1x6xf32> into tensor<8x8x6xf32>
  return %line : tensor<8x8x6xf32>
}

// -----

// An image whose groups the caller tells apart.
// CHECK-LABEL: func.func @given_in_groups
// CHECK: tensor.collapse_shape {{.*}} : tensor<2x4x8x1x9xf32> into tensor<2x32x1x9xf32>
// CHECK: linalg.conv_2d_nhwc_fhwc {{.*}} : tensor<2x1x9x32xf32>, tensor<32x1x4x32xf32>) {{.*}} -> tensor<2x1x6x32xf32>
func.func @given_in_groups(%image: tensor<2x4x8x9xf32>, %weight: tensor<32x8x4xf32> {kitsune.kind = "parameter"}) -> tensor<2x32x6xf32> {
  %zero = arith.constant 0.0 : f32
  %taps = tensor.expand_shape %weight [[0], [1], [2, 3]] output_shape [32, 8, 1, 4] : tensor<32x8x4xf32> into tensor<32x8x1x4xf32>
  %images = tensor.expand_shape %image [[0], [1], [2], [3, 4]] output_shape [2, 4, 8, 1, 9] : tensor<2x4x8x9xf32> into tensor<2x4x8x1x9xf32>
  %weights = tensor.expand_shape %taps [[0, 1], [2], [3], [4]] output_shape [4, 8, 8, 1, 4] : tensor<32x8x1x4xf32> into tensor<4x8x8x1x4xf32>
  %empty = tensor.empty() : tensor<2x4x8x1x6xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x4x8x1x6xf32>) -> tensor<2x4x8x1x6xf32>
  %sums = linalg.conv_2d_ngchw_gfchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%images, %weights : tensor<2x4x8x1x9xf32>, tensor<4x8x8x1x4xf32>) outs(%start : tensor<2x4x8x1x6xf32>) -> tensor<2x4x8x1x6xf32>
  %line = tensor.collapse_shape %sums [[0], [1, 2, 3], [4]] : tensor<2x4x8x1x6xf32> into tensor<2x32x6xf32>
  return %line : tensor<2x32x6xf32>
}


// -----

// Groups of 16 channels and 32 features of 16 bits: two side by side, of which there are three pairs. The weight comes so.
// CHECK-LABEL: func.func @groups_side_by_side
// CHECK-SAME: tensor<192x3x3x32xbf16> {kitsune.dim_order = array<i64: 0, 2, 3, 1>, kitsune.kind = "parameter", kitsune.padded_shape = array<i64: 192, 32, 3, 3>, kitsune.side_by_side = array<i64: 32, 2>}
// CHECK: linalg.conv_2d_nhwgc_gfhwc {{.*}} : tensor<2x9x9x3x32xbf16>, tensor<3x64x3x3x32xbf16>) {{.*}} -> tensor<2x7x7x3x64xf32>
func.func @groups_side_by_side(%image: tensor<2x96x9x9xbf16>, %weight: tensor<192x16x3x3xbf16> {kitsune.kind = "parameter"}) -> tensor<2x192x7x7xf32> {
  %zero = arith.constant 0.0 : f32
  %images = tensor.expand_shape %image [[0], [1, 2], [3], [4]] output_shape [2, 6, 16, 9, 9] : tensor<2x96x9x9xbf16> into tensor<2x6x16x9x9xbf16>
  %weights = tensor.expand_shape %weight [[0, 1], [2], [3], [4]] output_shape [6, 32, 16, 3, 3] : tensor<192x16x3x3xbf16> into tensor<6x32x16x3x3xbf16>
  %empty = tensor.empty() : tensor<2x6x32x7x7xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x6x32x7x7xf32>) -> tensor<2x6x32x7x7xf32>
  %sums = linalg.conv_2d_ngchw_gfchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%images, %weights : tensor<2x6x16x9x9xbf16>, tensor<6x32x16x3x3xbf16>) outs(%start : tensor<2x6x32x7x7xf32>) -> tensor<2x6x32x7x7xf32>
  %joined = tensor.collapse_shape %sums [[0], [1, 2], [3], [4]] : tensor<2x6x32x7x7xf32> into tensor<2x192x7x7xf32>
  return %joined : tensor<2x192x7x7xf32>
}

// -----

// A weight that the caller changes each time has its groups put side by side by the program.
// CHECK-LABEL: func.func @given_weight
// CHECK-SAME: tensor<192x16x3x3xbf16>)
// CHECK: linalg.generic {{.*}} outs({{.*}} : tensor<192x3x3x32xbf16>)
// CHECK: tensor.extract
// CHECK: linalg.conv_2d_nhwgc_gfhwc
func.func @given_weight(%image: tensor<2x96x9x9xbf16>, %weight: tensor<192x16x3x3xbf16>) -> tensor<2x192x7x7xf32> {
  %zero = arith.constant 0.0 : f32
  %images = tensor.expand_shape %image [[0], [1, 2], [3], [4]] output_shape [2, 6, 16, 9, 9] : tensor<2x96x9x9xbf16> into tensor<2x6x16x9x9xbf16>
  %weights = tensor.expand_shape %weight [[0, 1], [2], [3], [4]] output_shape [6, 32, 16, 3, 3] : tensor<192x16x3x3xbf16> into tensor<6x32x16x3x3xbf16>
  %empty = tensor.empty() : tensor<2x6x32x7x7xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x6x32x7x7xf32>) -> tensor<2x6x32x7x7xf32>
  %sums = linalg.conv_2d_ngchw_gfchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%images, %weights : tensor<2x6x16x9x9xbf16>, tensor<6x32x16x3x3xbf16>) outs(%start : tensor<2x6x32x7x7xf32>) -> tensor<2x6x32x7x7xf32>
  %joined = tensor.collapse_shape %sums [[0], [1, 2], [3], [4]] : tensor<2x6x32x7x7xf32> into tensor<2x192x7x7xf32>
  return %joined : tensor<2x192x7x7xf32>
}

// -----

// Channels that TMA cannot step over, however many groups are one: it stays.
// CHECK-LABEL: func.func @odd_groups
// CHECK: linalg.conv_2d_ngchw_gfchw
func.func @odd_groups(%image: tensor<2x12x9x9xbf16>, %weight: tensor<8x3x3x3xbf16> {kitsune.kind = "parameter"}) -> tensor<2x8x7x7xf32> {
  %zero = arith.constant 0.0 : f32
  %images = tensor.expand_shape %image [[0], [1, 2], [3], [4]] output_shape [2, 4, 3, 9, 9] : tensor<2x12x9x9xbf16> into tensor<2x4x3x9x9xbf16>
  %weights = tensor.expand_shape %weight [[0, 1], [2], [3], [4]] output_shape [4, 2, 3, 3, 3] : tensor<8x3x3x3xbf16> into tensor<4x2x3x3x3xbf16>
  %empty = tensor.empty() : tensor<2x4x2x7x7xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x4x2x7x7xf32>) -> tensor<2x4x2x7x7xf32>
  %sums = linalg.conv_2d_ngchw_gfchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%images, %weights : tensor<2x4x3x9x9xbf16>, tensor<4x2x3x3x3xbf16>) outs(%start : tensor<2x4x2x7x7xf32>) -> tensor<2x4x2x7x7xf32>
  %joined = tensor.collapse_shape %sums [[0], [1, 2], [3], [4]] : tensor<2x4x2x7x7xf32> into tensor<2x8x7x7xf32>
  return %joined : tensor<2x8x7x7xf32>
}

// -----

// The weight of a convolution along a line is taken transposed, not transposed in each call.
// CHECK-LABEL: func.func @weight_of_a_line
// CHECK-SAME: tensor<32x4x16xbf16> {kitsune.dim_order = array<i64: 0, 2, 1>
// CHECK: tensor.expand_shape {{.*}} {{\[\[}}0], [1, 2], [3]] {{.*}} : tensor<32x4x16xbf16> into tensor<32x1x4x16xbf16>
func.func @weight_of_a_line(%image: tensor<2x16x1x9xbf16>, %weight: tensor<32x16x4xbf16> {kitsune.kind = "parameter"}) -> tensor<2x32x1x6xf32> {
  %zero = arith.constant 0.0 : f32
  %taps = tensor.expand_shape %weight [[0], [1], [2, 3]] output_shape [32, 16, 1, 4] : tensor<32x16x4xbf16> into tensor<32x16x1x4xbf16>
  %empty = tensor.empty() : tensor<2x32x1x6xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x32x1x6xf32>) -> tensor<2x32x1x6xf32>
  %sums = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%image, %taps : tensor<2x16x1x9xbf16>, tensor<32x16x1x4xbf16>) outs(%start : tensor<2x32x1x6xf32>) -> tensor<2x32x1x6xf32>
  return %sums : tensor<2x32x1x6xf32>
}

// -----

// One pixel of 12 channels (a squeeze-and-excite's): a product, and no widened copies.
// CHECK-LABEL: func.func @one_pixel
// CHECK-NOT: tensor.extract
// CHECK: linalg.contract {{.*}} ins({{.*}} : tensor<2x12xbf16>, tensor<120x12xbf16>) outs({{.*}} : tensor<2x120xf32>)
func.func @one_pixel(%image: tensor<2x12x1x1xbf16>, %weight: tensor<120x12x1x1xbf16> {kitsune.kind = "parameter"}) -> tensor<2x120x1x1xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<2x120x1x1xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x120x1x1xf32>) -> tensor<2x120x1x1xf32>
  %sums = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%image, %weight : tensor<2x12x1x1xbf16>, tensor<120x12x1x1xbf16>) outs(%start : tensor<2x120x1x1xf32>) -> tensor<2x120x1x1xf32>
  return %sums : tensor<2x120x1x1xf32>
}

// -----

// A group norm of one group sees each image as one row: sums and element-wise work are over the image with its channels
// innermost, and what is seen as an image again is that. Pooling follows, and who asks for places gets those of the other order.
// CHECK: #[[ALL:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
// CHECK: #[[ONE:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, 0, 0)>
// CHECK-LABEL: func.func @rows_of_images
// CHECK: %[[C:.*]] = linalg.conv_2d_nhwc_fhwc
// CHECK: %[[S:.*]] = linalg.generic {indexing_maps = [#[[ALL]], #[[ONE]]], iterator_types = ["parallel", "reduction", "reduction", "reduction"]} ins(%[[C]] : tensor<2x6x6x16xf32>) outs({{.*}} : tensor<2x1x1xf32>)
// CHECK: %[[N:.*]] = linalg.generic {indexing_maps = [#[[ALL]], #[[ONE]], #[[ALL]]], {{.*}}} ins(%[[C]], %[[S]] : tensor<2x6x6x16xf32>, tensor<2x1x1xf32>)
// CHECK: %[[P:.*]] = linalg.pooling_nhwc_sum {{.*}} ins(%[[N]], {{.*}} : tensor<2x6x6x16xf32>
// CHECK: %[[D:.*]] = linalg.generic {{.*}} ins(%[[P]] : tensor<2x4x4x16xf32>)
// CHECK: linalg.index 1
// CHECK: linalg.transpose ins(%[[D]] {{.*}} permutation = [0, 3, 1, 2]
#flat = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#row = affine_map<(d0, d1, d2) -> (d0, d1, 0)>
#image = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
func.func @rows_of_images(%image: tensor<2x8x6x6xbf16>, %weight: tensor<16x8x1x1xbf16> {kitsune.kind = "parameter"}) -> tensor<2x16x4x4xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<2x16x6x6xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x16x6x6xf32>) -> tensor<2x16x6x6xf32>
  %sums = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%image, %weight : tensor<2x8x6x6xbf16>, tensor<16x8x1x1xbf16>) outs(%start : tensor<2x16x6x6xf32>) -> tensor<2x16x6x6xf32>
  %flat = tensor.collapse_shape %sums [[0], [1, 2, 3]] : tensor<2x16x6x6xf32> into tensor<2x576xf32>
  %rows = tensor.expand_shape %flat [[0], [1, 2]] output_shape [2, 1, 576] : tensor<2x576xf32> into tensor<2x1x576xf32>
  %one = tensor.empty() : tensor<2x1x1xf32>
  %none = linalg.fill ins(%zero : f32) outs(%one : tensor<2x1x1xf32>) -> tensor<2x1x1xf32>
  %total = linalg.generic {indexing_maps = [#flat, #row], iterator_types = ["parallel", "parallel", "reduction"]}
    ins(%rows : tensor<2x1x576xf32>) outs(%none : tensor<2x1x1xf32>) {
  ^bb0(%in: f32, %out: f32):
    %sum = arith.addf %in, %out : f32
    linalg.yield %sum : f32
  } -> tensor<2x1x1xf32>
  %wide = tensor.empty() : tensor<2x1x576xf32>
  %less = linalg.generic {indexing_maps = [#flat, #row, #flat], iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%rows, %total : tensor<2x1x576xf32>, tensor<2x1x1xf32>) outs(%wide : tensor<2x1x576xf32>) {
  ^bb0(%in: f32, %of: f32, %out: f32):
    %left = arith.subf %in, %of : f32
    linalg.yield %left : f32
  } -> tensor<2x1x576xf32>
  %plain = tensor.collapse_shape %less [[0], [1, 2]] : tensor<2x1x576xf32> into tensor<2x576xf32>
  %again = tensor.expand_shape %plain [[0], [1, 2, 3]] output_shape [2, 16, 6, 6] : tensor<2x576xf32> into tensor<2x16x6x6xf32>
  %window = tensor.empty() : tensor<3x3xf32>
  %small = tensor.empty() : tensor<2x16x4x4xf32>
  %begin = linalg.fill ins(%zero : f32) outs(%small : tensor<2x16x4x4xf32>) -> tensor<2x16x4x4xf32>
  %pooled = linalg.pooling_nchw_sum {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%again, %window : tensor<2x16x6x6xf32>, tensor<3x3xf32>) outs(%begin : tensor<2x16x4x4xf32>) -> tensor<2x16x4x4xf32>
  %placed = linalg.generic {indexing_maps = [#image, #image], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
    ins(%pooled : tensor<2x16x4x4xf32>) outs(%small : tensor<2x16x4x4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %row = linalg.index 2 : index
    %number = arith.index_cast %row : index to i64
    %float = arith.sitofp %number : i64 to f32
    %product = arith.mulf %in, %float : f32
    linalg.yield %product : f32
  } -> tensor<2x16x4x4xf32>
  return %placed : tensor<2x16x4x4xf32>
}

// -----

// Rows that are half an image (a group norm of two groups) are views still: what reads them waits for a transposed copy.
// CHECK-LABEL: func.func @two_groups
// CHECK: linalg.conv_2d_nhwc_fhwc
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction"]} ins({{.*}} : tensor<2x2x288xf32>)
#flat = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#row = affine_map<(d0, d1, d2) -> (d0, d1)>
func.func @two_groups(%image: tensor<2x8x6x6xbf16>, %weight: tensor<16x8x1x1xbf16> {kitsune.kind = "parameter"}) -> tensor<2x2xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<2x16x6x6xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x16x6x6xf32>) -> tensor<2x16x6x6xf32>
  %sums = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%image, %weight : tensor<2x8x6x6xbf16>, tensor<16x8x1x1xbf16>) outs(%start : tensor<2x16x6x6xf32>) -> tensor<2x16x6x6xf32>
  %flat = tensor.collapse_shape %sums [[0], [1, 2, 3]] : tensor<2x16x6x6xf32> into tensor<2x576xf32>
  %rows = tensor.expand_shape %flat [[0], [1, 2]] output_shape [2, 2, 288] : tensor<2x576xf32> into tensor<2x2x288xf32>
  %two = tensor.empty() : tensor<2x2xf32>
  %none = linalg.fill ins(%zero : f32) outs(%two : tensor<2x2xf32>) -> tensor<2x2xf32>
  %total = linalg.generic {indexing_maps = [#flat, #row], iterator_types = ["parallel", "parallel", "reduction"]}
    ins(%rows : tensor<2x2x288xf32>) outs(%none : tensor<2x2xf32>) {
  ^bb0(%in: f32, %out: f32):
    %sum = arith.addf %in, %out : f32
    linalg.yield %sum : f32
  } -> tensor<2x2xf32>
  return %total : tensor<2x2xf32>
}

// -----

// Dimensions that are split (parts of a group norm's rows) are split where the channels lie innermost: nothing is turned.
// CHECK-LABEL: func.func @parts
// CHECK: linalg.conv_2d_nhwc_fhwc
// CHECK: tensor.expand_shape {{.*}} : tensor<2x6x6x16xf32> into tensor<2x6x6x2x8xf32>
// CHECK: tensor.expand_shape {{.*}} : tensor<2x6x6x2x8xf32> into tensor<2x3x2x6x2x8xf32>
// CHECK: linalg.generic {{.*}} ins({{.*}} : tensor<2x3x2x6x2x8xf32>)
#all = affine_map<(n, g, c, p, h, w) -> (n, g, c, p, h, w)>
#sum = affine_map<(n, g, c, p, h, w) -> (n, g, p)>
func.func @parts(%image: tensor<2x8x6x6xbf16>, %weight: tensor<16x8x3x3xbf16> {kitsune.kind = "parameter"}) -> tensor<2x2x3xf32> {
  %zero = arith.constant 0.0 : f32
  %padding = arith.constant 0.0 : bf16
  %padded = tensor.pad %image low[0, 0, 1, 1] high[0, 0, 1, 1] {
  ^bb0(%n: index, %c: index, %h: index, %w: index):
    tensor.yield %padding : bf16
  } : tensor<2x8x6x6xbf16> to tensor<2x8x8x8xbf16>
  %empty = tensor.empty() : tensor<2x16x6x6xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x16x6x6xf32>) -> tensor<2x16x6x6xf32>
  %sums = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%padded, %weight : tensor<2x8x8x8xbf16>, tensor<16x8x3x3xbf16>) outs(%start : tensor<2x16x6x6xf32>) -> tensor<2x16x6x6xf32>
  %groups = tensor.expand_shape %sums [[0], [1, 2], [3], [4]] output_shape [2, 2, 8, 6, 6] : tensor<2x16x6x6xf32> into tensor<2x2x8x6x6xf32>
  %parts = tensor.expand_shape %groups [[0], [1], [2], [3, 4], [5]] output_shape [2, 2, 8, 3, 2, 6]
    : tensor<2x2x8x6x6xf32> into tensor<2x2x8x3x2x6xf32>
  %few = tensor.empty() : tensor<2x2x3xf32>
  %none = linalg.fill ins(%zero : f32) outs(%few : tensor<2x2x3xf32>) -> tensor<2x2x3xf32>
  %total = linalg.generic {indexing_maps = [#all, #sum], iterator_types = ["parallel", "parallel", "reduction", "parallel", "reduction", "reduction"]}
    ins(%parts : tensor<2x2x8x3x2x6xf32>) outs(%none : tensor<2x2x3xf32>) {
  ^bb0(%in: f32, %out: f32):
    %sum = arith.addf %in, %out : f32
    linalg.yield %sum : f32
  } -> tensor<2x2x3xf32>
  return %total : tensor<2x2x3xf32>
}

// -----

// Two convolutions of one tap with nothing but element-wise work between them are layers over pixels: products of rows.
// CHECK-LABEL: func.func @pixel_layers
// CHECK: linalg.contract {{.*}} ins({{.*}} : tensor<72x16xbf16>, tensor<32x16xbf16>) outs({{.*}} : tensor<72x32xf32>)
// CHECK: linalg.contract {{.*}} ins({{.*}} : tensor<72x32xbf16>, tensor<16x32xbf16>) outs({{.*}} : tensor<72x16xf32>)
// CHECK-NOT: linalg.conv
#image = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
func.func @pixel_layers(%image: tensor<2x16x6x6xbf16>, %a: tensor<32x16x1x1xbf16> {kitsune.kind = "parameter"}, %b: tensor<16x32x1x1xbf16> {kitsune.kind = "parameter"}) -> tensor<2x16x6x6xf32> {
  %zero = arith.constant 0.0 : f32
  %wide = tensor.empty() : tensor<2x32x6x6xf32>
  %start = linalg.fill ins(%zero : f32) outs(%wide : tensor<2x32x6x6xf32>) -> tensor<2x32x6x6xf32>
  %hidden = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%image, %a : tensor<2x16x6x6xbf16>, tensor<32x16x1x1xbf16>) outs(%start : tensor<2x32x6x6xf32>) -> tensor<2x32x6x6xf32>
  %short = tensor.empty() : tensor<2x32x6x6xbf16>
  %active = linalg.generic {indexing_maps = [#image, #image], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
    ins(%hidden : tensor<2x32x6x6xf32>) outs(%short : tensor<2x32x6x6xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %relu = arith.maximumf %in, %zero : f32
    %less = arith.truncf %relu : f32 to bf16
    linalg.yield %less : bf16
  } -> tensor<2x32x6x6xbf16>
  %narrow = tensor.empty() : tensor<2x16x6x6xf32>
  %begin = linalg.fill ins(%zero : f32) outs(%narrow : tensor<2x16x6x6xf32>) -> tensor<2x16x6x6xf32>
  %made = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%active, %b : tensor<2x32x6x6xbf16>, tensor<16x32x1x1xbf16>) outs(%begin : tensor<2x16x6x6xf32>) -> tensor<2x16x6x6xf32>
  return %made : tensor<2x16x6x6xf32>
}

// -----

// The same where the hidden layer is a result, too: they stay convolutions.
// CHECK-LABEL: func.func @shared_pixels
// CHECK: linalg.conv_2d_nhwc_fhwc
// CHECK: linalg.conv_2d_nhwc_fhwc
func.func @shared_pixels(%image: tensor<2x16x6x6xbf16>, %a: tensor<32x16x1x1xbf16>, %b: tensor<16x32x1x1xbf16>) -> (tensor<2x16x6x6xf32>, tensor<2x32x6x6xbf16>) {
  %zero = arith.constant 0.0 : f32
  %wide = tensor.empty() : tensor<2x32x6x6xf32>
  %start = linalg.fill ins(%zero : f32) outs(%wide : tensor<2x32x6x6xf32>) -> tensor<2x32x6x6xf32>
  %hidden = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%image, %a : tensor<2x16x6x6xbf16>, tensor<32x16x1x1xbf16>) outs(%start : tensor<2x32x6x6xf32>) -> tensor<2x32x6x6xf32>
  %short = tensor.empty() : tensor<2x32x6x6xbf16>
  %active = linalg.generic {indexing_maps = [affine_map<(a, b, c, d) -> (a, b, c, d)>, affine_map<(a, b, c, d) -> (a, b, c, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
    ins(%hidden : tensor<2x32x6x6xf32>) outs(%short : tensor<2x32x6x6xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %less = arith.truncf %in : f32 to bf16
    linalg.yield %less : bf16
  } -> tensor<2x32x6x6xbf16>
  %narrow = tensor.empty() : tensor<2x16x6x6xf32>
  %begin = linalg.fill ins(%zero : f32) outs(%narrow : tensor<2x16x6x6xf32>) -> tensor<2x16x6x6xf32>
  %made = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
    ins(%active, %b : tensor<2x32x6x6xbf16>, tensor<16x32x1x1xbf16>) outs(%begin : tensor<2x16x6x6xf32>) -> tensor<2x16x6x6xf32>
  return %made, %active : tensor<2x16x6x6xf32>, tensor<2x32x6x6xbf16>
}
