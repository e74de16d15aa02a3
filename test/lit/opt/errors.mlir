// Exit status 1 and a sentence (test/unit/test_opt.py has more of these).
// RUN: not kitsune-opt %s --kitsune-normalise 2>&1 | FileCheck %s --check-prefix=NEAR
// NEAR: kitsune-opt: Unknown command line argument '--kitsune-normalise'.  Try: 'kitsune-opt --help'
// NEAR: kitsune-opt: Did you mean '--kitsune-normalize'?
// RUN: not kitsune-opt %s --pass-pipeline="builtin.module(func.func(cse)" 2>&1 | FileCheck %s --check-prefix=PAREN
// PAREN: error: unbalanced parentheses: ')' is missing
// RUN: not kitsune-opt %s.missing 2>&1 | FileCheck %s --check-prefix=FILE
// FILE: kitsune-opt: cannot open input file '{{.*}}': No such file or directory
func.func @f() {
  return
}
