"""The kernel for a GPU, as far as a CPU can tell: interpreted it is the plain loop, and lowered it is Triton's."""

from __future__ import annotations

import contextlib
import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxenvs.envs.box2d.lunar_lander import WORLD
from jaxenvs.physics2d import island, pallas_kernel
from jaxenvs.physics2d.kernels import in_blocks
from jaxenvs.physics2d.pallas_kernel import LANES, VARIABLE, in_registers, one_kernel

TRITON = "__gpu$xla.gpu.triton"


def halves(start: dict[str, Any], add: jax.Array) -> Any:
    """Three rounds, of a flag, a number and a table."""

    def once_more(_: Any, carry: Any) -> Any:
        number, table = carry
        return jnp.where(start["flag"], number / 2 + add, number), [number + row for row in table]

    return jax.lax.fori_loop(0, 3, once_more, (start["number"], list(start["table"])))


def halves_in_place(start: dict[str, Any], add: jax.Array) -> Any:
    number, table = halves(start, add)
    return number, jnp.stack(table)


def starts(lanes: int) -> dict[str, Any]:
    numbers = jnp.arange(lanes, dtype=jnp.float32)
    return {"flag": numbers > 2, "number": numbers, "table": numbers[:, None] + jnp.arange(3.0)}


def test_lanes_of_numbers_flags_and_tables() -> None:
    lanes = 2 * LANES + 3
    add = jnp.linspace(0, 1, lanes)
    found = one_kernel(halves, interpret=True)(starts(lanes), add)
    for one, other in zip(found, jax.vmap(halves_in_place)(starts(lanes), add), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are asked for, and JAX is thought to run on a GPU."""
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("batched", [lambda: in_registers(halves, halves_in_place), lambda: in_blocks(halves_in_place)])
def test_where_no_kernel_can_be_compiled_one_line_says_so_and_vmap_does_it(batched: Any) -> None:
    with pytest.warns(UserWarning, match="JAXENVS_PALLAS: no kernel was compiled, vmap does it: "):
        found = jax.jit(jax.vmap(batched(), (0, None)))(starts(5), jnp.float32(1))
    for one, other in zip(found, jax.vmap(halves_in_place, (0, None))(starts(5), jnp.float32(1)), strict=True):
        np.testing.assert_array_equal(one, other)


def lowered_for_cuda(function: Any, *arguments: Any) -> str:
    """The program of a GPU, which JAX makes on any machine; since 0.11 it has to be told of which."""
    where: Any = contextlib.nullcontext()
    if jax.__version_info__ >= (0, 11):
        gpu = jax.sharding.AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")
        where = jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=gpu))
    with where:
        text: str = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    return text


@pytest.mark.usefixtures("asked")
def test_a_gpu_has_kernels_if_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas_kernel, "_compiles", lambda *_: True)

    def program(start: Any, add: Any) -> Any:
        of_lanes = jax.vmap(in_registers(halves, halves_in_place), (None, 0))
        return jax.vmap(of_lanes, (0, None))(start, add), jax.vmap(in_blocks(jnp.add))(add, add)

    assert lowered_for_cuda(program, starts(5), jnp.ones(5)).count(TRITON) == 2
    monkeypatch.delenv(VARIABLE)
    assert TRITON not in lowered_for_cuda(lambda *arguments: program(*arguments), starts(5), jnp.ones(5))


def test_the_iterations_are_those_of_the_plain_loop_and_become_tritons(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the reference's states, in flight, with one contact and with two."""
    pytest.importorskip("Box2D", reason="the reference needs gymnasium[box2d]")
    pytest.importorskip("numba", reason="what reads the reference belongs to a specification that Numba compiles")
    from benchmarks.gpu.landers import island_of
    from tests.envs.box2d.lander import reference

    crash, landing = reference.play("mixed", 1, worlds=True), reference.play("mixed", 2, worlds=True)
    states = [reference.state_of(crash, step) for step in range(len(crash.actions))][-LANES:]
    states += [reference.state_of(landing, step) for step in range(len(landing.actions))][::30]
    state = reference.stacked(states)
    task = jax.jit(lambda *lanes: jax.lax.map(lambda lane: island_of(*lane), lanes))(state.world, state.edges)
    assert set(np.asarray(task.number).tolist()) == {0, 1, 2}
    # No slot of a higher number has a contact. All eight would compile for twice as long.
    world, start = dataclasses.replace(WORLD, pairs=3), task.start
    shorter = partial(jax.tree.map, lambda table: table[:, : world.pairs])
    task = task._replace(contacts=shorter(task.contacts), start=start._replace(pushes=shorter(start.pushes)))

    found = jax.jit(one_kernel(partial(island.iterate_in_registers, world), interpret=True))(task)
    expected = jax.jit(jax.vmap(partial(island.iterate_on_the_ground, world)))(task)
    assert np.abs(found.pushes.normal[0]).max() > 0.01
    jax.tree.map(np.testing.assert_array_equal, found, expected)

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert lowered_for_cuda(one_kernel(partial(island.iterate_in_registers, world)), task).count(TRITON) == 1
