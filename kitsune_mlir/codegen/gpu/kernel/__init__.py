"""One persistent kernel from all tasks of a program: order of the code, hand-offs, launches."""
