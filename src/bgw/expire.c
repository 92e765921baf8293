/*-------------------------------------------------------------------------
 *
 * expire.c
 *	  The duty that ends jobs whose expires_at has passed before a claim.
 *
 * The index job_expires holds only jobs that have a limit and are not claimed.
 * A paused one among them stays paused; it expires when it is resumed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/skey.h"

#include "ratchet.h"

int64
ratchet_duty_expire(TimestampTz now, TimestampTz *next)
{
	RatchetStore *store = ratchet_job_open();
	RatchetScan *scan = ratchet_scan_begin(store, ratchet_catalog()->job_expires, 1, false);
	ScanKeyData key;
	int64		expired = 0;

	ScanKeyEntryInitialize(&key, SK_ISNULL | SK_SEARCHNOTNULL, 1, InvalidStrategy, InvalidOid,
						   InvalidOid, InvalidOid, (Datum) 0);
	ratchet_scan_restart(scan, &key);
	while (expired < RATCHET_DUTY_BATCH && ratchet_scan_next(scan))
	{
		RatchetRow	old,
					row;

		ratchet_row_read(&old, ratchet_scan_slot(scan));
		if (RC_TIMESTAMP(&old, RC_EXPIRES_AT) > now)
		{
			/* In the index's order: no other is due earlier. */
			ratchet_due(next, RC_TIMESTAMP(&old, RC_EXPIRES_AT));
			break;
		}
		if (!ratchet_scan_entry_free(scan))
		{
			ratchet_due(next, now + RATCHET_HELD_ROW_US);
			continue;
		}
		if (ratchet_row_state(&old) != RATCHET_PENDING)
			continue;
		row = old;
		ratchet_row_finish(&row, RATCHET_EXPIRED, now);
		if (ratchet_job_update(store, ratchet_scan_slot(scan), &old, &row, now, false) == TM_Ok)
			expired++;
		else
			ratchet_due(next, now + RATCHET_HELD_ROW_US);
	}
	ratchet_scan_end(scan);
	ratchet_store_close(store);
	return expired;
}
