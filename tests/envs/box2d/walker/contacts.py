"""Contacts: fat boxes that tell which there are, their manifolds, and what the environment hears of them."""

from __future__ import annotations

import numpy as np
from numba import njit

from tests.envs.box2d.walker.collision import collide_edge
from tests.envs.box2d.walker.polygons import collide_polygons
from tests.envs.box2d.walker.records import (
    BOX_EXTENSION,
    RADIUS,
    TWO,
    ZERO,
    greatest,
    least,
    origin,
    rotation,
    transform,
)

# --- Broad phase ------------------------------------------------------------------------------------------------------


@njit
def box_at(body, p, q, box):
    """The bounds of a body's polygon at a transform, with the radius."""
    x, y = transform(p, q, body.vertices[0])
    left, bottom, right, top = x, y, x, y
    for i in range(1, body.n):
        x, y = transform(p, q, body.vertices[i])
        left, bottom, right, top = least(left, x), least(bottom, y), greatest(right, x), greatest(top, y)
    box[0], box[1], box[2], box[3] = left - RADIUS, bottom - RADIUS, right + RADIUS, top + RADIUS


@njit
def grow_box(body):
    """b2Body::SynchronizeFixtures: a new fat box where the old one does not hold the whole sweep."""
    q = rotation(body.a0)
    p = origin(body.c0, q, body.center)
    box, after = np.empty(4, np.float32), np.empty(4, np.float32)
    box_at(body, p, q, box)
    box_at(body, body.p, body.q, after)
    for i in range(2):
        box[i], box[2 + i] = least(box[i], after[i]), greatest(box[2 + i], after[2 + i])
    fat = body.box
    if fat[0] <= box[0] and fat[1] <= box[1] and box[2] <= fat[2] and box[3] <= fat[3]:
        return
    body.moved = True
    for i in range(2):
        ahead = TWO * (body.p[i] - p[i])
        low, high = box[i] - BOX_EXTENSION, box[2 + i] + BOX_EXTENSION
        fat[i], fat[2 + i] = (low + ahead, high) if ahead < ZERO else (low, high + ahead)


@njit
def overlap(a, b):
    return not (b[0] - a[2] > ZERO or b[1] - a[3] > ZERO or a[0] - b[2] > ZERO or a[1] - b[3] > ZERO)


@njit
def wake(body):
    if not body.awake:
        body.awake = True
        body.sleep = ZERO


@njit
def find_contacts(w):
    """New contacts of the bodies whose boxes moved, in order of (ground, body), as b2BroadPhase sorts its pairs."""
    for e in range(len(w.grounds)):
        for b in range(len(w.bodies)):
            body = w.bodies[b]
            if not body.moved or not overlap(w.grounds[e].box, body.box):
                continue
            known = False
            n = w.n_contacts[0]
            for k in range(n):
                known = known or (w.contacts[k].body == b and w.contacts[k].ground == e)
            if known:
                continue
            contact = w.contacts[n]
            contact.body, contact.ground, contact.kind, contact.count = b, e, 0, 0
            contact.touching, contact.enabled, contact.in_island = False, True, False
            contact.toi_known, contact.toi_count = False, 0
            w.n_contacts[0] = n + 1
            wake(body)
    for b in range(len(w.bodies)):
        w.bodies[b].moved = False


# --- Contacts ---------------------------------------------------------------------------------------------------------


@njit
def report(w, b, begins):
    """The environment's listener."""
    w.legs[b] = begins
    if b == 0 and begins:
        w.fallen[0] = True


@njit
def update_contact(w, k):
    """b2Contact::Update: a new manifold, on whose points impulses go on by id."""
    contact = w.contacts[k]
    body, ground = w.bodies[contact.body], w.grounds[contact.ground]
    old_count, old_ids, old_impulse = contact.count, contact.ids.copy(), contact.impulse.copy()
    contact.enabled = True
    p, q = (body.p[0], body.p[1]), (body.q[0], body.q[1])
    if ground.n == 2:
        kind, count = collide_edge(ground, body, p, q, contact)
    else:
        kind, count = collide_polygons(ground, body, p, q, contact)
    if count > 0:
        contact.kind = kind
    contact.count = count
    for i in range(count):
        contact.impulse[i, 0] = contact.impulse[i, 1] = ZERO
        for j in range(old_count):
            if old_ids[j] == contact.ids[i]:
                contact.impulse[i] = old_impulse[j]
                break
    touching = count > 0
    if touching != contact.touching:
        wake(body)
        contact.touching = touching
        report(w, contact.body, touching)


@njit
def destroy_contact(w, k):
    contact = w.contacts[k]
    if contact.touching:
        report(w, contact.body, False)
    if contact.count > 0:
        wake(w.bodies[contact.body])
    for i in range(k, w.n_contacts[0] - 1):
        w.contacts[i] = w.contacts[i + 1]
    w.n_contacts[0] -= 1


@njit
def collide(w):
    """b2ContactManager::Collide, the newest first."""
    for k in range(w.n_contacts[0] - 1, -1, -1):
        contact = w.contacts[k]
        body = w.bodies[contact.body]
        if not body.awake:
            continue
        if overlap(w.grounds[contact.ground].box, body.box):
            update_contact(w, k)
        else:
            destroy_contact(w, k)
