// A mean and the squared distances from it are one reduction, of what differs from the first number, where all are of 16 bits.
// Not of f32 numbers, along rows, of another tensor, where it is divided by another number, or on the host.
// RUN: kitsune-opt %s --split-input-file --kitsune-split-reductions="target=h200 parts=1" | FileCheck %s
// RUN: kitsune-opt %s --split-input-file --kitsune-split-reductions="target=host" | FileCheck %s --check-prefix=HOST

// HOST-NOT: linalg.generic {{.*}}-> (tensor<256xf32>, tensor<256xf32>)

// CHECK-LABEL: func.func @moments
// CHECK: %[[K:.*]] = tensor.extract_slice %arg0[0, 0] [1, 256] [1, 1] : tensor<65536x256xbf16> to tensor<256xbf16>
// CHECK: %[[SUMS:.*]]:2 = linalg.generic {{.*}} ["reduction", "parallel"]} ins(%arg0, %[[K]] :
// CHECK: %[[SUM:.*]] = linalg.generic {{.*}} ins(%[[SUMS]]#0, %[[K]] :
// CHECK: %[[SQUARES:.*]] = linalg.generic {{.*}} ins(%[[SUMS]]#0, %[[SUMS]]#1 :
// CHECK: arith.maximumf
// CHECK: %[[MEAN:.*]] = linalg.generic {{.*}} ins(%[[SUM]] :
// CHECK: return %[[MEAN]], %[[SQUARES]]
// HOST-LABEL: func.func @moments
#id = affine_map<(r, c) -> (r, c)>
#column = affine_map<(r, c) -> (c)>
#vector = affine_map<(c) -> (c)>
func.func @moments(%x: tensor<65536x256xbf16>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>) {
  %n = arith.constant 65536.0 : f32
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %m = arith.addf %e, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %mean = linalg.generic {indexing_maps = [#vector, #vector], iterator_types = ["parallel"]} ins(%s : tensor<256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.divf %a, %n : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %t = linalg.generic {indexing_maps = [#id, #column, #column], iterator_types = ["reduction", "parallel"]} ins(%x, %mean : tensor<65536x256xbf16>, tensor<256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %b: f32, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %d = arith.subf %e, %b : f32
    %p = arith.mulf %d, %d : f32
    %m = arith.addf %p, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  return %mean, %t : tensor<256xf32>, tensor<256xf32>
}

// -----

// Squares of f32 numbers may be lost in their sum.
// CHECK-LABEL: func.func @of_f32
// CHECK-NOT: :2 = linalg.generic
// CHECK: return
// HOST-LABEL: func.func @of_f32
#id = affine_map<(r, c) -> (r, c)>
#column = affine_map<(r, c) -> (c)>
#vector = affine_map<(c) -> (c)>
func.func @of_f32(%x: tensor<65536x256xf32>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>) {
  %n = arith.constant 65536.0 : f32
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<65536x256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.addf %a, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %mean = linalg.generic {indexing_maps = [#vector, #vector], iterator_types = ["parallel"]} ins(%s : tensor<256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.divf %a, %n : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %t = linalg.generic {indexing_maps = [#id, #column, #column], iterator_types = ["reduction", "parallel"]} ins(%x, %mean : tensor<65536x256xf32>, tensor<256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %d = arith.subf %a, %b : f32
    %p = arith.mulf %d, %d : f32
    %m = arith.addf %p, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  return %mean, %t : tensor<256xf32>, tensor<256xf32>
}

// -----

// What is taken away is not the mean.
// CHECK-LABEL: func.func @of_another_count
// CHECK-NOT: :2 = linalg.generic
// CHECK: return
// HOST-LABEL: func.func @of_another_count
#id = affine_map<(r, c) -> (r, c)>
#column = affine_map<(r, c) -> (c)>
#vector = affine_map<(c) -> (c)>
func.func @of_another_count(%x: tensor<65536x256xbf16>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>) {
  %n = arith.constant 65535.0 : f32
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %m = arith.addf %e, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %mean = linalg.generic {indexing_maps = [#vector, #vector], iterator_types = ["parallel"]} ins(%s : tensor<256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.divf %a, %n : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %t = linalg.generic {indexing_maps = [#id, #column, #column], iterator_types = ["reduction", "parallel"]} ins(%x, %mean : tensor<65536x256xbf16>, tensor<256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %b: f32, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %d = arith.subf %e, %b : f32
    %p = arith.mulf %d, %d : f32
    %m = arith.addf %p, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  return %mean, %t : tensor<256xf32>, tensor<256xf32>
}

// -----

// Two tensors.
// CHECK-LABEL: func.func @of_another
// CHECK-NOT: :2 = linalg.generic
// CHECK: return
// HOST-LABEL: func.func @of_another
#id = affine_map<(r, c) -> (r, c)>
#column = affine_map<(r, c) -> (c)>
#vector = affine_map<(c) -> (c)>
func.func @of_another(%x: tensor<65536x256xbf16>, %y: tensor<65536x256xbf16>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>) {
  %n = arith.constant 65536.0 : f32
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<65536x256xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %m = arith.addf %e, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %mean = linalg.generic {indexing_maps = [#vector, #vector], iterator_types = ["parallel"]} ins(%s : tensor<256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.divf %a, %n : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %t = linalg.generic {indexing_maps = [#id, #column, #column], iterator_types = ["reduction", "parallel"]} ins(%y, %mean : tensor<65536x256xbf16>, tensor<256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %b: f32, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %d = arith.subf %e, %b : f32
    %p = arith.mulf %d, %d : f32
    %m = arith.addf %p, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  return %mean, %t : tensor<256xf32>, tensor<256xf32>
}

// -----

// Rows are kept on chip between the two.
// CHECK-LABEL: func.func @along_rows
// CHECK-NOT: :2 = linalg.generic
// CHECK: return
// HOST-LABEL: func.func @along_rows
#turned = affine_map<(r, c) -> (c, r)>
#column = affine_map<(r, c) -> (c)>
#vector = affine_map<(c) -> (c)>
func.func @along_rows(%x: tensor<256x65536xbf16>, %z: tensor<256xf32>) -> (tensor<256xf32>, tensor<256xf32>) {
  %n = arith.constant 65536.0 : f32
  %s = linalg.generic {indexing_maps = [#turned, #column], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<256x65536xbf16>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %m = arith.addf %e, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %mean = linalg.generic {indexing_maps = [#vector, #vector], iterator_types = ["parallel"]} ins(%s : tensor<256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.divf %a, %n : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  %t = linalg.generic {indexing_maps = [#turned, #column, #column], iterator_types = ["reduction", "parallel"]} ins(%x, %mean : tensor<256x65536xbf16>, tensor<256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: bf16, %b: f32, %o: f32):
    %e = arith.extf %a : bf16 to f32
    %d = arith.subf %e, %b : f32
    %p = arith.mulf %d, %d : f32
    %m = arith.addf %p, %o : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  return %mean, %t : tensor<256xf32>, tensor<256xf32>
}
