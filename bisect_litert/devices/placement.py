"""Reads the GPU delegate's log: which adapter, which ops ran where, what it refused and what went wrong unsaid.

LiteRT tells these things on stderr only. `is_fully_accelerated()` is no substitute: it can be true with no op on the
GPU. Pure functions on text; the log of one job may hold several compiles (the GPU alone, then GPU and CPU), and the
last one counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMPILE = "Flatbuffer model initialized directly from incoming litert model"
_DELEGATE = "# of threads to compile kernels"
_KERNEL = "API from graph"
_REFUSALS = "Following operations are not supported by GPU delegate:"

_ADAPTER = re.compile(r"Selected adapter: (?P<name>.*?)(?:, arch=|$)")
_SOFTWARE = re.compile(r"arch=software|adapterType=CPU|llvmpipe|SwiftShader|lavapipe", re.IGNORECASE)
_SPLIT = re.compile(
    r"(?P<gpu>\d+) operations? will run on the GPU, and the remaining (?P<cpu>\d+) operations? will run.*"
)
_NOTHING = re.compile(r"No operations will run on the GPU, and all (?P<cpu>\d+) operations? will run.*")
_END_NODE = re.compile(r"Restricting \w+ delegation from node (?P<first>\d+) to node (?P<last>\d+)")
_EXCLUDED = re.compile(r"Excluding node \d+ \(.*?\) from \w+ delegation")
_ERROR = re.compile(r"^(?:E\d{4} \S+ +\d+ [\w.]+:\d+\] |ERROR: (?:\[[\w./]+:\d+\] )?)(?P<text>.+)$", re.MULTILINE)
_LOGGED = re.compile(r"[IWE]\d{4} |(?:INFO|WARNING|ERROR|Traceback)\b")
_MEMORY = re.compile(
    r"RESOURCE_EXHAUSTED|out of memory|OutOfMemory|VK_ERROR_OUT_OF_\w+_MEMORY|Failed to allocate", re.I
)
_BUILD = re.compile(r"Failed to create [\w:]*DelegateKernel\w*: (?P<text>.+)")
_FOLLOW_UP = "is invalid due to a previous error"
_VALIDATION = "Validation error: "

# What a log says when there is no usable GPU, most telling first: pattern, sentence, next step.
_NO_GPU = (
    (re.compile(r"shaderUniform\*?\w*\*?ArrayDynamicIndexing required|Vulkan \w+ (?:feature )?required\."),
     "The Vulkan driver is too old for LiteRT's GPU delegate",
     "Install a newer driver (Mesa 23.2 or later; scripts/vulkan does it on Debian and Ubuntu)."),
    (re.compile(r"Couldn't load Vulkan"),
     "The Vulkan loader (libvulkan.so.1) is missing or damaged, so LiteRT's GPU delegate found no GPU",
     "Install libvulkan1 and a driver (scripts/vulkan does it on Debian and Ubuntu)."),
    (re.compile(r"Found no drivers|VK_ERROR_INCOMPATIBLE_DRIVER"),
     "No Vulkan driver is installed, so LiteRT's GPU delegate found no GPU",
     "Install your GPU vendor's driver, or Mesa's software driver (scripts/vulkan does it on Debian and Ubuntu)."),
    (re.compile(r"Failed to detect any valid GPUs"),
     "A Vulkan driver is installed but it finds no device that it can use",
     "Check the device's permissions, or install Mesa's software driver with scripts/vulkan."),
    (re.compile(r"No (?:supported )?adapters(?: found)?"),
     "LiteRT's GPU delegate found no adapter that it accepts",
     "Run `vulkaninfo --summary` to see the drivers, or install a newer one (scripts/vulkan)."),
    (re.compile(r"\bGPU accelerator could not be loaded"),
     "LiteRT found no library of a GPU accelerator to load",
     "Put the accelerator's library beside LiteRT's own, and that folder on the library path."),
    (re.compile(r"Failed to (?:initialize|get or create delegate) \w+ environment|Failed to create device"),
     "LiteRT's GPU delegate could not open the GPU",
     "Run `vulkaninfo --summary` to see whether the driver works at all."),
)  # fmt: skip


# The same for what compiles and then does not run.
_NO_RUN = (
    (re.compile(r"No custom tensor buffer handler is registered for buffer type WebGpu"),
     "This version of LiteRT cannot hand tensors between the GPU and the CPU, so a model with ops on both does not run",
     "Use a later version (2.1.4 can), or a model of which every op runs on the GPU."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RefusedOp:
    """An op type the delegate refused for one reason."""

    op: str
    reason: str
    """The delegate's words, without the tensor's name."""
    tensors: tuple[str, ...]
    """Tensors it named; often none. Equal lines are printed once, so this may be fewer than the ops refused."""


@dataclass(frozen=True, slots=True)
class LogFindings:
    """What one job's log says."""

    adapter: str
    """Name of the GPU or of the software that stands in for it; empty when none was opened."""
    software: bool
    gpu_ops: int | None
    """None when the log does not tell: no GPU was asked for, or the compile failed."""
    cpu_ops: int | None
    line: str
    """The delegate's own placement sentence; empty when it printed none, as it does when nothing is refused."""
    refused: tuple[RefusedOp, ...]
    validation_errors: tuple[str, ...]
    """Errors that did not raise: the outputs of such a run are worthless. First lines of the root causes, each once."""
    errors: tuple[str, ...]
    """Other errors logged by the last compile and run."""
    out_of_memory: str
    """The sentence about memory, or empty."""
    no_gpu_reason: str
    """Why there is no GPU and what to do, or empty."""
    not_built: str = ""
    """The delegate's words where it took the graph and then failed to build kernels for it, or empty."""


