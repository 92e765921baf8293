/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The worker of one database: performs the duties when they are due.
 *
 * Each duty has a time at which it is next due. It is lowered by commits (through
 * the registry) and set by the duty itself, which sees what lies ahead when it
 * has done what is due now. Below that lies the poll (bgw/polling.c), which
 * performs all duties whether due or not. Each run is a bounded transaction of
 * its own; a full batch is repeated at once; an error is logged once per episode
 * and delays its own duty only. A duty that takes long rests afterwards: from
 * polls so long that they take a twentieth of the time, half a second at most from
 * what is due. Between two transactions nothing is held.
 *
 * The worker ends by itself when the extension is gone, when the launcher asks,
 * and when somebody wants the database for himself: then it cannot get the lock
 * on the database that every session takes when it connects.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "bgw/bgw.h"

#define LOOK_MS			50		/* how often we test whether we are in somebody's way */
#define LOCKED_MS		1000	/* until we try again while the extension is being changed */
#define MAX_BATCHES		20		/* of one duty before the others have their turn */
#define COST_FACTOR		20		/* rest after a run, as a multiple of its length */
#define MAX_REST_US		(500 * 1000)	/* what is due does not wait longer for it */
#define CLOCK_WENT_BACK_US (5 * USECS_PER_MINUTE)	/* no delay of ours is that long */

/* What this worker knows about a duty. */
typedef struct Progress
{
	TimestampTz last_run;
	TimestampTz not_before;		/* rest, or backoff after errors */
	TimestampTz no_poll_before; /* rest from polls, which may be longer */
	int			failures;		/* in a row: an episode */
	int			sqlerrcode;		/* of the episode */
} Progress;

static RatchetSlot *slot;
static Progress progress[RATCHET_DUTY_COUNT];
static RatchetPolling polling;
static TimestampTz next_poll = 0;
static RatchetEnd end_reason = RATCHET_END_FAILED;

PGDLLEXPORT void ratchet_worker_main(Datum arg);

static bool attach(int index);
static void at_exit(int code, Datum arg);
static void leave(RatchetEnd reason);
static int64 step(MemoryContext context);
static void failed(const ErrorData *error);
static void leave_if_asked(TimestampTz now, bool *looking);
static void give_way(TimestampTz now);
static bool extension_present(void);
static void begin_pass(void);
static bool run_duty(RatchetDutyId duty, int64 *rows);
static bool run_batch(RatchetDutyId duty, TimestampTz now, TimestampTz *next, int64 *rows);
static void duty_failed(RatchetDutyId duty, MemoryContext context);
static void end_pass(bool polled, bool worked, const int64 *rows);
static int64 ms_to_next(TimestampTz now, bool looking);

void
ratchet_worker_main(Datum arg)
{
	Oid			database;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	if (!attach(DatumGetInt32(arg)))
		proc_exit(0);
	database = slot->database;
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
	ratchet_session_pin();
	pgstat_report_appname("ratchet worker");
	ratchet_polling_init(&polling, ratchet_now());
	ratchet_loop("RatchetWorker", step, failed);
}

/* Take the slot, if it is still the one that we were started for. */
static bool
attach(int index)
{
	uint32		generation;
	bool		mine;

	memcpy(&generation, MyBgworkerEntry->bgw_extra, sizeof(generation));
	slot = &ratchet_registry->slots[index];
	before_shmem_exit(at_exit, (Datum) 0);
	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	mine = slot->state == RATCHET_SLOT_STARTING && slot->generation == generation;
	if (mine)
	{
		slot->state = RATCHET_SLOT_RUNNING;
		slot->since = ratchet_now();
		slot->pid = MyProcPid;
		pg_atomic_write_u32(&slot->procno, RATCHET_MY_PROC_NUMBER);
	}
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
	return mine;
}

static void
at_exit(int code, Datum arg)
{
	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	if (slot->state == RATCHET_SLOT_RUNNING && slot->pid == MyProcPid)
		ratchet_slot_end(slot, end_reason, ratchet_now());
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
	ratchet_latch_set(&ratchet_registry->launcher_procno);
}

static void
leave(RatchetEnd reason)
{
	end_reason = reason;
	proc_exit(0);
}

