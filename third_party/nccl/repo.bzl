"""nccl.h, which ProcessGroupNCCL's header wants."""

load("//third_party:nvidia.bzl", "nvidia_headers")

def nccl_repository(name):
    nvidia_headers(name = name, header = "nccl.h")
