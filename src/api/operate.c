/*-------------------------------------------------------------------------
 *
 * operate.c
 *	  What an operator does to jobs: retry, pause, resume, cancel, reschedule,
 *	  one by one or many at once.
 *
 * Like a worker's calls these judge by the newest committed version of the row
 * and wait for a transaction that holds it. A job in a queue that the caller has
 * no right to counts as unknown.
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

#define MANY_MAX 100000

typedef enum Answer
{
	ANSWER_WRITE,				/* the row was changed: write it, then true */
	ANSWER_TRUE,				/* nothing to do, it is so already */
	ANSWER_FALSE,				/* not in a state where this is possible */
} Answer;

typedef struct Order Order;
struct Order
{
	Answer		(*change) (RatchetRow *row, Order *order);
	bool		producers_too;	/* also the one who enqueued the job may */
	bool		leave_out_taken_keys;	/* retry_many */
	TimestampTz now;
	text	   *reason;			/* cancel; NULL: none */
	bool		has_run_at;		/* reschedule */
	TimestampTz run_at;
	bool		has_priority;
	int			priority;
};

PG_FUNCTION_INFO_V1(ratchet_retry);
PG_FUNCTION_INFO_V1(ratchet_retry_many);
PG_FUNCTION_INFO_V1(ratchet_pause);
PG_FUNCTION_INFO_V1(ratchet_resume);
PG_FUNCTION_INFO_V1(ratchet_cancel);
PG_FUNCTION_INFO_V1(ratchet_cancel_many);
PG_FUNCTION_INFO_V1(ratchet_reschedule);

static bool carry_out(RatchetStore *store, const pg_uuid_t *id, Order *order);
static bool carry_out_one(FunctionCallInfo fcinfo, Order *order);
static int	carry_out_many(FunctionCallInfo fcinfo, Order *order, const char *const *states, int nstates);
static bool may_order(const RatchetRow *row, const Order *order);
static Answer retry_change(RatchetRow *row, Order *order);
static Answer pause_change(RatchetRow *row, Order *order);
static Answer resume_change(RatchetRow *row, Order *order);
static Answer expire_resumed_change(RatchetRow *row, Order *order);
static Answer cancel_change(RatchetRow *row, Order *order);
static Answer reschedule_change(RatchetRow *row, Order *order);
static void not_before_now(RatchetRow *row, TimestampTz now);

Datum
ratchet_retry(PG_FUNCTION_ARGS)
{
	Order		order = {.change = retry_change};

	ratchet_enter(RATCHET_OPERATE);
	PG_RETURN_BOOL(carry_out_one(fcinfo, &order));
}

Datum
ratchet_retry_many(PG_FUNCTION_ARGS)
{
	static const char *const states[] = {"failed"};
	Order		order = {.change = retry_change, .leave_out_taken_keys = true};

	ratchet_enter(RATCHET_OPERATE);
	PG_RETURN_INT32(carry_out_many(fcinfo, &order, states, lengthof(states)));
}

Datum
ratchet_pause(PG_FUNCTION_ARGS)
{
	Order		order = {.change = pause_change};

	ratchet_enter(RATCHET_OPERATE);
	PG_RETURN_BOOL(carry_out_one(fcinfo, &order));
}

/* A job whose time has passed while it was held expires now that it is back. */
Datum
ratchet_resume(PG_FUNCTION_ARGS)
{
	Order		resume = {.change = resume_change};
	Order		expire = {.change = expire_resumed_change};
	bool		resumed;

	ratchet_enter(RATCHET_OPERATE);
	resumed = carry_out_one(fcinfo, &resume);
	if (resumed)
		(void) carry_out_one(fcinfo, &expire);
	PG_RETURN_BOOL(resumed);
}

/* Also for producers, of the jobs they enqueued themselves. */
Datum
ratchet_cancel(PG_FUNCTION_ARGS)
{
	Order		order = {.change = cancel_change, .producers_too = true};

	if (!ratchet_access_any(GetUserId(), RATCHET_ENQUEUE))
		ratchet_enter(RATCHET_OPERATE);
	ratchet_require_writable();
	if (!PG_ARGISNULL(1))
		order.reason = ratchet_sanitize(PG_GETARG_TEXT_PP(1));
	PG_RETURN_BOOL(carry_out_one(fcinfo, &order));
}

Datum
ratchet_cancel_many(PG_FUNCTION_ARGS)
{
	static const char *const states[] = {"pending", "running", "paused"};
	Order		order = {.change = cancel_change};

	ratchet_enter(RATCHET_OPERATE);
	PG_RETURN_INT32(carry_out_many(fcinfo, &order, states, lengthof(states)));
}

