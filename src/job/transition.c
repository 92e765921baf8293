/*-------------------------------------------------------------------------
 *
 * transition.c
 *	  The job's state machine: one table, used by the guard and readable from
 *	  SQL as ratchet.transition.
 *
 * Nothing else in ratchet knows which change of state is allowed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "ratchet.h"

#define NEW_JOB (-1)

static const struct
{
	int			from;			/* RatchetState, or NEW_JOB */
	RatchetState to;
	const char *done_by;
}			transitions[] =
{
	{NEW_JOB, RATCHET_PENDING, "enqueue"},
	{NEW_JOB, RATCHET_PAUSED, "enqueue with hold"},
	{RATCHET_PENDING, RATCHET_RUNNING, "claim"},
	{RATCHET_PENDING, RATCHET_PAUSED, "pause"},
	{RATCHET_PENDING, RATCHET_CANCELED, "cancel"},
	{RATCHET_PENDING, RATCHET_EXPIRED, "expires_at passed before a claim"},
	{RATCHET_PENDING, RATCHET_SKIPPED, "branch not taken"},
	{RATCHET_PENDING, RATCHET_PENDING, "reschedule, dependency met"},
	{RATCHET_RUNNING, RATCHET_SUCCEEDED, "complete"},
	{RATCHET_RUNNING, RATCHET_SKIPPED, "skip"},
	{RATCHET_RUNNING, RATCHET_FAILED, "fail or timeout without attempts left, crash limit"},
	{RATCHET_RUNNING, RATCHET_PENDING, "fail or timeout with attempts left, release, orphan recovery"},
	{RATCHET_RUNNING, RATCHET_CANCELED, "cancel"},
	{RATCHET_RUNNING, RATCHET_RUNNING, "heartbeat, progress"},
	{RATCHET_FAILED, RATCHET_PENDING, "retry"},
	{RATCHET_FAILED, RATCHET_PAUSED, "pause"},
	{RATCHET_PAUSED, RATCHET_PENDING, "resume, if paused from pending"},
	{RATCHET_PAUSED, RATCHET_FAILED, "resume, if paused from failed"},
	{RATCHET_PAUSED, RATCHET_CANCELED, "cancel"},
};

static const char *const state_names[RATCHET_STATE_COUNT] = {
	"pending", "running", "succeeded", "failed", "paused", "canceled", "skipped", "expired"
};

PG_FUNCTION_INFO_V1(ratchet_is_terminal);
PG_FUNCTION_INFO_V1(ratchet_is_successful);
PG_FUNCTION_INFO_V1(ratchet_was_executed);
PG_FUNCTION_INFO_V1(ratchet_terminal_states);
PG_FUNCTION_INFO_V1(ratchet_transitions);

bool
ratchet_transition_allowed(RatchetState from, RatchetState to)
{
	for (int i = 0; i < lengthof(transitions); i++)
		if (transitions[i].from == (int) from && transitions[i].to == to)
			return true;
	return false;
}

const char *
ratchet_state_name(RatchetState state)
{
	return state_names[state];
}

/* "Finished": the terminal states, and failed. */
bool
ratchet_state_finished(RatchetState state)
{
	return state == RATCHET_SUCCEEDED || state == RATCHET_FAILED || state == RATCHET_CANCELED ||
		state == RATCHET_SKIPPED || state == RATCHET_EXPIRED;
}

Datum
ratchet_is_terminal(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(ratchet_state_finished(ratchet_state_from_oid(PG_GETARG_OID(0))));
}

Datum
ratchet_is_successful(PG_FUNCTION_ARGS)
{
	RatchetState state = ratchet_state_from_oid(PG_GETARG_OID(0));

	PG_RETURN_BOOL(state == RATCHET_SUCCEEDED || state == RATCHET_SKIPPED);
}

Datum
ratchet_was_executed(PG_FUNCTION_ARGS)
{
	RatchetState state = ratchet_state_from_oid(PG_GETARG_OID(0));

	PG_RETURN_BOOL(state == RATCHET_RUNNING || state == RATCHET_SUCCEEDED ||
				   state == RATCHET_FAILED);
}

Datum
ratchet_terminal_states(PG_FUNCTION_ARGS)
{
	Datum		states[RATCHET_STATE_COUNT];
	int			n = 0;

	for (int state = 0; state < RATCHET_STATE_COUNT; state++)
		if (ratchet_state_finished((RatchetState) state))
			states[n++] = ratchet_state_datum((RatchetState) state);
	PG_RETURN_ARRAYTYPE_P(construct_array(states, n, ratchet_catalog()->state_type,
										  sizeof(Oid), true, TYPALIGN_INT));
}

Datum
ratchet_transitions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < lengthof(transitions); i++)
	{
		Datum		values[3] = {0};
		bool		nulls[3] = {false};

		if (transitions[i].from == NEW_JOB)
			nulls[0] = true;
		else
			values[0] = ratchet_state_datum((RatchetState) transitions[i].from);
		values[1] = ratchet_state_datum(transitions[i].to);
		values[2] = CStringGetTextDatum(transitions[i].done_by);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