static int64
step(MemoryContext context)
{
	int64		rows[RATCHET_DUTY_COUNT] = {0};
	TimestampTz now = ratchet_now();
	bool		poked = pg_atomic_exchange_u32(&slot->poked, 0) != 0;
	bool		worked = false;
	bool		polls;
	bool		looking;

	leave_if_asked(now, &looking);
	if (ratchet_loop_reloaded() || poked)
	{
		ratchet_polling_wake(&polling, now);
		next_poll = now;
	}
	polls = next_poll <= now || next_poll - now > CLOCK_WENT_BACK_US;
	for (int duty = 0; duty < RATCHET_DUTY_COUNT; duty++)
	{
		Progress   *own = &progress[duty];
		bool		due = (TimestampTz) pg_atomic_read_u64(&slot->due[duty]) <= now;
		bool		rested = own->no_poll_before <= now || own->no_poll_before - now > CLOCK_WENT_BACK_US;
		bool		polled = polls && rested && (poked || own->last_run > now ||
									   now - own->last_run >= ratchet_duties[duty].period_ms * INT64CONST(1000));

		if (!(due || polled) || (own->not_before > now && own->not_before - now <= CLOCK_WENT_BACK_US))
			continue;
		if (!worked)
			begin_pass();
		worked = true;
		if (!run_duty((RatchetDutyId) duty, &rows[duty]))
			next_poll = Max(next_poll, now + LOCKED_MS * 1000);
		leave_if_asked(ratchet_now(), &looking);
	}
	if (worked || polls)
		end_pass(polls, worked, rows);
	return ms_to_next(ratchet_now(), looking);
}

static void
failed(const ErrorData *error)
{
	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	ratchet_error_note(slot->last_error, &slot->last_error_at, error->message);
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
}

static void
leave_if_asked(TimestampTz now, bool *looking)
{
	bool		asked;
	RatchetEnd	reason;

	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_SHARED);
	asked = slot->leave;
	reason = slot->leave_reason;
	*looking = slot->look_until > now;
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
	if (asked)
		leave(reason);
	if (*looking)
		give_way(now);
}

/*
 * Whoever wants the database for himself holds a lock on it that conflicts with
 * ours, and goes on holding it while he waits for us to leave. One who may not
 * have it holds it only for the moment until he is refused.
 */
static void
give_way(TimestampTz now)
{
	static TimestampTz locked_since = 0;	/* 0: it was free when we last looked */
	LOCKTAG		tag;
	bool		free;

	ratchet_loop_begin("looking for a lock on the database");
	RATCHET_DATABASE_LOCKTAG(tag, MyDatabaseId);
	free = LockAcquire(&tag, RowExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
	ratchet_loop_commit();		/* releases it */
	if (free)
		locked_since = 0;
	else if (locked_since == 0)
		locked_since = now;
	else if (now - locked_since >= LOOK_MS * 1000 / 2)
		leave(RATCHET_END_GAVE_WAY);
}

/*
 * In a transaction: the extension is there and, until its end, nobody drops it.
 * Whoever is about to drop it holds a lock that we do not wait for.
 */
static bool
extension_present(void)
{
	Oid			extension = get_extension_oid("ratchet", true);
	LOCKTAG		tag;

	if (!OidIsValid(extension))
	{
		ratchet_loop_commit();
		leave(RATCHET_END_ABSENT);
	}
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, ExtensionRelationId, extension, 0);
	return LockAcquire(&tag, AccessShareLock, false, true) != LOCKACQUIRE_NOT_AVAIL &&
		get_extension_oid("ratchet", true) == extension;
}

/* See that there is something to serve, and say that we are here for it. */
static void
begin_pass(void)
{
	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	slot->requested = false;	/* what comes later is for our successor */
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
	ratchet_loop_begin("looking for the extension");
	(void) extension_present();
	ratchet_loop_commit();
	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	slot->idle = false;
	slot->confirmed = true;
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
	ratchet_latch_set(&ratchet_registry->launcher_procno);
}

