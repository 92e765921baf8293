/*-------------------------------------------------------------------------
 *
 * row.c
 *	  A job row as C sees it, and the three things done with it: find, insert,
 *	  update. Every write of ratchet's own goes through here, and so past the
 *	  guard.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "access/xact.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

#include "ratchet.h"

static int	compare_by_id(const void *a, const void *b, void *ids);
static void fill_slot(TupleTableSlot *fresh, TupleTableSlot *base, const RatchetRow *row);

/* The row points into the slot's tuple: it is good while the slot holds it. */
void
ratchet_row_read(RatchetRow *row, TupleTableSlot *slot)
{
	const RatchetCatalog *catalog = ratchet_catalog();

	slot_getallattrs(slot);
	for (int i = 0; i < RC_COUNT; i++)
	{
		row->value[i] = slot->tts_values[catalog->column[i] - 1];
		row->isnull[i] = slot->tts_isnull[catalog->column[i] - 1];
	}
}

void
ratchet_row_set(RatchetRow *row, RatchetColumn column, Datum value)
{
	row->value[column] = value;
	row->isnull[column] = false;
}

void
ratchet_row_set_null(RatchetRow *row, RatchetColumn column)
{
	row->value[column] = (Datum) 0;
	row->isnull[column] = true;
}

void
ratchet_row_set_interval(RatchetRow *row, RatchetColumn column, int64 us)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = us;
	ratchet_row_set(row, column, IntervalPGetDatum(interval));
}

/*
 * An interval column in microseconds. Our own calls store nothing but
 * microseconds; what a superuser wrote by hand is clamped.
 */
int64
ratchet_row_interval_us(const RatchetRow *row, RatchetColumn column, int64 otherwise)
{
	if (row->isnull[column])
		return otherwise;
	return ratchet_interval_us(DatumGetIntervalP(row->value[column]));
}

RatchetState
ratchet_row_state(const RatchetRow *row)
{
	return ratchet_state_from_oid(DatumGetObjectId(row->value[RC_STATE]));
}

void
ratchet_row_set_state(RatchetRow *row, RatchetState state)
{
	ratchet_row_set(row, RC_STATE, ratchet_state_datum(state));
}

/* Whether a job in this state occupies its business key. */
bool
ratchet_row_holds_key(const RatchetRow *row)
{
	switch (ratchet_row_state(row))
	{
		case RATCHET_PENDING:
		case RATCHET_RUNNING:
			return true;
		case RATCHET_PAUSED:
			return !row->isnull[RC_PAUSED_FROM] &&
				ratchet_state_from_oid(DatumGetObjectId(row->value[RC_PAUSED_FROM])) == RATCHET_PENDING;
		default:
			return false;
	}
}

/* The run is over: its lease and token end, who ran it stays readable. */
void
ratchet_row_leave_running(RatchetRow *row, RatchetState to)
{
	ratchet_row_set_state(row, to);
	ratchet_row_set_null(row, RC_TOKEN);
	ratchet_row_set_null(row, RC_LEASE_EXPIRES_AT);
}

/* Into one of the finished states, from running or not. */
void
ratchet_row_finish(RatchetRow *row, RatchetState to, TimestampTz now)
{
	ratchet_row_leave_running(row, to);
	ratchet_row_set_null(row, RC_PAUSED_FROM);
	ratchet_row_set(row, RC_FINISHED_AT, TimestampTzGetDatum(now));
}

/* Copy what the row points to, so that it outlives its tuple. */
void
ratchet_row_detach(RatchetRow *row)
{
	const RatchetCatalog *catalog = ratchet_catalog();

	for (int i = 0; i < RC_COUNT; i++)
		if (!row->isnull[i])
			row->value[i] = datumCopy(row->value[i], catalog->column_byval[i], catalog->column_len[i]);
}

/* The order by id in which several jobs are locked, so that no two calls deadlock. */
int *
ratchet_uuid_order(Datum *ids, int count)
{
	int		   *order = palloc(Max(count, 1) * sizeof(int));

	for (int i = 0; i < count; i++)
		order[i] = i;
	qsort_arg(order, count, sizeof(int), compare_by_id, ids);
	return order;
}

static int
compare_by_id(const void *a, const void *b, void *ids)
{
	int			x = *(const int *) a;
	int			y = *(const int *) b;
	int			c = memcmp(DatumGetUUIDP(((Datum *) ids)[x]), DatumGetUUIDP(((Datum *) ids)[y]), UUID_LEN);

	return c != 0 ? c : (x > y) - (x < y);
}

RatchetStore *
ratchet_job_open(void)
{
	RatchetStore *store = ratchet_store_open(ratchet_catalog()->job, false);

	/* A column that we do not know may have a rule of its own, such as NOT NULL. */
	if (RelationGetDescr(store->rel)->natts != RC_COUNT)
		store->through_executor = true;
	return store;
}

/*
 * The newest committed version of a job, or the one that this call itself has
 * written for an id it was given twice, in store->found and *row.
 */
bool
ratchet_job_find(RatchetStore *store, const pg_uuid_t *id, RatchetRow *row)
{
	ScanKeyData key;

	CommandCounterIncrement();
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(id));
	if (!ratchet_store_find(store, ratchet_catalog()->job_pkey, &key, 1))
		return false;
	ratchet_row_read(row, store->found);
	return true;
}

/*
 * Write the next version of the job whose present version is in "found" and
 * *old. The guard sets the derived columns in *fresh.
 */
TM_Result
ratchet_job_update(RatchetStore *store, TupleTableSlot *found, const RatchetRow *old,
				   RatchetRow *fresh, TimestampTz now, bool wait)
{
	TM_Result	result;

	/* Through the executor the guard's own triggers fire among the others. */
	if (!store->through_executor)
		ratchet_guard_update(old, fresh, now);
	fill_slot(store->fresh, found, fresh);
	result = ratchet_store_update(store, found, wait);
	if (result == TM_Ok && !store->through_executor)
		ratchet_guard_after(old, fresh);
	return result;
}

void
ratchet_job_insert(RatchetStore *store, RatchetRow *row, TimestampTz now)
{
	if (!store->through_executor)
		ratchet_guard_insert(row, now);
	fill_slot(store->fresh, NULL, row);
	ratchet_store_insert(store);
	if (!store->through_executor)
		ratchet_guard_after(NULL, row);
}

/* Columns that C does not know come from the base version, or are NULL. */
static void
fill_slot(TupleTableSlot *fresh, TupleTableSlot *base, const RatchetRow *row)
{
	const RatchetCatalog *catalog = ratchet_catalog();
	int			natts = fresh->tts_tupleDescriptor->natts;

	ExecClearTuple(fresh);
	if (base != NULL)
	{
		slot_getallattrs(base);
		memcpy(fresh->tts_values, base->tts_values, natts * sizeof(Datum));
		memcpy(fresh->tts_isnull, base->tts_isnull, natts * sizeof(bool));
	}
	else
	{
		memset(fresh->tts_values, 0, natts * sizeof(Datum));
		memset(fresh->tts_isnull, true, natts * sizeof(bool));
	}
	for (int i = 0; i < RC_COUNT; i++)
	{
		fresh->tts_values[catalog->column[i] - 1] = row->value[i];
		fresh->tts_isnull[catalog->column[i] - 1] = row->isnull[i];
	}
	ExecStoreVirtualTuple(fresh);
}
