// Every op and type of the tile program survives being written and read again.
// RUN: kitsune-opt %s | kitsune-opt | FileCheck %s

// CHECK-LABEL: func.func @semaphores
// CHECK: %[[S:.*]] = "kitsune.make_semaphore"() {slots = 6 : i64} : () -> !kitsune.semaphore
// CHECK: "kitsune.task"() ({
// CHECK-NEXT: ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK-NEXT: "kitsune.wait"(%[[S]], %[[I]], %[[J]]) {count = 2 : i64} : (!kitsune.semaphore, index, index) -> ()
// CHECK-NEXT: "kitsune.post"(%[[S]], %[[I]]) : (!kitsune.semaphore, index) -> ()
// CHECK-NEXT: "kitsune.yield"() : () -> ()
// CHECK-NEXT: }) {engine = "simt", grid = array<i64: 2, 3>, sym_name = "t"} : () -> ()
func.func @semaphores() {
  %s = "kitsune.make_semaphore"() {slots = 6 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index, %j: index):
    "kitsune.wait"(%s, %i, %j) {count = 2 : i64} : (!kitsune.semaphore, index, index) -> ()
    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "t", grid = array<i64: 2, 3>, engine = "simt"} : () -> ()
  return
}

// CHECK-LABEL: func.func @queues
// CHECK: %[[Q:.*]] = "kitsune.make_queue"(%{{.*}}) {pops = 2 : i64, pushes = 1 : i64} : (memref<12x4xf32>) -> !kitsune.queue<tensor<4x4xf32>, 3 : i64>
// CHECK: %[[SLOT:.*]] = "kitsune.acquire"(%[[Q]], %[[N:.*]]) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>, index) -> index
// CHECK: "kitsune.push"(%[[Q]], %[[SLOT]]) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>, index) -> ()
// CHECK: %[[R:.*]] = "kitsune.pop"(%[[Q]], %[[N]]) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>, index) -> index
// CHECK: "kitsune.release"(%[[Q]], %[[R]]) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>, index) -> ()
// CHECK: "kitsune.wait_rounds"(%{{.*}}, %[[N]], %[[N]], %[[N]]) {count = 2 : i64} : (!kitsune.semaphore, index, index, index) -> ()
func.func @queues(%m: memref<12x4xf32>, %n: index, %sem: !kitsune.semaphore) {
  %q = "kitsune.make_queue"(%m) {pushes = 1 : i64, pops = 2 : i64} : (memref<12x4xf32>) -> !kitsune.queue<tensor<4x4xf32>, 3 : i64>
  %s = "kitsune.acquire"(%q, %n) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>, index) -> index
  "kitsune.push"(%q, %s) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>, index) -> ()
  %r = "kitsune.pop"(%q, %n) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>, index) -> index
  "kitsune.release"(%q, %r) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>, index) -> ()
  "kitsune.wait_rounds"(%sem, %n, %n, %n) {count = 2 : i64} : (!kitsune.semaphore, index, index, index) -> ()
  return
}
