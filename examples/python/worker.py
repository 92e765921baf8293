"""A complete ratchet worker for psycopg 3; handlers.py is a program made with it.

It claims jobs, runs the handler of their kind, keeps the leases alive from a thread with a connection of its own, and
completes or fails each job in a transaction of its own. SIGTERM and SIGINT end it after the handler that is running; jobs
it has claimed but not begun go back to their queue. The connection comes from PGHOST, PGDATABASE, ...
"""
import argparse
import contextlib
import datetime
import os
import signal
import socket
import sys
import threading
import time
import traceback

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

LEASE_LOST = "RT005"


class GiveUp(Exception):
    """Raised by a handler: this job failed, and would fail again."""


class Skip(Exception):
    """Raised by a handler: there is nothing to do."""


class GiveBack(Exception):
    """Raised by a handler: somebody else shall do it, now or after .delay seconds. Costs no attempt."""

    def __init__(self, reason=None, delay=0):
        super().__init__(reason)
        self.delay = datetime.timedelta(seconds=delay)


class Job:
    """A claimed job: .id, .kind, .payload, .attempt, .max_attempts, .meta, .tags and the rest of ratchet.claimed."""

    def __init__(self, worker, row):
        self.__dict__.update(row)
        self.worker = worker
        self.lost = threading.Event()       # canceled, or another worker has it
        self.settled = False

    @property
    def should_stop(self):
        """For handlers that take long: time to raise GiveBack (or anything else)."""
        return self.lost.is_set() or self.worker.stop.is_set()

    def progress(self, fraction, message=None):
        self.worker.ask("SELECT ratchet.progress(%s, %s, %s, %s)", (self.id, self.token, fraction, message))

    @contextlib.contextmanager
    def completing(self, result=None):
        """One transaction for a handler's effects and the completion: both happen or neither does.

        strict raises RT005 if the lease was lost, which rolls the effects back.
        """
        with self.worker.connection().transaction():
            yield self.worker.connection()
            self.worker.connection().execute("SELECT ratchet.complete(%s, %s, %s, true)",
                                             (self.id, self.token, as_json(result)))
        self.settled = True


