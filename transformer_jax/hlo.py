"""What an optimised XLA program does, read from its text: products, traffic, messages.

Every figure is of one device and of one run of the program: what stands in the body of
a loop counts as often as the loop turns, which `cost_analysis()` does not do.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# Instructions that only name a buffer, or whose work is counted inside what they call.
_NAMES = frozenset(
    "parameter constant tuple get-tuple-element bitcast while conditional call "
    "after-all partition-id replica-id opt-barrier iota".split()
)
_SLICES = ("slice", "dynamic-slice", "gather")
_PARTIAL = (*_SLICES, "dynamic-update-slice")  # need only a part of operand 0
_BITS = {"pred": 8, "token": 0, "opaque": 0}


@dataclasses.dataclass(frozen=True)
class Shape:
    """An array's type and where it lies."""

    dtype: str
    dims: tuple[int, ...]
    memory_space: int = 0  # 0 = the device's main memory; on TPU 1 = on the chip

    @property
    def num_bytes(self) -> int:
        """Size without padding."""
        bits = _BITS.get(self.dtype)
        if bits is None:
            bits = int(re.findall(r"\d+", self.dtype)[0])  # f32, bf16, f8e4m3fn
        return math.prod(self.dims) * bits // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]  # of the result; several of a tuple, nested ones flat
    operands: tuple[str, ...]
    attributes: str  # all that follows the operands
    is_root: bool

    @property
    def num_bytes(self) -> int:
        """Size of the result."""
        return sum(shape.num_bytes for shape in self.shapes)

    def called(self, *keys: str) -> list[str]:
        """The computations under attributes such as "body"."""
        pattern = rf"\b(?:{'|'.join(keys)})=(?:%?([\w.-]+)|\{{([^}}]*)\}})"
        found = re.findall(pattern, self.attributes)
        names = [one or many for one, many in found]
        return re.findall(r"[\w.-]+", ",".join(names))


@dataclasses.dataclass(frozen=True)
class Program:
    """A module: its computations, and how often each runs."""

    computations: Mapping[str, Mapping[str, Instruction]]  # by name, in their order
    executions: Mapping[str, int]  # of the computations that run
    fused: frozenset[str]  # those that are bodies of a fusion
    entry: str
    num_devices: int
    sources: Mapping[str, str]  # "loss.py:160" by stack_frame_id

    def running(self) -> Iterator[tuple[int, str, Instruction]]:
        """Each instruction that runs: how often, in which computation."""
        for name, times in self.executions.items():
            for instruction in self.computations[name].values():
                yield times, name, instruction

    def origin(self, instruction: Instruction) -> str:
        """The JAX operation it stems from, and the line of Python."""
        op_name = re.search(r'op_name="([^"]*)"', instruction.attributes)
        frame = re.search(r"stack_frame_id=(\d+)", instruction.attributes)
        line = self.sources.get(frame[1], "") if frame else ""
        return f"{op_name[1] if op_name else ''} {line}".strip()


@dataclasses.dataclass(frozen=True)
class Collective:
    """An exchange between devices."""

    kind: str
    group: tuple[int, ...]  # the devices of the first group, by place in the mesh
    shapes: tuple[Shape, ...]  # of the operands
    num_bytes: int  # B: of the whole array, before it is scattered, once gathered
    executions: int
    origin: str

    @property
    def sent_bytes(self) -> float:
        """Least bytes that a device sends: what a ring of n devices needs.

        2 B (n-1)/n to reduce, B (n-1)/n to gather, scatter or transpose, B to permute;
        times the executions. An all-reduce may give its sums rounded, from float32 to
        bfloat16; it counts as if the sums travelled unrounded.
        """
        n = len(self.group)
        share = (n - 1) / n if n else 0.0
        factor = {"all-reduce": 2 * share, "collective-permute": 1.0}
        return self.executions * self.num_bytes * factor.get(self.kind, share)


