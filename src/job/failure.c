/*-------------------------------------------------------------------------
 *
 * failure.c
 *	  A run that failed: what becomes of the job, and the record of it. The same
 *	  for a worker's fail(), a timeout and a lost worker.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "ratchet.h"

/*
 * The run used up its attempt: pending again after a delay if attempts are left,
 * failed otherwise. delay_us -1: the job's backoff.
 */
void
ratchet_row_fail(RatchetRow *row, text *error, bool retryable, int64 delay_us, TimestampTz now)
{
	int			attempt = RC_INT(row, RC_ATTEMPT);

	if (retryable && attempt < RC_INT(row, RC_MAX_ATTEMPTS))
	{
		RatchetQueue queue = ratchet_queue_settings(RC_TEXT(row, RC_QUEUE));

		if (delay_us < 0)
			delay_us = ratchet_row_backoff_us(row, &queue, attempt);
		ratchet_row_leave_running(row, RATCHET_PENDING);
		ratchet_row_set(row, RC_SCHEDULED_AT, TimestampTzGetDatum(now + delay_us));
	}
	else
		ratchet_row_finish(row, RATCHET_FAILED, now);
	ratchet_row_set(row, RC_LAST_ERROR, PointerGetDatum(error));
}

/* Add a line to the job's history. The row is as written, picked_by still there. */
void
ratchet_error_record(const RatchetRow *row, text *error, Jsonb *detail, TimestampTz now)
{
	RatchetIdentity before;
	Datum		args[7] = {
		row->value[RC_ID], row->value[RC_QUEUE], row->value[RC_ATTEMPT],
		TimestampTzGetDatum(now), row->value[RC_PICKED_BY], PointerGetDatum(error),
		PointerGetDatum(detail)
	};
	bool		nulls[7] = {false, false, false, false, row->isnull[RC_PICKED_BY], false, detail == NULL};

	ratchet_spi_begin(&before);
	(void) ratchet_query(RQ_ERROR_ADD, args, nulls);
	ratchet_spi_end(&before);
}
