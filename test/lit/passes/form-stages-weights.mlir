// On the host a stage holds several products where all their weights stay close to a core: each tile of rows reads them.
// RUN: kitsune-opt %s --kitsune-form-stages=target=host --kitsune-partition-streams=target=host --remarks 2>&1 | FileCheck %s

// CHECK: remark: {{.*}} not joined with linalg.generic: each tile of rows would read 1258320 bytes of weights, 1048576 stay close to a core
// CHECK-LABEL: func.func @small
// CHECK-COUNT-1: "kitsune.stage"
// CHECK-NOT: "kitsune.stage"
// CHECK-LABEL: func.func @large
// CHECK-COUNT-2: "kitsune.stage"
#x = affine_map<(m, n, k) -> (m, k)>
#w = affine_map<(m, n, k) -> (n, k)>
#o = affine_map<(m, n, k) -> (m, n)>
func.func @small(%x: tensor<300x129xf32>, %w: tensor<340x129xf32>, %v: tensor<129x340xf32>, %y: tensor<300x340xf32>, %z: tensor<300x129xf32>) -> tensor<300x129xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<300x129xf32>, tensor<340x129xf32>) outs(%y : tensor<300x340xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<300x340xf32>
  %q = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%p, %v : tensor<300x340xf32>, tensor<129x340xf32>) outs(%z : tensor<300x129xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<300x129xf32>
  return %q : tensor<300x129xf32>
}

func.func @large(%x: tensor<300x147xf32>, %w: tensor<1070x147xf32>, %v: tensor<147x1070xf32>, %y: tensor<300x1070xf32>, %z: tensor<300x147xf32>) -> tensor<300x147xf32> {
  %p = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<300x147xf32>, tensor<1070x147xf32>) outs(%y : tensor<300x1070xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<300x1070xf32>
  %q = linalg.generic {indexing_maps = [#x, #w, #o], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%p, %v : tensor<300x1070xf32>, tensor<147x1070xf32>) outs(%z : tensor<300x147xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<300x147xf32>
  return %q : tensor<300x147xf32>
}

// A convolution's pixels are tiles: what pads its result is a stage of its own.
// CHECK-LABEL: func.func @image
// CHECK: engine = "host", sym_name = "product_0", tile = array<i64: 24, {{[1-7]}}, 15>
// CHECK: tensor.pad
// CHECK: sym_name = "pad_1"
#image = affine_map<(o, y, x, c, i, j) -> (c, y + i, x + j)>
#weight = affine_map<(o, y, x, c, i, j) -> (o, c, i, j)>
#out = affine_map<(o, y, x, c, i, j) -> (o, y, x)>
func.func @image(%x: tensor<8x23x17xf32>, %w: tensor<24x8x3x3xf32>, %z: tensor<24x21x15xf32>) -> tensor<24x23x17xf32> {
  %p = linalg.generic {indexing_maps = [#image, #weight, #out],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
      ins(%x, %w : tensor<8x23x17xf32>, tensor<24x8x3x3xf32>) outs(%z : tensor<24x21x15xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<24x21x15xf32>
  %zero = arith.constant 0.0 : f32
  %q = tensor.pad %p low[0, 1, 1] high[0, 1, 1] {
  ^bb0(%a: index, %b: index, %c: index):
    tensor.yield %zero : f32
  } : tensor<24x21x15xf32> to tensor<24x23x17xf32>
  return %q : tensor<24x23x17xf32>
}
