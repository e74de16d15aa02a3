// RUN: kitsune-opt %s --kitsune-form-stages='target=h200' | FileCheck %s

#window = affine_map<(n, c, y, x, i, j) -> (n, c, y * 2 + i, x * 2 + j)>
#taps = affine_map<(n, c, y, x, i, j) -> (i, j)>
#out = affine_map<(n, c, y, x, i, j) -> (n, c, y, x)>
#all = affine_map<(n, c, y, x) -> (n, c, y, x)>

// A padded image is read where it lies: one nest, which can be cut along rows and columns of the image.
// CHECK-LABEL: func.func @padded
// CHECK: "kitsune.stage"
// CHECK-NOT: tensor.pad
// CHECK: linalg.generic {{.*}}"reduction", "reduction"]} ins(%{{.*}} : tensor<3x3xf32>)
// CHECK: tensor.extract %arg0
// CHECK-NEXT: arith.select
// CHECK-NEXT: arith.maximumf
// CHECK-NOT: "kitsune.stage"
func.func @padded(%x: tensor<4x8x16x16xf32>) -> tensor<4x8x8x8xf32> {
  %low = arith.constant 0xFF800000 : f32
  %p = tensor.pad %x low[0, 0, 1, 1] high[0, 0, 1, 1] {
  ^bb0(%a: index, %b: index, %c: index, %d: index):
    tensor.yield %low : f32
  } : tensor<4x8x16x16xf32> to tensor<4x8x18x18xf32>
  %e = tensor.empty() : tensor<4x8x8x8xf32>
  %s = linalg.generic {indexing_maps = [#all], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      outs(%e : tensor<4x8x8x8xf32>) {
  ^bb0(%o: f32):
    linalg.yield %low : f32
  } -> tensor<4x8x8x8xf32>
  %w = tensor.empty() : tensor<3x3xf32>
  %r = linalg.generic {indexing_maps = [#window, #taps, #out],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%p, %w : tensor<4x8x18x18xf32>, tensor<3x3xf32>) outs(%s : tensor<4x8x8x8xf32>) {
  ^bb0(%in: f32, %t: f32, %o: f32):
    %m = arith.maximumf %o, %in : f32
    linalg.yield %m : f32
  } -> tensor<4x8x8x8xf32>
  return %r : tensor<4x8x8x8xf32>
}

// What only widens the image is read through, too; its windows stay an operand, which is cut with its halo.
// CHECK-LABEL: func.func @widened
// CHECK: linalg.generic {{.*}}"reduction", "reduction"]} ins(%arg0, %{{.*}} : tensor<4x8x16x16xbf16>, tensor<2x2xf32>)
// CHECK: arith.extf
// CHECK-NEXT: arith.addf
func.func @widened(%x: tensor<4x8x16x16xbf16>) -> tensor<4x8x8x8xf32> {
  %zero = arith.constant 0.0 : f32
  %f = tensor.empty() : tensor<4x8x16x16xf32>
  %p = linalg.generic {indexing_maps = [#all, #all], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%x : tensor<4x8x16x16xbf16>) outs(%f : tensor<4x8x16x16xf32>) {
  ^bb0(%in: bf16, %o: f32):
    %v = arith.extf %in : bf16 to f32
    linalg.yield %v : f32
  } -> tensor<4x8x16x16xf32>
  %e = tensor.empty() : tensor<4x8x8x8xf32>
  %s = linalg.generic {indexing_maps = [#all], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      outs(%e : tensor<4x8x8x8xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<4x8x8x8xf32>
  %w = tensor.empty() : tensor<2x2xf32>
  %r = linalg.generic {indexing_maps = [#window, #taps, #out],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%p, %w : tensor<4x8x16x16xf32>, tensor<2x2xf32>) outs(%s : tensor<4x8x8x8xf32>) {
  ^bb0(%in: f32, %t: f32, %o: f32):
    %m = arith.addf %o, %in : f32
    linalg.yield %m : f32
  } -> tensor<4x8x8x8xf32>
  return %r : tensor<4x8x8x8xf32>
}

// Work on the image is done once for each element, not once for each window.
// CHECK-LABEL: func.func @computed
// CHECK: math.exp
// CHECK: linalg.generic {{.*}}"reduction", "reduction"]} ins(%{{.*}}, %{{.*}} : tensor<4x8x16x16xf32>, tensor<2x2xf32>)
// CHECK-NOT: math.exp
func.func @computed(%x: tensor<4x8x16x16xf32>) -> tensor<4x8x8x8xf32> {
  %zero = arith.constant 0.0 : f32
  %f = tensor.empty() : tensor<4x8x16x16xf32>
  %p = linalg.generic {indexing_maps = [#all, #all], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%x : tensor<4x8x16x16xf32>) outs(%f : tensor<4x8x16x16xf32>) {
  ^bb0(%in: f32, %o: f32):
    %v = math.exp %in : f32
    linalg.yield %v : f32
  } -> tensor<4x8x16x16xf32>
  %e = tensor.empty() : tensor<4x8x8x8xf32>
  %s = linalg.generic {indexing_maps = [#all], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      outs(%e : tensor<4x8x8x8xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<4x8x8x8xf32>
  %w = tensor.empty() : tensor<2x2xf32>
  %r = linalg.generic {indexing_maps = [#window, #taps, #out],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%p, %w : tensor<4x8x16x16xf32>, tensor<2x2xf32>) outs(%s : tensor<4x8x8x8xf32>) {
  ^bb0(%in: f32, %t: f32, %o: f32):
    %m = arith.addf %o, %in : f32
    linalg.yield %m : f32
  } -> tensor<4x8x8x8xf32>
  return %r : tensor<4x8x8x8xf32>
}

// A cheap map of an argument is computed for every window that reads it, through a dimension of one; it is no pass of its own.
// CHECK-LABEL: func.func @squared
// CHECK: "kitsune.stage"
// CHECK: tensor.extract %arg0[%{{.*}}, %{{.*}}] : tensor<4x64xf32>
// CHECK-NEXT: arith.mulf
// CHECK-NEXT: arith.select
// CHECK-NEXT: arith.addf
// CHECK-NOT: "kitsune.stage"
#line = affine_map<(n, x, z, i) -> (n, x + i, z)>
#tap = affine_map<(n, x, z, i) -> (i)>
#sums = affine_map<(n, x, z, i) -> (n, x, z)>
#flat = affine_map<(n, x) -> (n, x)>
#three = affine_map<(n, x, z) -> (n, x, z)>
func.func @squared(%x: tensor<4x64xf32>) -> tensor<4x64x1xf32> {
  %zero = arith.constant 0.0 : f32
  %f = tensor.empty() : tensor<4x64xf32>
  %q = linalg.generic {indexing_maps = [#flat, #flat], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<4x64xf32>) outs(%f : tensor<4x64xf32>) {
  ^bb0(%in: f32, %o: f32):
    %v = arith.mulf %in, %in : f32
    linalg.yield %v : f32
  } -> tensor<4x64xf32>
  %w = tensor.expand_shape %q [[0], [1, 2]] output_shape [4, 64, 1] : tensor<4x64xf32> into tensor<4x64x1xf32>
  %p = tensor.pad %w low[0, 2, 0] high[0, 2, 0] {
  ^bb0(%a: index, %b: index, %c: index):
    tensor.yield %zero : f32
  } : tensor<4x64x1xf32> to tensor<4x68x1xf32>
  %e = tensor.empty() : tensor<4x64x1xf32>
  %s = linalg.generic {indexing_maps = [#three], iterator_types = ["parallel", "parallel", "parallel"]}
      outs(%e : tensor<4x64x1xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<4x64x1xf32>
  %t = tensor.empty() : tensor<5xf32>
  %r = linalg.generic {indexing_maps = [#line, #tap, #sums], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%p, %t : tensor<4x68x1xf32>, tensor<5xf32>) outs(%s : tensor<4x64x1xf32>) {
  ^bb0(%in: f32, %u: f32, %o: f32):
    %m = arith.addf %o, %in : f32
    linalg.yield %m : f32
  } -> tensor<4x64x1xf32>
  return %r : tensor<4x64x1xf32>
}

// What computes much is computed once.
// CHECK-LABEL: func.func @exponentials
// CHECK: math.exp
// CHECK: tensor.extract
// CHECK-NOT: math.exp
func.func @exponentials(%x: tensor<4x64xf32>) -> tensor<4x64xf32> {
  %zero = arith.constant 0.0 : f32
  %f = tensor.empty() : tensor<4x64xf32>
  %q = linalg.generic {indexing_maps = [#flat, #flat], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<4x64xf32>) outs(%f : tensor<4x64xf32>) {
  ^bb0(%in: f32, %o: f32):
    %v = math.exp %in : f32
    linalg.yield %v : f32
  } -> tensor<4x64xf32>
  %p = tensor.pad %q low[0, 2] high[0, 2] {
  ^bb0(%a: index, %b: index):
    tensor.yield %zero : f32
  } : tensor<4x64xf32> to tensor<4x68xf32>
  %s = linalg.generic {indexing_maps = [#flat], iterator_types = ["parallel", "parallel"]} outs(%f : tensor<4x64xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  } -> tensor<4x64xf32>
  %t = tensor.empty() : tensor<5xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(n, x, i) -> (n, x + i)>, affine_map<(n, x, i) -> (i)>,
      affine_map<(n, x, i) -> (n, x)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%p, %t : tensor<4x68xf32>, tensor<5xf32>) outs(%s : tensor<4x64xf32>) {
  ^bb0(%in: f32, %u: f32, %o: f32):
    %m = arith.addf %o, %in : f32
    linalg.yield %m : f32
  } -> tensor<4x64xf32>
  return %r : tensor<4x64xf32>
}
