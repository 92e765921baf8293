/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  The one enforcer of the job's rules, for every writer of ratchet.job:
 *	  transitions, identity, consistency, derived columns.
 *
 * Ratchet's own writes call the C functions here (job/row.c); every other
 * writer, superusers and replication apply included, meets them through
 * triggers that are ENABLE ALWAYS. The checks come in a fixed order: transition,
 * identity, consistency. The guard reads no table: what it decides depends on
 * the old row, the new row, the writer's role and the clock. Business keys, for
 * which another table is written, follow once the row is in place
 * (ratchet_guard_after).
 *
 * Between versions the consistency rules only ever get looser: an old dump has
 * to pass them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/rel.h"

#include "ratchet.h"

static const RatchetColumn identity_columns[] = {
	RC_ID, RC_KIND, RC_PAYLOAD, RC_QUEUE, RC_CREATED_AT, RC_IDEMPOTENCY_KEY, RC_ENQUEUED_BY
};

/* Set by the guard whatever the writer wrote. */
static const RatchetColumn derived_columns[] = {
	RC_READY_AT, RC_LEFT_AT, RC_LEASE_US, RC_VERSION
};

/* What else a heartbeat or a progress report may change in a running row. */
static const RatchetColumn running_columns[] = {
	RC_LEASE_EXPIRES_AT, RC_PROGRESS, RC_PROGRESS_MESSAGE
};

PG_FUNCTION_INFO_V1(ratchet_guard);
PG_FUNCTION_INFO_V1(ratchet_guard_keys);

static void check_transition(const RatchetRow *old, const RatchetRow *fresh);
static void check_identity(const RatchetRow *old, const RatchetRow *fresh);
static void check_running_unchanged(const RatchetRow *old, const RatchetRow *fresh);
static void check_consistency(const RatchetRow *row);
static void derive(const RatchetRow *old, RatchetRow *fresh, TimestampTz now);
static void derive_left_at(const RatchetRow *old, RatchetRow *fresh, TimestampTz now);
static void derive_lease_us(const RatchetRow *old, RatchetRow *fresh, TimestampTz now);
static void guard_delete(const RatchetRow *old);
static bool writer_owns_jobs(void);
static bool paused_from(const RatchetRow *row, RatchetState *from);
static bool same(RatchetColumn column, const RatchetRow *a, const RatchetRow *b);
static const char *ways_from(RatchetState from);
static char *job_name(const RatchetRow *row);
static void trigger_called_wrongly(void);
static void row_from_tuple(RatchetRow *row, HeapTuple tuple, TupleDesc desc);
static HeapTuple tuple_from_row(const RatchetRow *row, HeapTuple base, TupleDesc desc);

/* A new row: born pending or held, unless the owner restores one. */
void
ratchet_guard_insert(RatchetRow *fresh, TimestampTz now)
{
	RatchetState state;

	if (fresh->isnull[RC_STATE])
		ereport(ERROR,
				(errcode(ERRCODE_NOT_NULL_VIOLATION),
				 errmsg("a job needs a state")));
	state = ratchet_row_state(fresh);
	if (((state != RATCHET_PENDING && state != RATCHET_PAUSED) ||
		 fresh->isnull[RC_ATTEMPT] || RC_INT(fresh, RC_ATTEMPT) != 0) &&
		!writer_owns_jobs())
		ereport(ERROR,
				(errcode(RATCHET_ERRCODE_TRANSITION),
				 errmsg("job %s cannot go from (new) to %s", job_name(fresh), ratchet_state_name(state)),
				 errdetail("A job begins pending or paused, with attempt 0."),
				 errhint("Use ratchet.enqueue().")));
	derive(NULL, fresh, now);
	check_consistency(fresh);
	ratchet_notice_row(fresh, now);
}

void
ratchet_guard_update(const RatchetRow *old, RatchetRow *fresh, TimestampTz now)
{
	check_transition(old, fresh);
	check_identity(old, fresh);
	ratchet_row_set(fresh, RC_VERSION, Int32GetDatum(RC_INT(old, RC_VERSION) + 1));
	derive(old, fresh, now);
	check_consistency(fresh);

	if (ratchet_row_state(fresh) == RATCHET_RUNNING && ratchet_row_state(old) != RATCHET_RUNNING)
		ratchet_xact_note_running(RC_UUID(fresh, RC_ID));
	ratchet_notice_row(fresh, now);
}

