# shellcheck shell=bash
# ./dev wheel --all: a wheel for each minor version of torch and each Python that is here. What is
# done is left alone, so the command goes on where it was ended.

WHEEL_PYTHONS=(3.10 3.11 3.12 3.13)

# The minor versions of torch that Weft is made for.
wheel_torches() {
  sed -nE 's/^TORCHES = \((.*)\)/\1/p' "$WEFT_ROOT/weft/_version.py" | tr -d '",'
}

# python_of 3.12: prints where that Python is, the newest of pyenv's first.
python_of() {
  local candidate
  for candidate in $(printf '%s\n' "$HOME/.pyenv/versions/$1."*/bin/python3 | sort -rV) "python$1"; do
    "$candidate" -I -c 'import os, sys; print(os.path.realpath(sys._base_executable))' 2>/dev/null &&
      return
  done
  return 1
}

# What a wheel is made of: a change of any of it makes the wheel anew.
wheel_sources() {
  (cd "$WEFT_ROOT" && find dev LICENSE NOTICE README.md tools "${BUILD_SOURCES[@]}" weft \
    -type f -not -name '*.pyc' -print0 | sort -zu | xargs -0 sha256sum | hash_of)
}

# wheel_of TORCH PYTHON KEY: makes one and tries it, in a ./dev of its own.
wheel_of() {
  local torch="$1" python="$2" stamp="$WEFT_ROOT/dist/.made/torch$1-cp${2/./}" base venv made_venv=1
  base="$(python_of "$python")" || {
    say "wheel: torch $torch, Python $python: there is no Python $python here"
    return
  }
  if stamped "$stamp" "$3"; then
    say "wheel: torch $torch, Python $python: done before"
    return
  fi
  venv="$CACHE/venv-$torch.0-py$python"
  [[ -d "$venv" ]] || made_venv=0
  say "wheel: torch $torch, Python $python"
  WEFT_TORCH="$torch.0" WEFT_BASE_PYTHON="$base" WHEEL_BUILD_SUFFIX="-cp${python/./}" \
    "$WEFT_ROOT/dev" wheel
  stamp "$stamp" "$3"
  # A torch takes 5 GB; twenty of them are more than most disks have.
  if [[ $made_venv == 0 ]]; then rm -rf "$venv"; fi
}

# wheel_matrix [TORCH…] [PYTHON…]: 2.x names a torch, 3.x a Python; none of a kind means all.
wheel_matrix() {
  local word torch python key status=0 torches=() pythons=()
  for word in "$@"; do
    if [[ " $(wheel_torches) " == *" $word "* ]]; then torches+=("$word");
    elif [[ " ${WHEEL_PYTHONS[*]} " == *" $word "* ]]; then pythons+=("$word");
    else die "./dev wheel --all: $word is none of torch $(wheel_torches), Python ${WHEEL_PYTHONS[*]}"; fi
  done
  [[ ${#torches[@]} -gt 0 ]] || read -ra torches < <(wheel_torches)
  [[ ${#pythons[@]} -gt 0 ]] || pythons=("${WHEEL_PYTHONS[@]}")
  key="$(wheel_sources)"
  for torch in "${torches[@]}"; do
    for python in "${pythons[@]}"; do
      step wheel_of "$torch" "$python" "$key"
      [[ $STEP_RC == 0 ]] || { say "wheel: torch $torch, Python $python: FAILED"; status=1; }
    done
    # Its Bazel server has nothing more to do, and its memory is wanted by the next.
    WEFT_TORCH="$torch.0" "$WEFT_ROOT/dev" bazel shutdown 2>/dev/null || true
  done
  return "$status"
}