def read(log_text: str, total_ops: int, adapter_line: str = "") -> LogFindings:
    """Reads the log of one job.

    Args:
        log_text: What the job's process wrote on stderr meanwhile.
        total_ops: Ops in the graph, for the case that all of them run on the GPU, which is not logged.
        adapter_line: The adapter's line from an earlier job of the process, which prints it only once.
    """
    last = log_text[max(log_text.rfind(_COMPILE), 0) :]
    block = last.partition(_DELEGATE)[2]
    # A file of several signatures has a subgraph for each; the first is the one that is run. What the delegate says
    # about a subgraph's placement comes before it builds that subgraph's first kernel.
    first = block.partition(_KERNEL)[0]
    selected = _ADAPTER.search(log_text) or (_ADAPTER.search(adapter_line) if block else None)
    gpu_ops, cpu_ops, line = _placement(first, block, total_ops)
    validation, errors = _errors(last)
    memory = next((error for error in (*errors, *validation) if _MEMORY.search(error)), "")
    name = selected["name"].strip() if selected else ""
    return LogFindings(
        adapter=name,
        software=bool(selected and _SOFTWARE.search(selected.string[selected.start() :].split("\n", 1)[0])),
        gpu_ops=gpu_ops,
        cpu_ops=cpu_ops,
        line=line,
        refused=_refusals(first),
        validation_errors=validation,
        errors=errors,
        out_of_memory=memory,
        no_gpu_reason="" if name else why_no_gpu(log_text),
        not_built=_not_built(block, errors) if name else "",
    )


def _not_built(block: str, errors: tuple[str, ...]) -> str:
    if "Failed to initialize kernel" not in block:
        return ""
    return next((found["text"] for error in errors if (found := _BUILD.match(error))), "Failed to initialize kernel")


def heeds(log_text: str, switch: str) -> bool:
    """Whether the delegate says that it read one of its debug switches, "LITERT_GPU_DEBUG_END_NODE set to 3"."""
    return f"{switch} set to" in log_text


def why_no_gpu(log_text: str) -> str:
    """Says in two sentences why no GPU could be opened and what to do; empty when the log shows no such trouble."""
    for pattern, sentence, step in _NO_GPU:
        if pattern.search(log_text):
            return f"{sentence}. {step}"
    return ""


def why_failed(log_text: str) -> str:
    """Says in two sentences what a run died of that compiled; empty when the log shows nothing that is known."""
    return next((f"{sentence}. {step}" for pattern, sentence, step in _NO_RUN if pattern.search(log_text)), "")


def _placement(first: str, block: str, total_ops: int) -> tuple[int | None, int | None, str]:
    failed = "Failed to create" in block or "Failed to initialize kernel" in block
    excluded = len(_EXCLUDED.findall(first))
    nothing, split, end = _NOTHING.search(first), _SPLIT.search(first), _END_NODE.search(first)
    if nothing:
        return 0, int(nothing["cpu"]), nothing[0].strip()
    if failed or not (_KERNEL in block or excluded):
        return None, None, ""
    if split:  # printed before LITERT_GPU_DEBUG_EXCLUDE_NODES takes its ops away
        return int(split["gpu"]) - excluded, int(split["cpu"]) + excluded, split[0].strip()
    wanted = min(int(end["last"]) + 1, total_ops) - int(end["first"]) if end else total_ops
    gpu = max(wanted - excluded, 0) if _KERNEL in block else 0
    return gpu, total_ops - gpu, ""


def _refusals(block: str) -> tuple[RefusedOp, ...]:
    grouped: dict[tuple[str, str], list[str]] = {}
    lines = block.partition(_REFUSALS)[2].split("\n")[1:]
    for line in lines:
        if _SPLIT.match(line) or _NOTHING.match(line) or _LOGGED.match(line):
            break
        found = re.match(r"(?P<op>[A-Z0-9_]+(?: \S+)?): (?P<rest>.+)$", line.strip())
        if not found:
            continue  # a reason of more than one line
        reason, tensor = _split_reason(found["rest"])
        names = grouped.setdefault((found["op"], reason), [])
        if tensor and tensor not in names:
            names.append(tensor)
    return tuple(RefusedOp(op, reason, tuple(names)) for (op, reason), names in grouped.items())


def _split_reason(text: str) -> tuple[str, str]:
    """Splits "Tensor dimensions must be less than 5. a/b;1" or 'Tensor "a/b" has ...' into reason and tensor name."""
    quoted = re.match(r'(?P<before>.*?\b[Tt]ensor) "(?P<name>[^"]+)"(?P<after>.*)$', text)
    if quoted:
        return quoted["before"] + quoted["after"], quoted["name"]
    # A name follows the sentence's end and has no blanks; a second sentence has.
    named = re.match(r"(?P<reason>.*[^\s.]\.) (?P<name>\S*[^\s.])$", text)
    if named:
        return named["reason"], named["name"]
    return text, ""


def _errors(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns validation errors and other errors, each once, in order."""
    validation: dict[str, None] = {}
    others: dict[str, None] = {}
    for found in _ERROR.finditer(text):
        said = found["text"].strip()
        if said.startswith(_VALIDATION):
            validation[said[len(_VALIDATION) :]] = None
        elif not said.startswith(_REFUSALS):
            others[said] = None
    roots = tuple(error for error in validation if _FOLLOW_UP not in error)
    return roots or tuple(validation), tuple(others)
