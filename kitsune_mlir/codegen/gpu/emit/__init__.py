"""Expressions that write IR: values, control flow, memory, vectors. Nothing here knows a hardware unit."""
