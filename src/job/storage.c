/*-------------------------------------------------------------------------
 *
 * storage.c
 *	  The only code that touches a heap: lookups, inserts, updates and index
 *	  scans on ratchet's tables, through the table and index access methods.
 *
 * Why not SPI: claim and completion are the hot path, and they must judge a row
 * by its newest committed version in every isolation level. A lookup here takes
 * a snapshot of its own, and an update that finds the row changed since says so
 * (TM_Updated) instead of raising a serialization failure; the caller looks
 * again.
 *
 * What an UPDATE statement would do and this file must therefore do itself:
 * index entries (ExecInsertIndexTuples, as logical replication's apply worker
 * does it), and the row triggers. Of those the guard's are ours: the callers
 * call its C function directly, which spares the row lock that the trigger
 * manager takes. If anybody else's row trigger or check constraint is on the
 * table, the write goes through ExecSimpleRelationInsert/Update, where all of
 * them apply, ours too.
 *
 * Everything here runs in the caller's memory context and transaction. The
 * callers have checked rights, read-only and recovery; nothing below does.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/nbtree.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "ratchet.h"

/*
 * A scan that sees what is there now: every entry that is not dead for good,
 * whoever wrote it. "dirty" tells after each step whether somebody else is at
 * work on the row.
 */
struct RatchetScan
{
	RatchetStore *store;
	Relation	index;
	IndexScanDesc desc;
	SnapshotData dirty;
	TupleTableSlot *slot;
	int			nkeys;
};

static bool needs_executor(Relation rel);
static Relation open_index_of(RatchetStore *store, Oid index);
static void insert_by_executor(RatchetStore *store);
static void refused_by_trigger(RatchetStore *store);
static TM_Result update_by_executor(RatchetStore *store, TupleTableSlot *found, bool wait);

/*
 * Open a table for row access. Locks it as any DML would; the lock is kept to
 * the end of the transaction. ratchet_store_insert_or_find needs for_conflicts.
 */
RatchetStore *
ratchet_store_open(Oid relid, bool for_conflicts)
{
	RatchetStore *store = palloc0(sizeof(RatchetStore));

	store->rel = table_open(relid, RowExclusiveLock);
	store->estate = CreateExecutorState();
	store->through_executor = needs_executor(store->rel);
	ratchet_init_range_table(store->estate, store->rel);
	store->rri = makeNode(ResultRelInfo);
	InitResultRelInfo(store->rri, store->rel, 1, NULL, 0);
	/* Where AFTER triggers look for it, instead of opening it once more. */
	store->estate->es_opened_result_relations = list_make1(store->rri);
	ExecOpenIndices(store->rri, for_conflicts);
	store->found = table_slot_create(store->rel, NULL);
	store->fresh = MakeSingleTupleTableSlot(RelationGetDescr(store->rel), &TTSOpsVirtual);
	return store;
}

/*
 * Close it, and make what was written visible to whatever runs next in this
 * transaction, be it in the same statement: SELECT complete(id, token) FROM
 * claim(...) must find its job.
 */
void
ratchet_store_close(RatchetStore *store)
{
	ExecDropSingleTupleTableSlot(store->fresh);
	ExecDropSingleTupleTableSlot(store->found);
	ExecCloseIndices(store->rri);
	ExecResetTupleTable(store->estate->es_tupleTable, false);
	FreeExecutorState(store->estate);
	table_close(store->rel, NoLock);
	CommandCounterIncrement();
	pfree(store);
}

/*
 * Find the newest committed version (or this transaction's own) of the row with
 * a unique key; it is left in store->found.
 *
 * The snapshot is taken now, whatever the transaction's isolation level. It is
 * an MVCC snapshot and not a dirty one, because a dirty scan can miss a row
 * that is updated while it looks: the old version is dead when visited, and the
 * new one's entry came in behind the scan.
 */
bool
ratchet_store_find(RatchetStore *store, Oid index, ScanKey keys, int nkeys)
{
	Relation	irel = open_index_of(store, index);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	IndexScanDesc scan = ratchet_index_beginscan(store->rel, irel, snapshot, nkeys);
	bool		found;

	index_rescan(scan, keys, nkeys, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, store->found);
	index_endscan(scan);		/* the slot has a pin of its own */
	UnregisterSnapshot(snapshot);
	return found;
}

/* Insert store->fresh. Raises 23505 for a duplicate key. */
void
ratchet_store_insert(RatchetStore *store)
{
	if (store->through_executor)
	{
		insert_by_executor(store);
		return;
	}
	table_tuple_insert(store->rel, store->fresh, GetCurrentCommandId(true), 0, NULL);
	if (store->rri->ri_NumIndices > 0)
		list_free(ratchet_insert_index_tuples(store->rri, store->fresh, store->estate,
											  false, NULL, NIL));
	ResetPerTupleExprContext(store->estate);
}

