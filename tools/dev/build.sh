# shellcheck shell=bash
# Builds the shared objects and lays out an importable weft/ under build/torch-<version>/site.

BUILD_TARGETS=(//:libweft.so //:_C.so //c10d_plugin/net/gloo:libweft_gloo.so)
# What the shared objects are made of. The Python sources are staged as links, so they need no build.
BUILD_SOURCES=(transport rpc_backend jit_ops pipe c10d_plugin third_party tools/bazel
  weft/_C.cpp weft/BUILD.bazel BUILD.bazel WORKSPACE .bazelrc)

# True when no source is newer than the last good build: even a warm Bazel costs more than find.
# Folders count as well as files, since a deletion changes only its folder.
built() {
  local key="$1" existing=() path
  stamped "$BUILD/.built-key" "$key" && [[ -f "$SITE/weft/_C.so" ]] || return 1
  for path in "${BUILD_SOURCES[@]}"; do
    [[ -e "$WEFT_ROOT/$path" ]] && existing+=("$WEFT_ROOT/$path")
  done
  [[ -z "$(find "${existing[@]}" -newer "$BUILD/.built" -print -quit)" ]]
}

# Copies a shared object into place if it changed: by rename, since a process may have it mapped.
place() {
  local from="$1" to="$2"
  cmp -s "$from" "$to" && return
  install -D -m 755 "$from" "$to.new"
  mv "$to.new" "$to"
}

# place_targets BIN TARGET…: the shared objects of these targets, into the package.
place_targets() {
  local bin="$1" target file
  for target in "${@:2}"; do
    file="${target#//}"
    place "$bin/${file/:/\/}" "$SITE/weft/${target##*:}"
  done
}

# Whether torch came with CUDA; a GPU is another matter.
has_cuda() { [[ -n "$(find "$VENV/lib" -path '*/torch/lib/libtorch_cuda.so' -print -quit)" ]]; }

# Whether that torch calls the CUDA runtime whose place tests/emulated_cuda can take.
has_emulated_cuda_runtime() {
  local library
  library="$(find "$VENV/lib" -path '*/torch/lib/libc10_cuda.so' -print -quit)"
  [[ -n "$library" && "$(readelf -d "$library")" == *'[libcudart.so.13]'* ]]
}

# One build at a time per checkout: two would take each other's stamps.
need_build() {
  announce_first_run
  need_all "$@"
  mkdir -p "$BUILD"
  (
    flock -w 2400 9 || die "another ./dev builds in $BUILD for too long"
    # Bazel's server outlives this: it must not inherit the lock.
    build_locked 9>&-
  ) 9>"$BUILD/.lock"
}

build_locked() {
  local key bin
  key="$(printf '%s\n' "$PY" "$TORCH_VERSION" | hash_of)"
  if ! built "$key"; then
    touch "$BUILD/.building"
    say "build: libweft.so and _C.so against torch $TORCH_VERSION"
    if has_cuda; then BUILD_TARGETS+=(//:libweft_cuda.so); fi
    # One bar instead of Bazel's lines; pipefail keeps its exit status.
    bazel_run build --show_progress_rate_limit=1 "${BUILD_TARGETS[@]}" 2>&1 >/dev/null |
      "$PY" -I "$WEFT_ROOT/tools/progress.py"
    bin="$(bazel_bin)"
    place_targets "$bin" "${BUILD_TARGETS[@]}"
    mv "$BUILD/.building" "$BUILD/.built"
    stamp "$BUILD/.built-key" "$key"
  fi
  "$PY" -I "$WEFT_ROOT/tools/stage.py" "$WEFT_ROOT/weft" "$SITE" "$TORCH_VERSION"
}

# The emulated CUDA runtime, and the environment under which torch takes it for a GPU.
build_emulated_cuda() {
  local bin package=tests/emulated_cuda
  find_venv
  bazel_run build "//$package:libcudart.so.13" "//$package:libcuda.so.1" \
    "//$package:liboperators.so" >&2
  bin="$(bazel_bin)/$package"
  # shellcheck disable=SC2034  # used by dev and test.sh
  EMULATED_CUDA_ENV=("LD_PRELOAD=$bin/libcudart.so.13 $bin/libcuda.so.1"
    "EMULATED_CUDA_OPERATORS=$bin/liboperators.so")
}

# What tests alone use of C++ besides their own programs: the agent that injects faults.
build_test_parts() {
  local target=tests/support/faulty/_weft_faulty.so
  find_venv
  bazel_run build "//${target%/*}:${target##*/}" >&2
  place "$(bazel_bin)/$target" "$BUILD/tests/_weft_faulty.so"
}