/*
 * The row is written: move its business key along. old is NULL for a new row.
 * Raises RT002 if the key has another live owner.
 */
void
ratchet_guard_after(const RatchetRow *old, const RatchetRow *fresh)
{
	bool		held = old != NULL && !old->isnull[RC_BUSINESS_KEY] && ratchet_row_holds_key(old);
	bool		wanted = !fresh->isnull[RC_BUSINESS_KEY] && ratchet_row_holds_key(fresh);

	if (held && wanted && same(RC_BUSINESS_KEY, old, fresh))
		return;
	if (held)
		ratchet_business_key_release(RC_TEXT(old, RC_QUEUE), RC_TEXT(old, RC_BUSINESS_KEY),
									 RC_UUID(old, RC_ID));
	if (wanted)
		ratchet_business_key_take(RC_TEXT(fresh, RC_QUEUE), RC_TEXT(fresh, RC_BUSINESS_KEY),
								  RC_UUID(fresh, RC_ID), true);
}

bool
ratchet_guard_is_trigger_function(Oid function)
{
	const RatchetCatalog *catalog = ratchet_catalog();

	return function == catalog->guard || function == catalog->guard_keys;
}

/* BEFORE INSERT, UPDATE, DELETE for each row; BEFORE TRUNCATE. */
Datum
ratchet_guard(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	TimestampTz now = ratchet_now();
	TupleDesc	desc;
	RatchetRow	old,
				fresh;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		RelationGetRelid(trigger->tg_relation) != ratchet_catalog()->job)
		trigger_called_wrongly();
	if (TRIGGER_FIRED_BY_TRUNCATE(trigger->tg_event))
		ereport(ERROR,
				(errcode(RATCHET_ERRCODE_TRANSITION),
				 errmsg("table ratchet.job cannot be truncated"),
				 errdetail("Live jobs are deleted by nobody."),
				 errhint("Use ratchet.cancel_many() to stop jobs; finished ones are archived by themselves.")));
	if (!TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		trigger_called_wrongly();

	desc = RelationGetDescr(trigger->tg_relation);
	row_from_tuple(&old, trigger->tg_trigtuple, desc);
	if (TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
	{
		ratchet_guard_insert(&old, now);
		ratchet_wakeup_note_row(NULL, &old, now);
		return PointerGetDatum(tuple_from_row(&old, trigger->tg_trigtuple, desc));
	}
	if (TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
	{
		guard_delete(&old);
		return PointerGetDatum(trigger->tg_trigtuple);
	}
	row_from_tuple(&fresh, trigger->tg_newtuple, desc);
	ratchet_guard_update(&old, &fresh, now);
	ratchet_wakeup_note_row(&old, &fresh, now);
	return PointerGetDatum(tuple_from_row(&fresh, trigger->tg_newtuple, desc));
}

/* AFTER INSERT, UPDATE for each row that has or had a business key. */
Datum
ratchet_guard_keys(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	TupleDesc	desc;
	RatchetRow	old,
				fresh;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event) ||
		RelationGetRelid(trigger->tg_relation) != ratchet_catalog()->job)
		trigger_called_wrongly();

	desc = RelationGetDescr(trigger->tg_relation);
	row_from_tuple(&old, trigger->tg_trigtuple, desc);
	if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
	{
		row_from_tuple(&fresh, trigger->tg_newtuple, desc);
		ratchet_guard_after(&old, &fresh);
	}
	else
		ratchet_guard_after(NULL, &old);
	return PointerGetDatum(NULL);
}