/*
 * Insert store->fresh, or find the row that has its key already: true if
 * inserted, false if store->found has the other row, committed or our own.
 *
 * Waits for a transaction that is inserting the same key just now (lock_timeout
 * applies). This is INSERT ... ON CONFLICT DO NOTHING without the statement,
 * and so without its serialization failure in REPEATABLE READ: whether an
 * invisible row is an error is for the caller to say.
 */
bool
ratchet_store_insert_or_find(RatchetStore *store, Oid index, ScanKey keys, int nkeys)
{
	List	   *arbiters = list_make1_oid(index);

	for (;;)
	{
		ItemPointerData conflict;
		uint32		token;
		bool		collided = false;

		CHECK_FOR_INTERRUPTS();
		if (ratchet_store_find(store, index, keys, nkeys))
			return false;
		if (!ratchet_check_index_constraints(store->rri, store->fresh, store->estate,
											 &conflict, arbiters))
			continue;			/* committed since we looked */

		token = SpeculativeInsertionLockAcquire(GetCurrentTransactionId());
		table_tuple_insert_speculative(store->rel, store->fresh, GetCurrentCommandId(true),
									   0, NULL, token);
		list_free(ratchet_insert_index_tuples(store->rri, store->fresh, store->estate,
											  true, &collided, arbiters));
		table_tuple_complete_speculative(store->rel, store->fresh, token, !collided);
		SpeculativeInsertionLockRelease(GetCurrentTransactionId());
		ResetPerTupleExprContext(store->estate);
		if (!collided)
			return true;
	}
}

/*
 * Replace the row version in "found" by store->fresh. TM_Ok: done. With wait,
 * anything else means that the row has changed since it was found, and without
 * it also that another transaction holds it; nothing has been written then.
 */
TM_Result
ratchet_store_update(RatchetStore *store, TupleTableSlot *found, bool wait)
{
	TM_FailureData tmfd;
	TM_Result	result;
	bool		needs_index_entries;

	if (store->through_executor)
		return update_by_executor(store, found, wait);

#ifdef USE_ASSERT_CHECKING

	/*
	 * heap_update handles "no wait" by answering TM_BeingModified, which is what
	 * we want, but asserts that nobody asks for it. So an assert build locks
	 * the row first, which costs it a WAL record.
	 */
	if (!wait)
	{
		result = ratchet_store_lock(store, found, false);
		if (result != TM_Ok)
			return result;
		wait = true;
	}
#endif
	result = ratchet_table_tuple_update(store->rel, &found->tts_tid, store->fresh,
										GetCurrentCommandId(true), wait, &tmfd,
										&needs_index_entries);
	if (result == TM_Ok && needs_index_entries && store->rri->ri_NumIndices > 0)
		list_free(ratchet_insert_index_tuples(store->rri, store->fresh, store->estate,
											  false, NULL, NIL));
	ResetPerTupleExprContext(store->estate);
	return result;
}

/*
 * Lock the row version in "found" as an update would; answers like one. For a
 * caller that has to decide between finding the row and writing it.
 */
TM_Result
ratchet_store_lock(RatchetStore *store, TupleTableSlot *found, bool wait)
{
	TupleTableSlot *locked = table_slot_create(store->rel, NULL);
	TM_FailureData tmfd;
	TM_Result	result;

	result = table_tuple_lock(store->rel, &found->tts_tid, GetLatestSnapshot(), locked,
							  GetCurrentCommandId(false), LockTupleNoKeyExclusive,
							  wait ? LockWaitBlock : LockWaitSkip, 0, &tmfd);
	ExecDropSingleTupleTableSlot(locked);
	return result;
}

/*
 * Prepare a scan of an index of the store; ratchet_scan_restart gives it its
 * nkeys keys. want_entries: for ratchet_scan_next_entry.
 */
RatchetScan *
ratchet_scan_begin(RatchetStore *store, Oid index, int nkeys, bool want_entries)
{
	RatchetScan *scan = palloc0(sizeof(RatchetScan));

	InitDirtySnapshot(scan->dirty);
	scan->store = store;
	scan->index = open_index_of(store, index);
	scan->nkeys = nkeys;
	scan->desc = ratchet_index_beginscan(store->rel, scan->index, &scan->dirty, nkeys);
	scan->desc->xs_want_itup = want_entries;
	scan->slot = table_slot_create(store->rel, NULL);
	return scan;
}

void
ratchet_scan_restart(RatchetScan *scan, ScanKey keys)
{
	index_rescan(scan->desc, keys, scan->nkeys, NULL, 0);
}

