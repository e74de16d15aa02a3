// Every op and attribute of the stage graph survives being written and read again.
// RUN: kitsune-opt %s | kitsune-opt | FileCheck %s

// CHECK-LABEL: func.func @one
// CHECK-SAME: (%[[X:.*]]: tensor<64x32xf32>, %[[W:.*]]: tensor<32xf32>)
// CHECK-NEXT: %[[P:.*]] = "kitsune.pipeline"() ({
// CHECK-NEXT:   %[[S:.*]] = "kitsune.stage"() ({
// CHECK:          "kitsune.yield"(%{{.*}}) : (tensor<64x32xf32>) -> ()
// CHECK-NEXT:   }) {buffers = [#kitsune.buffer<"global", 1 : i64>], engine = "simt", sym_name = "scale",
// CHECK-SAME:       sync = [#kitsune.sync<"none">, #kitsune.sync<"none">], tile = array<i64: 16, 32>, workers = 4 : i64}
// CHECK-NEXT:   "kitsune.yield"(%[[S]]) : (tensor<64x32xf32>) -> ()
// CHECK-NEXT: }) {mode = "spatial", sym_name = "p0"} : () -> tensor<64x32xf32>
// CHECK-NEXT: return %[[P]]
func.func @one(%x: tensor<64x32xf32>, %w: tensor<32xf32>) -> tensor<64x32xf32> {
  %p = "kitsune.pipeline"() ({
    %s = "kitsune.stage"() ({
      %e = tensor.empty() : tensor<64x32xf32>
      %r = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (n)>, affine_map<(m, n) -> (m, n)>],
          iterator_types = ["parallel", "parallel"]} ins(%x, %w : tensor<64x32xf32>, tensor<32xf32>) outs(%e : tensor<64x32xf32>) {
      ^bb0(%a: f32, %b: f32, %o: f32):
        %c = arith.mulf %a, %b : f32
        linalg.yield %c : f32
      } -> tensor<64x32xf32>
      "kitsune.yield"(%r) : (tensor<64x32xf32>) -> ()
    }) {sym_name = "scale", engine = "simt", tile = array<i64: 16, 32>, workers = 4 : i64,
        buffers = [#kitsune.buffer<"global", 1 : i64>], sync = [#kitsune.sync<"none">, #kitsune.sync<"none">]} : () -> tensor<64x32xf32>
    "kitsune.yield"(%s) : (tensor<64x32xf32>) -> ()
  }) {sym_name = "p0", mode = "spatial"} : () -> tensor<64x32xf32>
  return %p : tensor<64x32xf32>
}

// Several results are one tuple.
// CHECK-LABEL: func.func @two
// CHECK: %[[PACKED:.*]] = builtin.unrealized_conversion_cast %{{.*}}, %{{.*}} : tensor<4xf32>, tensor<8xi64> to tuple<tensor<4xf32>, tensor<8xi64>>
// CHECK-NEXT: "kitsune.yield"(%[[PACKED]])
// CHECK: buffers = [#kitsune.buffer<"register", 1 : i64>, #kitsune.buffer<"queue", 3 : i64>]
func.func @two(%x: tensor<4xf32>, %y: tensor<8xi64>) -> tuple<tensor<4xf32>, tensor<8xi64>> {
  %s = "kitsune.stage"() ({
    %both = builtin.unrealized_conversion_cast %x, %y : tensor<4xf32>, tensor<8xi64> to tuple<tensor<4xf32>, tensor<8xi64>>
    "kitsune.yield"(%both) : (tuple<tensor<4xf32>, tensor<8xi64>>) -> ()
  }) {sym_name = "pass", buffers = [#kitsune.buffer<"register", 1 : i64>, #kitsune.buffer<"queue", 3 : i64>]}
    : () -> tuple<tensor<4xf32>, tensor<8xi64>>
  return %s : tuple<tensor<4xf32>, tensor<8xi64>>
}

// All policies and spaces.
// CHECK-LABEL: func.func private @attributes
// CHECK-SAME: buffers = [#kitsune.buffer<"shared", 2 : i64>, #kitsune.buffer<"global", 1 : i64>]
// CHECK-SAME: sync = [#kitsune.sync<"tile">, #kitsune.sync<"row">, #kitsune.sync<"strided">, #kitsune.sync<"halo">, #kitsune.sync<"all">]
func.func private @attributes() attributes {
  buffers = [#kitsune.buffer<"shared", 2 : i64>, #kitsune.buffer<"global", 1 : i64>],
  sync = [#kitsune.sync<"tile">, #kitsune.sync<"row">, #kitsune.sync<"strided">, #kitsune.sync<"halo">, #kitsune.sync<"all">]}
