# shellcheck shell=bash
# ./dev test: runs the parts, each under a hard time limit, and ends with one line of counts.

# A folder per run: two people may test in one checkout at the same time.
RESULTS="$BUILD/results/$(date +%Y%m%d-%H%M%S)-$$"
ALL_PARTS=(lint cpp sanitizers python conformance demo cuda spawn)
# About how long each takes on two cores where nothing has been built before; torch215 with its
# build, which no part before it has made.
declare -A PART_MINUTES=([lint]=10 [cpp]=6 [sanitizers]=24 [python]=25 [conformance]=6 [demo]=2
  [cuda]=18 [spawn]=7 [torch215]=18)
# What a contributor runs before a push: what finds most mistakes within minutes. Bazel runs only
# those C++ tests that the change can reach.
QUICK_PARTS=(lint cpp quick demo)
QUICK_PYTHON=(
  tests/dev tests/docs/test_{docs,docstrings,imports}.py tests/typing
  tests/rpc/test_{api,values,loss,policies}.py tests/jit_ops/test_published.py
  tests/c10d_plugin/test_{right_or_error,failures}.py tests/pipe/test_{contract,gradients,schedule}.py
  tests/chaos/test_chaos.py
)
# What rests on torch's private members and functions, which differ between its versions.
TORCH215_PYTHON=(
  tests/rpc/test_{api,early_values,failed_rrefs,fork,patches,rref_lifecycle,values}.py
  tests/jit_ops/test_published.py tests/c10d_plugin/test_right_or_error.py
  tests/pipe/test_{contract,gradients,schedule}.py
)

# Before there is a venv, too.
tally() { "$BASE_PYTHON" -I "$WEFT_ROOT/tools/tally.py" "$@"; }

# limited SECONDS COMMAND…: ends COMMAND and its children; stdin is closed, so nothing can ask.
limited() { timeout --signal="${LIMIT_SIGNAL:-TERM}" --kill-after=20 "$1" "${@:2}" </dev/null; }

# bazel_tests NAME TARGETS… -- FLAGS…: runs C++ tests and counts the cases of their XML files.
bazel_tests() {
  local name="$1" rc=0 targets=()
  shift
  while [[ $# -gt 0 && "$1" != -- ]]; do
    targets+=("$1")
    shift
  done
  shift || true
  rm -f "$RESULTS/$name.bep"
  BAZEL_TIMEOUT=1500 bazel_run test --keep_going --build_tests_only \
    --test_tag_filters=-fuzz,-manual --build_event_json_file="$RESULTS/$name.bep" \
    "$@" -- "${targets[@]}" >&2 || rc=$?
  [[ $rc == 4 ]] && rc=0 # no test targets: nothing to run is not a failure
  tally bep "$RESULTS/$name.bep" "$RESULTS/$name.json" "$rc"
}

# targets QUERY: what Bazel's query finds, a line each; fails where that is nothing.
targets() { BAZEL_TIMEOUT=300 bazel_run query --noshow_progress "$1" 2>/dev/null | grep .; }

# Beside the sanitizers, which run the C++ tests without torch, those with torch only.
part_cpp() {
  local flags=() which=(//...)
  [[ -n "$FILTER" ]] && flags=("--test_filter=*$FILTER*")
  if [[ " ${parts[*]} " == *" sanitizers "* ]]; then
    mapfile -t which < <(targets 'tests(//...) intersect rdeps(//..., @weft_torch//:headers)')
    [[ ${#which[@]} -gt 0 ]] || die "found no C++ test with torch"
  fi
  bazel_tests cpp "${which[@]}" -- "${flags[@]}"
}

# Every C++ test that does not reach torch, under each sanitizer: pip's torch is not instrumented.
part_sanitizers() {
  local status=0
  part_asan || status=1
  part_tsan || status=1
  return "$status"
}
part_asan() { sanitized asan; }
part_tsan() { sanitized tsan --test_tag_filters=-fuzz,-manual,-one-thread; }
# sanitized NAME FLAGS…
sanitized() {
  local which
  mapfile -t which < <(targets \
    'kind("cc_test rule", //...) except rdeps(//..., @weft_torch//:headers)')
  [[ ${#which[@]} -gt 0 ]] || die "found no C++ test without torch"
  bazel_tests "sanitizers-$1" "${which[@]}" -- "--config=$1" "${@:2}"
}

# pytest_limited SECONDS ARGS…: pytest under Weft. At an interrupt it says what has failed so far.
pytest_limited() {
  (cd "$WEFT_ROOT" && LIMIT_SIGNAL=INT limited "$1" env "${WEFT_ENV[@]}" \
    python -m pytest -q "${@:2}" >&2)
}

# pytest_run NAME ARGS…: pytest under Weft; its counts go to NAME.json. Two files at a time: the
# tests mostly wait for processes.
pytest_run() {
  local name="$1" rc=0 flags=()
  shift
  build_test_parts
  [[ -n "$FILTER" ]] && flags=(-k "$FILTER")
  rm -f "$RESULTS/$name.xml"
  pytest_limited 3000 -n 2 --dist loadfile -o junit_family=xunit1 \
    --junitxml="$RESULTS/$name.xml" "${flags[@]}" "$@" || rc=$?
  [[ $rc == 5 ]] && rc=0 # pytest's "no test selected"
  tally junit "$RESULTS/$name.xml" "$RESULTS/$name.json" "$rc" && return
  [[ $rc == 1 && $EXCUSES == yes ]] || return 1
  pass_alone "$name" || return 1
  tally unsteady "$RESULTS/$name.json"
}

# pass_alone NAME: whether what failed in that run, at most two tests, passes three times with
# nothing beside it. Of thousands of tests that wait for processes, one may fail for the load that
# the others are. What the sanitizers find counts the first time.
pass_alone() {
  local failed turn
  mapfile -t failed < <(tally failed "$RESULTS/$1.xml")
  ((${#failed[@]} <= 2)) || return 1
  for turn in 1 2 3; do
    say "test: ${failed[*]} once more, alone ($turn of 3)"
    pytest_limited 900 -n 0 "${failed[@]}" || return 1
  done
}

# What needs a core for each of its threads, and a process in which no other test has run.
PYTHON_ALONE=(tests/pipe/test_overlap.py)

part_python() {
  local status=0
  [[ -n "$FILTER" ]] || need_docs_venv # with it the tests build the site
  pytest_run python "${PYTHON_ALONE[@]/#/--ignore=}" || status=1
  pytest_run alone -n 0 "${PYTHON_ALONE[@]}" || status=1
  # The suites' runner tests itself; the suites it runs are the part `conformance`.
  pytest_run runner -o addopts=-p\ no:cacheprovider tests/conformance/test_runner.py || status=1
  return "$status"
}

part_quick() { pytest_run quick "${QUICK_PYTHON[@]}"; }

# run_conformance NAME LIMIT FLAGS…
run_conformance() {
  local name="$1" limit="$2" rc=0
  shift 2
  build_test_parts
  [[ -z "$FILTER" ]] || set -- "$@" --only "$FILTER"
  rm -f "$RESULTS/$name.counts"
  (cd "$WEFT_ROOT" && limited "$limit" env "${WEFT_ENV[@]}" python tests/conformance/run.py \
    --jobs "$(nproc)" --json "$RESULTS/$name.counts" --logs "$RESULTS/$name-logs" "$@" >&2) || rc=$?
  if [[ $rc == 5 && -n "$FILTER" ]]; then return; fi # no test has that name here: nothing to run
  tally json "$RESULTS/$name.counts" "$RESULTS/$name.json" "$rc"
}

# What needs a CUDA device, on emulated ones (tests/emulated_cuda/README.md).
part_cuda() {
  local status=0
  find_venv
  if ! has_emulated_cuda_runtime; then
    say "test: cuda is skipped: this torch does not call libcudart.so.13, which the tests emulate"
    tally skip "$RESULTS/cuda.json"
    return
  fi
  bazel_tests cuda-runtime //tests/emulated_cuda:runtime_test -- --test_tag_filters= || status=1
  build_emulated_cuda
  bazel_run build //tests/cuda:cpp_client >&2
  WEFT_ENV+=("${EMULATED_CUDA_ENV[@]}" "CUDA_CPP_CLIENT=$(bazel_bin)/tests/cuda/cpp_client")
  # Test by test, since one file takes half of the time.
  pytest_run cuda --dist worksteal tests/cuda || status=1
  WEFT_ENV+=(EMULATED_CUDA_DEVICES=4)
  run_conformance cuda-suites 900 --suite cuda --suite AgentRpcTest --only '[Cc]uda' || status=1
  return "$status"
}

part_conformance() { run_conformance conformance 2400; }
# Forked ranks skip atexit and static destructors; a sample that ends in full finds what those hide.
part_spawn() { run_conformance spawn 1500 --spawn; }
part_torch215() {
  local status=0
  run_conformance torch215 1200 --short || status=1
  pytest_run torch215-python "${TORCH215_PYTHON[@]}" || status=1
  return "$status"
}

part_demo() {
  local rc=0
  (cd "$WEFT_ROOT" && limited 600 env "${WEFT_ENV[@]}" \
    python -m examples.digits.launch --short >&2) || rc=$?
  tally check "$RESULTS/demo.json" "$rc"
}

part_lint() { run_lint; }

is_part() { [[ " ${ALL_PARTS[*]} quick torch215 asan tsan aarch64 " == *" $1 "* ]]; }

# What the words of ./dev test mean: sets FILTER and the caller's `parts`.
read_test_words() {
  FILTER=""
  EXCUSES=no # whoever runs a part or the quick ones wants to see what fails
  while [[ $# -gt 0 ]]; do
    case "$1" in
      all)
        parts+=("${ALL_PARTS[@]}")
        EXCUSES=yes
        ;;
      -k)
        FILTER="${2:-}"
        [[ -n "$FILTER" ]] || die "-k wants the words that the tests' names contain"
        shift
        ;;
      *)
        is_part "$1" || die "./dev test: no part is called $1; parts: all ${ALL_PARTS[*]} quick" \
          "torch215 asan tsan aarch64; tests by their names: ./dev test PART -k $1"
        [[ "$1" != torch215 || "$TORCH_VERSION" == 2.15.* ]] || die "./dev test: the part torch215" \
          "needs that torch: WEFT_TORCH=2.15.0 ./dev test torch215"
        [[ "$1" != torch215 ]] || EXCUSES=yes # CI runs it
        parts+=("$1")
        ;;
    esac
    shift
  done
  [[ ${#parts[@]} == 0 ]] || return 0
  if [[ -n "$FILTER" ]]; then parts=(cpp python); else parts=("${QUICK_PARTS[@]}"); fi
}

# fits PART: whether there is time for it. WEFT_TEST_MINUTES says how long the whole may take, where
# something ends it that would leave no count.
fits() {
  [[ -z "${WEFT_TEST_MINUTES:-}" ]] ||
    ((SECONDS / 60 + ${PART_MINUTES[$1]:-0} <= WEFT_TEST_MINUTES))
}

any_fits() {
  local part
  for part in "$@"; do
    if fits "$part"; then return; fi
  done
  return 1
}

run_part() {
  local part="$1" started=$SECONDS
  if ! fits "$part"; then
    printf 'NOT RUN %s: it may take %d minutes, and %d of %d are over (WEFT_TEST_MINUTES)\n' \
      "$part" "${PART_MINUTES[$part]:-0}" $((SECONDS / 60)) "$WEFT_TEST_MINUTES"
    tally skip "$RESULTS/$part.json"
    return
  fi
  say "test: $part"
  step "part_$part"
  if [[ $STEP_RC == 0 ]]; then
    say "test: $part ok, $((SECONDS - started)) s"
  else
    say "test: $part FAILED, $((SECONDS - started)) s"
  fi
}

# ./dev test [PART…] [-k FILTER]: no part means the quick ones; a filter alone, C++ and Python tests.
run_tests() {
  local parts=() others=() part results=() counts status=0
  read_test_words "$@"
  mkdir -p "$RESULTS"
  find "$BUILD/results" -mindepth 1 -maxdepth 1 -mtime +2 -exec rm -rf {} +
  find_venv
  if any_fits "${parts[@]}"; then need_all "${APT_TEST[@]}"; fi
  # A build that fails is one failed test, and nothing that needs it can be counted.
  # Lint and the C++ tests do not need the staged package, so they run all the same.
  STEP_RC=0
  mapfile -t others < <(printf '%s\n' "${parts[@]}" | grep -vx lint)
  if any_fits "${others[@]}"; then step need_build; fi
  if [[ $STEP_RC != 0 ]]; then
    tally check "$RESULTS/build.json" 1 || true
    say "test: the build FAILED; only lint, cpp and sanitizers of ${parts[*]} can run"
    mapfile -t parts < <(printf '%s\n' "${parts[@]}" | grep -xE 'lint|cpp|sanitizers|asan|tsan|aarch64')
  fi
  for part in "${parts[@]}"; do run_part "$part"; done
  mapfile -t results < <(find "$RESULTS" -name '*.json' | sort)
  counts="$(tally sum "${results[@]}")" || status=$?
  printf '%s\n' "$counts"
  [[ -z "$FILTER" || "$counts" != "0 passed, 0 failed, 0 skipped" ]] ||
    die "no test's name contains $FILTER (in: ${parts[*]})"
  return "$status"
}