/* Step to the next row that is not dead for good. */
bool
ratchet_scan_next(RatchetScan *scan)
{
	CHECK_FOR_INTERRUPTS();
	return index_getnext_slot(scan->desc, ForwardScanDirection, scan->slot);
}

/*
 * Step to the next index entry, dead or alive, without a look at the table, and
 * return one of its columns (1-based). For finding out which lanes exist.
 */
bool
ratchet_scan_next_entry(RatchetScan *scan, int column, Datum *value)
{
	bool		isnull;

	CHECK_FOR_INTERRUPTS();
	if (index_getnext_tid(scan->desc, ForwardScanDirection) == NULL)
		return false;
	*value = index_getattr(scan->desc->xs_itup, column, scan->desc->xs_itupdesc, &isnull);
	return true;
}

/*
 * Whether nobody else is inserting, updating or deleting the row just found. A
 * mere row lock does not show here: the update finds it (TM_BeingModified).
 */
bool
ratchet_scan_entry_free(RatchetScan *scan)
{
	return !TransactionIdIsValid(scan->dirty.xmin) && !TransactionIdIsValid(scan->dirty.xmax);
}

TupleTableSlot *
ratchet_scan_slot(RatchetScan *scan)
{
	return scan->slot;
}

void
ratchet_scan_end(RatchetScan *scan)
{
	index_endscan(scan->desc);
	ExecDropSingleTupleTableSlot(scan->slot);
	pfree(scan);
}

/*
 * Call a function for every row of a table as it is now, whatever the isolation
 * level: what is cached for later transactions must not come from an old
 * snapshot.
 */
void
ratchet_table_read(Oid relid, void (*each) (TupleTableSlot *slot, void *arg), void *arg)
{
	Relation	rel = table_open(relid, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
		each(slot, arg);
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
}

/*
 * Whether something on the table that is not ours wants a say in each row: a row
 * trigger, a check constraint, a generated column.
 */
static bool
needs_executor(Relation rel)
{
	TriggerDesc *triggers = rel->trigdesc;
	TupleConstr *constraints = RelationGetDescr(rel)->constr;

	if (constraints != NULL && (constraints->num_check > 0 || constraints->has_generated_stored))
		return true;
	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
		if (TRIGGER_FOR_ROW(triggers->triggers[i].tgtype) &&
			!ratchet_guard_is_trigger_function(triggers->triggers[i].tgfoid))
			return true;
	return false;
}

static Relation
open_index_of(RatchetStore *store, Oid index)
{
	for (int i = 0; i < store->rri->ri_NumIndices; i++)
		if (RelationGetRelid(store->rri->ri_IndexRelationDescs[i]) == index)
			return store->rri->ri_IndexRelationDescs[i];
	elog(ERROR, "index %u does not belong to relation \"%s\"",
		 index, RelationGetRelationName(store->rel));
	return NULL;				/* keep compiler quiet */
}

static void
insert_by_executor(RatchetStore *store)
{
	ItemPointerSetInvalid(&store->fresh->tts_tid);
	store->estate->es_output_cid = GetCurrentCommandId(true);
	AfterTriggerBeginQuery();
	ExecSimpleRelationInsert(store->rri, store->estate, store->fresh);
	AfterTriggerEndQuery(store->estate);
	ResetPerTupleExprContext(store->estate);
	if (!ItemPointerIsValid(&store->fresh->tts_tid))
		refused_by_trigger(store);
}

/*
 * The trigger manager and simple_table_tuple_update wait for whoever holds the
 * row, and raise an error if it has changed. So lock it first, with the waiting
 * that we want.
 */
static TM_Result
update_by_executor(RatchetStore *store, TupleTableSlot *found, bool wait)
{
	TM_Result	result = ratchet_store_lock(store, found, wait);
	EPQState	epq;

	if (result == TM_Ok)
	{
		ItemPointerSetInvalid(&store->fresh->tts_tid);
		store->estate->es_output_cid = GetCurrentCommandId(true);
		ratchet_eval_plan_qual_init(&epq, store->estate);
		AfterTriggerBeginQuery();
		ExecSimpleRelationUpdate(store->rri, store->estate, &epq, found, store->fresh);
		AfterTriggerEndQuery(store->estate);
		EvalPlanQualEnd(&epq);
		ResetPerTupleExprContext(store->estate);
		if (!ItemPointerIsValid(&store->fresh->tts_tid))
		{
			if (wait)
				refused_by_trigger(store);
			result = TM_WouldBlock; /* not to be had, as if somebody held it */
		}
	}
	return result;
}

/* A BEFORE trigger that is not ours returned NULL: the row was not written. */
static void
refused_by_trigger(RatchetStore *store)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("a trigger of table \"%s\" suppressed the change",
					RelationGetRelationName(store->rel)),
			 errhint("A BEFORE trigger on ratchet's tables must return the new row.")));
}
