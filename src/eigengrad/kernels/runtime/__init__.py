"""What kernels run on: the compiler and its cache on disk, torch's OpenMP threads, and chunks that threads share."""
