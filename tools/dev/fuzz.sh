# shellcheck shell=bash
# ./dev fuzz [SECONDS]: every target tagged `fuzz`, for so many seconds each, or for a million runs.

run_fuzz() {
  local seconds="${1:-}" targets=() target name package bin stop work status=0
  export BAZEL_FLAVOUR=-fuzz
  # A repository rule cannot see clang-14 change places, so say plainly when it isn't there.
  command -v clang-14 >/dev/null || die "clang-14 is missing; this command fixes it: ./dev setup"
  mapfile -t targets < <(bazel_run query --noshow_progress 'attr(tags, "\bfuzz\b", //...)' 2>/dev/null)
  [[ ${#targets[@]} -gt 0 ]] || die "there is no target tagged fuzz"
  say "fuzz: building ${targets[*]}"
  bazel_run build --config=fuzz "${targets[@]}" >&2
  bin="$(bazel_bin --config=fuzz)"
  if [[ -n "$seconds" ]]; then stop="-max_total_time=$seconds"; else stop="-runs=1000000"; fi
  for target in "${targets[@]}"; do
    package="${target#//}"
    package="${package%%:*}"
    name="${target##*:}"
    # New inputs go to the first corpus folder: a scratch one, so that the committed stays as is.
    work="$BUILD/fuzz/$name"
    mkdir -p "$work/corpus" "$work/findings"
    local corpus=("$work/corpus")
    [[ -d "$WEFT_ROOT/$package/corpus/$name" ]] && corpus+=("$WEFT_ROOT/$package/corpus/$name")
    say "fuzz: $name $stop"
    "$bin/$package/$name" "$stop" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
      -artifact_prefix="$work/findings/" "${corpus[@]}" </dev/null || {
      say "fuzz: $name FOUND something; see $work/findings"
      status=1
    }
  done
  # Its Bazel server has nothing more to do, and its memory is wanted elsewhere.
  bazel_run shutdown
  return "$status"
}
