"""The parser of optimised programs, on texts and programs with known answers."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_jax import hlo

# An outer loop of 3 turns, known by XLA's note, around one of 5, known by its counter.
NESTED = """\
HloModule nested, is_scheduled=true, num_partitions=8

FileNames
1 "/home/user/code/loss.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=71 end_line=71 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%inner_condition (p: (s32[], f32[7,11])) -> pred[] {
  %p = (s32[]{:T(128)}, f32[7,11]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %bound = s32[]{:T(128)} constant(5)
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

%inner_body (p: (s32[], f32[7,11])) -> (s32[], f32[7,11]) {
  %p = (s32[]{:T(128)}, f32[7,11]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %x = f32[7,11]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %all-reduce.1 = f32[7,11]{1,0:T(8,128)} all-reduce(%x), channel_id=1, \
replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=%add, \
metadata={op_name="jit(f)/while/psum" stack_frame_id=1}
  ROOT %t = (s32[]{:T(128)}, f32[7,11]{1,0:T(8,128)}) tuple(%i, %all-reduce.1)
}

%outer_condition (p: (s32[], f32[7,11])) -> pred[] {
  %p = (s32[], f32[7,11]{1,0}) parameter(0)
  ROOT %unknown = pred[] custom-call(%p), custom_call_target="any"
}

%outer_body (p: (s32[], f32[7,11])) -> (s32[], f32[7,11]) {
  %p = (s32[], f32[7,11]{1,0}) parameter(0)
  ROOT %inner = (s32[], f32[7,11]{1,0}) while(%p), condition=%inner_condition, \
body=%inner_body
}

ENTRY %main (x: (s32[], f32[7,11])) -> (s32[], f32[7,11]) {
  %x = (s32[], f32[7,11]{1,0}) parameter(0)
  ROOT %outer = (s32[], f32[7,11]{1,0}) while(%x), condition=%outer_condition, \
body=%outer_body OUTER_NOTE
}
"""
NOTE = ', backend_config={"known_trip_count":{"n":"3"},"known_init_step":{"init":"0"}}'


def entry(*lines: str, num_devices: int = 8) -> str:
    """A module with these lines in its entry computation."""
    body = "".join(f"  {line}\n" for line in lines)
    return (
        f"HloModule test, num_partitions={num_devices}\n\n"
        f"ENTRY %main (x: f32[2,3]) -> f32[2,3] {{\n{body}}}\n"
    )


def only(text: str) -> hlo.Collective:
    """The one collective of a module."""
    (collective,) = hlo.collectives(hlo.parse(text))
    return collective


def test_a_collective_in_nested_loops_runs_as_often_as_both_turn():
    collective = only(NESTED.replace("OUTER_NOTE", NOTE))
    assert collective.kind == "all-reduce"
    assert collective.executions == 3 * 5
    assert collective.group == (0, 1, 2, 3)
    assert collective.num_bytes == 7 * 11 * 4
    assert collective.sent_bytes == 15 * 2 * 308 * 3 / 4
    assert collective.origin == "jit(f)/while/psum loss.py:71"


@pytest.mark.parametrize("turns", [1, 13])
def test_a_loop_that_ends_by_its_data_turns_as_often_as_the_caller_says(turns: int):
    program = hlo.parse(NESTED.replace("OUTER_NOTE", ""), unknown_trips=turns)
    (collective,) = hlo.collectives(program)
    assert collective.executions == turns * 5


@pytest.mark.parametrize(
    ("groups", "first"),
    [
        ("{{0,1},{2,3}}", (0, 1)),
        ("{{0,2},{1,3}}", (0, 2)),
        ("{}", tuple(range(8))),
        ("[1,8]<=[8]", tuple(range(8))),
        ("[2,4]<=[8]", (0, 1, 2, 3)),
        ("[4,2]<=[2,4]T(1,0)", (0, 4)),
        ("[2,4]<=[2,2,2]T(1,0,2)", (0, 1, 4, 5)),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", (0, 1, 4, 5)),
        ("mesh['a'=2,'b'=4] {'b'}", (0, 1, 2, 3)),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}", (0, 1)),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", (0, 2, 4, 6)),
        ("mesh['a'=8,'b'=1] {'a':(1)2}", (0, 4)),
        ("mesh['a'=8,'b'=1] {'a':(2)4}", (0, 1, 2, 3)),
    ],
)
def test_groups_are_read_in_every_notation(groups: str, first: tuple[int, ...]):
    text = entry(
        "%x = f32[2,3]{1,0} parameter(0)",
        f"ROOT %r = f32[2,3]{{1,0}} all-reduce(%x), replica_groups={groups}, "
        "use_global_device_ids=true, to_apply=%add",
    )
    assert only(text).group == first


def test_an_asynchronous_pair_counts_once():
    text = entry(
        "%x = bf16[2,3]{1,0} parameter(0)",
        "%s = (bf16[2,3]{1,0}, bf16[16,3]{1,0}) all-gather-start(%x), channel_id=1, "
        "replica_groups=[1,8]<=[8], dimensions={0}",
        "ROOT %d = bf16[16,3]{1,0} all-gather-done(%s)",
    )
    collective = only(text)
    assert collective.kind == "all-gather"
    assert collective.num_bytes == 16 * 3 * 2
    assert collective.sent_bytes == 96 * 7 / 8


def test_all_members_of_a_tuple_count():
    text = entry(
        "%x = f32[2,3]{1,0} parameter(0)",
        "%y = bf16[5]{0} parameter(1)",
        "ROOT %r = (f32[2,3]{1,0}, /*index=1*/bf16[5]{0}) all-reduce(%x, "
        "/*index=1*/%y), replica_groups={{0,1,2,3}}, to_apply=%add",
    )
    collective = only(text)
    assert [str(shape) for shape in collective.shapes] == ["f32[2,3]", "bf16[5]"]
    assert collective.num_bytes == 24 + 10


@pytest.mark.parametrize(
    ("kind", "attributes", "sent"),
    [
        ("reduce-scatter", "replica_groups={{0,1,2}}, dimensions={0}", 24 * 2 / 3),
        ("all-to-all", "replica_groups={{0,1,2}}, dimensions={0}", 24 * 2 / 3),
        ("collective-permute", "source_target_pairs={{0,1},{1,2},{2,0}}", 24),
    ],
)
def test_what_a_ring_sends(kind: str, attributes: str, sent: float):
    text = entry(
        "%x = f32[2,3]{1,0} parameter(0)",
        f"ROOT %r = f32[2,3]{{1,0}} {kind}(%x), {attributes}",
    )
    assert only(text).sent_bytes == pytest.approx(sent)


def test_the_parts_of_a_fused_collective_count_once():
    part = (
        "%NAME (x: f32[2,3]) -> f32[16,3] {\n"
        "  %x = f32[2,3]{1,0} parameter(0)\n"
        "  ROOT %g = f32[16,3]{1,0} all-gather(%x), channel_id=7, "
        "replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}\n}\n"
    )
    fusions = entry(
        "%x = f32[2,3]{1,0} parameter(0)",
        "%a = f32[16,3]{1,0} fusion(%x), kind=kCustom, calls=%start",
        "ROOT %b = f32[16,3]{1,0} fusion(%x), kind=kCustom, calls=%end",
    )
    text = part.replace("NAME", "start") + part.replace("NAME", "end") + fusions
    assert only(text + "num_partitions=8").executions == 1


def test_an_all_reduce_fused_with_its_slice_is_a_reduce_scatter():
    text = (
        "%all-reduce-scatter.1 (x: f32[16,3]) -> f32[2,3] {\n"
        "  %x = f32[16,3]{1,0} parameter(0)\n"
        "  %a = f32[16,3]{1,0} all-reduce(%x), channel_id=7, "
        "replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add\n"
        "  %i = s32[] constant(0)\n"
        "  ROOT %s = f32[2,3]{1,0} dynamic-slice(%a, %i, %i), "
        "dynamic_slice_sizes={2,3}\n}\n"
    ) + entry(
        "%x = f32[16,3]{1,0} parameter(0)",
        "ROOT %f = f32[2,3]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1",
    )
    collective = only(text)
    assert collective.kind == "reduce-scatter"
    assert collective.sent_bytes == 16 * 3 * 4 * 7 / 8


def test_a_convolution_counts_only_pairs_that_meet():
    # 7 places with one of padding on both sides, a window of 3: 3 * 7 - 2 pairs.
    text = entry(
        "%x = f32[2,7,5]{2,1,0} parameter(0)",
        "%w = f32[3,5,11]{2,1,0} parameter(1)",
        "ROOT %c = f32[2,7,11]{2,1,0} convolution(%x, %w), "
        "window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f",
    )
    assert hlo.product_flops(hlo.parse(text)) == 2 * 2 * 5 * 11 * 19


def test_a_cublas_call_counts_as_its_product():
    text = entry(
        "%x = bf16[7,5]{1,0} parameter(0)",
        "%w = bf16[5,11]{1,0} parameter(1)",
        "ROOT %c = (f32[7,11]{1,0}, s8[4096]{0}) custom-call(%x, %w), "
        'custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":'
        '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}',
    )
    assert hlo.product_flops(hlo.parse(text)) == 2 * 7 * 5 * 11


def test_traffic_leaves_out_buffers_on_the_chip_and_unread_parts():
    text = (
        "%slices (x: f32[100,3], i: s32[]) -> f32[2,3] {\n"
        "  %x = f32[100,3]{1,0} parameter(0)\n"
        "  %i = s32[] parameter(1)\n"
        "  ROOT %s = f32[2,3]{1,0} dynamic-slice(%x, %i, %i), "
        "dynamic_slice_sizes={2,3}\n}\n"
    ) + entry(
        "%x = f32[100,3]{1,0} parameter(0)",
        "%i = s32[]{:S(1)} parameter(1)",
        "%part = f32[2,3]{1,0:S(1)} fusion(%x, %i), kind=kLoop, calls=%slices",
        "ROOT %r = f32[2,3]{1,0} negate(%part)",
    )
    # Read 2 x 3 of x; written 2 x 3 of the result.
    assert hlo.memory_bytes(hlo.parse(text)) == 24 + 24


def test_largest_buffers_leave_out_parameters_and_results():
    text = entry(
        "%x = f32[100]{0} parameter(0)",
        "%a = f32[7,11]{1,0} broadcast(%x)",
        "%b = f32[7,11]{1,0} negate(%a)",
        "%c = f32[5]{0} negate(%b)",
        "ROOT %r = f32[90]{0} negate(%c)",
    )
    buffers = hlo.largest_buffers(hlo.parse(text), 3, at_least=24)
    assert [(str(x.shape), x.num_results) for x in buffers] == [("f32[7,11]", 2)]


def test_a_real_program_has_the_products_and_messages_of_its_arithmetic():
    # x [rows, m] @ w [m, m], five times; rows are shared by 8 devices, and the
    # gradient of w is summed over them: 2 (4 m^2) 7/8 bytes from each.
    rows, m, turns = 24, 17, 5
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, length=turns)
        return jnp.sum(x)

    whole, shared = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    compiled = (
        jax.jit(jax.grad(loss), out_shardings=whole)
        .lower(
            jax.ShapeDtypeStruct((m, m), np.float32, sharding=whole),
            jax.ShapeDtypeStruct((rows, m), np.float32, sharding=shared),
        )
        .compile()
    )
    text = compiled.as_text()
    assert text is not None
    program = hlo.parse(text)
    # One product forward and two backward, of 3 rows on each device.
    assert hlo.product_flops(program) == 3 * turns * 2 * (rows / 8) * m * m
    collectives = hlo.collectives(program)
    assert {x.kind for x in collectives} == {"all-reduce"}
    assert {x.group for x in collectives} == {tuple(range(8))}
    once = 2 * 4 * m * m * 7 / 8
    # XLA may sum after the loop or in each of its turns.
    assert sum(x.sent_bytes for x in collectives) in (once, turns * once)
    assert hlo.memory_bytes(program) > 0
    assert re.search(r"while\(", text)
