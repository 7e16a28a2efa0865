# shellcheck shell=bash
# ./dev fuzz [SECONDS | --runs N] [NAME…]: every target tagged `fuzz`, or those of these names, for
# so many seconds each, or so many runs (a million if nothing is said).

# Those in Python, which run on what ./dev build makes.
FUZZ_PYTHON=(//tests/fuzz:fuzz_registered)

run_fuzz() {
  local stop="-runs=1000000" targets=() target bin status=0 counts=()
  if [[ "${1:-}" == --runs ]]; then
    [[ "${2:-}" =~ ^[0-9]+$ ]] || die "fuzz --runs needs a number (./dev fuzz --runs 10000000)"
    stop="-runs=$2"
    shift 2
  elif [[ "${1:-}" =~ ^[0-9]+$ ]]; then
    stop="-max_total_time=$1"
    shift
  fi
  export BAZEL_FLAVOUR=-fuzz
  # A repository rule cannot see clang-14 change places, so say plainly when it isn't there.
  command -v clang-14 >/dev/null || die "clang-14 is missing; this command fixes it: ./dev setup"
  fuzz_choose "$@"
  say "fuzz: building ${targets[*]}"
  local native=()
  mapfile -t native < <(printf '%s\n' "${targets[@]}" | grep -v '^//tests/fuzz:')
  [[ ${#native[@]} == 0 ]] || bazel_run build --config=fuzz "${native[@]}" >&2
  [[ ${#native[@]} == "${#targets[@]}" ]] || (
    unset BAZEL_FLAVOUR
    need_build
  )
  bin="$(bazel_bin --config=fuzz)"
  for target in "${targets[@]}"; do
    fuzz_one "$target" "$bin" "$stop" || status=1
  done
  # Its Bazel server has nothing more to do, and its memory is wanted elsewhere.
  bazel_run shutdown
  for target in "${counts[@]}"; do say "fuzz: $target"; done
  return "$status"
}

# fuzz_choose [NAME…]: sets `targets` to those of these names, or to all.
fuzz_choose() {
  local all name target
  mapfile -t all < <(bazel_run query --noshow_progress 'attr(tags, "\bfuzz\b", //...)' 2>/dev/null)
  [[ ${#all[@]} -gt 0 ]] || die "there is no target tagged fuzz"
  all+=("${FUZZ_PYTHON[@]}")
  [[ $# -gt 0 ]] || targets=("${all[@]}")
  for name in "$@"; do
    target="$(printf '%s\n' "${all[@]}" | grep ":$name\$")" ||
      die "there is no fuzz target $name, but these: ${all[*]##*:}"
    targets+=("$target")
  done
}

# fuzz_one TARGET BIN STOP: runs it, and adds to `counts` how many inputs it has tried.
fuzz_one() {
  local package="${1#//}" name="${1##*:}" work found=0
  package="${package%%:*}"
  # New inputs go to the first corpus folder: a scratch one, so that the committed stays as is.
  work="$BUILD/fuzz/$name"
  mkdir -p "$work/corpus" "$work/findings"
  local corpus=("$work/corpus")
  [[ -d "$WEFT_ROOT/$package/corpus/$name" ]] && corpus+=("$WEFT_ROOT/$package/corpus/$name")
  say "fuzz: $name $3"
  local command=(
    # Entropic weighs the corpus anew with each input, which takes longer than most inputs do. Leaks
    # are looked for at the end: after each input that keeps memory, that would take most of the time.
    "$2/$package/$name" "$3" -entropic=0 -detect_leaks=0 -timeout=10
    -rss_limit_mb=2048 -print_final_stats=1
    -artifact_prefix="$work/findings/" "${corpus[@]}"
  )
  if [[ "$package" == tests/fuzz ]]; then
    local stop="${3/-runs/--runs}"
    command=(
      env "${WEFT_ENV[@]}" python "$WEFT_ROOT/$package/$name.py"
      "${stop/-max_total_time/--seconds}" --findings "$work/findings"
    )
  fi
  "${command[@]}" </dev/null 2>&1 | tee "$work/log" >&2 || found=1
  counts+=("$name $(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log") runs")
  [[ $found == 0 ]] || say "fuzz: $name FOUND something; see $work/findings"
  return "$found"
}
