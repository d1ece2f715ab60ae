"""Many models against many targets, one table (docs/matrix.md).

    plan_file ─ content ─ store ─ running ─ cell_process ─ child ─ states ─ table ─ reports
    toml        keys      what    which     one child      runs    a        matrix  md csv
                          is kept where     per model      them    record   .json   xml html

A cell is one model on one target. What a model does cannot harm the matrix: cells run in child processes.
"""
