/*-------------------------------------------------------------------------
 *
 * guc.c
 *	  Settings: storage and definitions, alphabetical.
 *
 * Durations that are also read by a session which runs maintenance itself are
 * SUSET: a superuser's SET is honoured there. What decides the order of claims
 * must be the same for every session and is SIGHUP.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "ratchet.h"

int			ratchet_archive_after = 3600;
int			ratchet_archive_keep = 90 * SECS_PER_DAY;
char	   *ratchet_databases = NULL;
int			ratchet_default_lease = 5 * 60 * 1000;
int			ratchet_failed_keep = 30 * SECS_PER_DAY;
int			ratchet_max_claim_wait = 5000;
int			ratchet_max_crashes = 5;
int			ratchet_max_databases = 64;
int			ratchet_max_payload_size = 1024 * 1024;
int			ratchet_max_result_size = 1024 * 1024;
int			ratchet_max_waiters = 1000;
int			ratchet_node_timeout = 60 * 1000;
int			ratchet_priority_boost_interval = 15 * 60 * 1000;
bool		ratchet_redact_emails = true;

static bool check_databases(char **value, void **extra, GucSource source);

void
ratchet_guc_define(void)
{
	DefineCustomIntVariable("ratchet.archive_after",
							"Time after which a finished job moves to the archive.",
							"0 means at once, in the call that finishes it.",
							&ratchet_archive_after, 3600, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("ratchet.archive_keep",
							"Time after which archived jobs are purged.",
							NULL,
							&ratchet_archive_keep, 90 * SECS_PER_DAY, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomStringVariable("ratchet.databases",
							   "Databases that background workers serve, if they have the extension.",
							   "A list of names; * stands for all.",
							   &ratchet_databases, "*",
							   PGC_SIGHUP, GUC_LIST_INPUT, check_databases, NULL, NULL);
	DefineCustomIntVariable("ratchet.default_lease",
							"Lease of a claim when neither call, job nor queue sets one.",
							NULL,
							&ratchet_default_lease, 5 * 60 * 1000, 1, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("ratchet.failed_keep",
							"Time that a failed job stays where it can be retried.",
							NULL,
							&ratchet_failed_keep, 30 * SECS_PER_DAY, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("ratchet.max_claim_wait",
							"Longest time that a claim waits for work.",
							"A waiting claim holds a snapshot and so holds back vacuum; CALL ratchet.wait does not.",
							&ratchet_max_claim_wait, 5000, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("ratchet.max_crashes",
							"Number of lost workers after which a job fails.",
							NULL,
							&ratchet_max_crashes, 5, 1, INT_MAX,
							PGC_SUSET, 0, NULL, NULL, NULL);
	if (process_shared_preload_libraries_in_progress)
		DefineCustomIntVariable("ratchet.max_databases",
								"Number of databases that background workers serve at most.",
								"It takes effect only with ratchet in shared_preload_libraries.",
								&ratchet_max_databases, 64, 1, 10000,
								PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("ratchet.max_payload_size",
							"Largest payload of a job.",
							NULL,
							&ratchet_max_payload_size, 1024 * 1024, 1024, 256 * 1024 * 1024,
							PGC_SUSET, GUC_UNIT_BYTE, NULL, NULL, NULL);
	DefineCustomIntVariable("ratchet.max_result_size",
							"Largest result of a job.",
							NULL,
							&ratchet_max_result_size, 1024 * 1024, 1024, 256 * 1024 * 1024,
							PGC_SUSET, GUC_UNIT_BYTE, NULL, NULL, NULL);
	if (process_shared_preload_libraries_in_progress)
		DefineCustomIntVariable("ratchet.max_waiters",
								"Number of sessions that can wait for work or for a job and be woken.",
								"Further ones poll.",
								&ratchet_max_waiters, 1000, 0, 100000,
								PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("ratchet.node_timeout",
							"Time without a heartbeat after which a node is given up.",
							NULL,
							&ratchet_node_timeout, 60 * 1000, 1, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("ratchet.priority_boost_interval",
							"Waiting time that raises a job's effective priority by one.",
							"0 means that priority does not grow with waiting.",
							&ratchet_priority_boost_interval, 15 * 60 * 1000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomBoolVariable("ratchet.redact_emails",
							 "Removes e-mail addresses from stored error text.",
							 NULL,
							 &ratchet_redact_emails, true,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	MarkGUCPrefixReserved("ratchet");
}

static bool
check_databases(char **value, void **extra, GucSource source)
{
	char	   *copy = pstrdup(*value);
	List	   *names = NIL;
	bool		valid = SplitIdentifierString(copy, ',', &names);

	if (!valid)
		GUC_check_errdetail("List syntax is invalid.");
	list_free(names);
	pfree(copy);
	return valid;
}
