#!/usr/bin/env python3
"""Example handlers, and the worker that runs them: handlers.py [--once | --drain] QUEUE..."""
import time

from worker import GiveBack, GiveUp, Skip, main


def greet(job):
    """What a handler returns is the job's result."""
    if "name" not in job.payload:
        raise GiveUp("the payload has no name")
    return {"greeting": f"Hello {job.payload['name']}"}


def flaky(job):
    """Any other exception is a failure that is tried again, while attempts are left."""
    if job.attempt < 2:
        raise ConnectionError("no luck yet")


def maybe(job):
    raise Skip("already done by hand")


def ship(job):
    """Effects in this database belong into the transaction that completes the job."""
    with job.completing({"shipped": job.payload["order"]}) as conn:
        conn.execute("INSERT INTO shipment (order_id) VALUES (%s)", (job.payload["order"],))


def long(job):
    """A long handler looks up from time to time."""
    for n in range(3000):
        if job.should_stop:
            raise GiveBack("worker stopped")
        if n % 10 == 0:
            job.progress(n / 3000)
        time.sleep(0.1)


HANDLERS = {"greet": greet, "flaky": flaky, "maybe": maybe, "ship": ship, "long": long}

if __name__ == "__main__":
    main(HANDLERS)
