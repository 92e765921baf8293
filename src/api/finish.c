/*-------------------------------------------------------------------------
 *
 * finish.c
 *	  What a worker says about a job it holds: complete, fail, skip, release,
 *	  heartbeat, progress.
 *
 * The token is the fence. Each call reads the newest committed version of the
 * row, compares the token, and updates that very version; if the row has changed
 * in between it reads again. So a worker whose lease is gone changes nothing,
 * and one whose heartbeat runs on another connection loses nothing. All but the
 * heartbeat wait for a transaction that holds the row.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "ratchet.h"

/* What a call wants of one job. */
typedef struct Verdict Verdict;
struct Verdict
{
	void		(*change) (RatchetRow *row, Verdict *verdict);
	TimestampTz now;
	Jsonb	   *result;			/* complete */
	text	   *message;		/* sanitised error or reason; NULL: none */
	Jsonb	   *detail;			/* fail */
	bool		retryable;		/* fail */
	int64		delay_us;		/* fail: -1 is the backoff; release */
	double		fraction;		/* progress */
	int64		lease_us;		/* heartbeat: -1 is the length it has */
};

typedef enum Outcome
{
	OUTCOME_OK,
	OUTCOME_BUSY,				/* only without waiting */
	OUTCOME_LOST,
	OUTCOME_CANCELED,			/* lost, because the job was canceled */
} Outcome;

/* Several jobs and their tokens, with the order to lock them in. */
typedef struct Leases
{
	int			count;
	Datum	   *ids;
	Datum	   *tokens;			/* one, or one per id */
	int			ntokens;
	int		   *order;			/* indexes by id */
} Leases;

PG_FUNCTION_INFO_V1(ratchet_complete);
PG_FUNCTION_INFO_V1(ratchet_complete_many);
PG_FUNCTION_INFO_V1(ratchet_complete_and_claim);
PG_FUNCTION_INFO_V1(ratchet_fail);
PG_FUNCTION_INFO_V1(ratchet_skip);
PG_FUNCTION_INFO_V1(ratchet_release);
PG_FUNCTION_INFO_V1(ratchet_heartbeat);
PG_FUNCTION_INFO_V1(ratchet_progress);

static Outcome settle(RatchetStore *store, const pg_uuid_t *id, const pg_uuid_t *token,
					  Verdict *verdict, bool wait, RatchetRow *settled);
static bool settle_one(FunctionCallInfo fcinfo, Verdict *verdict, RatchetRow *settled);
static void read_leases(FunctionCallInfo fcinfo, Leases *leases);
static pg_uuid_t *token_of(const Leases *leases, int i);
static Datum *read_results(FunctionCallInfo fcinfo, int arg, const Leases *leases, bool **nulls);
static bool *complete_leases(const Leases *leases, Datum *results, bool *nulls, bool strict);
static void complete_change(RatchetRow *row, Verdict *verdict);
static void fail_change(RatchetRow *row, Verdict *verdict);
static void skip_change(RatchetRow *row, Verdict *verdict);
static void release_change(RatchetRow *row, Verdict *verdict);
static void heartbeat_change(RatchetRow *row, Verdict *verdict);
static void progress_change(RatchetRow *row, Verdict *verdict);
static bool token_matches(const RatchetRow *row, const pg_uuid_t *token);
static void lease_lost(const pg_uuid_t *id);
static bool archived_as_canceled(const pg_uuid_t *id);
static text *optional_message(FunctionCallInfo fcinfo, int arg);
static Jsonb *optional_json(FunctionCallInfo fcinfo, int arg, const char *name);

Datum
ratchet_complete(PG_FUNCTION_ARGS)
{
	Verdict		verdict = {.change = complete_change};
	RatchetRow	settled;
	bool		strict = !PG_ARGISNULL(3) && PG_GETARG_BOOL(3);
	bool		done;

	ratchet_enter(RATCHET_WORK);
	verdict.result = optional_json(fcinfo, 2, "result");
	done = settle_one(fcinfo, &verdict, &settled);
	if (!done && strict)
		lease_lost(PG_GETARG_UUID_P(0));
	PG_RETURN_BOOL(done);
}

