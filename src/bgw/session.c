/*-------------------------------------------------------------------------
 *
 * session.c
 *	  Settings that a worker does not let the database decide.
 *
 * The owner of a database need not be a superuser, and ALTER DATABASE ... SET
 * reaches our worker too: a search_path lends it code, a timeout or a read-only
 * default stops it. So everything that matters is set again after connecting,
 * with a source that nothing but a superuser's own call overrides.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/guc.h"

#include "bgw/bgw.h"

static const struct
{
	const char *name;
	const char *value;
}			pinned[] =
{
	{"search_path", "pg_catalog, pg_temp"},
	{"role", "none"},
	{"session_replication_role", "origin"},
	{"row_security", "on"},
	/* What would end a session or a statement; lock_timeout is for duties to set. */
	{"exit_on_error", "off"},
	{"statement_timeout", "0"},
	{"lock_timeout", "500ms"},
	{"transaction_timeout", "0"},
	{"idle_in_transaction_session_timeout", "0"},
	{"idle_session_timeout", "0"},
	/* Transactions. A standby that is gone must not keep the worker waiting. */
	{"default_transaction_read_only", "off"},
	{"default_transaction_isolation", "read committed"},
	{"default_transaction_deferrable", "off"},
	{"synchronous_commit", "local"},
	/* How values are read and written. */
	{"TimeZone", "UTC"},
	{"DateStyle", "ISO, MDY"},
	{"IntervalStyle", "postgres"},
	{"lc_messages", "C"},
	{"standard_conforming_strings", "on"},
	{"transform_null_equals", "off"},
	{"array_nulls", "on"},
	/* What we create. */
	{"default_tablespace", ""},
	{"temp_tablespaces", ""},
	{"default_table_access_method", "heap"},
	{"restrict_nonsystem_relation_kind", ""},
	/* Planner and memory. */
	{"work_mem", "4MB"},
	{"maintenance_work_mem", "64MB"},
	{"jit", "off"},
	{"plan_cache_mode", "auto"},
	{"force_parallel_mode", "off"},
	{"debug_parallel_query", "off"},
	{"max_parallel_workers_per_gather", "0"},
	{"enable_bitmapscan", "on"},
	{"enable_hashagg", "on"},
	{"enable_hashjoin", "on"},
	{"enable_indexonlyscan", "on"},
	{"enable_indexscan", "on"},
	{"enable_material", "on"},
	{"enable_memoize", "on"},
	{"enable_mergejoin", "on"},
	{"enable_nestloop", "on"},
	{"enable_partition_pruning", "on"},
	{"enable_seqscan", "on"},
	{"enable_sort", "on"},
	{"enable_tidscan", "on"},
};

void
ratchet_session_pin(void)
{
	for (int i = 0; i < lengthof(pinned); i++)
		if (GetConfigOption(pinned[i].name, true, false) != NULL)
			SetConfigOption(pinned[i].name, pinned[i].value, PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("client_encoding", GetDatabaseEncodingName(), PGC_SUSET, PGC_S_OVERRIDE);
}
