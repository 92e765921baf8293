"""check.py: what psycopg does by default must work: untyped parameters, and a transaction it opens by itself."""
import datetime
import uuid

import psycopg
from psycopg.types.json import Jsonb


def one(conn, sql, params=()):
    return conn.execute(sql, params).fetchone()


with psycopg.connect() as conn:             # not autocommit: the first statement begins a transaction
    job = one(conn, "SELECT ratchet.enqueue(%s, %s, %s, priority => %s, backoff_base => %s, tags => %s)",
              ("hand", Jsonb({"n": 1}), "by hand", 7, datetime.timedelta(seconds=9), ["a", "b"]))[0]
    assert isinstance(job, uuid.UUID)
    conn.rollback()
    assert one(conn, "SELECT count(*) FROM ratchet.jobs WHERE id = %s", (job,)) == (0,), "rolled back, yet there"

    for n in range(3):
        conn.execute("SELECT ratchet.enqueue(%s, %s, %s, idempotency_key => %s)", ("hand", '{"n": 2}', "by hand", f"k{n}"))
    conn.commit()

    claim = "SELECT id, token, payload, attempt FROM ratchet.claim(%s, %s, %s, lease => %s)"
    taken = conn.execute(claim, ("by hand", "me", 2, "10 s")).fetchall()
    assert [row[2:] for row in taken] == [({"n": 2}, 1)] * 2, taken
    conn.rollback()                         # as if nothing had been claimed: no attempt is used up
    again = conn.execute(claim, ("by hand", "me", 2, "10 s")).fetchall()
    assert [row[0] for row in again] == [row[0] for row in taken]
    conn.commit()

    (first, token, *_), (second, *_) = again
    assert one(conn, "SELECT ratchet.progress(%s, %s, %s, %s)", (first, token, 0.5, "half")) == (True,)
    beats = conn.execute("SELECT * FROM ratchet.heartbeat(%s, %s)", ([first, second], [token])).fetchall()
    assert beats == [(first, "ok"), (second, "ok")], beats
    assert one(conn, "SELECT ratchet.complete(%s, %s, %s)", (first, str(token), Jsonb([1, None]))) == (True,)
    assert one(conn, "SELECT ratchet.fail(%s, %s, %s, %s)", (second, token, "no", False)) == ("failed",)
    conn.commit()

    # Effects and completion in one transaction: a token that is not the lease's undoes both.
    [third] = conn.execute(claim, ("by hand", "me", 5, datetime.timedelta(minutes=1))).fetchall()
    conn.commit()
    try:
        conn.execute("INSERT INTO shipment (order_id) VALUES (%s)", (99,))
        conn.execute("SELECT ratchet.complete(%s, %s, strict => %s)", (third[0], uuid.uuid4(), True))
        raise AssertionError("a wrong token completed a job")
    except psycopg.Error as e:
        assert e.sqlstate == "RT005", e.sqlstate
        conn.rollback()
    assert one(conn, "SELECT count(*) FROM shipment WHERE order_id = %s", (99,)) == (0,)
    # fail() after an error: in a new transaction, which this statement begins.
    assert one(conn, "SELECT ratchet.fail(%s, %s, %s)", (third[0], third[1], "later")) == ("pending",)
    conn.commit()

    states = conn.execute("SELECT state, result FROM ratchet.jobs WHERE queue = %s ORDER BY state", ("by hand",)).fetchall()
    assert states == [("pending", None), ("succeeded", [1, None]), ("failed", None)], states
print("ok: psycopg's defaults")
