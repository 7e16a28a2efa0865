# shellcheck shell=bash
# ./dev docs: the site, from docs/ and mkdocs.yml, with a venv of its own that has no torch.

DOCS_PACKAGES=(mkdocs==1.6.1 mkdocs-material==9.8.2 "mkdocstrings[python]==1.0.8")

# Sets DOCS_VENV; mkdocs is in it.
need_docs_venv() {
  local key
  find_venv
  DOCS_VENV="$CACHE/venv-docs-${VENV##*-}"
  key="$(printf '%s\n' "$BASE_PYTHON" "${DOCS_PACKAGES[@]}" | hash_of)"
  if stamped "$DOCS_VENV/.weft-stamp" "$key"; then return; fi
  say "docs: installing ${DOCS_PACKAGES[*]}"
  "$BASE_PYTHON" -m venv "$DOCS_VENV"
  "$DOCS_VENV/bin/python" -m pip install --quiet --disable-pip-version-check --retries 5 \
    "${DOCS_PACKAGES[@]}" >&2 </dev/null
  stamp "$DOCS_VENV/.weft-stamp" "$key"
}

# run_docs [serve]
run_docs() {
  # Before anything is installed.
  [[ $# == 0 || "$*" == serve ]] || die "./dev docs takes nothing, or serve; got: $*"
  need_docs_venv
  cd "$WEFT_ROOT" || return 1
  if [[ "${1:-}" == serve ]]; then exec "$DOCS_VENV/bin/mkdocs" serve; fi
  "$DOCS_VENV/bin/mkdocs" build --strict
  say "docs: $WEFT_ROOT/build/site-docs/index.html"
}
