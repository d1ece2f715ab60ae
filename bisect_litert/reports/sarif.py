"""SARIF 2.1.0 for code scanning: each culprit as a result at its source line."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from bisect_litert.record import Culprit, RunRecord
from bisect_litert.reports.outcome import cause_words, exit_code
from bisect_litert.vocabulary import Cause

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render(record: RunRecord) -> str:
    """Returns the run as SARIF; a run without a culprit is an empty list of results."""
    found = [(culprit.cause, _result(culprit, record)) for culprit in record.culprits]
    if not found and record.verdict.diverged:
        whole = {"ruleId": str(record.verdict.cause), "level": "error", "message": {"text": record.verdict.summary}}
        found = [(record.verdict.cause, whole)]
    causes = list(dict.fromkeys(cause for cause, _ in found))
    rules = [{"id": str(cause), "shortDescription": {"text": cause_words(cause)}} for cause in causes]
    driver = {
        "name": "bisect-litert",
        "version": record.environment.get("bisect-litert", "unknown"),
        "rules": rules,
    }
    invocation: dict[str, Any] = {"executionSuccessful": exit_code(record) != 125}
    if not invocation["executionSuccessful"]:
        said = {"level": "error", "message": {"text": record.verdict.summary}}
        invocation["toolExecutionNotifications"] = [said]
    device = {name: value for name, value in record.environment.items() if name.startswith("device")}
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "results": [result for _, result in found],
        "properties": {"target": record.target, "adapter": record.placement.adapter or "none", **device},
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _result(culprit: Culprit, record: RunRecord) -> dict[str, Any]:
    words = cause_words(culprit.cause, culprit.kind)
    sentences = [f"{culprit.block}: {words}.", *culprit.evidence, *culprit.proof, culprit.advice]
    location: dict[str, Any] = {
        "logicalLocations": [{"fullyQualifiedName": culprit.module or culprit.block, "kind": "module"}]
    }
    file, colon, line = culprit.source.rpartition(":")
    if colon and line.isdigit() and int(line) > 0:
        location["physicalLocation"] = {
            "artifactLocation": {"uri": quote(file)},
            "region": {"startLine": int(line)},
        }
    return {
        "ruleId": str(culprit.cause),
        "level": "error" if culprit.cause is not Cause.NONE else "note",
        "message": {"text": " ".join(s for s in sentences if s)},
        "locations": [location],
        "partialFingerprints": {"block/v1": f"{record.model}:{culprit.block}:{culprit.cause}"},
    }
