# The steps stand in scripts/test, which needs a shell and Python only; these are their short names.
.PHONY: check format-check lint types imports tests format zoo versions

check:
	@scripts/test

format-check lint types imports tests:
	@scripts/test $@

format:
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

# The examples under several versions of ai-edge-litert, held against what they said before; for a nightly job.
versions:
	.venv/bin/bisect-litert matrix examples/runtimes.toml --baseline examples/runtimes.json --fresh --out bisect-versions

# Not a part of check: it takes minutes and needs a folder of cases. make zoo DIR=path/to/cases
zoo:
	.venv/bin/python benchmarks/zoo.py $(DIR)
