/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  The only home of PG_VERSION_NUM: one wrapper per API that differs between
 *	  PostgreSQL 15 and 18, each with the newest shape and a name of its own.
 *
 * Dropping a version is a grep for its number here.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RATCHET_COMPAT_H
#define RATCHET_COMPAT_H

#include "access/genam.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "parser/parse_relation.h"
#include "utils/acl.h"
#include "utils/rel.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

#if PG_VERSION_NUM < 150000
#error "ratchet needs PostgreSQL 15 or later"
#endif

/* 18 names the module and its version in the magic block. */
#if PG_VERSION_NUM >= 180000
#define RATCHET_MODULE_MAGIC PG_MODULE_MAGIC_EXT(.name = "ratchet", .version = RATCHET_VERSION)
#else
#define RATCHET_MODULE_MAGIC PG_MODULE_MAGIC
#endif

/* 18 added the instrumentation argument. */
static inline IndexScanDesc
ratchet_index_beginscan(Relation heap, Relation index, Snapshot snapshot, int nkeys)
{
#if PG_VERSION_NUM >= 180000
	return index_beginscan(heap, index, snapshot, NULL, nkeys, 0);
#else
	return index_beginscan(heap, index, snapshot, nkeys, 0);
#endif
}

/*
 * 16 turned the bool "indexes need new entries" into an enum, for summarizing
 * indexes. We have none; the answer here is whether the update was not HOT.
 */
static inline TM_Result
ratchet_table_tuple_update(Relation rel, ItemPointer tid, TupleTableSlot *slot,
						   CommandId cid, bool wait, TM_FailureData *tmfd,
						   bool *needs_index_entries)
{
	LockTupleMode lockmode;
	TM_Result	result;
#if PG_VERSION_NUM >= 160000
	TU_UpdateIndexes update_indexes = TU_None;
#else
	bool		update_indexes = false;
#endif

	result = table_tuple_update(rel, tid, slot, cid, InvalidSnapshot, InvalidSnapshot,
								wait, tmfd, &lockmode, &update_indexes);
#if PG_VERSION_NUM >= 160000
	*needs_index_entries = (update_indexes == TU_All);
#else
	*needs_index_entries = update_indexes;
#endif
	return result;
}

/*
 * 16 added onlySummarizing. "update" is only a hint for bottom-up deletion, and
 * needs a range table that direct access does not have.
 */
static inline List *
ratchet_insert_index_tuples(ResultRelInfo *rri, TupleTableSlot *slot, EState *estate,
							bool no_dup_error, bool *spec_conflict, List *arbiters)
{
#if PG_VERSION_NUM >= 160000
	return ExecInsertIndexTuples(rri, slot, estate, false, no_dup_error, spec_conflict,
								 arbiters, false);
#else
	return ExecInsertIndexTuples(rri, slot, estate, false, no_dup_error, spec_conflict,
								 arbiters);
#endif
}

/* 18 wants to know the tuple that may be ignored: none. */
static inline bool
ratchet_check_index_constraints(ResultRelInfo *rri, TupleTableSlot *slot, EState *estate,
								ItemPointer conflict, List *arbiters)
{
#if PG_VERSION_NUM >= 180000
	ItemPointerData none;

	ItemPointerSetInvalid(&none);
	return ExecCheckIndexConstraints(rri, slot, estate, conflict, &none, arbiters);
#else
	return ExecCheckIndexConstraints(rri, slot, estate, conflict, arbiters);
#endif
}

/* 16 (and late 15.x by another name) added resultRelations: we have no row marks. */
static inline void
ratchet_eval_plan_qual_init(EPQState *epq, EState *estate)
{
#if PG_VERSION_NUM >= 160000
	EvalPlanQualInit(epq, estate, NULL, NIL, -1, NIL);
#else
	EvalPlanQualInit(epq, estate, NULL, NIL, -1);
#endif
}

/*
 * A range table with the one relation in it, as the executor's helpers want for
 * constraints and triggers. 16 moved permissions out of it, 18 wants the set of
 * relations that are not pruned.
 */
static inline void
ratchet_init_range_table(EState *estate, Relation rel)
{
	RangeTblEntry *rte = makeNode(RangeTblEntry);
	List	   *rtes = list_make1(rte);
#if PG_VERSION_NUM >= 160000
	List	   *permissions = NIL;
#endif

	rte->rtekind = RTE_RELATION;
	rte->relid = RelationGetRelid(rel);
	rte->relkind = rel->rd_rel->relkind;
	rte->rellockmode = RowExclusiveLock;
#if PG_VERSION_NUM >= 160000
	addRTEPermissionInfo(&permissions, rte);
#endif
#if PG_VERSION_NUM >= 180000
	ExecInitRangeTable(estate, rtes, permissions, bms_make_singleton(1));
#elif PG_VERSION_NUM >= 160000
	ExecInitRangeTable(estate, rtes, permissions);
#else
	ExecInitRangeTable(estate, rtes);
#endif
}

/* 16 replaced one aclcheck function per kind of object by one for all. */
static inline bool
ratchet_owns_relation(Oid relid, Oid roleid)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(RelationRelationId, relid, roleid);
#else
	return pg_class_ownercheck(relid, roleid);
#endif
}

/* 17 gave each process a number of its own, and each library its wait events. */
#if PG_VERSION_NUM >= 170000
#define RATCHET_MY_PROC_NUMBER	((uint32) MyProcNumber)
#define RATCHET_WAIT_EVENT(name) WaitEventExtensionNew(name)
#else
#define RATCHET_MY_PROC_NUMBER	((uint32) MyProc->pgprocno)
#define RATCHET_WAIT_EVENT(name) PG_WAIT_EXTENSION
#endif

/* 17 gave interval its infinities. */
#ifdef INTERVAL_NOT_FINITE
#define RATCHET_INTERVAL_NOT_FINITE(i) INTERVAL_NOT_FINITE(i)
#else
#define RATCHET_INTERVAL_NOT_FINITE(i) false
#endif

#endif							/* RATCHET_COMPAT_H */
