/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  The launcher: knows which databases are to be served, and keeps one worker
 *	  running in each.
 *
 * It is bound to no database and reads only pg_database. Whether a database has
 * the extension it learns by starting a worker there, a few at a time: one that
 * finds no extension ends at once. That happens when the server starts, and for
 * each database that appears later; after that CREATE EXTENSION reports itself
 * (bgw/notice.c).
 *
 * Workers are dynamic and never restarted by the postmaster: one that ended
 * comes back after a delay that grows with its failures in a row, so a broken
 * database cannot spin. If the postmaster has no room for another worker, the
 * databases are served in turn.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/varlena.h"

#include "bgw/bgw.h"

#define RESTART_S			5
#define PROBES_AT_A_TIME	3
#define SCAN_MS				60000	/* pg_database is read at least this often */
#define LOCKED_US			(500 * 1000)	/* until we ask again for a locked database */
#define NO_ROOM_US			(2 * USECS_PER_SEC)
#define LOST_US				(30 * USECS_PER_SEC)	/* a worker of an earlier launcher never came */
#define TURN_US				(10 * USECS_PER_SEC)
#define INVALID_DATABASE	(-2)	/* datconnlimit after an interrupted DROP DATABASE */

static List *known = NIL;		/* Oids of databases that were to be served at the last scan */
static List *to_probe = NIL;	/* of these, those to be asked */
static BackgroundWorkerHandle **handles;	/* per slot, of STARTING ones */
static bool complained_workers = false;
static bool complained_slots = false;

PGDLLEXPORT void ratchet_launcher_main(Datum arg);

static void at_exit(int code, Datum arg);
static int64 step(MemoryContext context);
static void failed(const ErrorData *error);
static void scan_databases(void);
static List *databases_to_serve(void);
static bool is_listed(const char *name, List *names);
static void drop_unwanted(const List *wanted);
static void want_unknown(void);
static void reap(TimestampTz now);
static void start_workers(TimestampTz now);
static int	next_to_start(TimestampTz now);
static bool is_free(Oid database);
static bool start_worker(int index, TimestampTz now);
static void give_turn(TimestampTz now);
static int64 ms_to_next(TimestampTz now);

/* From _PG_init, while shared_preload_libraries is processed. */
void
ratchet_launcher_register(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = RESTART_S;
	strlcpy(worker.bgw_library_name, "ratchet", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "ratchet_launcher_main", sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "ratchet launcher", sizeof(worker.bgw_name));
	strlcpy(worker.bgw_type, "ratchet launcher", sizeof(worker.bgw_type));
	RegisterBackgroundWorker(&worker);
}

void
ratchet_launcher_main(Datum arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	before_shmem_exit(at_exit, (Datum) 0);
	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	ratchet_registry->launcher_pid = MyProcPid;
	ratchet_registry->launcher_since = ratchet_now();
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
	pg_atomic_write_u32(&ratchet_registry->launcher_procno, RATCHET_MY_PROC_NUMBER);
	pg_atomic_write_u32(&ratchet_registry->rescan, 1);

	/* No database; without this call pg_stat_activity does not show us. */
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	pgstat_report_appname("ratchet launcher");
	handles = MemoryContextAllocZero(TopMemoryContext,
									 ratchet_registry->nslots * sizeof(BackgroundWorkerHandle *));
	ratchet_loop("RatchetLauncher", step, failed);
}

static void
at_exit(int code, Datum arg)
{
	pg_atomic_write_u32(&ratchet_registry->launcher_procno, PG_UINT32_MAX);
	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	ratchet_registry->launcher_pid = 0;
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
}

static int64
step(MemoryContext context)
{
	TimestampTz now = ratchet_now();

	if (pg_atomic_exchange_u32(&ratchet_registry->probe_all, 0) != 0)
	{
		list_free(known);
		known = NIL;
	}
	if (pg_atomic_exchange_u32(&ratchet_registry->rescan, 0) != 0 || ratchet_loop_reloaded() ||
		now - ratchet_registry->last_scan >= SCAN_MS * INT64CONST(1000) ||
		now < ratchet_registry->last_scan)
		scan_databases();
	reap(now);
	want_unknown();
	start_workers(ratchet_now());
	return ms_to_next(ratchet_now());
}

static void
failed(const ErrorData *error)
{
	pg_atomic_write_u32(&ratchet_registry->rescan, 1);
	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	ratchet_error_note(ratchet_registry->last_error, &ratchet_registry->last_error_at, error->message);
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
}

