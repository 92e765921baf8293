/*-------------------------------------------------------------------------
 *
 * recover.c
 *	  The duties that end a run from outside: a lease that has run out or a node
 *	  that has stopped (orphan recovery), and a run that takes too long (timeout).
 *
 * Both walk the index job_left, in which every running job stands. A row that
 * another transaction holds is left alone: an open completion wins, and if it
 * rolls back the next pass finds the row again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "access/xact.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "ratchet.h"

/*
 * Decides about a running row, and changes it. Answers the error; or NULL to
 * leave the row, with *next lowered to the time at which it will be due.
 */
typedef text *(*Judge) (RatchetRow *row, const text *node, TimestampTz now, TimestampTz *next);

static int64 end_runs(TimestampTz now, TimestampTz *next, Judge judge, const text *node);
static text *judge_lease(RatchetRow *row, const text *node, TimestampTz now, TimestampTz *next);
static text *judge_node(RatchetRow *row, const text *node, TimestampTz now, TimestampTz *next);
static text *judge_timeout(RatchetRow *row, const text *node, TimestampTz now, TimestampTz *next);
static bool lease_ended(const RatchetRow *row, TimestampTz now);
static text *give_back(RatchetRow *row, const char *why, TimestampTz now);

int64
ratchet_duty_recover(TimestampTz now, TimestampTz *next)
{
	return end_runs(now, next, judge_lease, NULL);
}

int64
ratchet_duty_timeout(TimestampTz now, TimestampTz *next)
{
	return end_runs(now, next, judge_timeout, NULL);
}

/* The node is stale: its jobs are orphans although their leases run. */
int64
ratchet_recover_node(const text *node, TimestampTz now, TimestampTz *next)
{
	return end_runs(now, next, judge_node, node);
}

static int64
end_runs(TimestampTz now, TimestampTz *next, Judge judge, const text *node)
{
	RatchetStore *store = ratchet_job_open();
	RatchetScan *scan = ratchet_scan_begin(store, ratchet_catalog()->job_left, 1, false);
	ScanKeyData key;
	int64		ended = 0;

	ScanKeyEntryInitialize(&key, SK_ISNULL | SK_SEARCHNOTNULL, 1, InvalidStrategy, InvalidOid,
						   InvalidOid, InvalidOid, (Datum) 0);
	ratchet_scan_restart(scan, &key);
	while (ended < RATCHET_DUTY_BATCH && ratchet_scan_next(scan))
	{
		RatchetRow	old,
					row;
		text	   *error;

		if (!ratchet_scan_entry_free(scan))
		{
			ratchet_due(next, now + RATCHET_HELD_ROW_US);
			continue;
		}
		ratchet_row_read(&old, ratchet_scan_slot(scan));
		if (ratchet_row_state(&old) != RATCHET_RUNNING)
			continue;
		row = old;
		error = judge(&row, node, now, next);
		if (error == NULL)
			continue;
		if (ratchet_job_update(store, ratchet_scan_slot(scan), &old, &row, now, false) != TM_Ok)
		{
			ratchet_due(next, now + RATCHET_HELD_ROW_US);
			continue;
		}
		/* The history keeps the attempt that was lost, given back or not. */
		row.value[RC_ATTEMPT] = old.value[RC_ATTEMPT];
		ratchet_error_record(&row, error, NULL, now);
		ended++;
	}
	ratchet_scan_end(scan);
	ratchet_store_close(store);
	return ended;
}

static text *
judge_lease(RatchetRow *row, const text *node, TimestampTz now, TimestampTz *next)
{
	if (lease_ended(row, now))
		return give_back(row, "lease expired", now);
	ratchet_due(next, RC_TIMESTAMP(row, RC_LEASE_EXPIRES_AT));
	return NULL;
}

static text *
judge_node(RatchetRow *row, const text *node, TimestampTz now, TimestampTz *next)
{
	text	   *own = RC_TEXT(row, RC_NODE);

	if (own == NULL || VARSIZE_ANY_EXHDR(own) != VARSIZE_ANY_EXHDR(node) ||
		memcmp(VARDATA_ANY(own), VARDATA_ANY(node), VARSIZE_ANY_EXHDR(node)) != 0)
		return NULL;
	return give_back(row, "node stopped its heartbeat", now);
}

/*
 * The worker is gone: the run does not count as an attempt but as a crash. The
 * first crash keeps the job's place; later ones delay it, lest a poison job
 * takes down one worker after another, and the last one fails it.
 */
static text *
give_back(RatchetRow *row, const char *why, TimestampTz now)
{
	int			crashes = RC_INT(row, RC_CRASHES) + 1;
	text	   *error;

	ratchet_row_set(row, RC_CRASHES, Int32GetDatum(crashes));
	ratchet_row_set(row, RC_ATTEMPT, Int32GetDatum(Max(RC_INT(row, RC_ATTEMPT) - 1, 0)));
	if (crashes >= ratchet_max_crashes)
	{
		error = cstring_to_text("crash limit reached");
		ratchet_row_finish(row, RATCHET_FAILED, now);
	}
	else
	{
		error = cstring_to_text(why);
		ratchet_row_leave_running(row, RATCHET_PENDING);
		if (crashes > 1)
		{
			RatchetQueue queue = ratchet_queue_settings(RC_TEXT(row, RC_QUEUE));

			ratchet_row_set(row, RC_SCHEDULED_AT,
							TimestampTzGetDatum(now + ratchet_row_backoff_us(row, &queue, crashes)));
		}
	}
	ratchet_row_set(row, RC_LAST_ERROR, PointerGetDatum(error));
	return error;
}

/*
 * Past its end; or, when the clock was set back, with more left than the lease
 * is long: no lease outlives its length. The latter by the clock as it is now: the
 * row may have been claimed or extended since the pass began.
 */
static bool
lease_ended(const RatchetRow *row, TimestampTz now)
{
	TimestampTz expires_at = RC_TIMESTAMP(row, RC_LEASE_EXPIRES_AT);

	if (expires_at <= now)
		return true;
	return !row->isnull[RC_LEASE_US] &&
		expires_at - ratchet_now() > DatumGetInt64(row->value[RC_LEASE_US]);
}

/* A failure like any other: it uses up the attempt. */
static text *
judge_timeout(RatchetRow *row, const text *node, TimestampTz now, TimestampTz *next)
{
	RatchetQueue queue = ratchet_queue_settings(RC_TEXT(row, RC_QUEUE));
	int64		timeout_us = ratchet_row_interval_us(row, RC_TIMEOUT, queue.timeout_us);
	Interval	length = {0};
	text	   *error;

	if (timeout_us < 0)
		return NULL;
	if (now - RC_TIMESTAMP(row, RC_PICKED_AT) < timeout_us)
	{
		ratchet_due(next, RC_TIMESTAMP(row, RC_PICKED_AT) + timeout_us);
		return NULL;
	}
	length.time = timeout_us;
	error = cstring_to_text(psprintf("timed out after %s",
									 DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(&length)))));
	ratchet_row_fail(row, error, true, -1, now);
	return error;
}
