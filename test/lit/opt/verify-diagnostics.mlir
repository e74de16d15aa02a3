// RUN: kitsune-opt %s --split-input-file --verify-diagnostics

// expected-error@+1 {{expected non-function type}}
func.func @f(

// -----

func.func @g() -> i32 {
  // expected-error@below {{'func.return' op has 0 operands}}
  return
}

// -----

func.func @h() -> i32 {
  return
  // expected-error@-1 {{has 0 operands}}
}

// -----

func.func @i() -> i32 {
  return // expected-error-re {{has {{[0-9]+}} operands, but {{.*}} returns 1}}
}

// -----

func.func @j(%x: i32) {
  // expected-error@+2 {{use of value '%x' expects different type than prior uses: 'i64' vs 'i32'}}
  // expected-note@-2 {{prior use here}}
  %0 = arith.addi %x, %x : i64
  return
}