/* Compare pg_database with what we knew: ask the new ones, let go of the others. */
static void
scan_databases(void)
{
	List	   *wanted = databases_to_serve();
	MemoryContext before;
	ListCell   *lc;

	drop_unwanted(wanted);
	before = MemoryContextSwitchTo(TopMemoryContext);
	foreach(lc, wanted)
		if (!list_member_oid(known, lfirst_oid(lc)))
			to_probe = list_append_unique_oid(to_probe, lfirst_oid(lc));
	list_free(known);
	known = list_copy(wanted);
	MemoryContextSwitchTo(before);
	foreach(lc, to_probe)
		if (!list_member_oid(wanted, lfirst_oid(lc)))
			to_probe = foreach_delete_current(to_probe, lc);

	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	ratchet_registry->last_scan = ratchet_now();
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
}

/* Connectable, no template, whole, and in ratchet.databases. */
static List *
databases_to_serve(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *wanted = NIL;
	List	   *names;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	if (!SplitIdentifierString(pstrdup(ratchet_databases), ',', &names))
		return NIL;
	ratchet_loop_begin("reading pg_database");
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);
		MemoryContext before;

		if (!database->datallowconn || database->datistemplate ||
			database->datconnlimit == INVALID_DATABASE || !is_listed(NameStr(database->datname), names))
			continue;
		before = MemoryContextSwitchTo(context);
		wanted = lappend_oid(wanted, database->oid);
		MemoryContextSwitchTo(before);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	ratchet_loop_commit();
	MemoryContextSwitchTo(context);
	return wanted;
}

static bool
is_listed(const char *name, List *names)
{
	ListCell   *lc;

	foreach(lc, names)
		if (strcmp(lfirst(lc), "*") == 0 || strcmp(lfirst(lc), name) == 0)
			return true;
	return false;
}

static void
drop_unwanted(const List *wanted)
{
	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	for (int i = 0; i < ratchet_registry->nslots; i++)
	{
		RatchetSlot *slot = &ratchet_registry->slots[i];

		if (slot->state == RATCHET_SLOT_FREE || list_member_oid(wanted, slot->database))
			continue;
		if (slot->state == RATCHET_SLOT_WANTED)
			ratchet_slot_free(slot);
		else
		{
			slot->leave = true;
			slot->leave_reason = RATCHET_END_UNWANTED;
			ratchet_latch_set(&slot->procno);
		}
	}
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
}

/* Give slots to databases that are to be asked, as many at a time as we probe. */
static void
want_unknown(void)
{
	int			asking = 0;
	int			without = 0;

	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	for (int i = 0; i < ratchet_registry->nslots; i++)
		if (ratchet_registry->slots[i].state != RATCHET_SLOT_FREE && !ratchet_registry->slots[i].confirmed)
			asking++;
	while (to_probe != NIL && asking < PROBES_AT_A_TIME)
	{
		if (ratchet_slot_want(linitial_oid(to_probe)) == NULL)
			break;
		to_probe = list_delete_first(to_probe);
		asking++;
	}
	if (asking < PROBES_AT_A_TIME)
		without = list_length(to_probe);
	ratchet_registry->databases = without;
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));

	if (without > 0 && !complained_slots)
		ereport(LOG,
				(errmsg("ratchet: %d databases have no place in shared memory and are not served", without),
				 errhint("Raise ratchet.max_databases, or run ratchet.run_maintenance() there.")));
	complained_slots = without > 0;
}

/* Workers that were registered and ended before they could attach themselves. */
static void
reap(TimestampTz now)
{
	for (int i = 0; i < ratchet_registry->nslots; i++)
	{
		RatchetSlot *slot = &ratchet_registry->slots[i];
		pid_t		pid;
		bool		gone;

		if (handles[i] == NULL && slot->state != RATCHET_SLOT_STARTING)
			continue;
		gone = handles[i] != NULL ? GetBackgroundWorkerPid(handles[i], &pid) == BGWH_STOPPED :
			now - slot->since > LOST_US;
		LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
		if (gone && slot->state == RATCHET_SLOT_STARTING)
		{
			slot->generation++;
			ratchet_slot_end(slot, RATCHET_END_FAILED, now);
		}
		gone = slot->state != RATCHET_SLOT_STARTING;
		LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
		if (gone && handles[i] != NULL)
		{
			pfree(handles[i]);
			handles[i] = NULL;
		}
	}
}

