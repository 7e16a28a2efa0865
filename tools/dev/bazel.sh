# shellcheck shell=bash
# Calls Bazel with what is of this machine: where it may write, and who answers for torch.

BAZEL_USER_ROOT="$CACHE/bazel"

# An output base per checkout and torch version: another torch is another set of headers. Another
# compiler (fuzzing) is another toolchain repository, so it gets one of its own as well.
bazel_output_base() {
  local flavour="${1:-}"
  printf '%s/out-%s%s-%s' "$BAZEL_USER_ROOT" "$TORCH_VERSION" "$flavour" \
    "$(printf '%s' "$WEFT_ROOT" | hash_of)"
}

# bazel_run COMMAND [ARGS…]; BAZEL_FLAVOUR picks another output base.
bazel_run() {
  local command="$1"
  shift
  find_venv
  local env=(
    "--repo_env=WEFT_PYTHON=$PY"
    "--repo_env=WEFT_LIBUV_SRC=$LIBUV_SRC"
    "--repo_env=CUDA_HOME=${CUDA_HOME:-}"
  )
  local extra=()
  case "$command" in
    build | test | run | coverage | info | cquery | aquery)
      # The disk cache is shared by all checkouts and versions: a fresh clone compiles nothing new.
      extra=("${env[@]}" "--disk_cache=$BAZEL_USER_ROOT/disk")
      ;;
    query | fetch | sync) extra=("${env[@]}") ;;
  esac
  # The server leaves after ten idle minutes; CI and small machines need its memory back.
  # BAZEL_TIMEOUT, in seconds, is a hard limit for one call.
  (cd "$WEFT_ROOT" && ${BAZEL_TIMEOUT:+timeout --kill-after=20 "$BAZEL_TIMEOUT"} bazel \
    --output_user_root="$BAZEL_USER_ROOT" \
    --output_base="$(bazel_output_base "${BAZEL_FLAVOUR:-}")" \
    --max_idle_secs=600 --host_jvm_args=-Xmx2g \
    "$command" "${extra[@]}" "$@" </dev/null)
}

# Where `bazel build` with these flags leaves its outputs.
bazel_bin() { bazel_run info "$@" bazel-bin 2>/dev/null; }
