"""One step of a world, in the order of `b2World::Step`: contacts, the island, times of impact."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tests.envs.box2d.walker.contacts import collide, find_contacts, grow_box, update_contact, wake
from tests.envs.box2d.walker.impact import TOUCHING, time_of_impact
from tests.envs.box2d.walker.records import (
    ANGULAR_SLEEP,
    BAUMGARTE,
    EPSILON,
    LARGEST,
    LINEAR_SLEEP,
    MAX_ROTATION,
    MAX_TRANSLATION,
    ONE,
    SLOP,
    TIME_TO_SLEEP,
    TOI_BAUMGARTE,
    ZERO,
    f,
    least,
    origin,
    rotation,
    set2,
)
from tests.envs.box2d.walker.solver import (
    CONSTRAINT,
    correct_contact,
    correct_joint,
    prepare_contact,
    prepare_joint,
    solve_contact,
    solve_joint,
    warm_start,
)

TOO_MANY_EVENTS = 8
SOLVED, TOI_SOLVED = f(f(-3) * SLOP), f(f(-1.5) * SLOP)


# --- Motion -----------------------------------------------------------------------------------------------------------


@njit
def place(body):
    """b2Body::SynchronizeTransform."""
    q = rotation(body.a)
    set2(body.q, q)
    set2(body.p, origin(body.c, q, body.center))


@njit
def advance_sweep(body, alpha):
    """b2Sweep::Advance."""
    beta = (alpha - body.alpha0) / (ONE - body.alpha0)
    for i in range(2):
        body.c0[i] = (ONE - beta) * body.c0[i] + beta * body.c[i]
    body.a0 = (ONE - beta) * body.a0 + beta * body.a
    body.alpha0 = alpha


@njit
def integrate(body, h):
    """Positions from velocities, which are clamped."""
    x, y = h * body.v[0], h * body.v[1]
    if x * x + y * y > MAX_TRANSLATION * MAX_TRANSLATION:
        ratio = MAX_TRANSLATION / math.sqrt(x * x + y * y)
        body.v[0] *= ratio
        body.v[1] *= ratio
    turn = h * body.w
    if turn * turn > MAX_ROTATION * MAX_ROTATION:
        body.w *= MAX_ROTATION / abs(turn)
    body.c[0] += h * body.v[0]
    body.c[1] += h * body.v[1]
    body.a += h * body.w


@njit
def solve(w, h, gravity, ratio, velocity_iterations, position_iterations):
    """b2World::Solve and b2Island::Solve: all bodies are one island, as joints hold them together."""
    for b in range(len(w.bodies)):
        body = w.bodies[b]
        body.c0[:], body.a0 = body.c, body.a
        body.v[0] = body.v[0] + h * (body.inv_m * body.force[0])
        body.v[1] = body.v[1] + h * (gravity + body.inv_m * body.force[1])
        body.w = body.w + h * body.inv_i * body.torque
    constraints = np.zeros(len(w.contacts), CONSTRAINT)
    n = 0
    for b in w.island:
        for k in range(w.n_contacts[0] - 1, -1, -1):
            contact = w.contacts[k]
            if contact.body == b and contact.touching and contact.enabled:
                prepare_contact(w, k, constraints[n], True, ratio)
                n += 1
    for i in range(n):
        warm_start(w, constraints[i])
    for j in w.island_joints:
        prepare_joint(w, j, ratio)
    for _ in range(velocity_iterations):
        for j in w.island_joints:
            solve_joint(w, j, h)
        for i in range(n):
            solve_contact(w, constraints[i])
    for i in range(n):
        constraint = constraints[i]
        for j in range(constraint.count):
            w.contacts[constraint.contact].impulse[j] = constraint.impulse[j]
    for b in range(len(w.bodies)):
        integrate(w.bodies[b], h)
    solved = False
    w.counts[0], w.counts[1] = n, 0
    for _ in range(position_iterations):
        w.counts[1] += 1
        worst = ZERO
        for i in range(n):
            worst = least(worst, correct_contact(w, constraints[i].contact, BAUMGARTE))
        solved = worst >= SOLVED
        for j in w.island_joints:
            within = correct_joint(w, j)
            solved = solved and within
        if solved:
            break
    slowest = LARGEST
    for b in range(len(w.bodies)):
        body = w.bodies[b]
        place(body)
        speed = body.v[0] * body.v[0] + body.v[1] * body.v[1]
        body.sleep = ZERO if body.w * body.w > ANGULAR_SLEEP or speed > LINEAR_SLEEP else body.sleep + h
        slowest = least(slowest, body.sleep)
    if slowest >= TIME_TO_SLEEP and solved:
        for b in range(len(w.bodies)):
            body = w.bodies[b]
            body.awake, body.sleep, body.w = False, ZERO, ZERO
            body.v[0] = body.v[1] = ZERO
    for b in range(len(w.bodies)):
        grow_box(w.bodies[b])
    find_contacts(w)


# --- Continuous collision ---------------------------------------------------------------------------------------------


@njit
def impact_of(w, k):
    """The time of impact of a contact, known or found now; 1 if there is none."""
    contact = w.contacts[k]
    if contact.toi_known:
        return contact.toi
    body, ground = w.bodies[contact.body], w.grounds[contact.ground]
    alpha0 = w.alpha0[ground.body]
    if alpha0 < body.alpha0:
        alpha0 = body.alpha0
        w.alpha0[ground.body] = alpha0
    elif body.alpha0 < alpha0:
        advance_sweep(body, alpha0)
    state, time = time_of_impact(ground, body, w.counts)
    contact.toi = least(alpha0 + (ONE - alpha0) * time, ONE) if state == TOUCHING else ONE
    contact.toi_known = True
    return contact.toi


@njit
def first_impact(w):
    first, first_time = -1, ONE
    for k in range(w.n_contacts[0] - 1, -1, -1):
        contact = w.contacts[k]
        if not contact.enabled or contact.toi_count > TOO_MANY_EVENTS:
            continue
        if not contact.toi_known and not w.bodies[contact.body].awake:
            continue
        time = impact_of(w, k)
        if time < first_time:
            first, first_time = k, time
    return first, first_time


@njit
def gather_island(w, first, alpha, island):
    """The contact of an event, then those of its body that touch, the newest first. Returns how many."""
    b = w.contacts[first].body
    island[0] = first
    w.contacts[first].in_island = True
    entered = np.zeros(len(w.alpha0), np.bool_)
    entered[w.grounds[w.contacts[first].ground].body] = True
    n = 1
    for k in range(w.n_contacts[0] - 1, -1, -1):
        contact = w.contacts[k]
        if contact.body != b or contact.in_island:
            continue
        other = w.grounds[contact.ground].body
        before = w.alpha0[other]
        if not entered[other]:
            w.alpha0[other] = alpha
        update_contact(w, k)
        if not contact.touching:
            w.alpha0[other] = before
            continue
        contact.in_island = True
        entered[other] = True
        island[n] = k
        n += 1
    return n


@njit
def solve_impacts(w, h, velocity_iterations):
    """b2World::SolveTOI: while there are impacts, the body of the first moves on from it, without its joints."""
    w.alpha0[:] = ZERO
    for b in range(len(w.bodies)):
        w.bodies[b].alpha0 = ZERO
    for k in range(w.n_contacts[0]):
        contact = w.contacts[k]
        contact.toi_known, contact.in_island, contact.toi_count, contact.toi = False, False, 0, ONE
    island = np.zeros(len(w.contacts), np.int64)
    constraints = np.zeros(len(w.contacts), CONSTRAINT)
    while True:
        first, alpha = first_impact(w)
        if first < 0 or ONE - f(10) * EPSILON < alpha:
            break
        contact = w.contacts[first]
        body, static = w.bodies[contact.body], w.grounds[contact.ground].body
        c0, a0, c, a, alpha0 = body.c0.copy(), body.a0, body.c.copy(), body.a, body.alpha0
        static_alpha0 = w.alpha0[static]
        w.alpha0[static] = alpha
        advance_sweep(body, alpha)
        body.c[:], body.a = body.c0, body.a0
        place(body)
        update_contact(w, first)
        contact.toi_known = False
        contact.toi_count += 1
        if not contact.touching:
            contact.enabled = False
            body.c0[:], body.a0, body.c[:], body.a, body.alpha0 = c0, a0, c, a, alpha0
            w.alpha0[static] = static_alpha0
            place(body)
            continue
        wake(body)
        w.counts[5] += 1
        n = gather_island(w, first, alpha, island)
        for _ in range(20):
            worst = ZERO
            for i in range(n):
                worst = least(worst, correct_contact(w, island[i], TOI_BAUMGARTE))
            if worst >= TOI_SOLVED:
                break
        body.c0[:], body.a0 = body.c, body.a
        for i in range(n):
            prepare_contact(w, island[i], constraints[i], False, ONE)
        for _ in range(velocity_iterations):
            for i in range(n):
                solve_contact(w, constraints[i])
        integrate(body, (ONE - alpha) * h)
        place(body)
        grow_box(body)
        for k in range(w.n_contacts[0]):
            if w.contacts[k].body == contact.body:
                w.contacts[k].toi_known = w.contacts[k].in_island = False
        find_contacts(w)


@njit
def step(w, h, gravity, ratio, velocity_iterations, position_iterations):
    """b2World::Step. `ratio` is 0 in the first step of a world, in which all fixtures are new, and 1 after it."""
    w.counts[:] = 0
    if ratio == ZERO:
        for b in range(len(w.bodies)):
            w.bodies[b].moved = True
        find_contacts(w)
    collide(w)
    awake = False
    for b in range(len(w.bodies)):
        awake = awake or w.bodies[b].awake
    if awake:
        for b in range(len(w.bodies)):
            wake(w.bodies[b])
        solve(w, h, gravity, ratio, velocity_iterations, position_iterations)
    solve_impacts(w, h, velocity_iterations)
    for b in range(len(w.bodies)):
        body = w.bodies[b]
        body.force[0] = body.force[1] = body.torque = ZERO
