# The steps stand in scripts/test, which needs a shell and Python only; these are their short names.
.PHONY: check format-check lint types imports tests format zoo

check:
	@scripts/test

format-check lint types imports tests:
	@scripts/test $@

format:
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

# Not a part of check: it takes minutes and needs a folder of cases. make zoo DIR=path/to/cases
zoo:
	.venv/bin/python benchmarks/zoo.py $(DIR)
