#!/bin/sh
# Builds .venv from the pinned lock of this machine's kind and puts the `harness` command in it.
# Does nothing when .venv already holds exactly that. PYTHON names the interpreter (3.11 or newer).
set -eu
cd "$(dirname "$0")/.."

kind=cpu
if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then kind=cuda; fi
lock=requirements/$kind.txt
python=${PYTHON:-python3}
log=.venv/install.log

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "error: expected Python 3.11 or newer, found $("$python" --version 2>&1)" >&2
  echo "  -> install it, or name another: make setup PYTHON=python3.12" >&2
  exit 3
}
stamp=.venv/ready-$(cat "$lock" pyproject.toml requirements/install.sh | sha256sum | cut -c1-16)
if [ -f "$stamp" ] && [ -x .venv/bin/harness ] && [ "$(cat "$stamp")" = "$PWD" ]; then exit 0; fi

# Runs pip quietly and counts packages; on failure shows the end of its log.
install() {
  total=$1; shift
  status=.venv/install.status
  { .venv/bin/python -m pip install --no-input --retries 5 "$@" 2>&1; echo $? >"$status"; } | tee -a "$log" |
    awk -v total="$total" 'total == 1 { next }
      /^(Collecting|Processing|Requirement already)/ && ++done % 40 == 0 {
        printf "  %d of %d packages fetched\n", done, total; fflush() }
      /^Installing collected/ { print "  unpacking them"; fflush() }'
  [ "$(cat "$status")" = 0 ]
}
fail() { tail -n 15 "$log" >&2; echo "error: $1 (whole log: $log)" >&2; exit 3; }

echo "setting up .venv from $lock"
rm -f .venv/ready-*
[ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear .venv
: >"$log"
install 1 --upgrade pip || fail "pip could not be upgraded"

if [ $kind = cpu ]; then
  if ! install 1 --no-deps "$(grep '^torch==' "$lock")"; then
    if [ -n "${TORCH_INDEX_URL:-}" ]; then
      install 1 --no-deps --index-url "$TORCH_INDEX_URL" "$(grep '^torch==' "$lock")" ||
        fail "the CPU build of torch is not at TORCH_INDEX_URL"
    else
      echo "  no CPU build of torch at the package index: taking the plain one, a CUDA build of several GB."
      echo "  To avoid it, set TORCH_INDEX_URL to PyTorch's CPU wheel index and run this again."
      install 1 "$(grep '^torch==' "$lock" | sed 's/+cpu.*//')" || fail "torch could not be installed"
    fi
  fi
fi
grep -v '^torch==.*+cpu' "$lock" >.venv/lock.txt
install "$(grep -c '^[a-z]' .venv/lock.txt)" --no-deps -r .venv/lock.txt || fail "the lock could not be installed"
install 1 --no-deps --editable . || fail "harness could not be installed"
echo "$PWD" >"$stamp"
echo "ready: .venv/bin/harness"
