# shellcheck shell=bash
# The interpreter and its virtual environment: one per torch version and Python version.

PIP_PACKAGES=(
  "torch==$TORCH_VERSION"
  numpy                                # torch wants it, the examples use it
  scikit-learn matplotlib tqdm         # examples/digits: data, loss curve, progress bar
  rich                                 # weft.top's table
  pytest pytest-timeout                # tests/; a time limit per test
  expecttest parameterized hypothesis  # torch.testing._internal.distributed
  ruff==0.14.5                         # lint; pinned, since its format changes with versions
)

# The Python the venvs are made from: $WEFT_BASE_PYTHON, else python3, if it is 3.10 or newer.
# Prints its real path (not a shim's), which is also what the venv's name is made from.
base_python() {
  local wanted="${WEFT_BASE_PYTHON:-}" candidate
  for candidate in ${wanted:-python3 /usr/bin/python3}; do
    "$candidate" -c 'import sys; sys.version_info >= (3, 10) or sys.exit(1); print(sys.executable)' \
      2>/dev/null && return
  done
  die "no Python 3.10 or newer (${wanted:-python3}); set WEFT_BASE_PYTHON to one"
}

# Sets VENV and PY. Cheap: one start of the interpreter, remembered for this run.
find_venv() {
  [[ -n "${VENV:-}" ]] && return
  local base version
  base="$(base_python)"
  version="$("$base" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  BASE_PYTHON="$base"
  VENV="$CACHE/venv-$TORCH_VERSION-py$version"
  PY="$VENV/bin/python"
  # What a process needs to `import weft` and to find the venv's python and torchrun.
  # shellcheck disable=SC2034  # used by the other parts
  WEFT_ENV=("VIRTUAL_ENV=$VENV" "PATH=$VENV/bin:$PATH" "PYTHONPATH=$SITE${PYTHONPATH:+:$PYTHONPATH}")
}

venv_install() {
  local key="$1"
  if [[ ! -x "$PY" ]]; then
    say "venv: making $VENV from $BASE_PYTHON"
    "$BASE_PYTHON" -m venv "$VENV" || die "python3 -m venv failed; see ./dev doctor"
  fi
  say "venv: installing ${PIP_PACKAGES[*]} (torch takes minutes the first time)"
  "$PY" -m pip install --quiet --disable-pip-version-check --retries 5 "${PIP_PACKAGES[@]}" >&2 </dev/null
  stamp "$VENV/.weft-stamp" "$key"
}

need_venv() {
  find_venv
  local key
  key="$(printf '%s\n' "$BASE_PYTHON" "${PIP_PACKAGES[@]}" | hash_of)"
  if ! stamped "$VENV/.weft-stamp" "$key" || [[ ! -x "$PY" ]]; then
    venv_install "$key"
  fi
  # `.venv` is for people and editors; nothing here reads it. It follows the default version only.
  if [[ -z "${WEFT_TORCH:-}" && "$(readlink "$WEFT_ROOT/.venv" || true)" != "$VENV" ]]; then
    ln -sfn "$VENV" "$WEFT_ROOT/.venv"
  fi
}