class Worker:
    def __init__(self, queues, handlers, name=None, batch=5, lease=60.0, poll=1.0):
        self.queues, self.handlers, self.batch, self.poll = list(queues), handlers, batch, poll
        self.name = name or f"{socket.gethostname()}.{os.getpid()}"
        self.lease = datetime.timedelta(seconds=lease)
        self.stop = threading.Event()       # asked to end
        self.ended = threading.Event()
        self.held = {}                      # id -> Job; what the heartbeat speaks for
        self.lock = threading.Lock()
        self.conn = None

    def connection(self):
        """The worker's own. Autocommit: a claim counts when it is committed, not while a transaction stays open."""
        if self.conn is None or self.conn.closed or self.conn.broken:
            self.conn = psycopg.connect(autocommit=True, row_factory=dict_row)
        return self.conn

    def ask(self, sql, params):
        """Run one statement; when the server went away, wait for it to come back for as long as a lease lasts."""
        deadline = time.monotonic() + self.lease.total_seconds()
        while True:
            try:
                return self.connection().execute(sql, params).fetchall()
            except psycopg.OperationalError:
                if self.conn is not None and not self.conn.broken or time.monotonic() > deadline:
                    raise
                self.stop.wait(self.poll)

    def run(self, mode="forever"):
        beats = threading.Thread(target=self.beat, daemon=True)
        beats.start()
        told = False
        while not self.stop.is_set():
            jobs = self.claim()
            for job in jobs:
                self.work(job)
            if mode == "once" or mode == "drain" and not jobs:
                break
            if jobs:
                told = False
            elif told:                      # told of work, and none claimed: others were faster, or we are draining
                self.stop.wait(self.poll)
                told = False
            else:
                told = self.wait()
        self.ended.set()
        beats.join()
        self.say("ended")

    def wait(self):
        """True as soon as there may be work. A short wait: only between two of them do we see that we are asked to end."""
        [row] = self.ask("CALL ratchet.wait(%s::text[], %s)", (self.queues, datetime.timedelta(seconds=self.poll)))
        return row["ready"]

    def claim(self):
        rows = self.ask("SELECT * FROM ratchet.claim(%s::text[], %s, %s, %s)",
                        (self.queues, self.name, self.batch, self.lease))
        jobs = [Job(self, row) for row in rows]
        with self.lock:
            self.held.update((job.id, job) for job in jobs)
        return jobs

    def work(self, job):
        try:
            if self.stop.is_set():
                raise GiveBack("worker stopped")
            if job.lost.is_set():
                return                      # canceled while it waited its turn
            handler = self.handlers.get(job.kind)
            if handler is None:
                raise LookupError(f"no handler for kind {job.kind}")
            result = handler(job)
            if not job.settled:
                self.settle(job, "complete", "%s, %s, %s", (as_json(result),))
        except Skip as e:
            self.settle(job, "skip", "%s, %s, %s", (str(e),))
        except GiveBack as e:
            self.settle(job, "release", "%s, %s, %s, %s", (e.delay, str(e)))
        except Exception as e:              # the handler's transaction is rolled back by now: this is a new one
            if getattr(e, "sqlstate", None) == LEASE_LOST:
                self.say(f"{job.kind}: lease lost, effects rolled back")
            else:
                self.settle(job, "fail", "%s, %s, %s, %s, detail => %s",
                            (f"{type(e).__name__}: {e}", not isinstance(e, GiveUp),
                             Jsonb({"traceback": traceback.format_exc(limit=10)})))
        finally:
            with self.lock:
                self.held.pop(job.id, None)

    def settle(self, job, function, placeholders, values):
        [row] = self.ask(f"SELECT ratchet.{function}({placeholders}) AS answer", (job.id, job.token, *values))
        job.settled = True
        # False or None: the lease was lost. Whoever has the job now does it; nothing is left to do here.
        self.say(f"{job.kind}, attempt {job.attempt}: {function} -> {row['answer']}")

    def beat(self):
        """Three times per lease, over another connection: the worker's own may be busy with a long statement."""
        conn = None
        while not self.ended.wait(self.lease.total_seconds() / 3):
            with self.lock:
                jobs = list(self.held.values())
            if not jobs:
                continue
            try:
                if conn is None or conn.closed:
                    conn = psycopg.connect(autocommit=True)
                answers = conn.execute("SELECT id, status FROM ratchet.heartbeat(%s, %s, %s)",
                                       ([j.id for j in jobs], [j.token for j in jobs], self.lease)).fetchall()
            except psycopg.OperationalError as e:
                self.say(f"no heartbeat: {e}")
                continue
            by_id = {job.id: job for job in jobs}
            for id, status in answers:
                if status in ("canceled", "lost"):
                    by_id[id].lost.set()
        if conn is not None:
            conn.close()

    def say(self, text):
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)


def as_json(value):
    return None if value is None else Jsonb(value)


def main(handlers):
    parser = argparse.ArgumentParser(description="ratchet worker")
    parser.add_argument("--once", dest="mode", action="store_const", const="once", default="forever",
                        help="end after one claim")
    parser.add_argument("--drain", dest="mode", action="store_const", const="drain", help="end when nothing is due")
    parser.add_argument("--name", help="what picked_by will say")
    parser.add_argument("--batch", type=int, default=5, help="jobs per claim")
    parser.add_argument("--lease", type=float, default=60, help="seconds")
    parser.add_argument("--poll", type=float, default=1, help="seconds, the longest wait for work before the next claim")
    parser.add_argument("queue", nargs="+", help="queues, the most important first")
    args = parser.parse_args()

    worker = Worker(args.queue, handlers, args.name, args.batch, args.lease, args.poll)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop.set())
    worker.run(args.mode)