static void
check_transition(const RatchetRow *old, const RatchetRow *fresh)
{
	RatchetState from = ratchet_row_state(old);
	RatchetState to;
	RatchetState recorded;
	const char *rule = NULL;

	if (fresh->isnull[RC_STATE])
		ereport(ERROR,
				(errcode(ERRCODE_NOT_NULL_VIOLATION),
				 errmsg("job %s needs a state", job_name(old))));
	to = ratchet_row_state(fresh);

	if (!ratchet_transition_allowed(from, to))
		rule = from == RATCHET_FAILED ? "A failed job changes only by retry or pause." :
			ratchet_state_finished(from) ? "A job in a terminal state never changes." :
			"ratchet.transition has no such transition.";
	else if (from == RATCHET_PAUSED && to != RATCHET_CANCELED &&
			 (!paused_from(old, &recorded) || recorded != to))
		rule = "A paused job goes back to the state that paused_from recorded, no other.";
	else if (to == RATCHET_PAUSED && paused_from(fresh, &recorded) && recorded != from)
		rule = "paused_from records the state that the job was paused in.";

	if (rule != NULL)
		ereport(ERROR,
				(errcode(RATCHET_ERRCODE_TRANSITION),
				 errmsg("job %s cannot go from %s to %s", job_name(old),
						ratchet_state_name(from), ratchet_state_name(to)),
				 errdetail("%s", rule),
				 errhint("%s", ways_from(from))));
	if (from == RATCHET_RUNNING && to == RATCHET_RUNNING)
		check_running_unchanged(old, fresh);
}

static void
check_running_unchanged(const RatchetRow *old, const RatchetRow *fresh)
{
	for (int column = 0; column < RC_COUNT; column++)
	{
		bool		may_change = false;

		for (int i = 0; i < lengthof(running_columns); i++)
			may_change |= running_columns[i] == column;
		for (int i = 0; i < lengthof(derived_columns); i++)
			may_change |= derived_columns[i] == column;
		if (!may_change && !same((RatchetColumn) column, old, fresh))
			ereport(ERROR,
					(errcode(RATCHET_ERRCODE_TRANSITION),
					 errmsg("job %s cannot go from running to running with another %s",
							job_name(old), ratchet_column_name((RatchetColumn) column)),
					 errdetail("While a job stays running, only its lease and its progress change."),
					 errhint("Use ratchet.heartbeat() or ratchet.progress().")));
	}
}

static void
check_identity(const RatchetRow *old, const RatchetRow *fresh)
{
	for (int i = 0; i < lengthof(identity_columns); i++)
		if (!same(identity_columns[i], old, fresh))
			ereport(ERROR,
					(errcode(RATCHET_ERRCODE_TRANSITION),
					 errmsg("job %s cannot go from %s to %s with another %s", job_name(old),
							ratchet_state_name(ratchet_row_state(old)),
							ratchet_state_name(ratchet_row_state(fresh)),
							ratchet_column_name(identity_columns[i])),
					 errdetail("Column \"%s\" is part of a job's identity and never changes.",
							   ratchet_column_name(identity_columns[i])),
					 errhint("Cancel the job and enqueue another one with ratchet.enqueue().")));
}

static void
check_consistency(const RatchetRow *row)
{
	RatchetState state = ratchet_row_state(row);
	RatchetState from = state;
	bool		finished;
	const char *rule = NULL;

	if (!row->isnull[RC_PAUSED_FROM])
		from = ratchet_state_from_oid(DatumGetObjectId(row->value[RC_PAUSED_FROM]));
	finished = ratchet_state_finished(state) || (state == RATCHET_PAUSED && from == RATCHET_FAILED);

	if (state == RATCHET_RUNNING &&
		(row->isnull[RC_TOKEN] || row->isnull[RC_PICKED_BY] || row->isnull[RC_PICKED_AT] ||
		 row->isnull[RC_LEASE_EXPIRES_AT]))
		rule = "A running job has token, picked_by, picked_at and lease_expires_at.";
	else if (state == RATCHET_RUNNING &&
			 (TIMESTAMP_NOT_FINITE(RC_TIMESTAMP(row, RC_LEASE_EXPIRES_AT)) ||
			  TIMESTAMP_NOT_FINITE(RC_TIMESTAMP(row, RC_PICKED_AT))))
		rule = "The times of a running job are finite, so that it can be recovered.";
	else if (state != RATCHET_RUNNING && !row->isnull[RC_TOKEN])
		rule = "Only a running job has a token.";
	else if (finished && row->isnull[RC_FINISHED_AT])
		rule = "A finished job, or one paused from failed, has finished_at.";
	else if (!finished && !row->isnull[RC_FINISHED_AT])
		rule = "Only a finished job, or one paused from failed, has finished_at.";
	else if ((state == RATCHET_PAUSED) != (!row->isnull[RC_PAUSED_FROM]) ||
			 (state == RATCHET_PAUSED && from != RATCHET_PENDING && from != RATCHET_FAILED))
		rule = "A paused job, and no other, has paused_from: pending or failed.";
	else if (row->isnull[RC_ATTEMPT] || RC_INT(row, RC_ATTEMPT) < 0)
		rule = "attempt is 0 or more.";
	else if (row->isnull[RC_VERSION] || RC_INT(row, RC_VERSION) < 1)
		rule = "version is 1 or more.";

	if (rule != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CHECK_VIOLATION),
				 errmsg("job %s would be inconsistent in state %s", job_name(row),
						ratchet_state_name(state)),
				 errdetail("%s", rule),
				 errhint("Use the functions of ratchet: they keep a job consistent.")));
}

