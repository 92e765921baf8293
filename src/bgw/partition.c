/*-------------------------------------------------------------------------
 *
 * partition.c
 *	  The archive's weekly partitions: making them, and dropping them when they
 *	  are old.
 *
 * A job whose week has no partition goes to the default partition, so finishing
 * never fails for want of one; the duty then makes the partition and moves the
 * week's rows into it before it is attached. Nothing is made while the archive
 * is empty: a restore into this server must find nothing in its way.
 *
 * Partitions are named job_archive_YYYYMMDD after the Monday (UTC) they begin
 * with, and are ordinary tables, not members of the extension. All locks are
 * taken only if they are free: DDL that queues up behind a reader makes
 * everybody else queue up behind it. The next pass tries again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/datetime.h"

#include "ratchet.h"

#define WEEK_US			(7 * USECS_PER_DAY)
#define WEEKS_AT_A_TIME 10

static bool make_partition(TimestampTz week);
static bool drop_partition(Oid relid, const char *name, TimestampTz now);
static bool lock_for_ddl(LOCKMODE parent_mode, Oid partition);
static bool week_of_partition(const char *name, TimestampTz *week);
static char *date_of(TimestampTz at, const char *format);
static char *literal(TimestampTz at);

/* Make the partitions that rows in the default partition belong to. */
int64
ratchet_duty_partitions(TimestampTz now, TimestampTz *next)
{
	RatchetIdentity before;
	TimestampTz kept = now - (int64) ratchet_archive_keep * USECS_PER_SEC;
	Datum		args[3] = {TimestampTzGetDatum(kept), TimestampTzGetDatum(now + WEEK_US),
	Int32GetDatum(WEEKS_AT_A_TIME)};
	TimestampTz weeks[WEEKS_AT_A_TIME];
	int			wanted;
	int64		made = 0;

	ratchet_spi_begin(&before);
	wanted = (int) ratchet_query(RQ_PARTITION_WANTED, args, NULL);
	for (int i = 0; i < wanted; i++)
	{
		bool		isnull;

		weeks[i] = DatumGetTimestampTz(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));
	}
	for (int i = 0; i < wanted; i++)
		if (make_partition(weeks[i]))
			made++;
	ratchet_spi_end(&before);
	return made;
}

/* Drop partitions past archive_keep; delete what the default one keeps no longer. */
int64
ratchet_duty_purge(TimestampTz now, TimestampTz *next)
{
	RatchetIdentity before;
	TimestampTz kept = now - (int64) ratchet_archive_keep * USECS_PER_SEC;
	TimestampTz errors_kept = kept - (int64) ratchet_failed_keep * USECS_PER_SEC;
	Datum		args[3] = {TimestampTzGetDatum(kept), TimestampTzGetDatum(now),
	Int32GetDatum(RATCHET_DUTY_BATCH)};
	Datum		error_args[2] = {TimestampTzGetDatum(errors_kept), Int32GetDatum(RATCHET_DUTY_BATCH)};
	SPITupleTable *found;
	uint64		partitions;
	int64		purged = 0;

	ratchet_spi_begin(&before);
	partitions = ratchet_query(RQ_PARTITION_LIST, NULL, NULL);
	found = SPI_tuptable;
	for (uint64 i = 0; i < partitions; i++)
	{
		bool		isnull;
		Oid			relid = DatumGetObjectId(SPI_getbinval(found->vals[i], found->tupdesc, 1, &isnull));
		char	   *name = SPI_getvalue(found->vals[i], found->tupdesc, 2);
		TimestampTz week;

		if (week_of_partition(name, &week) && week + WEEK_US <= kept && drop_partition(relid, name, now))
			purged++;
	}
	purged += (int64) ratchet_query(RQ_PARTITION_DEFAULT_PURGE, args, NULL);
	purged += (int64) ratchet_query(RQ_ERROR_PURGE, error_args, NULL);
	ratchet_spi_end(&before);
	return purged;
}

