"""JUnit XML for CI: one test case per block, a failure for each culprit."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from bisect_litert.record import RunRecord
from bisect_litert.reports import formats
from bisect_litert.reports.outcome import cause_words, exit_code, headline
from bisect_litert.vocabulary import Mark

SKIPPED = {Mark.UNTAPPED: "has no tap of its own", Mark.UNKNOWN: "its inputs on the GPU were not finite, or missing"}
MODEL_CASE = "(model)"


def render(record: RunRecord) -> str:
    """Returns the run as JUnit XML, in the dialect that Jenkins's schema describes."""
    seconds = f"{record.seconds:.3f}"
    suite = Xml.Element("testsuite", {"name": clean(record.model), "time": seconds})
    suite.set("timestamp", record.started.partition("+")[0].rstrip("Z"))  # the schema knows no time zone
    properties = Xml.SubElement(suite, "properties")
    for name, value in {**record.environment, "adapter": record.placement.adapter, "target": record.target}.items():
        Xml.SubElement(properties, "property", {"name": clean(name), "value": clean(value)})
    failures = skipped = 0
    for block in record.blocks:
        case = Xml.SubElement(suite, "testcase", {"name": clean(block.name), "classname": clean(block.class_name)})
        mine = [c for c in record.culprits if c.block == block.name]
        if mine:
            failures += 1
            lines = [line for c in mine for line in (*c.evidence, *c.proof, c.source, c.advice) if line]
            what = ", ".join(cause_words(c.cause, c.kind) for c in mine)
            failure = Xml.SubElement(case, "failure", {"type": str(mine[0].cause), "message": clean(what)})
            failure.text = clean("\n".join(lines))
        elif block.mark in SKIPPED:
            skipped += 1
            Xml.SubElement(case, "skipped", {"message": SKIPPED[block.mark]})
    case = Xml.SubElement(suite, "testcase", {"name": MODEL_CASE, "classname": clean(record.model), "time": seconds})
    named = {block.name for block in record.blocks}
    errors = 0
    if exit_code(record) == 125:
        errors = 1
        error = Xml.SubElement(case, "error", {"type": str(record.verdict.cause), "message": clean(headline(record))})
        error.text = clean(record.verdict.summary)
    elif record.verdict.diverged and not any(c.block in named for c in record.culprits):
        failures += 1
        failure = Xml.SubElement(case, "failure", {"type": str(record.verdict.cause), "message": headline(record)})
        failure.text = clean(record.verdict.summary)
    counts = {"tests": len(record.blocks) + 1, "failures": failures, "errors": errors, "skipped": skipped}
    for name, count in counts.items():
        suite.set(name, str(count))
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def clean(text: str) -> str:
    """Returns text that XML can hold."""
    # XML has no way to write most control characters; lone surrogates and two others cannot be written either.
    flat = formats.clean(text)
    return "".join("\N{REPLACEMENT CHARACTER}" if "\ud800" <= c <= "\udfff" or c in "\ufffe\uffff" else c for c in flat)