_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) (?:\(.*)?\{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = (.*)$")
_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](\{[^{}]*\})?")


def parse(text: str, *, unknown_trips: int = 1) -> Program:
    """The program in `text`, as `compiled.as_text()` gives it.

    Args:
      text: one module.
      unknown_trips: how often a loop turns whose end depends on the data.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", {}
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
        elif match := _LINE.match(line):
            instruction = _instruction(match[2], match[3], is_root=bool(match[1]))
            current[instruction.name] = instruction
    devices = re.search(r"num_partitions=(\d+)", text)
    executions, fused = _executions(computations, entry, unknown_trips)
    return Program(
        computations=computations,
        executions=executions,
        fused=fused,
        entry=entry,
        num_devices=int(devices[1]) if devices else 1,
        sources=_sources(text),
    )


def _closing(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes."""
    depth = 0
    for match in re.finditer(r"[()]", text[start:]):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return start + match.start()
    return len(text)


def _instruction(name: str, text: str, *, is_root: bool) -> Instruction:
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    shapes = []
    for dtype, dims, layout in _SHAPE.findall(text[:end]):
        space = re.search(r"S\((\d+)\)", layout)
        sizes = tuple(int(size.lstrip("<=")) for size in dims.split(",") if size)
        shapes.append(Shape(dtype, sizes, int(space[1]) if space else 0))
    opening = text.index("(", end)
    closing = _closing(text, opening)
    operands = re.sub(r"/\*.*?\*/", "", text[opening + 1 : closing])
    names = re.findall(r"%([\w.-]+)", operands) or re.findall(
        r"(?:^|, )([\w.-]+)", operands
    )
    return Instruction(
        name=name,
        opcode=text[end:opening].strip(),
        shapes=tuple(shapes),
        operands=tuple(names),
        attributes=text[closing + 1 :],
        is_root=is_root,
    )


def _sources(text: str) -> dict[str, str]:
    """The tables at the head of a module: stack frame -> file and line."""
    files = dict(
        re.findall(r'^(\d+) "(.*)"$', text.partition("FunctionNames")[0], re.M)
    )
    lines = {
        number: f"{files.get(file, '').rpartition('/')[2]}:{line}"
        for number, file, line in re.findall(
            r"^(\d+) \{file_name_id=(\d+) .*?line=(\d+)", text, re.M
        )
    }
    frames = re.findall(r"^(\d+) \{file_location_id=(\d+)", text, re.M)
    return {number: lines.get(location, "") for number, location in frames}


def _executions(
    computations: Mapping[str, Mapping[str, Instruction]], entry: str, unknown: int
) -> tuple[dict[str, int], frozenset[str]]:
    """How often each computation runs, and which belong to fusions.

    Each branch of a conditional counts as taken. An asynchronous pair counts at its
    start.
    """
    times: dict[str, int] = {}
    fused: set[str] = set()

    def visit(name: str, count: int, *, in_fusion: bool) -> None:
        times[name] = times.get(name, 0) + count
        if in_fusion:
            fused.add(name)
        for instruction in computations[name].values():
            if instruction.opcode.endswith(("-done", "-update")):
                continue
            turns = 1
            if instruction.opcode == "while":
                turns = _trips(instruction, computations) or unknown
            keys = ["calls", "body", "condition", "branch_computations"]
            keys += ["true_computation", "false_computation", "called_computations"]
            if instruction.opcode == "call":
                keys.append("to_apply")  # elsewhere it is one addition
            inside = in_fusion or instruction.opcode == "fusion"
            for callee in instruction.called(*keys):
                if callee in computations:
                    visit(callee, count * turns, in_fusion=inside)

    if entry:
        visit(entry, 1, in_fusion=False)
    return times, frozenset(fused)


def _trips(
    loop: Instruction, computations: Mapping[str, Mapping[str, Instruction]]
) -> int | None:
    """Turns of a while loop: XLA's own note, or the bound of a counter from zero."""
    noted = re.search(r'known_trip_count"?[:=]\{"?n"?[:=]"?(\d+)', loop.attributes)
    if noted:
        return int(noted[1])
    condition = computations[loop.called("condition")[0]]
    root = compare = next(x for x in condition.values() if x.is_root)
    for callee in root.called("calls"):
        compare = next(x for x in computations[callee].values() if x.is_root)
    bounds = [condition[x] for x in root.operands if x in condition]
    bounds = [x for x in bounds if x.opcode == "constant"]
    if (
        compare.opcode != "compare"
        or "direction=LT" not in compare.attributes
        or len(bounds) != 1
    ):
        return None
    return int(bounds[0].operands[0])


def collectives(program: Program) -> list[Collective]:
    """Every exchange between devices, in no particular order.

    Asynchronous pairs count once; so do the parts of one that TPU spreads over several
    fusions, which share its channel. TPU writes a reduce-scatter as a fusion of an
    all-reduce with a slice, named so.
    """
    found: dict[tuple[str, str], Collective] = {}
    for times, computation, instruction in program.running():
        kind = instruction.opcode.removesuffix("-start")
        if kind not in _COLLECTIVES:
            continue
        channel = re.search(r"channel_id=(\d+)", instruction.attributes)
        key = computation, instruction.name
        if computation in program.fused and channel:
            key = kind, channel[1]
        if computation.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"
        elif computation in program.fused and kind == "collective-permute":
            continue  # the edges of such a reduce-scatter
        siblings = program.computations[computation]
        shapes = sum((siblings[x].shapes for x in instruction.operands), ())
        group = _group(instruction.attributes, program.num_devices)
        num_bytes = sum(shape.num_bytes for shape in shapes)
        if kind == "all-gather":
            num_bytes *= len(group)
        found[key] = Collective(
            kind, group, shapes, num_bytes, times, program.origin(instruction)
        )
    return list(found.values())


def _group(attributes: str, num_devices: int) -> tuple[int, ...]:
    """The first group of devices, in any of the ways in which XLA writes them.

    >>> _group("replica_groups={{0,1},{2,3}}", 4)
    (0, 1)
    >>> _group("replica_groups=[2,4]<=[4,2]T(1,0)", 8)
    (0, 2, 4, 6)
    >>> _group("replica_groups=mesh['x'=2,'y'=4] {'y'}", 8)
    (0, 1, 2, 3)
    """
    if pairs := re.search(r"source_target_pairs=\{(.*?)\}\}", attributes):
        return tuple(sorted(set(map(int, re.findall(r"\d+", pairs[1])))))
    if mesh := re.search(r"replica_groups=@?mesh\[(.*?)\](.*?)\{(.*?)\}", attributes):
        axes = re.findall(r"'(.*?)'=(\d+)", mesh[1])
        sizes = [int(size) for _, size in axes]
        strides = {
            name: (int(size), math.prod(sizes[place + 1 :]))
            for place, (name, size) in enumerate(axes)
        }
        steps = []
        for name, before, part in re.findall(r"'(.*?)'(?::\((\d+)\)(\d+))?", mesh[3]):
            size, stride = strides[name]
            if part:  # a part of the axis: so many, after those that come before
                stride *= size // (int(before) * int(part))
                size = int(part)
            steps.append([place * stride for place in range(size)])
        ids = _iota(mesh[2]) or range(num_devices)
        return tuple(sorted(ids[sum(at)] for at in itertools.product(*steps)))
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]<=(\S+)", attributes):
        return tuple(_iota(iota[2])[: int(iota[1])])
    if explicit := re.search(r"replica_groups=\{\{([\d,]*)\}", attributes):
        return tuple(map(int, explicit[1].split(",")))
    return tuple(range(num_devices))