Datum
ratchet_reschedule(PG_FUNCTION_ARGS)
{
	Order		order = {.change = reschedule_change};

	ratchet_enter(RATCHET_OPERATE);
	if ((order.has_run_at = !PG_ARGISNULL(1)))
	{
		order.run_at = PG_GETARG_TIMESTAMPTZ(1);
		ratchet_check_run_at(order.run_at);
	}
	if ((order.has_priority = !PG_ARGISNULL(2)))
	{
		order.priority = PG_GETARG_INT32(2);
		ratchet_check_priority(order.priority);
	}
	PG_RETURN_BOOL(carry_out_one(fcinfo, &order));
}

static bool
carry_out(RatchetStore *store, const pg_uuid_t *id, Order *order)
{
	RatchetRow	old,
				row;

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (!ratchet_job_find(store, id, &old) || !may_order(&old, order))
			return false;
		row = old;
		switch (order->change(&row, order))
		{
			case ANSWER_TRUE:
				return true;
			case ANSWER_FALSE:
				return false;
			case ANSWER_WRITE:
				break;
		}
		if (order->leave_out_taken_keys && !row.isnull[RC_BUSINESS_KEY])
		{
			/* The row first, then its key, as every other writer does it. */
			if (ratchet_store_lock(store, store->found, true) != TM_Ok)
				continue;
			if (!ratchet_business_key_take(RC_TEXT(&row, RC_QUEUE), RC_TEXT(&row, RC_BUSINESS_KEY),
										   RC_UUID(&row, RC_ID), false))
				return false;
		}
		if (ratchet_job_update(store, store->found, &old, &row, order->now, true) == TM_Ok)
			return true;
	}
}

/* For the functions whose first argument is the id. */
static bool
carry_out_one(FunctionCallInfo fcinfo, Order *order)
{
	pg_uuid_t  *id = ratchet_arg_id(fcinfo, 0, "id");
	RatchetStore *store = ratchet_job_open();
	bool		done;

	order->now = ratchet_now();
	done = carry_out(store, id, order);
	ratchet_store_close(store);
	return done;
}

/* For the functions of (queue, kind, tag, max): jobs in these states, by id. */
static int
carry_out_many(FunctionCallInfo fcinfo, Order *order, const char *const *states, int nstates)
{
	text	   *queue = ratchet_arg_name(fcinfo, 0, "queue", RATCHET_QUEUE_MAX, false);
	text	   *kind = ratchet_arg_name(fcinfo, 1, "kind", RATCHET_KIND_MAX, false);
	text	   *tag = ratchet_arg_name(fcinfo, 2, "tag", RATCHET_NAME_MAX, false);
	int			max = PG_ARGISNULL(3) ? 1000 : PG_GETARG_INT32(3);
	ArrayType  *allowed = ratchet_access_queues(GetUserId(), RATCHET_OPERATE);
	RatchetIdentity before;
	RatchetStore *store;
	Datum		state_names[RATCHET_STATE_COUNT];
	Datum		args[6];
	bool		nulls[6];
	pg_uuid_t  *ids;
	int			found,
				changed = 0;

	if (queue == NULL && kind == NULL && tag == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("at least one of queue, kind and tag must be given")));
	if (queue != NULL)
	{
		ratchet_check_queue(queue);
		ratchet_access_require(RATCHET_OPERATE, queue);
	}
	ratchet_check_range(max, "max", 1, MANY_MAX);

	for (int i = 0; i < nstates; i++)
		state_names[i] = CStringGetTextDatum(states[i]);
	args[0] = PointerGetDatum(construct_array(state_names, nstates, TEXTOID, -1, false, TYPALIGN_INT));
	args[1] = PointerGetDatum(queue);
	args[2] = PointerGetDatum(kind);
	args[3] = PointerGetDatum(tag);
	args[4] = PointerGetDatum(allowed);
	args[5] = Int32GetDatum(max);
	for (int i = 0; i < 5; i++)
		nulls[i] = DatumGetPointer(args[i]) == NULL;
	nulls[5] = false;

	ids = palloc(max * sizeof(pg_uuid_t));
	ratchet_spi_begin(&before);
	found = (int) ratchet_query(RQ_JOB_SELECT, args, nulls);
	for (int i = 0; i < found; i++)
	{
		bool		isnull;

		ids[i] = *DatumGetUUIDP(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));
	}
	ratchet_spi_end(&before);

	order->now = ratchet_now();
	store = ratchet_job_open();
	for (int i = 0; i < found; i++)
		if (carry_out(store, &ids[i], order))
			changed++;
	ratchet_store_close(store);
	return changed;
}