/*
 * Make a table like the default partition, move the week's rows over, attach it.
 * A table of that name that is not attached is somebody else's: leave it.
 */
static bool
make_partition(TimestampTz week)
{
	char	   *name = psprintf("job_archive_%s", date_of(week, "%04d%02d%02d"));
	const char *from = literal(week);
	const char *to = literal(week + WEEK_US);
	NameData	relname;
	Datum		args[1] = {NameGetDatum(&relname)};

	namestrcpy(&relname, name);
	if (!lock_for_ddl(ShareUpdateExclusiveLock, InvalidOid) ||
		ratchet_query(RQ_PARTITION_EXISTS, args, NULL) > 0)
		return false;
	(void) ratchet_command(psprintf("CREATE TABLE ratchet.%s (LIKE ratchet.job_archive)", name));
	(void) ratchet_command(psprintf("CREATE INDEX %s_id ON ratchet.%s (id)", name, name));
	(void) ratchet_command(psprintf("WITH moved AS (DELETE FROM ratchet.job_archive_default"
									" WHERE finished_at >= %s AND finished_at < %s RETURNING *)"
									" INSERT INTO ratchet.%s SELECT * FROM moved", from, to, name));
	(void) ratchet_command(psprintf("ALTER TABLE ratchet.job_archive ATTACH PARTITION ratchet.%s"
									" FOR VALUES FROM (%s) TO (%s)", name, from, to));
	return true;
}

/* keep_for is a minimum: rows to be kept longer move to the default partition. */
static bool
drop_partition(Oid relid, const char *name, TimestampTz now)
{
	if (!lock_for_ddl(AccessExclusiveLock, relid))
		return false;
	(void) ratchet_command(psprintf("ALTER TABLE ratchet.job_archive DETACH PARTITION ratchet.%s",
									quote_identifier(name)));
	(void) ratchet_command(psprintf("INSERT INTO ratchet.job_archive_default SELECT * FROM ratchet.%s"
									" WHERE keep_until >= %s", quote_identifier(name), literal(now)));
	(void) ratchet_command(psprintf("DROP TABLE ratchet.%s", quote_identifier(name)));
	return true;
}

/* The archive, its default partition and perhaps another one, or nothing at all. */
static bool
lock_for_ddl(LOCKMODE parent_mode, Oid partition)
{
	const RatchetCatalog *catalog = ratchet_catalog();

	return ConditionalLockRelationOid(catalog->job_archive, parent_mode) &&
		ConditionalLockRelationOid(catalog->job_archive_default, AccessExclusiveLock) &&
		(!OidIsValid(partition) || ConditionalLockRelationOid(partition, AccessExclusiveLock));
}

static bool
week_of_partition(const char *name, TimestampTz *week)
{
	int			year,
				month,
				day;

	if (sscanf(name, "job_archive_%4d%2d%2d", &year, &month, &day) != 3)
		return false;
	*week = (int64) (date2j(year, month, day) - POSTGRES_EPOCH_JDATE) * USECS_PER_DAY;
	return true;
}

/* The UTC date of a time after 2000, in a format of three numbers. */
static char *
date_of(TimestampTz at, const char *format)
{
	int			year,
				month,
				day;

	j2date((int) (at / USECS_PER_DAY) + POSTGRES_EPOCH_JDATE, &year, &month, &day);
	return psprintf(format, year, month, day);
}

/* Independent of the session's TimeZone and DateStyle. */
static char *
literal(TimestampTz at)
{
	int64		us = at % USECS_PER_DAY;

	return psprintf("timestamptz '%s %02d:%02d:%02d.%06d+00'", date_of(at, "%04d-%02d-%02d"),
					(int) (us / USECS_PER_HOUR), (int) (us / USECS_PER_MINUTE % 60),
					(int) (us / USECS_PER_SEC % 60), (int) (us % USECS_PER_SEC));
}
