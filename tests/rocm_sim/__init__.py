"""A simulated ROCm: CuPy's and hip-python's wheels for AMD run on it, unmodified, on a CPU. README.md tells all."""