Datum
ratchet_complete_many(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Leases		leases;
	Datum	   *results;
	bool	   *nulls;
	bool	   *done;

	ratchet_enter(RATCHET_WORK);
	read_leases(fcinfo, &leases);
	results = read_results(fcinfo, 2, &leases, &nulls);
	done = complete_leases(&leases, results, nulls, !PG_ARGISNULL(3) && PG_GETARG_BOOL(3));

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	for (int i = 0; i < leases.count; i++)
	{
		bool		isnull = false;

		if (done[i])
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &leases.ids[i], &isnull);
	}
	return (Datum) 0;
}

Datum
ratchet_complete_and_claim(PG_FUNCTION_ARGS)
{
	RatchetClaimRequest request = {0};
	Leases		leases;
	Datum		queue;
	Datum	   *results;
	bool	   *nulls;

	ratchet_enter(RATCHET_WORK);
	read_leases(fcinfo, &leases);
	results = read_results(fcinfo, 5, &leases, &nulls);
	queue = PointerGetDatum(ratchet_arg_queue(fcinfo, 2));
	request.queues = &queue;
	request.nqueues = 1;
	request.worker = ratchet_arg_name(fcinfo, 3, "worker", RATCHET_NAME_MAX, true);
	request.batch = PG_ARGISNULL(4) ? 1 : PG_GETARG_INT32(4);
	request.lease = PG_ARGISNULL(7) ? NULL : PG_GETARG_INTERVAL_P(7);
	request.kinds = PG_ARGISNULL(8) ? NULL : PG_GETARG_ARRAYTYPE_P(8);
	request.node = ratchet_arg_name(fcinfo, 9, "node", RATCHET_NAME_MAX, false);
	ratchet_claim_check(&request);

	(void) complete_leases(&leases, results, nulls, !PG_ARGISNULL(6) && PG_GETARG_BOOL(6));
	InitMaterializedSRF(fcinfo, 0);
	ratchet_claim_jobs(&request, (ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}

Datum
ratchet_fail(PG_FUNCTION_ARGS)
{
	Verdict		verdict = {.change = fail_change, .delay_us = -1};
	RatchetRow	settled;

	ratchet_enter(RATCHET_WORK);
	if (PG_ARGISNULL(2))
		ratchet_null_argument("error");
	verdict.message = optional_message(fcinfo, 2);
	verdict.retryable = PG_ARGISNULL(3) || PG_GETARG_BOOL(3);
	if (!PG_ARGISNULL(4))
		verdict.delay_us = ratchet_check_interval(PG_GETARG_INTERVAL_P(4), "retry_in", true);
	verdict.detail = optional_json(fcinfo, 5, "detail");
	if (!settle_one(fcinfo, &verdict, &settled))
		PG_RETURN_NULL();
	ratchet_error_record(&settled, verdict.message, verdict.detail, verdict.now);
	PG_RETURN_DATUM(settled.value[RC_STATE]);
}

Datum
ratchet_skip(PG_FUNCTION_ARGS)
{
	Verdict		verdict = {.change = skip_change};
	RatchetRow	settled;

	ratchet_enter(RATCHET_WORK);
	verdict.message = optional_message(fcinfo, 2);
	PG_RETURN_BOOL(settle_one(fcinfo, &verdict, &settled));
}

Datum
ratchet_release(PG_FUNCTION_ARGS)
{
	Verdict		verdict = {.change = release_change};
	RatchetRow	settled;

	ratchet_enter(RATCHET_WORK);
	if (!PG_ARGISNULL(2))
		verdict.delay_us = ratchet_check_interval(PG_GETARG_INTERVAL_P(2), "delay", true);
	verdict.message = optional_message(fcinfo, 3);
	PG_RETURN_BOOL(settle_one(fcinfo, &verdict, &settled));
}

Datum
ratchet_progress(PG_FUNCTION_ARGS)
{
	Verdict		verdict = {.change = progress_change};
	RatchetRow	settled;

	ratchet_enter(RATCHET_WORK);
	if (PG_ARGISNULL(2))
		ratchet_null_argument("fraction");
	verdict.fraction = PG_GETARG_FLOAT8(2);
	if (!(verdict.fraction >= 0.0 && verdict.fraction <= 1.0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("fraction must be between 0 and 1")));
	verdict.message = optional_message(fcinfo, 3);
	PG_RETURN_BOOL(settle_one(fcinfo, &verdict, &settled));
}

Datum
ratchet_heartbeat(PG_FUNCTION_ARGS)
{
	static const char *const words[] = {"ok", "busy", "lost", "canceled"};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Verdict		verdict = {.change = heartbeat_change, .lease_us = -1};
	RatchetStore *store;
	RatchetRow	settled;
	Leases		leases;
	Outcome    *outcomes;

	ratchet_enter(RATCHET_WORK);
	read_leases(fcinfo, &leases);
	if (!PG_ARGISNULL(2))
		verdict.lease_us = ratchet_check_interval(PG_GETARG_INTERVAL_P(2), "lease", false);
	verdict.now = ratchet_now();
	outcomes = palloc(Max(leases.count, 1) * sizeof(Outcome));
	store = ratchet_job_open();
	for (int n = 0; n < leases.count; n++)
	{
		int			i = leases.order[n];

		outcomes[i] = settle(store, DatumGetUUIDP(leases.ids[i]), token_of(&leases, i),
							 &verdict, false, &settled);
	}
	ratchet_store_close(store);

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < leases.count; i++)
	{
		Datum		values[2] = {leases.ids[i], CStringGetTextDatum(words[outcomes[i]])};
		bool		nulls[2] = {false, false};

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * Apply a verdict to one job, if the token is its present one. *settled is the
 * row as written.
 */
static Outcome
settle(RatchetStore *store, const pg_uuid_t *id, const pg_uuid_t *token,
	   Verdict *verdict, bool wait, RatchetRow *settled)
{
	for (;;)
	{
		RatchetRow	old;
		TM_Result	result;

		CHECK_FOR_INTERRUPTS();
		if (!ratchet_job_find(store, id, &old))
			return verdict->change == heartbeat_change && archived_as_canceled(id) ?
				OUTCOME_CANCELED : OUTCOME_LOST;
		if (!ratchet_access_to(GetUserId(), RATCHET_WORK, RC_TEXT(&old, RC_QUEUE)))
			return OUTCOME_LOST;
		if (ratchet_row_state(&old) != RATCHET_RUNNING || !token_matches(&old, token))
			return ratchet_row_state(&old) == RATCHET_CANCELED ? OUTCOME_CANCELED : OUTCOME_LOST;
		*settled = old;
		verdict->change(settled, verdict);
		result = ratchet_job_update(store, store->found, &old, settled, verdict->now, wait);
		if (result == TM_Ok)
			return OUTCOME_OK;
		if (!wait && (result == TM_BeingModified || result == TM_WouldBlock))
			return OUTCOME_BUSY;
	}
}

/* For the functions whose first two arguments are one id and its token. */
static bool
settle_one(FunctionCallInfo fcinfo, Verdict *verdict, RatchetRow *settled)
{
	pg_uuid_t  *id = ratchet_arg_id(fcinfo, 0, "id");
	pg_uuid_t  *token = ratchet_arg_id(fcinfo, 1, "token");
	RatchetStore *store = ratchet_job_open();
	bool		done;
	bool		archive;

	verdict->now = ratchet_now();
	done = settle(store, id, token, verdict, true, settled) == OUTCOME_OK;
	archive = done && ratchet_archive_wants_at_once(settled);
	if (archive || (done && verdict->change == fail_change))
		ratchet_row_detach(settled);	/* still needed after the store is closed */
	ratchet_store_close(store);
	if (archive)
		ratchet_archive_move(RC_UUID(settled, RC_ID), 1, verdict->now);
	return done;
}

/* Arguments 0 and 1: ids and tokens. */
static void
read_leases(FunctionCallInfo fcinfo, Leases *leases)
{
	bool	   *null_ids,
			   *null_tokens;

	if (PG_ARGISNULL(0))
		ratchet_null_argument("ids");
	if (PG_ARGISNULL(1))
		ratchet_null_argument("tokens");
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), UUIDOID, UUID_LEN, false, TYPALIGN_CHAR,
					  &leases->ids, &null_ids, &leases->count);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), UUIDOID, UUID_LEN, false, TYPALIGN_CHAR,
					  &leases->tokens, &null_tokens, &leases->ntokens);
	for (int i = 0; i < leases->count; i++)
		if (null_ids[i])
			ratchet_null_element("ids");
	for (int i = 0; i < leases->ntokens; i++)
		if (null_tokens[i])
			ratchet_null_element("tokens");
	if (leases->ntokens != leases->count && !(leases->ntokens == 1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("tokens must have one element, or one per id"),
				 errdetail("There are %d ids and %d tokens.", leases->count, leases->ntokens)));
	leases->order = ratchet_uuid_order(leases->ids, leases->count);
}

