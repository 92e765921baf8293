/*-------------------------------------------------------------------------
 *
 * queries.c
 *	  Every SQL text, as a named and saved plan, and the only calls to
 *	  SPI_prepare.
 *
 * The texts run as the owner of the tables with search_path pinned to
 * pg_catalog (ratchet_spi_begin), name every object of ours with its schema, and
 * take values only as parameters.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/snapmgr.h"

#include "ratchet.h"

#define MAX_ARGS 20

/* The columns that a job and its archived row share. */
#define SHARED_COLUMNS \
	"id, queue, kind, payload, state, priority, scheduled_at, created_at, attempt, max_attempts, " \
	"crashes, version, picked_by, picked_at, node, lease, timeout, expires_at, expires_in, keep_until, " \
	"backoff, backoff_base, backoff_max, jitter, idempotency_key, business_key, concurrency_key, " \
	"resource, circuit, batch_id, result, last_error, progress, progress_message, tags, meta, " \
	"enqueued_by, started_at, finished_at"

/* What a new job takes over from an old one: the order api/operate.c reads. */
#define RERUN_COLUMNS \
	"queue, kind, payload, priority, max_attempts, backoff, backoff_base, backoff_max, jitter, " \
	"timeout, lease, expires_in, pg_catalog.make_interval(secs => extract(epoch FROM keep_until - created_at)::float8) AS keep_for, " \
	"business_key, tags, meta"

