# shellcheck shell=bash
# ./dev lint and ./dev fmt. Every check is one test; each runs even when one before it failed.

LINT_LINES=600
# What must not know torch: the transport, the collectives of one host and between hosts, and what
# parses the network's bytes in the agent.
# clang-tidy reads these alone: torch's headers take it minutes per file.
TORCH_FREE='^(transport/|c10d_plugin/(core|shm|net|store)/|c10d_plugin/engine/op_queue[.]|pipe/schedule/|rpc_backend/(wire/|rref/rref_table[.]))'

# Our own files with one of these endings: tracked or new, never ignored ones. safe.directory: the
# checkout may be another user's, as in a container.
our_files() {
  local pattern=() ending file
  for ending in "$@"; do pattern+=("*.$ending"); done
  git -C "$WEFT_ROOT" -c safe.directory='*' ls-files --cached --others --exclude-standard \
    -- "${pattern[@]}" |
    while IFS= read -r file; do
      # Deleted, but not yet so in the index.
      if [[ -f "$WEFT_ROOT/$file" ]]; then printf '%s\n' "$file"; fi
    done
}

torch_free_files() {
  our_files "$@" | awk -v pattern="$TORCH_FREE" '$0 ~ pattern'
}

each_of() { xargs --no-run-if-empty --delimiter='\n' "$@"; }

lint_clang_format() { our_files h cpp cc | each_of clang-format-14 --dry-run -Werror --style=file; }

lint_ruff() { "$VENV/bin/ruff" check --quiet .; }
lint_ruff_format() { "$VENV/bin/ruff" format --quiet --check .; }

lint_shellcheck() {
  { our_files sh; printf '%s\n' dev .ci/run; } | each_of shellcheck --external-sources
}

lint_file_length() {
  local long
  long="$(our_files h cpp cc py sh bzl md bazel | each_of wc -l |
    awk -v max="$LINT_LINES" '$2 != "total" && $1 > max { print "  " $2 ": " $1 " lines" }')"
  [[ -z "$long" ]] || { printf 'longer than %s lines:\n%s\n' "$LINT_LINES" "$long"; return 1; }
}

lint_no_torch_below() {
  local include='#[[:space:]]*include[[:space:]]*[<"]((torch|ATen|c10|caffe2|pybind11)/|Python\.h)'
  local files found
  files="$(torch_free_files h cpp cc)"
  # grep fails when it finds nothing, which is what we hope for; what it prints decides.
  found="$(printf '%s\n' "$files" | each_of grep -nE "$include" /dev/null || true)"
  [[ -z "$found" ]] || { printf '%s\n' "$found"; return 1; }
}

# tidy_one KEY FILE: slow, so remembered per file; KEY stands for the settings and every header.
tidy_one() {
  local file="$2" clean
  clean="$CACHE/tidy/$(printf '%s %s' "$1" "$(sha256sum "$file")" | hash_of)"
  [[ -f "$clean" ]] && return
  # clang-tidy's exit status decides; the count of warnings in system headers is noise.
  timeout 300 clang-tidy-14 --quiet "$file" -- -std=c++20 -I. \
    -isystem "$LIBUV_SRC/include" -isystem /usr/src/googletest/googletest/include \
    -isystem /usr/src/googletest/googlemock/include 2>&1 |
    { grep -vE '^[0-9]+ warnings? (and|generated|treated)' || true; }
  mkdir -p "$CACHE/tidy"
  touch "$clean"
}

lint_clang_tidy() {
  local key
  key="$( (cat .clang-tidy; clang-tidy-14 --version; torch_free_files h | each_of sha256sum) | hash_of)"
  export -f tidy_one hash_of
  export CACHE LIBUV_SRC
  # shellcheck disable=SC2016  # for the inner shells
  torch_free_files cpp | xargs --no-run-if-empty --delimiter='\n' -P "$(nproc)" -I FILE \
    bash -euo pipefail -c 'tidy_one "$1" "$2"' tidy "$key" FILE
}

LINT_CHECKS=(clang_format ruff ruff_format shellcheck file_length no_torch_below clang_tidy)

lint_quietly() {
  cd "$WEFT_ROOT" || return 1
  "lint_$1" >"$2" 2>&1
}

run_lint() {
  local check status=0 output
  mkdir -p "$RESULTS"
  for check in "${LINT_CHECKS[@]}"; do
    output="$RESULTS/lint-$check.txt"
    step lint_quietly "$check" "$output"
    if [[ $STEP_RC == 0 ]]; then
      say "lint: ${check//_/-} ok"
    else
      head -n 60 "$output" >&2
      say "lint: ${check//_/-} FAILED (all of it: $output)"
      status=1
    fi
    tally check "$RESULTS/lint-$check.json" "$STEP_RC" || true
  done
  return "$status"
}

run_fmt() {
  cd "$WEFT_ROOT" || return 1
  say "fmt: clang-format, ruff"
  our_files h cpp cc | each_of clang-format-14 -i --style=file
  "$VENV/bin/ruff" check --quiet --fix --exit-zero . >/dev/null
  "$VENV/bin/ruff" format --quiet .
}