static void
start_workers(TimestampTz now)
{
	bool		out_of_workers = false;
	int			index;

	while (!out_of_workers && (index = next_to_start(now)) >= 0)
	{
		CHECK_FOR_INTERRUPTS();
		if (is_free(ratchet_registry->slots[index].database))
			out_of_workers = !start_worker(index, now);
		else
		{
			LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
			ratchet_registry->slots[index].next_start = now + LOCKED_US;
			LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
		}
	}
	if (out_of_workers)
		give_turn(now);
	else if (index < 0 && ratchet_registry->out_of_workers)
	{
		/* The episode ends when nobody waits for room any more. */
		bool		waiting = false;

		for (int i = 0; i < ratchet_registry->nslots; i++)
			waiting |= ratchet_registry->slots[i].state == RATCHET_SLOT_WANTED &&
				ratchet_registry->slots[i].failures == 0;
		if (!waiting)
		{
			ratchet_registry->out_of_workers = false;
			complained_workers = false;
		}
	}
}

/* The one that has waited longest. */
static int
next_to_start(TimestampTz now)
{
	int			best = -1;

	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_SHARED);
	for (int i = 0; i < ratchet_registry->nslots; i++)
	{
		RatchetSlot *slot = &ratchet_registry->slots[i];

		if (slot->state == RATCHET_SLOT_WANTED && slot->next_start <= now &&
			list_member_oid(known, slot->database) &&
			(best < 0 || slot->since < ratchet_registry->slots[best].since))
			best = i;
	}
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
	return best;
}

/* A worker would only wait for, or be in the way of, whoever has locked the database. */
static bool
is_free(Oid database)
{
	LOCKTAG		tag;
	bool		free;

	if (!OidIsValid(database))
		return false;
	ratchet_loop_begin("starting a worker");
	RATCHET_DATABASE_LOCKTAG(tag, database);
	free = LockAcquire(&tag, RowExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
	ratchet_loop_commit();		/* releases it */
	return free;
}

/* False: the postmaster has no room for another worker. */
static bool
start_worker(int index, TimestampTz now)
{
	RatchetSlot *slot = &ratchet_registry->slots[index];
	BackgroundWorker worker;
	MemoryContext before;
	bool		registered;
	Oid			database;

	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	database = slot->database;
	if (slot->state != RATCHET_SLOT_WANTED)
	{
		LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
		return true;
	}
	slot->state = RATCHET_SLOT_STARTING;
	slot->since = now;
	slot->generation++;
	memset(&worker, 0, sizeof(worker));
	memcpy(worker.bgw_extra, &slot->generation, sizeof(slot->generation));
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "ratchet", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "ratchet_worker_main", sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, sizeof(worker.bgw_name), "ratchet worker for database %u", database);
	strlcpy(worker.bgw_type, "ratchet worker", sizeof(worker.bgw_type));
	worker.bgw_main_arg = Int32GetDatum(index);
	worker.bgw_notify_pid = MyProcPid;
	before = MemoryContextSwitchTo(TopMemoryContext);
	registered = RegisterDynamicBackgroundWorker(&worker, &handles[index]);
	MemoryContextSwitchTo(before);

	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	if (registered)
		ratchet_registry->starts++;
	else
	{
		slot->state = RATCHET_SLOT_WANTED;
		slot->next_start = now + NO_ROOM_US;
	}
	ratchet_registry->out_of_workers |= !registered;
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
	return registered;
}

/* Let the worker that has run longest make room, if it has had its turn. */
static void
give_turn(TimestampTz now)
{
	RatchetSlot *longest = NULL;

	if (!complained_workers)
		ereport(LOG,
				(errmsg("ratchet: no room for another background worker; databases are served in turn"),
				 errhint("Raise max_worker_processes.")));
	complained_workers = true;
	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	for (int i = 0; i < ratchet_registry->nslots; i++)
	{
		RatchetSlot *slot = &ratchet_registry->slots[i];

		if (slot->state == RATCHET_SLOT_RUNNING && now - slot->since >= TURN_US &&
			(longest == NULL || slot->since < longest->since))
			longest = slot;
	}
	if (longest != NULL && !longest->leave)
	{
		longest->leave = true;
		longest->leave_reason = RATCHET_END_TURN;
		ratchet_latch_set(&longest->procno);
	}
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
}

static int64
ms_to_next(TimestampTz now)
{
	TimestampTz next = ratchet_registry->last_scan + SCAN_MS * INT64CONST(1000);

	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WORKERS), LW_EXCLUSIVE);
	for (int i = 0; i < ratchet_registry->nslots; i++)
	{
		RatchetSlot *slot = &ratchet_registry->slots[i];

		if (slot->state == RATCHET_SLOT_WANTED)
			next = Min(next, Max(slot->next_start, now + 10 * 1000));
		else if (slot->state == RATCHET_SLOT_STARTING)
			next = Min(next, now + USECS_PER_SEC);
	}
	ratchet_registry->next_start = next;
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WORKERS));
	return Max((next - now) / 1000, 1);
}
