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
// CHECK: %[[Q:.*]] = "kitsune.make_queue"() : () -> !kitsune.queue<tensor<4x4xf32>, 3 : i64>
// CHECK: %[[SLOT:.*]] = "kitsune.acquire"(%[[Q]]) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>) -> index
// CHECK: "kitsune.push"(%[[Q]], %[[SLOT]], %{{.*}}) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>, index, tensor<4x4xf32>) -> ()
// CHECK: %[[R:.*]]:2 = "kitsune.pop"(%[[Q]]) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>) -> (index, tensor<4x4xf32>)
// CHECK: "kitsune.release"(%[[Q]], %[[R]]#0) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>, index) -> ()
func.func @queues(%t: tensor<4x4xf32>) {
  %q = "kitsune.make_queue"() : () -> !kitsune.queue<tensor<4x4xf32>, 3 : i64>
  %s = "kitsune.acquire"(%q) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>) -> index
  "kitsune.push"(%q, %s, %t) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>, index, tensor<4x4xf32>) -> ()
  %r:2 = "kitsune.pop"(%q) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>) -> (index, tensor<4x4xf32>)
  "kitsune.release"(%q, %r#0) : (!kitsune.queue<tensor<4x4xf32>, 3 : i64>, index) -> ()
  return
}
