// RUN: kitsune-opt %s --kitsune-form-stages='target=h200' | FileCheck %s
// RUN: kitsune-opt %s --kitsune-form-stages='target=host' | FileCheck %s --check-prefix=HOST

#row = affine_map<(n, y, x) -> (x)>
#all = affine_map<(n, y, x) -> (n, y, x)>
#along = affine_map<(x) -> (x)>

// A widened image that is gathered along its rows, at places made of nothing but numbers: one stage, which reads the image.
// CHECK-LABEL: func.func @resized
// CHECK: "kitsune.stage"
// CHECK: linalg.generic {{.*}} outs(
// CHECK: arith.divsi
// CHECK: tensor.extract %arg0
// CHECK-NEXT: arith.extf
// CHECK-NOT: "kitsune.stage"() ({
// HOST-LABEL: func.func @resized
// HOST: arith.extf
// HOST: tensor.extract %{{[0-9]+}}
func.func @resized(%x: tensor<8x32x64xbf16>) -> tensor<8x32x128xf32> {
  %two = arith.constant 2 : i64
  %e = tensor.empty() : tensor<8x32x64xf32>
  %w = linalg.generic {indexing_maps = [#all, #all], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x : tensor<8x32x64xbf16>) outs(%e : tensor<8x32x64xf32>) {
  ^bb0(%in: bf16, %o: f32):
    %v = arith.extf %in : bf16 to f32
    linalg.yield %v : f32
  } -> tensor<8x32x64xf32>
  %i = tensor.empty() : tensor<128xi64>
  %t = linalg.generic {indexing_maps = [#along], iterator_types = ["parallel"]} outs(%i : tensor<128xi64>) {
  ^bb0(%o: i64):
    %n = linalg.index 0 : index
    %m = arith.index_cast %n : index to i64
    %h = arith.divsi %m, %two : i64
    linalg.yield %h : i64
  } -> tensor<128xi64>
  %f = tensor.empty() : tensor<8x32x128xf32>
  %r = linalg.generic {indexing_maps = [#row, #all], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%t : tensor<128xi64>) outs(%f : tensor<8x32x128xf32>) {
  ^bb0(%at: i64, %o: f32):
    %n = linalg.index 0 : index
    %y = linalg.index 1 : index
    %p = arith.index_cast %at : i64 to index
    %v = tensor.extract %w[%n, %y, %p] : tensor<8x32x64xf32>
    linalg.yield %v : f32
  } -> tensor<8x32x128xf32>
  return %r : tensor<8x32x128xf32>
}

// What is computed is not computed again for every element that reads it, nor is a table of exponentials.
// CHECK-LABEL: func.func @computed
// CHECK: "kitsune.stage"
// CHECK: math.exp
// CHECK: linalg.yield
// CHECK: tensor.extract %{{[0-9]+}}[
func.func @computed(%x: tensor<8x32x64xf32>, %t: tensor<128xi64>) -> tensor<8x32x128xf32> {
  %e = tensor.empty() : tensor<8x32x64xf32>
  %w = linalg.generic {indexing_maps = [#all, #all], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x : tensor<8x32x64xf32>) outs(%e : tensor<8x32x64xf32>) {
  ^bb0(%in: f32, %o: f32):
    %v = math.exp %in : f32
    linalg.yield %v : f32
  } -> tensor<8x32x64xf32>
  %f = tensor.empty() : tensor<8x32x128xf32>
  %r = linalg.generic {indexing_maps = [#row, #all], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%t : tensor<128xi64>) outs(%f : tensor<8x32x128xf32>) {
  ^bb0(%at: i64, %o: f32):
    %n = linalg.index 0 : index
    %y = linalg.index 1 : index
    %p = arith.index_cast %at : i64 to index
    %v = tensor.extract %w[%n, %y, %p] : tensor<8x32x64xf32>
    linalg.yield %v : f32
  } -> tensor<8x32x128xf32>
  return %r : tensor<8x32x128xf32>
}

// What is rounded is not: rows are read many times, as they are stored.
// CHECK-LABEL: func.func @rounded
// CHECK: "kitsune.stage"
// CHECK: arith.truncf
// CHECK: "kitsune.yield"{{.*}} : (tensor<1000x64xbf16>)
// CHECK: tensor.extract %{{[0-9]+}}[
func.func @rounded(%x: tensor<1000x64xf32>, %t: tensor<9000xi64>) -> tensor<9000x64xbf16> {
  %e = tensor.empty() : tensor<1000x64xbf16>
  %w = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<1000x64xf32>) outs(%e : tensor<1000x64xbf16>) {
  ^bb0(%in: f32, %o: bf16):
    %v = arith.truncf %in : f32 to bf16
    linalg.yield %v : bf16
  } -> tensor<1000x64xbf16>
  %f = tensor.empty() : tensor<9000x64xbf16>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%t : tensor<9000xi64>) outs(%f : tensor<9000x64xbf16>) {
  ^bb0(%at: i64, %o: bf16):
    %j = linalg.index 1 : index
    %p = arith.index_cast %at : i64 to index
    %v = tensor.extract %w[%p, %j] : tensor<1000x64xbf16>
    linalg.yield %v : bf16
  } -> tensor<9000x64xbf16>
  return %r : tensor<9000x64xbf16>
}
