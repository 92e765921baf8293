/*-------------------------------------------------------------------------
 *
 * upkeep.c
 *	  Duties that keep ratchet itself in order: the guard on, and the table of
 *	  business keys small.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"

#include "ratchet.h"

/*
 * pg_restore --disable-triggers and ALTER TABLE ... ENABLE TRIGGER ALL leave our
 * triggers enabled as ordinary ones. Set them to ALWAYS again, and take the
 * business keys of rows that came in meanwhile. The locks are taken only if they
 * are free: this must not queue up behind a reader, with the claims behind it.
 */
int64
ratchet_duty_guard(TimestampTz now, TimestampTz *next)
{
	RatchetIdentity before;
	SPITupleTable *found;
	uint64		off;
	int64		repaired = 0;

	ratchet_spi_begin(&before);
	off = ratchet_query(RQ_GUARD_STATE, NULL, NULL);
	found = SPI_tuptable;
	for (uint64 i = 0; i < off; i++)
	{
		bool		isnull;
		Oid			relid = DatumGetObjectId(SPI_getbinval(found->vals[i], found->tupdesc, 1, &isnull));

		if (!ConditionalLockRelationOid(relid, ShareRowExclusiveLock))
			continue;
		(void) ratchet_command(psprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s",
										SPI_getvalue(found->vals[i], found->tupdesc, 2),
										SPI_getvalue(found->vals[i], found->tupdesc, 3)));
		repaired++;
	}
	if (repaired > 0)
	{
		(void) ratchet_query(RQ_BUSINESS_KEY_REBUILD, NULL, NULL);
		ereport(LOG,
				(errmsg("ratchet: the guard was not ENABLE ALWAYS and has been set so again")));
	}
	ratchet_spi_end(&before);
	return repaired;
}

/* Rows of business keys that nobody holds. */
int64
ratchet_duty_keys(TimestampTz now, TimestampTz *next)
{
	RatchetIdentity before;
	Datum		args[1] = {Int32GetDatum(RATCHET_DUTY_BATCH)};
	int64		swept;

	ratchet_spi_begin(&before);
	swept = (int64) ratchet_query(RQ_BUSINESS_KEY_SWEEP, args, NULL);
	ratchet_spi_end(&before);
	return swept;
}