static const struct
{
	const char *sql;
	int			nargs;
	Oid			types[MAX_ARGS];
}			queries[RQ_COUNT] =
{
	/* Move finished jobs that nobody holds into the archive. */
	[RQ_ARCHIVE_MOVE] = {
		"WITH picked AS MATERIALIZED ("
		"  SELECT id FROM ratchet.job WHERE id = ANY ($1) AND ratchet.is_terminal(state)"
		"  ORDER BY id FOR UPDATE SKIP LOCKED),"
		" moved AS (DELETE FROM ratchet.job j USING picked p WHERE j.id = p.id RETURNING j.*)"
		" INSERT INTO ratchet.job_archive (" SHARED_COLUMNS ", archived_at)"
		" SELECT " SHARED_COLUMNS ", $2 FROM moved",
		2, {UUIDARRAYOID, TIMESTAMPTZOID}
	},
	[RQ_ARCHIVE_FIND] = {
		"SELECT queue, state FROM ratchet.job_archive WHERE id = $1",
		1, {UUIDOID}
	},
	[RQ_AWAIT_FIND] = {
		"SELECT queue, enqueued_by, state, result FROM ratchet.job WHERE id = $1"
		" UNION ALL "
		"SELECT queue, enqueued_by, state, result FROM ratchet.job_archive WHERE id = $1"
		" LIMIT 1",
		1, {UUIDOID}
	},
	/* A finished job wherever it is. */
	[RQ_FINISHED_FIND] = {
		"SELECT " RERUN_COLUMNS " FROM ratchet.job WHERE id = $1 AND ratchet.is_terminal(state)"
		" UNION ALL "
		"SELECT " RERUN_COLUMNS " FROM ratchet.job_archive WHERE id = $1",
		1, {UUIDOID}
	},
	[RQ_FINISHED_FORGET] = {
		"WITH live AS (DELETE FROM ratchet.job WHERE id = $1 AND ratchet.is_terminal(state)"
		"              RETURNING queue, idempotency_key),"
		" archived AS (DELETE FROM ratchet.job_archive WHERE id = $1 RETURNING queue, idempotency_key),"
		" gone AS (SELECT * FROM live UNION ALL SELECT * FROM archived),"
		" keys AS (DELETE FROM ratchet.idempotency_key k USING gone g"
		"          WHERE k.queue = g.queue AND k.key = g.idempotency_key AND k.job_id = $1),"
		" errors AS (DELETE FROM ratchet.job_error WHERE job_id = $1 AND EXISTS (SELECT FROM gone))"
		" SELECT queue FROM gone",
		1, {UUIDOID}
	},
	[RQ_JOB_SELECT] = {
		"SELECT id FROM ratchet.job"
		" WHERE state::text = ANY ($1) AND ($2 IS NULL OR queue = $2) AND ($3 IS NULL OR kind = $3)"
		"   AND ($4 IS NULL OR $4 = ANY (tags)) AND ($5 IS NULL OR queue = ANY ($5))"
		" ORDER BY id LIMIT $6",
		6, {TEXTARRAYOID, TEXTOID, TEXTOID, TEXTOID, TEXTARRAYOID, INT4OID}
	},
	[RQ_ERROR_ADD] = {
		"INSERT INTO ratchet.job_error (job_id, queue, attempt, at, worker, error, detail)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7)",
		7, {UUIDOID, TEXTOID, INT4OID, TIMESTAMPTZOID, TEXTOID, TEXTOID, JSONBOID}
	},
	/* Errors of jobs that are nowhere any more. */
	[RQ_ERROR_PURGE] = {
		"DELETE FROM ratchet.job_error WHERE ctid IN ("
		"  SELECT e.ctid FROM ratchet.job_error e WHERE e.at < $1"
		"    AND NOT EXISTS (SELECT FROM ratchet.job j WHERE j.id = e.job_id)"
		"    AND NOT EXISTS (SELECT FROM ratchet.job_archive a WHERE a.id = e.job_id)"
		"  ORDER BY e.at LIMIT $2)",
		2, {TIMESTAMPTZOID, INT4OID}
	},
	/* After rows came in with the guard disabled: nobody has taken their keys. */
	[RQ_BUSINESS_KEY_REBUILD] = {
		"INSERT INTO ratchet.business_key AS k (queue, key, owner)"
		" SELECT DISTINCT ON (queue, business_key) queue, business_key, id FROM ratchet.job"
		"  WHERE business_key IS NOT NULL AND (state IN ('pending', 'running') OR paused_from = 'pending')"
		"  ORDER BY queue, business_key, id"
		" ON CONFLICT (queue, key) DO UPDATE SET owner = EXCLUDED.owner WHERE k.owner IS NULL",
		0, {0}
	},
	[RQ_BUSINESS_KEY_SWEEP] = {
		"DELETE FROM ratchet.business_key WHERE ctid IN ("
		"  SELECT ctid FROM ratchet.business_key WHERE owner IS NULL LIMIT $1 FOR UPDATE SKIP LOCKED)",
		1, {INT4OID}
	},
	[RQ_QUEUE_CONFIGURE] = {
		"INSERT INTO ratchet.queue AS q (queue, priority, max_attempts, backoff, backoff_base, backoff_max,"
		"   jitter, timeout, lease, expires_in, keep_for, archive_after)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
		" ON CONFLICT (queue) DO UPDATE SET"
		"   priority = COALESCE(EXCLUDED.priority, q.priority),"
		"   max_attempts = COALESCE(EXCLUDED.max_attempts, q.max_attempts),"
		"   backoff = COALESCE(EXCLUDED.backoff, q.backoff),"
		"   backoff_base = COALESCE(EXCLUDED.backoff_base, q.backoff_base),"
		"   backoff_max = COALESCE(EXCLUDED.backoff_max, q.backoff_max),"
		"   jitter = COALESCE(EXCLUDED.jitter, q.jitter),"
		"   timeout = COALESCE(EXCLUDED.timeout, q.timeout),"
		"   lease = COALESCE(EXCLUDED.lease, q.lease),"
		"   expires_in = COALESCE(EXCLUDED.expires_in, q.expires_in),"
		"   keep_for = COALESCE(EXCLUDED.keep_for, q.keep_for),"
		"   archive_after = COALESCE(EXCLUDED.archive_after, q.archive_after)",
		12, {TEXTOID, INT4OID, INT4OID, TEXTOID, INTERVALOID, INTERVALOID, BOOLOID, INTERVALOID,
		INTERVALOID, INTERVALOID, INTERVALOID, INTERVALOID}
	},
	[RQ_QUEUE_PAUSE] = {
		"INSERT INTO ratchet.queue (queue, paused) VALUES ($1, true)"
		" ON CONFLICT (queue) DO UPDATE SET paused = true",
		1, {TEXTOID}
	},
	[RQ_QUEUE_RESUME] = {
		"UPDATE ratchet.queue SET paused = false WHERE queue = $1 AND paused",
		1, {TEXTOID}
	},
	[RQ_ACCESS_ADD] = {
		"INSERT INTO ratchet.access (role_name, access, queue) VALUES ($1, $2, $3)"
		" ON CONFLICT DO NOTHING",
		3, {NAMEOID, TEXTOID, TEXTOID}
	},
	[RQ_ACCESS_REMOVE] = {
		"DELETE FROM ratchet.access"
		" WHERE role_name = $1 AND access = $2 AND queue IS NOT DISTINCT FROM $3",
		3, {NAMEOID, TEXTOID, TEXTOID}
	},
	[RQ_ACCESS_OF_ROLE] = {
		"SELECT DISTINCT access FROM ratchet.access WHERE role_name = $1",
		1, {NAMEOID}
	},
	[RQ_NODE_HEARTBEAT] = {
		"INSERT INTO ratchet.node_heartbeats AS n (node_id, heartbeat_at, started_at, info)"
		" VALUES ($1, $2, $2, $3)"
		" ON CONFLICT (node_id) DO UPDATE SET heartbeat_at = EXCLUDED.heartbeat_at,"
		"   info = COALESCE(EXCLUDED.info, n.info)",
		3, {TEXTOID, TIMESTAMPTZOID, JSONBOID}
	},
	/* A heartbeat from the future is a clock that was set back: it ages from now on. */
	[RQ_NODE_STALE] = {
		"WITH future AS (UPDATE ratchet.node_heartbeats SET heartbeat_at = $2 WHERE heartbeat_at > $2)"
		" SELECT node_id FROM ratchet.node_heartbeats WHERE heartbeat_at < $1"
		" ORDER BY node_id LIMIT $3 FOR UPDATE SKIP LOCKED",
		3, {TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID}
	},
	[RQ_NODE_REMOVE] = {
		"WITH locks AS (DELETE FROM ratchet.lock WHERE owner = $1)"
		" DELETE FROM ratchet.node_heartbeats WHERE node_id = $1",
		1, {TEXTOID}
	},
	[RQ_DRAIN] = {
		"INSERT INTO ratchet.draining (node) VALUES ($1) ON CONFLICT DO NOTHING",
		1, {TEXTOID}
	},
	[RQ_UNDRAIN] = {
		"DELETE FROM ratchet.draining WHERE node IS NOT DISTINCT FROM $1",
		1, {TEXTOID}
	},
	[RQ_LOCK_TRY] = {
		"INSERT INTO ratchet.lock AS l (name, owner, locked_at, expires_at) VALUES ($1, $2, $3, $4)"
		" ON CONFLICT (name) DO UPDATE SET owner = EXCLUDED.owner, expires_at = EXCLUDED.expires_at,"
		"   locked_at = CASE WHEN l.owner = EXCLUDED.owner AND l.expires_at > $3 THEN l.locked_at ELSE $3 END"
		" WHERE l.owner = EXCLUDED.owner OR l.expires_at <= $3",
		4, {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
	},
	[RQ_LOCK_RENEW] = {
		"UPDATE ratchet.lock SET expires_at = $4 WHERE name = $1 AND owner = $2 AND expires_at > $3",
		4, {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
	},
	[RQ_LOCK_RELEASE] = {
		"DELETE FROM ratchet.lock WHERE name = $1 AND owner = $2",
		2, {TEXTOID, TEXTOID}
	},
	[RQ_NODE_OLDEST] = {
		"SELECT heartbeat_at FROM ratchet.node_heartbeats ORDER BY heartbeat_at LIMIT 1",
		0, {0}
	},
	[RQ_LOCK_NEXT] = {
		"SELECT expires_at FROM ratchet.lock ORDER BY expires_at LIMIT 1",
		0, {0}
	},
	[RQ_LOCK_EXPIRE] = {
		"DELETE FROM ratchet.lock WHERE ctid IN ("
		"  SELECT ctid FROM ratchet.lock WHERE expires_at <= $1"
		"  ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
		2, {TIMESTAMPTZOID, INT4OID}
	},
	/* The functions of ratchet with these names, as GRANT wants them written. */
	[RQ_ACCESS_FUNCTIONS] = {
		"SELECT oid::regprocedure::text FROM pg_proc"
		" WHERE pronamespace = 'ratchet'::regnamespace AND proname::text = ANY ($1) ORDER BY 1",
		1, {TEXTARRAYOID}
	},
	/*
	 * Our triggers that are enabled, but not always. One that is disabled was
	 * disabled on purpose: it is its owner's to enable again.
	 */
	[RQ_GUARD_STATE] = {
		"SELECT tgrelid, tgrelid::regclass::text, quote_ident(tgname) FROM pg_trigger"
		" WHERE tgenabled NOT IN ('A', 'D') AND NOT tgisinternal"
		"   AND tgrelid IN ('ratchet.job'::regclass, 'ratchet.queue'::regclass, 'ratchet.access'::regclass,"
		"                   'ratchet.draining'::regclass)"
		"   AND tgfoid IN ('ratchet.guard()'::regprocedure, 'ratchet.guard_keys()'::regprocedure,"
		"                  'ratchet.settings_changed()'::regprocedure)"
		" ORDER BY 2, 3",
		0, {0}
	},
	/* Weeks (UTC) that have rows in the default partition and are still kept. */
	[RQ_PARTITION_WANTED] = {
		"SELECT DISTINCT date_trunc('week', finished_at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'"
		"  FROM ratchet.job_archive_default WHERE finished_at >= $1 AND finished_at <= $2"
		" ORDER BY 1 LIMIT $3",
		3, {TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID}
	},
	[RQ_PARTITION_EXISTS] = {
		"SELECT 1 FROM pg_class WHERE relnamespace = 'ratchet'::regnamespace AND relname = $1",
		1, {NAMEOID}
	},
	/* Partitions made at run time, oldest first, by the name that says their week. */
	[RQ_PARTITION_LIST] = {
		"SELECT c.oid, c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
		" WHERE i.inhparent = 'ratchet.job_archive'::regclass"
		"   AND c.relname ~ '^job_archive_[0-9]{8}$'"
		" ORDER BY 2",
		0, {0}
	},
	/* Archived jobs in the default partition that are past both limits. */
	[RQ_PARTITION_DEFAULT_PURGE] = {
		"DELETE FROM ratchet.job_archive_default WHERE ctid IN ("
		"  SELECT ctid FROM ratchet.job_archive_default"
		"   WHERE finished_at < $1 AND (keep_until IS NULL OR keep_until < $2) LIMIT $3)",
		3, {TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID}
	},
};

/* Saved plans of this backend. */
static SPIPlanPtr plans[RQ_COUNT];

static uint64 run(SPIPlanPtr plan, const char *sql, const Datum *args, const char *nulls);

/* SQL as the owner of the tables, until ratchet_spi_end. */
void
ratchet_spi_begin(RatchetIdentity *before)
{
	ratchet_become_owner(before);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
}

void
ratchet_spi_end(const RatchetIdentity *before)
{
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "SPI_finish failed");
	ratchet_become_caller(before);
}

/*
 * Run one of the queries; isnull may be NULL if no argument is. Returns the
 * number of rows, which are in SPI_tuptable if the query returns any.
 */
uint64
ratchet_query(RatchetQuery query, const Datum *args, const bool *isnull)
{
	char		nulls[MAX_ARGS + 1];

	if (plans[query] == NULL)
	{
		SPIPlanPtr	plan = SPI_prepare(queries[query].sql, queries[query].nargs,
									   (Oid *) queries[query].types);

		if (plan == NULL || SPI_keepplan(plan) != 0)
			elog(ERROR, "could not prepare \"%s\": %s", queries[query].sql,
				 SPI_result_code_string(SPI_result));
		plans[query] = plan;
	}
	for (int i = 0; i < queries[query].nargs; i++)
		nulls[i] = isnull != NULL && isnull[i] ? 'n' : ' ';
	nulls[queries[query].nargs] = '\0';
	return run(plans[query], queries[query].sql, args, nulls);
}

/* The timestamp that the query's first row begins with. */
TimestampTz
ratchet_first_time(void)
{
	bool		isnull;

	return DatumGetTimestampTz(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
}

/* Run a command made of quoted identifiers, as partition upkeep and GRANT need. */
uint64
ratchet_command(const char *sql)
{
	SPIPlanPtr	plan = SPI_prepare(sql, 0, NULL);

	if (plan == NULL)
		elog(ERROR, "could not prepare \"%s\": %s", sql, SPI_result_code_string(SPI_result));
	return run(plan, sql, NULL, NULL);
}

/*
 * With a snapshot of its own, so that SQL sees what the heap access beside it
 * sees, the newest committed rows, in REPEATABLE READ too.
 */
static uint64
run(SPIPlanPtr plan, const char *sql, const Datum *args, const char *nulls)
{
	int			result = SPI_execute_snapshot(plan, unconstify(Datum *, args), nulls,
											  GetLatestSnapshot(), InvalidSnapshot,
											  false, true, 0);

	if (result < 0)
		elog(ERROR, "could not run \"%s\": %s", sql, SPI_result_code_string(result));
	return SPI_processed;
}