/* Columns that follow from the others, whatever the writer wrote. */
static void
derive(const RatchetRow *old, RatchetRow *fresh, TimestampTz now)
{
	if (ratchet_row_state(fresh) == RATCHET_PENDING && !fresh->isnull[RC_WAITING_ON] &&
		RC_INT(fresh, RC_WAITING_ON) == 0 && !fresh->isnull[RC_SCHEDULED_AT])
		ratchet_row_set(fresh, RC_READY_AT, fresh->value[RC_SCHEDULED_AT]);
	else
		ratchet_row_set_null(fresh, RC_READY_AT);
	derive_left_at(old, fresh, now);
	derive_lease_us(old, fresh, now);
}

/*
 * When the job left the ready index. It must not move with a completion: that
 * update is HOT because this indexed column stays.
 */
static void
derive_left_at(const RatchetRow *old, RatchetRow *fresh, TimestampTz now)
{
	RatchetState state = ratchet_row_state(fresh);
	RatchetState from;

	if (state == RATCHET_PENDING ||
		(state == RATCHET_PAUSED && paused_from(fresh, &from) && from == RATCHET_PENDING))
		ratchet_row_set_null(fresh, RC_LEFT_AT);
	else if (old == NULL)
	{
		RatchetColumn source = fresh->isnull[RC_PICKED_AT] ? RC_FINISHED_AT : RC_PICKED_AT;

		fresh->value[RC_LEFT_AT] = fresh->value[source];
		fresh->isnull[RC_LEFT_AT] = fresh->isnull[source];
	}
	else if (old->isnull[RC_LEFT_AT])
		ratchet_row_set(fresh, RC_LEFT_AT, TimestampTzGetDatum(now));
	else
		ratchet_row_set(fresh, RC_LEFT_AT, old->value[RC_LEFT_AT]);
}

/*
 * The length of the lease: from now to its end when it is granted or extended.
 * For a row that comes in running (a restore) the time since picked_at bounds it.
 */
static void
derive_lease_us(const RatchetRow *old, RatchetRow *fresh, TimestampTz now)
{
	int64		us;

	if (ratchet_row_state(fresh) != RATCHET_RUNNING || fresh->isnull[RC_LEASE_EXPIRES_AT] ||
		fresh->isnull[RC_PICKED_AT])
	{
		ratchet_row_set_null(fresh, RC_LEASE_US);
		return;
	}
	if (old != NULL && ratchet_row_state(old) == RATCHET_RUNNING &&
		same(RC_LEASE_EXPIRES_AT, old, fresh))
	{
		fresh->value[RC_LEASE_US] = old->value[RC_LEASE_US];
		fresh->isnull[RC_LEASE_US] = old->isnull[RC_LEASE_US];
		return;
	}
	us = RC_TIMESTAMP(fresh, RC_LEASE_EXPIRES_AT) -
		(old != NULL ? now : RC_TIMESTAMP(fresh, RC_PICKED_AT));
	if (old == NULL && !fresh->isnull[RC_LEASE_US])
		us = Min(us, DatumGetInt64(fresh->value[RC_LEASE_US]));
	ratchet_row_set(fresh, RC_LEASE_US, Int64GetDatum(Max(us, 0)));
}

