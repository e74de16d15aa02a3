"""What compiling leaves on disk so that it need not be done twice: whole programs, assembled kernels, measured tiles."""