static bool
may_order(const RatchetRow *row, const Order *order)
{
	text	   *queue = RC_TEXT(row, RC_QUEUE);

	return ratchet_access_to(GetUserId(), RATCHET_OPERATE, queue) ||
		(order->producers_too &&
		 ratchet_access_as_producer(GetUserId(), queue, text_to_cstring(RC_TEXT(row, RC_ENQUEUED_BY))));
}

static Answer
retry_change(RatchetRow *row, Order *order)
{
	if (ratchet_row_state(row) != RATCHET_FAILED)
		return ANSWER_FALSE;
	ratchet_row_set_state(row, RATCHET_PENDING);
	ratchet_row_set(row, RC_ATTEMPT, Int32GetDatum(0));
	ratchet_row_set(row, RC_CRASHES, Int32GetDatum(0));
	ratchet_row_set_null(row, RC_FINISHED_AT);
	ratchet_row_set_null(row, RC_LAST_ERROR);
	ratchet_row_set_null(row, RC_PROGRESS);
	ratchet_row_set_null(row, RC_PROGRESS_MESSAGE);
	not_before_now(row, order->now);
	if (!row->isnull[RC_EXPIRES_IN])
		ratchet_row_set(row, RC_EXPIRES_AT,
						TimestampTzGetDatum(RC_TIMESTAMP(row, RC_SCHEDULED_AT) +
											ratchet_row_interval_us(row, RC_EXPIRES_IN, 0)));
	return ANSWER_WRITE;
}

static Answer
pause_change(RatchetRow *row, Order *order)
{
	RatchetState state = ratchet_row_state(row);

	if (state == RATCHET_PAUSED)
		return ANSWER_TRUE;
	if (state != RATCHET_PENDING && state != RATCHET_FAILED)
		return ANSWER_FALSE;
	ratchet_row_set(row, RC_PAUSED_FROM, row->value[RC_STATE]);
	ratchet_row_set_state(row, RATCHET_PAUSED);
	return ANSWER_WRITE;
}

static Answer
resume_change(RatchetRow *row, Order *order)
{
	if (ratchet_row_state(row) != RATCHET_PAUSED)
		return ANSWER_FALSE;
	ratchet_row_set(row, RC_STATE, row->value[RC_PAUSED_FROM]);
	ratchet_row_set_null(row, RC_PAUSED_FROM);
	if (ratchet_row_state(row) == RATCHET_PENDING)
		not_before_now(row, order->now);
	return ANSWER_WRITE;
}

static Answer
expire_resumed_change(RatchetRow *row, Order *order)
{
	if (ratchet_row_state(row) != RATCHET_PENDING || row->isnull[RC_EXPIRES_AT] ||
		RC_TIMESTAMP(row, RC_EXPIRES_AT) > order->now)
		return ANSWER_FALSE;
	ratchet_row_finish(row, RATCHET_EXPIRED, order->now);
	return ANSWER_WRITE;
}

static Answer
cancel_change(RatchetRow *row, Order *order)
{
	RatchetState state = ratchet_row_state(row);

	if (state != RATCHET_PENDING && state != RATCHET_RUNNING && state != RATCHET_PAUSED)
		return ANSWER_FALSE;
	ratchet_row_finish(row, RATCHET_CANCELED, order->now);
	if (order->reason != NULL)
		ratchet_row_set(row, RC_LAST_ERROR, PointerGetDatum(order->reason));
	return ANSWER_WRITE;
}

/* A new time moves the end of its validity along. */
static Answer
reschedule_change(RatchetRow *row, Order *order)
{
	if (ratchet_row_state(row) != RATCHET_PENDING)
		return ANSWER_FALSE;
	if (!order->has_run_at && !order->has_priority)
		return ANSWER_TRUE;
	if (order->has_priority)
		ratchet_row_set(row, RC_PRIORITY, Int32GetDatum(order->priority));
	if (order->has_run_at)
	{
		ratchet_row_set(row, RC_SCHEDULED_AT, TimestampTzGetDatum(order->run_at));
		if (!row->isnull[RC_EXPIRES_IN])
			ratchet_row_set(row, RC_EXPIRES_AT,
							TimestampTzGetDatum(order->run_at + ratchet_row_interval_us(row, RC_EXPIRES_IN, 0)));
	}
	return ANSWER_WRITE;
}

/* Time spent held is not waiting time. */
static void
not_before_now(RatchetRow *row, TimestampTz now)
{
	if (RC_TIMESTAMP(row, RC_SCHEDULED_AT) < now)
		ratchet_row_set(row, RC_SCHEDULED_AT, TimestampTzGetDatum(now));
}
