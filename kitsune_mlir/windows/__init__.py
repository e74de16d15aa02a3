"""Work that is known only at run time: a window over programs, and over PyTorch's own calls."""
