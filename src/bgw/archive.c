/*-------------------------------------------------------------------------
 *
 * archive.c
 *	  Moving finished jobs out of ratchet.job: insert into the archive and delete
 *	  in one transaction, so that a job is always in exactly one of the two.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/fmgroids.h"

#include "ratchet.h"

static bool due_at(const RatchetRow *row, TimestampTz *at);

/* archive_after = 0: the finishing call moves the job itself. */
bool
ratchet_archive_wants_at_once(const RatchetRow *row)
{
	RatchetState state = ratchet_row_state(row);
	RatchetQueue queue;

	if (state != RATCHET_SUCCEEDED && state != RATCHET_SKIPPED)
		return false;
	queue = ratchet_queue_settings(RC_TEXT(row, RC_QUEUE));
	return ratchet_queue_archive_after_us(&queue) == 0;
}

/* Move these jobs, unless somebody holds them; answers how many moved. */
int64
ratchet_archive_move(const pg_uuid_t *ids, int count, TimestampTz now)
{
	RatchetIdentity before;
	Datum	   *elements;
	Datum		args[2];
	int64		moved;

	if (count == 0)
		return 0;
	elements = palloc(count * sizeof(Datum));
	for (int i = 0; i < count; i++)
		elements[i] = UUIDPGetDatum(&ids[i]);
	args[0] = PointerGetDatum(construct_array(elements, count, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR));
	args[1] = TimestampTzGetDatum(now);
	ratchet_spi_begin(&before);
	moved = (int64) ratchet_query(RQ_ARCHIVE_MOVE, args, NULL);
	ratchet_spi_end(&before);
	pfree(elements);
	return moved;
}

/*
 * Finished jobs older than archive_after. The index job_left has them in the
 * order in which they left the ready index, which is never after they finished.
 */
int64
ratchet_duty_archive(TimestampTz now, TimestampTz *next)
{
	RatchetStore *store = ratchet_job_open();
	RatchetScan *scan = ratchet_scan_begin(store, ratchet_catalog()->job_left, 1, false);
	pg_uuid_t  *ids = palloc(RATCHET_DUTY_BATCH * sizeof(pg_uuid_t));
	ScanKeyData key;
	int			count = 0;

	ScanKeyInit(&key, 1, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE, TimestampTzGetDatum(now));
	ratchet_scan_restart(scan, &key);
	while (count < RATCHET_DUTY_BATCH && ratchet_scan_next(scan))
	{
		RatchetRow	row;
		TimestampTz at;

		if (!ratchet_scan_entry_free(scan))
			continue;
		ratchet_row_read(&row, ratchet_scan_slot(scan));
		if (!due_at(&row, &at))
			continue;
		if (at <= now)
			ids[count++] = *RC_UUID(&row, RC_ID);
		else
			ratchet_due(next, at);
	}
	ratchet_scan_end(scan);
	ratchet_store_close(store);
	return ratchet_archive_move(ids, count, now);
}

/*
 * When a finished job is to be archived. Failed jobs stay longer: an archived
 * one cannot be retried any more.
 */
static bool
due_at(const RatchetRow *row, TimestampTz *at)
{
	RatchetState state = ratchet_row_state(row);
	int64		keep_us;

	if (!ratchet_state_finished(state) || TIMESTAMP_NOT_FINITE(RC_TIMESTAMP(row, RC_FINISHED_AT)))
		return false;
	if (state == RATCHET_FAILED)
		keep_us = (int64) ratchet_failed_keep * USECS_PER_SEC;
	else
	{
		RatchetQueue queue = ratchet_queue_settings(RC_TEXT(row, RC_QUEUE));

		keep_us = ratchet_queue_archive_after_us(&queue);
	}
	*at = RC_TIMESTAMP(row, RC_FINISHED_AT) + keep_us;
	return true;
}
