"""Many models against many targets, one table (docs/matrix.md).

    plan ─ content ─ store ─ running ─ cell_process ─ child ─ states ─ table ─ reports
    toml    keys     what is   which    one child     runs    a record  matrix   md csv
                     done      cells    per model     them    as a cell .json    xml html

A cell is one model on one target. What a model does cannot harm the matrix: cells run in child processes.
"""