def _iota(text: str) -> list[int]:
    """Devices in the order of a shape whose axes are then transposed.

    >>> _iota("[2,3]T(1,0)")
    [0, 3, 1, 4, 2, 5]
    """
    found = re.search(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if not found:
        return []
    dims = [int(size) for size in found[1].split(",")]
    order = [int(x) for x in found[2].split(",")] if found[2] else range(len(dims))
    axes = [
        [place * math.prod(dims[axis + 1 :]) for place in range(dims[axis])]
        for axis in order
    ]
    return [sum(at) for at in itertools.product(*axes)]


def product_flops(program: Program) -> float:
    """Operations of all matrix products: 2 for each multiplied pair of numbers.

    Counts `dot`, `convolution` (what TPU makes of products) and cuBLAS calls, in
    fusions too, and nothing else. Other custom calls (cuDNN, Pallas) are not seen.
    """
    total = 0
    for times, computation, instruction in program.running():
        total += times * _product(instruction, program.computations[computation])
    return 2.0 * total


def _product(instruction: Instruction, siblings: Mapping[str, Instruction]) -> int:
    """Pairs of numbers that one instruction multiplies."""
    attributes = instruction.attributes
    if instruction.opcode == "convolution":
        left, right = (siblings[x].shapes[0].dims for x in instruction.operands[:2])
        return _convolution(attributes, left, right, instruction.shapes[0].dims)
    gemm = instruction.opcode == "custom-call" and "__cublas$" in attributes
    if instruction.opcode != "dot" and not gemm:
        return 0
    contracted = re.search(
        r'lhs_contracting_dim(?:ension)?s"?[=:][{[]([\d,"]*)', attributes
    )
    left = siblings[instruction.operands[0]].shapes[0].dims
    axes = re.findall(r"\d+", contracted[1]) if contracted else []
    sizes = [left[int(axis)] for axis in axes]
    return math.prod(instruction.shapes[0].dims) * math.prod(sizes)


def _convolution(
    attributes: str, left: Sequence[int], right: Sequence[int], out: Sequence[int]
) -> int:
    """Pairs multiplied, those with padding or between dilated places left out."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", attributes)
    assert labels, attributes
    window = dict(re.findall(r"(\w+)=([\dx_-]+)", attributes.partition("}")[0]))
    pairs = left[labels[1].index("b")] * left[labels[1].index("f")]
    pairs *= out[labels[3].index("f")]
    for axis in sorted(set(labels[1]) - set("bf")):
        place = int(axis)

        def option(name: str, default: str, place: int = place) -> int:
            values = window.get(name, "").split("x")
            value = values[place] if len(values) > place and values[place] else default
            return int(value.partition("_")[0])

        pairs *= _valid_places(
            left[labels[1].index(axis)],
            right[labels[2].index(axis)],
            out[labels[3].index(axis)],
            option("stride", "1"),
            option("pad", "0_0"),
            option("lhs_dilate", "1"),
            option("rhs_dilate", "1"),
        )
    for groups in re.findall(r"(?:feature|batch)_group_count=(\d+)", attributes):
        pairs //= int(groups)
    return pairs


@functools.cache
def _valid_places(
    left: int, right: int, out: int, stride: int, pad: int, dilate: int, spread: int
) -> int:
    """Pairs of an output and a window place that meet a number of the left side."""
    places = (x * stride - pad + y * spread for x in range(out) for y in range(right))
    end = (left - 1) * dilate + 1
    return sum(0 <= place < end and place % dilate == 0 for place in places)


def memory_bytes(program: Program) -> float:
    """Traffic with the main memory: what each instruction reads there and writes.

    Buffers on the chip (other memory spaces) are free. Of an array that a fusion only
    slices, gathers from or updates in place, the part counts.
    """
    total = 0
    for times, name, instruction in program.running():
        if name not in program.fused:
            total += times * _traffic(instruction, program, program.computations[name])
    return float(total)


def _traffic(
    instruction: Instruction, program: Program, siblings: Mapping[str, Instruction]
) -> int:
    opcode = instruction.opcode
    if opcode in _NAMES or opcode.endswith("-start"):
        return 0
    if opcode.endswith(("-done", "-update")):
        if not opcode.startswith(("copy", "slice", "dynamic", *_COLLECTIVES)):
            return 0
        # Read where the start's operand lies, written where the result lies.
        start = siblings[instruction.operands[0]]
        ends = siblings[start.operands[0]].shapes[:1] + instruction.shapes[:1]
        in_memory = sum(shape.memory_space == 0 for shape in ends)
        return in_memory * instruction.num_bytes
    body = next((program.computations[x] for x in instruction.called("calls")), {})
    written = [shape.num_bytes for shape in instruction.shapes]
    parts = _parts_written(body)
    if len(parts) == len(written):
        written = [min(*pair) for pair in zip(written, parts, strict=True)]
    total = sum(
        size
        for size, shape in zip(written, instruction.shapes, strict=True)
        if shape.memory_space == 0
    )
    parts_read = _parts_read(body)
    for place, name in enumerate(instruction.operands):
        in_memory = [x for x in siblings[name].shapes if x.memory_space == 0]
        whole = sum(shape.num_bytes for shape in in_memory)
        total += min(whole, parts_read.get(place, whole))
    return total


def _parts_written(body: Mapping[str, Instruction]) -> list[int]:
    """Bytes of each result that a fusion writes: less where it updates or passes on."""
    roots = [x for x in body.values() if x.is_root]
    if roots and roots[0].opcode == "tuple":
        roots = [body[x] for x in roots[0].operands]
    parts = []
    for root in roots:
        while root.opcode == "bitcast":
            root = body[root.operands[0]]
        size = root.num_bytes
        if root.opcode == "dynamic-update-slice":
            size = body[root.operands[1]].num_bytes
        parts.append(0 if root.opcode == "parameter" else size)
    return parts


def _parts_read(body: Mapping[str, Instruction]) -> dict[int, int]:
    """Bytes read of those parameters of a fusion of which it needs only parts."""
    parts = {}
    for parameter in body.values():
        if parameter.opcode == "parameter":
            name = parameter.name
            users = [x for x in body.values() if name in x.operands]
            if all(
                x.opcode == "tuple" or (x.opcode in _PARTIAL and x.operands[0] == name)
                for x in users
            ):
                sizes = [x.num_bytes for x in users if x.opcode in _SLICES]
                parts[int(parameter.operands[0])] = sum(sizes)
    return parts


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Results of one shape."""

    shape: Shape
    num_results: int  # instructions with it; not all of them are alive at once
    origin: str  # of the first


def largest_buffers(
    program: Program, number: int, *, at_least: int = 0
) -> list[Buffer]:
    """The largest temporary results in main memory, one entry a shape.

    Parameters and what the program returns are left out, and so is what stays inside
    a fusion.
    """
    entry = program.computations[program.entry]
    returned = {x for y in entry.values() if y.is_root for x in (y.name, *y.operands)}
    groups: dict[Shape, list[str]] = {}
    for _, name, instruction in program.running():
        is_name = instruction.opcode in _NAMES or instruction.opcode.endswith("-start")
        is_returned = name == program.entry and instruction.name in returned
        if name in program.fused or is_name or is_returned:
            continue
        for shape in set(instruction.shapes):
            if shape.memory_space == 0 and shape.num_bytes >= at_least:
                origin = program.origin(instruction)
                groups.setdefault(shape, []).append(origin)
    largest = sorted(groups, key=lambda shape: shape.num_bytes, reverse=True)[:number]
    return [Buffer(x, len(groups[x]), groups[x][0]) for x in largest]