static pg_uuid_t *
token_of(const Leases *leases, int i)
{
	return DatumGetUUIDP(leases->tokens[leases->ntokens == 1 ? 0 : i]);
}

static Datum *
read_results(FunctionCallInfo fcinfo, int arg, const Leases *leases, bool **nulls)
{
	Datum	   *results;
	int			count;

	*nulls = NULL;
	if (PG_ARGISNULL(arg))
		return NULL;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(arg), JSONBOID, -1, false, TYPALIGN_INT,
					  &results, nulls, &count);
	if (count != leases->count)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("results must have one element per id"),
				 errdetail("There are %d ids and %d results.", leases->count, count)));
	for (int i = 0; i < count; i++)
		if (!(*nulls)[i])
			ratchet_check_size(DatumGetJsonbP(results[i]), "result", ratchet_max_result_size);
	return results;
}

/* Complete each; the answer says which, in the order they were given. */
static bool *
complete_leases(const Leases *leases, Datum *results, bool *nulls, bool strict)
{
	bool	   *done = palloc0(Max(leases->count, 1) * sizeof(bool));
	RatchetStore *store = ratchet_job_open();
	Verdict		verdict = {.change = complete_change, .now = ratchet_now()};
	pg_uuid_t  *to_archive = palloc(Max(leases->count, 1) * sizeof(pg_uuid_t));
	int			nto_archive = 0;

	for (int n = 0; n < leases->count; n++)
	{
		int			i = leases->order[n];
		RatchetRow	settled;

		verdict.result = results != NULL && !nulls[i] ? DatumGetJsonbP(results[i]) : NULL;
		done[i] = settle(store, DatumGetUUIDP(leases->ids[i]), token_of(leases, i),
						 &verdict, true, &settled) == OUTCOME_OK;
		if (!done[i] && strict)
			lease_lost(DatumGetUUIDP(leases->ids[i]));
		if (done[i] && ratchet_archive_wants_at_once(&settled))
			to_archive[nto_archive++] = *DatumGetUUIDP(leases->ids[i]);
	}
	ratchet_store_close(store);
	ratchet_archive_move(to_archive, nto_archive, verdict.now);
	return done;
}