/* Perform a duty until it has nothing more to do now. False: not possible now. */
static bool
run_duty(RatchetDutyId duty, int64 *rows)
{
	Progress   *own = &progress[duty];
	TimestampTz began = ratchet_now();
	TimestampTz ended;
	TimestampTz next = DT_NOEND;
	int			batches = 0;
	int64		done = 0;
	bool		possible;

	/* Before the duty looks: what commits from now on lowers it again. */
	(void) pg_atomic_exchange_u64(&slot->due[duty], (uint64) DT_NOEND);
	do
	{
		CHECK_FOR_INTERRUPTS();
		next = DT_NOEND;
		done = 0;
		possible = run_batch(duty, ratchet_now(), &next, &done);
		*rows += done;
	} while (possible && done >= RATCHET_DUTY_BATCH && ++batches < MAX_BATCHES);

	ended = ratchet_now();
	own->last_run = ended;
	if (!possible)
		next = ended + LOCKED_MS * 1000;
	else if (done >= RATCHET_DUTY_BATCH)
		next = ended;			/* more to do, after the others */
	else
	{
		int64		rest = COST_FACTOR * Max(ended - began, 0);

		own->not_before = ended + Min(rest, MAX_REST_US);
		own->no_poll_before = ended + Min(rest, USECS_PER_MINUTE);
	}
	ratchet_slot_due(slot, duty, next);
	return possible;
}

/* One transaction of a duty, as the owner of the tables. False: try again later. */
static bool
run_batch(RatchetDutyId duty, TimestampTz now, TimestampTz *next, int64 *rows)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool possible = false;
	bool		present;

	PG_TRY();
	{
		ratchet_loop_begin(ratchet_duties[duty].name);
		present = extension_present();
		if (present)
		{
			RatchetIdentity before;

			ratchet_become_owner(&before);
			*rows = ratchet_duties[duty].perform(now, next);
			ratchet_become_caller(&before);
		}
		ratchet_loop_commit();
		possible = present;
		progress[duty].failures = 0;
	}
	PG_CATCH();
	{
		duty_failed(duty, context);
		*rows = 0;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	return possible;
}

/* Logged when an episode begins; it ends when the duty succeeds, or fails in another way. */
static void
duty_failed(RatchetDutyId duty, MemoryContext context)
{
	Progress   *own = &progress[duty];
	ErrorData  *error;

	HOLD_INTERRUPTS();
	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	if (own->failures == 0 || own->sqlerrcode != error->sqlerrcode)
	{
		errcontext("background duty \"%s\" of ratchet", ratchet_duties[duty].name);
		EmitErrorReport();
	}
	AbortOutOfAnyTransaction();
	FlushErrorState();
	QueryCancelPending = false;
	own->failures++;
	own->sqlerrcode = error->sqlerrcode;
	own->not_before = ratchet_now() + ratchet_loop_backoff_ms(own->failures) * 1000;
	failed(error);
	FreeErrorData(error);
	pgstat_report_activity(STATE_IDLE, NULL);
	RESUME_INTERRUPTS();
}

static void
end_pass(bool polled, bool worked, const int64 *rows)
{
	TimestampTz now = ratchet_now();
	int64		most = 0;

	for (int duty = 0; duty < RATCHET_DUTY_COUNT; duty++)
		most = Max(most, rows[duty]);
	if (polled)
		next_poll = now + ratchet_polling_next_ms(&polling, (double) most / RATCHET_DUTY_BATCH, now) * 1000;
	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	slot->idle = true;
	slot->mode = polling.mode;
	slot->next_pass = next_poll;
	if (worked)
	{
		slot->last_pass = now;
		slot->passes++;
		for (int duty = 0; duty < RATCHET_DUTY_COUNT; duty++)
			slot->rows[duty] += rows[duty];
	}
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
}

static int64
ms_to_next(TimestampTz now, bool looking)
{
	TimestampTz next = next_poll;

	for (int duty = 0; duty < RATCHET_DUTY_COUNT; duty++)
	{
		TimestampTz due = (TimestampTz) pg_atomic_read_u64(&slot->due[duty]);

		if (due != DT_NOEND)
			next = Min(next, Max(due, progress[duty].not_before));
	}
	if (looking)
		next = Min(next, now + LOOK_MS * 1000);
	if (next <= now)
		return 0;
	return Min((next - now + 999) / 1000, 60 * 1000);
}
