"""Orders of dimensions in memory: of arguments, results and images."""
