"""CUDA runtime headers. Host code compiles with these alone; kernels need nvcc."""

load("//third_party:nvidia.bzl", "nvidia_headers")

def cuda_repository(name):
    nvidia_headers(name = name, header = "cuda_runtime_api.h")