static void
guard_delete(const RatchetRow *old)
{
	RatchetState state = ratchet_row_state(old);

	if (!ratchet_state_finished(state))
		ereport(ERROR,
				(errcode(RATCHET_ERRCODE_TRANSITION),
				 errmsg("job %s cannot go from %s to (deleted)", job_name(old), ratchet_state_name(state)),
				 errdetail("Live jobs are deleted by nobody."),
				 errhint("Use ratchet.cancel() to stop it.")));
	if (!writer_owns_jobs())
		ereport(ERROR,
				(errcode(RATCHET_ERRCODE_TRANSITION),
				 errmsg("job %s cannot go from %s to (deleted)", job_name(old), ratchet_state_name(state)),
				 errdetail("Finished jobs are deleted by the table's owner only."),
				 errhint("Use ratchet.forget().")));
}

static bool
writer_owns_jobs(void)
{
	return ratchet_owns_relation(ratchet_catalog()->job, GetUserId());
}

static bool
paused_from(const RatchetRow *row, RatchetState *from)
{
	if (row->isnull[RC_PAUSED_FROM])
		return false;
	*from = ratchet_state_from_oid(DatumGetObjectId(row->value[RC_PAUSED_FROM]));
	return true;
}

/*
 * Whether a column is the same in both rows. Mostly it is the very same datum;
 * a payload is detoasted only if the stored images differ.
 */
static bool
same(RatchetColumn column, const RatchetRow *a, const RatchetRow *b)
{
	const RatchetCatalog *catalog = ratchet_catalog();
	Datum		x = a->value[column];
	Datum		y = b->value[column];

	if (a->isnull[column] || b->isnull[column])
		return a->isnull[column] == b->isnull[column];
	if (x == y)
		return true;
	if (catalog->column_len[column] == -1 &&
		VARSIZE_ANY(DatumGetPointer(x)) == VARSIZE_ANY(DatumGetPointer(y)) &&
		memcmp(DatumGetPointer(x), DatumGetPointer(y), VARSIZE_ANY(DatumGetPointer(x))) == 0)
		return true;
	return datum_image_eq(x, y, catalog->column_byval[column], catalog->column_len[column]);
}

/* What can be done with a job in this state. */
static const char *
ways_from(RatchetState from)
{
	switch (from)
	{
		case RATCHET_PENDING:
			return "Use ratchet.claim(), ratchet.pause(), ratchet.reschedule() or ratchet.cancel().";
		case RATCHET_RUNNING:
			return "Use ratchet.complete(), ratchet.fail(), ratchet.skip(), ratchet.release() or ratchet.cancel().";
		case RATCHET_FAILED:
			return "Use ratchet.retry() or ratchet.pause().";
		case RATCHET_PAUSED:
			return "Use ratchet.resume() or ratchet.cancel().";
		default:
			return "ratchet.rerun() makes a new job from it.";
	}
}

static char *
job_name(const RatchetRow *row)
{
	if (row->isnull[RC_ID])
		return "(without id)";
	return DatumGetCString(DirectFunctionCall1(uuid_out, row->value[RC_ID]));
}

static void
trigger_called_wrongly(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
			 errmsg("this function guards ratchet.job and can be called only by the triggers of that table")));
}

static void
row_from_tuple(RatchetRow *row, HeapTuple tuple, TupleDesc desc)
{
	const RatchetCatalog *catalog = ratchet_catalog();
	Datum	   *values = palloc(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));

	heap_deform_tuple(tuple, desc, values, nulls);
	for (int i = 0; i < RC_COUNT; i++)
	{
		row->value[i] = values[catalog->column[i] - 1];
		row->isnull[i] = nulls[catalog->column[i] - 1];
	}
	pfree(values);
	pfree(nulls);
}

/* Only what the guard has set goes back into the tuple. */
static HeapTuple
tuple_from_row(const RatchetRow *row, HeapTuple base, TupleDesc desc)
{
	const RatchetCatalog *catalog = ratchet_catalog();
	int			attnums[lengthof(derived_columns)];
	Datum		values[lengthof(derived_columns)];
	bool		nulls[lengthof(derived_columns)];

	for (int i = 0; i < lengthof(derived_columns); i++)
	{
		attnums[i] = catalog->column[derived_columns[i]];
		values[i] = row->value[derived_columns[i]];
		nulls[i] = row->isnull[derived_columns[i]];
	}
	return heap_modify_tuple_by_cols(base, desc, lengthof(derived_columns), attnums, values, nulls);
}
