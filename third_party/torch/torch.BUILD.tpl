package(default_visibility = ["//visibility:public"])

# `includes` reaches the compiler as -isystem: torch's headers do not pass our warnings.
cc_library(
    name = "headers",
    hdrs = glob(
        [
            "include/**/*.h",
            "include/**/*.hpp",
            "include/**/*.cuh",
            "include/**/*.inc",
            "include/**/*.def",
        ],
    ),
    defines = [
        "USE_DISTRIBUTED",
        "USE_RPC",
    ],
    includes = [
        "include",
        "include/torch/csrc/api/include",
    ],
)

# By -L and -l on the real folder, not as inputs: a copy or a link elsewhere would lose the
# relative run path by which libtorch_cpu.so finds its CUDA neighbours.
cc_library(
    name = "torch_cpu",
    linkopts = [
        "-L%{lib}",
        "-Wl,-rpath,%{lib}",
        "-ltorch_cpu",
        "-lc10",
    ],
    deps = [":headers"],
)

cc_library(
    name = "python_headers",
    hdrs = glob(["python/**/*.h"]),
    includes = ["python"],
)

cc_library(
    name = "torch_python",
    linkopts = ["-ltorch_python"],
    deps = [
        ":python_headers",
        ":torch_cpu",
    ],
)

cc_library(
    name = "torch_cuda",
    %{cuda}
    deps = [":torch_cpu"],
)
