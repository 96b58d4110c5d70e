# make demo   the whole job on a small real model        make test   lint, types, unit and integration tests
# make setup  .venv with the harness command in it       make check  lint, types, imports, unit tests
# make gpu    what speculation brings on this GPU
.PHONY: setup demo test check integration postgresql ssh browser gpu lock clean
bin := .venv/bin
SIZE ?= small

setup:
	@sh requirements/install.sh

demo: setup
	@$(bin)/harness demo --size $(SIZE)

check: setup
	@$(bin)/ruff format --check .
	@$(bin)/ruff check .
	@$(bin)/mypy
	@$(bin)/lint-imports
	@$(bin)/pytest

# For the store on PostgreSQL. Where it cannot be had its tests are skipped, and say so.
postgresql:
	@command -v pg_ctl >/dev/null || ls /usr/lib/postgresql/*/bin/pg_ctl >/dev/null 2>&1 || { \
	  command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq postgresql >/dev/null; } || \
	  echo "no PostgreSQL, and it could not be installed: its tests are skipped"

# For a host over ssh, which is this machine: an sshd of the tests' own, and rsync; ip for one that is cut off.
ssh:
	@{ command -v sshd || ls /usr/sbin/sshd; } >/dev/null 2>&1 && command -v rsync >/dev/null && \
	  { command -v ip || ls /usr/sbin/ip /sbin/ip; } >/dev/null 2>&1 || { \
	  command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq --no-install-recommends \
	  openssh-server openssh-client rsync iproute2 >/dev/null; } || \
	  echo "no sshd, rsync or ip, and they could not be installed: their tests are skipped"

# Two files at a time, each test and what it starts on one core.
integration: setup postgresql ssh
	@$(bin)/pytest tests/integration --integration -n 2 --dist loadfile --durations 25

# Looks at the MLflow UI and the report in a real browser; the screenshots are in build/screenshots.
browser: setup
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
	  command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "no chromium, and it could not be installed: the browser tests are skipped"
	@$(bin)/pytest tests/browser --browser

# What speculation brings on this machine's GPU: trains, measures, and writes figures; hours, called again it goes on.
gpu: setup
	@$(bin)/python benchmarks/gpu/run.py --work mlruns/gpu --limit-s 14400 --summary build/gpu.json
	@echo "figures: build/gpu.json"

test: check integration browser

lock:
	@python3 -m venv build/lock && build/lock/bin/pip install --quiet uv
	@build/lock/bin/python requirements/lock.py

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache
