/*-------------------------------------------------------------------------
 *
 * lock.c
 *	  Named locks with an owner and an end, for workers that must not do a thing
 *	  twice at once.
 *
 * One row per lock; the unique name decides between two takers. A lock past its
 * end may be taken by anybody, and its owner has lost it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "bgw/bgw.h"

PG_FUNCTION_INFO_V1(ratchet_try_lock);
PG_FUNCTION_INFO_V1(ratchet_renew_lock);
PG_FUNCTION_INFO_V1(ratchet_unlock);

static bool write_lock(FunctionCallInfo fcinfo, RatchetQuery query, bool has_ttl);

Datum
ratchet_try_lock(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(write_lock(fcinfo, RQ_LOCK_TRY, true));
}

Datum
ratchet_renew_lock(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(write_lock(fcinfo, RQ_LOCK_RENEW, true));
}

Datum
ratchet_unlock(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(write_lock(fcinfo, RQ_LOCK_RELEASE, false));
}

/* Locks whose time has passed. */
int64
ratchet_duty_locks(TimestampTz now, TimestampTz *next)
{
	RatchetIdentity before;
	Datum		args[2] = {TimestampTzGetDatum(now), Int32GetDatum(RATCHET_DUTY_BATCH)};
	int64		expired;

	ratchet_spi_begin(&before);
	expired = (int64) ratchet_query(RQ_LOCK_EXPIRE, args, NULL);
	if (ratchet_query(RQ_LOCK_NEXT, NULL, NULL) > 0)
		ratchet_due(next, Max(now + USECS_PER_SEC, ratchet_first_time()));
	ratchet_spi_end(&before);
	return expired;
}

/* Arguments name, owner and perhaps ttl; true if the query wrote the row. */
static bool
write_lock(FunctionCallInfo fcinfo, RatchetQuery query, bool has_ttl)
{
	RatchetIdentity before;
	TimestampTz now = ratchet_now();
	Datum		args[4];
	bool		written;

	ratchet_enter(RATCHET_WORK);
	args[0] = PointerGetDatum(ratchet_arg_name(fcinfo, 0, "name", RATCHET_NAME_MAX, true));
	args[1] = PointerGetDatum(ratchet_arg_name(fcinfo, 1, "owner", RATCHET_NAME_MAX, true));
	if (has_ttl)
	{
		if (PG_ARGISNULL(2))
			ratchet_null_argument("ttl");
		args[2] = TimestampTzGetDatum(now);
		args[3] = TimestampTzGetDatum(now + ratchet_check_interval(PG_GETARG_INTERVAL_P(2), "ttl", false));
	}
	ratchet_spi_begin(&before);
	written = ratchet_query(query, args, NULL) > 0;
	if (written && has_ttl)
		ratchet_notice_due(RATCHET_DUTY_LOCKS, DatumGetTimestampTz(args[3]));
	ratchet_spi_end(&before);
	return written;
}