static void
complete_change(RatchetRow *row, Verdict *verdict)
{
	ratchet_row_finish(row, RATCHET_SUCCEEDED, verdict->now);
	ratchet_row_set_null(row, RC_LAST_ERROR);
	if (!row->isnull[RC_PROGRESS])
		ratchet_row_set(row, RC_PROGRESS, Float8GetDatum(1.0));
	if (verdict->result != NULL)
		ratchet_row_set(row, RC_RESULT, JsonbPGetDatum(verdict->result));
	else
		ratchet_row_set_null(row, RC_RESULT);
}

static void
fail_change(RatchetRow *row, Verdict *verdict)
{
	ratchet_row_fail(row, verdict->message, verdict->retryable, verdict->delay_us, verdict->now);
}

static void
skip_change(RatchetRow *row, Verdict *verdict)
{
	ratchet_row_finish(row, RATCHET_SKIPPED, verdict->now);
	if (verdict->message != NULL)
		ratchet_row_set(row, RC_LAST_ERROR, PointerGetDatum(verdict->message));
}

/* The run does not count; without a delay the job keeps its place. */
static void
release_change(RatchetRow *row, Verdict *verdict)
{
	ratchet_row_leave_running(row, RATCHET_PENDING);
	ratchet_row_set(row, RC_ATTEMPT, Int32GetDatum(Max(RC_INT(row, RC_ATTEMPT) - 1, 0)));
	if (verdict->delay_us > 0)
		ratchet_row_set(row, RC_SCHEDULED_AT, TimestampTzGetDatum(verdict->now + verdict->delay_us));
	if (verdict->message != NULL)
		ratchet_row_set(row, RC_LAST_ERROR, PointerGetDatum(verdict->message));
}

