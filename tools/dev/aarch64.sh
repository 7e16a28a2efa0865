# shellcheck shell=bash
# Compiles for aarch64 on another machine, and runs that under QEMU's user mode. What it links comes
# from Debian's arm64 packages, unpacked into the cache: none of them is installed here.
# ./dev test aarch64 does so with the C++ tests that do not reach torch.

AARCH64_APT=(g++-aarch64-linux-gnu qemu-user)
AARCH64_LIBRARIES=(
  libc6 libgcc-s1 libstdc++6                                                     # any program
  libssl3 libssl-dev libisal2 libisal-dev                                        # third_party/
  libgloo0 libgloo-dev libhiredis0.14 libibverbs1 libnl-3-200 libnl-route-3-200  # Gloo
  python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libpython3.11-dev # the interpreter
  zlib1g libexpat1 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1             # its modules
)
AARCH64="$CACHE/aarch64"
AARCH64_ROOT="$AARCH64/root"
AARCH64_CC="$AARCH64/cc"
AARCH64_BAZEL=(--platform_suffix=aarch64 "--repo_env=CC=$AARCH64_CC")

# What QEMU's user mode cannot do: run children forked beside threads, start itself (death tests),
# tell of huge pages, close the descriptors for which a receiver has no room.
AARCH64_NOT_UNDER_QEMU='*AForkedChild*:*DeathTest.*:HugePages.*:Liar.DescriptorsBeyondTheOneAreClosed'

aarch64_unpack() {
  local work apt package
  work="$(mktemp -d)"
  chmod 755 "$work"
  private_apt "$work/apt" deb -o APT::Architectures::=amd64 -o APT::Architectures::=arm64
  "${apt[@]}" update || die "apt could not read the lists of arm64 packages"
  (cd "$work" && "${apt[@]}" download "${AARCH64_LIBRARIES[@]/%/:arm64}" >&2) ||
    die "apt could not download ${AARCH64_LIBRARIES[*]} for arm64"
  rm -rf "$AARCH64_ROOT"
  mkdir -p "$AARCH64_ROOT"
  for package in "$work"/*.deb; do
    dpkg-deb --extract "$package" "$AARCH64_ROOT"
  done
  rm -rf "$work"
}

# The compiler, which finds those packages' headers and libraries.
aarch64_write_cc() {
  local include="$AARCH64_ROOT/usr/include" lib="$AARCH64_ROOT/usr/lib"
  cat >"$AARCH64_CC" <<EOF
#!/bin/sh
exec /usr/bin/aarch64-linux-gnu-gcc -isystem "$include" -isystem "$include/aarch64-linux-gnu" \\
  -L"$lib" -L"$lib/aarch64-linux-gnu" -Wl,-rpath-link,"$lib/aarch64-linux-gnu" "\$@"
EOF
  chmod +x "$AARCH64_CC"
}

need_aarch64() {
  stamped "$AARCH64/stamp" "${AARCH64_LIBRARIES[*]}" && return
  say "aarch64: unpacking Debian's arm64 packages into $AARCH64_ROOT"
  mkdir -p "$AARCH64"
  aarch64_unpack
  aarch64_write_cc
  stamp "$AARCH64/stamp" "${AARCH64_LIBRARIES[*]}"
}

# Another compiler, so another output base, as for the fuzzers.
part_aarch64() {
  local which
  need_apt "${AARCH64_APT[@]}"
  with_cache_lock need_aarch64
  # The emulated CUDA runtime is of the machine that runs the tests.
  mapfile -t which < <(targets 'kind("cc_test rule", //...)
    except rdeps(//..., @weft_torch//:headers) except //tests/emulated_cuda/...')
  [[ ${#which[@]} -gt 0 ]] || die "found no C++ test without torch"
  BAZEL_FLAVOUR=-aarch64 bazel_tests aarch64 "${which[@]}" -- "${AARCH64_BAZEL[@]}" \
    "--run_under=qemu-aarch64 -L $AARCH64_ROOT" \
    --test_timeout=600,1200,1800,1800 \
    "--test_filter=${FILTER:+*$FILTER*}-$AARCH64_NOT_UNDER_QEMU"
}
