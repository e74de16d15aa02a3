"""GPU kernels run on the processor, which finds races, reads of nothing and faulty addresses."""