static void
heartbeat_change(RatchetRow *row, Verdict *verdict)
{
	int64		lease_us = verdict->lease_us;

	if (lease_us < 0)
		lease_us = row->isnull[RC_LEASE_US] ? (int64) ratchet_default_lease * 1000 :
			DatumGetInt64(row->value[RC_LEASE_US]);
	ratchet_row_set(row, RC_LEASE_EXPIRES_AT, TimestampTzGetDatum(verdict->now + lease_us));
}

static void
progress_change(RatchetRow *row, Verdict *verdict)
{
	ratchet_row_set(row, RC_PROGRESS, Float8GetDatum(verdict->fraction));
	if (verdict->message != NULL)
		ratchet_row_set(row, RC_PROGRESS_MESSAGE, PointerGetDatum(verdict->message));
}

/* In constant time: the answer must not tell how much of a guess was right. */
static bool
token_matches(const RatchetRow *row, const pg_uuid_t *token)
{
	unsigned char difference = 0;

	if (row->isnull[RC_TOKEN])
		return false;
	for (int i = 0; i < UUID_LEN; i++)
		difference |= RC_UUID(row, RC_TOKEN)->data[i] ^ token->data[i];
	return difference == 0;
}

static void
lease_lost(const pg_uuid_t *id)
{
	ereport(ERROR,
			(errcode(RATCHET_ERRCODE_LEASE_LOST),
			 errmsg("the lease of job %s is lost",
					DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(id)))),
			 errdetail("It was recovered, timed out, canceled, released or finished, or the token is not its token."),
			 errhint("Roll back: another worker does this job, or it is not to be done.")));
}

/* A canceled job stays canceled for its worker when it has been archived. */
static bool
archived_as_canceled(const pg_uuid_t *id)
{
	RatchetIdentity before;
	Oid			caller = GetUserId();
	Datum		args[1] = {UUIDPGetDatum(id)};
	bool		canceled = false;

	ratchet_spi_begin(&before);
	if (ratchet_query(RQ_ARCHIVE_FIND, args, NULL) > 0)
	{
		HeapTuple	tuple = SPI_tuptable->vals[0];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		isnull;
		text	   *queue = DatumGetTextPP(SPI_getbinval(tuple, desc, 1, &isnull));
		Oid			state = DatumGetObjectId(SPI_getbinval(tuple, desc, 2, &isnull));

		canceled = ratchet_access_to(caller, RATCHET_WORK, queue) &&
			ratchet_state_from_oid(state) == RATCHET_CANCELED;
	}
	ratchet_spi_end(&before);
	return canceled;
}

static text *
optional_message(FunctionCallInfo fcinfo, int arg)
{
	return PG_ARGISNULL(arg) ? NULL : ratchet_sanitize(PG_GETARG_TEXT_PP(arg));
}

static Jsonb *
optional_json(FunctionCallInfo fcinfo, int arg, const char *name)
{
	Jsonb	   *value;

	if (PG_ARGISNULL(arg))
		return NULL;
	value = PG_GETARG_JSONB_P(arg);
	ratchet_check_size(value, name, ratchet_max_result_size);
	return value;
}
