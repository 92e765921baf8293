/*-------------------------------------------------------------------------
 *
 * enqueue.c
 *	  enqueue and enqueue_many: arguments into specs, specs into jobs.
 *
 * All ways in fill a RatchetJobSpec and end in ratchet_enqueue_specs, which
 * checks every spec before it writes the first job. Keys are taken in sorted
 * order, so that two calls with the same keys never deadlock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "ratchet.h"

/* A client's own id must carry a time this close to now. */
#define OWN_ID_WINDOW_US USECS_PER_DAY

PG_FUNCTION_INFO_V1(ratchet_enqueue);
PG_FUNCTION_INFO_V1(ratchet_enqueue_many);

static void read_common(FunctionCallInfo fcinfo, RatchetJobSpec *spec, int keep_for, int after_keys);
static void check_spec(RatchetJobSpec *spec, TimestampTz now);
static void check_intervals(const RatchetJobSpec *spec);
static void check_tags(ArrayType *tags);
static void take_idempotency_keys(RatchetJobSpec *specs, int nspecs);
static void insert_job(RatchetStore *store, RatchetJobSpec *spec, TimestampTz now);
static void fill_row(RatchetRow *row, const RatchetJobSpec *spec, TimestampTz now);
static void fill_times(RatchetRow *row, const RatchetJobSpec *spec, const RatchetQueue *queue,
					   TimestampTz now);
static void set_optional(RatchetRow *row, RatchetColumn column, const void *value);
static void set_interval(RatchetRow *row, RatchetColumn column, const Interval *value);
static void refuse_archived_id(const pg_uuid_t *id);
static int	compare_idempotency_keys(const void *a, const void *b);
static int	compare_business_keys(const void *a, const void *b);
static int	compare_texts(const text *a, const text *b);

#define OPTIONAL(arg, getter) (PG_ARGISNULL(arg) ? NULL : getter(arg))

Datum
ratchet_enqueue(PG_FUNCTION_ARGS)
{
	RatchetJobSpec spec = {0};

	ratchet_enter(RATCHET_ENQUEUE);
	spec.payload = OPTIONAL(1, PG_GETARG_JSONB_P);
	read_common(fcinfo, &spec, 13, 16);
	spec.idempotency_key = OPTIONAL(14, PG_GETARG_TEXT_PP);
	spec.business_key = OPTIONAL(15, PG_GETARG_TEXT_PP);
	spec.id = OPTIONAL(24, PG_GETARG_UUID_P);

	ratchet_enqueue_specs(&spec, 1);
	PG_RETURN_UUID_P(memcpy(palloc(UUID_LEN), &spec.job_id, UUID_LEN));
}

Datum
ratchet_enqueue_many(PG_FUNCTION_ARGS)
{
	RatchetJobSpec common = {0};
	RatchetJobSpec *specs;
	Datum	   *payloads;
	bool	   *nulls;
	int			count;

	ratchet_enter(RATCHET_ENQUEUE);
	if (PG_ARGISNULL(1))
		ratchet_null_argument("payloads");
	read_common(fcinfo, &common, 13, 14);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), JSONBOID, -1, false, TYPALIGN_INT,
					  &payloads, &nulls, &count);
	specs = MemoryContextAllocHuge(CurrentMemoryContext, Max(count, 1) * sizeof(RatchetJobSpec));
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			ratchet_null_element("payloads");
		specs[i] = common;
		specs[i].payload = DatumGetJsonbP(payloads[i]);
	}
	ratchet_enqueue_specs(specs, count);
	return ratchet_return_ids(fcinfo, specs, count);
}

/* The ids of jobs just enqueued, in the order they were given. */
Datum
ratchet_return_ids(FunctionCallInfo fcinfo, const RatchetJobSpec *specs, int nspecs)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	for (int i = 0; i < nspecs; i++)
	{
		Datum		value = UUIDPGetDatum(&specs[i].job_id);
		bool		isnull = false;

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &value, &isnull);
	}
	return (Datum) 0;
}

/* Check what a producer asked for, then make the jobs. */
void
ratchet_enqueue_specs(RatchetJobSpec *specs, int nspecs)
{
	TimestampTz now = ratchet_now();

	for (int i = 0; i < nspecs; i++)
		check_spec(&specs[i], now);
	ratchet_enqueue_checked(specs, nspecs);
}

/*
 * Make the jobs, all or none. Fills in job_id of each: a new one, or that of the
 * earlier job with the same idempotency key.
 */
void
ratchet_enqueue_checked(RatchetJobSpec *specs, int nspecs)
{
	TimestampTz now = ratchet_now();
	RatchetJobSpec **order;
	RatchetStore *store;

	for (int i = 0; i < nspecs; i++)
	{
		if (specs[i].id != NULL)
			specs[i].job_id = *specs[i].id;
		else
			ratchet_uuid7_next(&specs[i].job_id);
	}
	take_idempotency_keys(specs, nspecs);

	/* Jobs with a business key come last, sorted: inserting takes the key. */
	order = MemoryContextAllocHuge(CurrentMemoryContext, Max(nspecs, 1) * sizeof(RatchetJobSpec *));
	for (int i = 0; i < nspecs; i++)
		order[i] = &specs[i];
	if (nspecs > 1)
		qsort(order, nspecs, sizeof(RatchetJobSpec *), compare_business_keys);

	store = ratchet_job_open();
	for (int i = 0; i < nspecs; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!order[i]->exists)
			insert_job(store, order[i], now);
	}
	ratchet_store_close(store);
	for (int i = 0; i < nspecs; i++)
		if (specs[i].id != NULL && !specs[i].exists)
			refuse_archived_id(specs[i].id);
}

/* The arguments that enqueue and enqueue_many share, in their order. */
static void
read_common(FunctionCallInfo fcinfo, RatchetJobSpec *spec, int keep_for, int after_keys)
{
	if (PG_ARGISNULL(0))
		ratchet_null_argument("kind");
	spec->kind = PG_GETARG_TEXT_PP(0);
	spec->queue = OPTIONAL(2, PG_GETARG_TEXT_PP);
	if ((spec->has_priority = !PG_ARGISNULL(3)))
		spec->priority = PG_GETARG_INT32(3);
	if ((spec->has_run_at = !PG_ARGISNULL(4)))
		spec->run_at = PG_GETARG_TIMESTAMPTZ(4);
	if ((spec->has_max_attempts = !PG_ARGISNULL(5)))
		spec->max_attempts = PG_GETARG_INT32(5);
	spec->backoff = OPTIONAL(6, PG_GETARG_TEXT_PP);
	spec->backoff_base = OPTIONAL(7, PG_GETARG_INTERVAL_P);
	spec->backoff_max = OPTIONAL(8, PG_GETARG_INTERVAL_P);
	if ((spec->has_jitter = !PG_ARGISNULL(9)))
		spec->jitter = PG_GETARG_BOOL(9);
	spec->timeout = OPTIONAL(10, PG_GETARG_INTERVAL_P);
	spec->lease = OPTIONAL(11, PG_GETARG_INTERVAL_P);
	spec->expires_in = OPTIONAL(12, PG_GETARG_INTERVAL_P);
	spec->keep_for = OPTIONAL(keep_for, PG_GETARG_INTERVAL_P);
	ratchet_not_available(!PG_ARGISNULL(after_keys), "concurrency_key");
	ratchet_not_available(!PG_ARGISNULL(after_keys + 1), "resource");
	ratchet_not_available(!PG_ARGISNULL(after_keys + 2), "circuit");
	ratchet_not_available(!PG_ARGISNULL(after_keys + 3), "depends_on");
	if (!PG_ARGISNULL(after_keys + 4))
		ratchet_check_run_when(PG_GETARG_TEXT_PP(after_keys + 4));
	spec->tags = OPTIONAL(after_keys + 5, PG_GETARG_ARRAYTYPE_P);
	spec->meta = OPTIONAL(after_keys + 6, PG_GETARG_JSONB_P);
	spec->hold = !PG_ARGISNULL(after_keys + 7) && PG_GETARG_BOOL(after_keys + 7);
}

/* Anything but the default is for jobs with dependencies. */
void
ratchet_check_run_when(const text *run_when)
{
	ratchet_not_available(strcmp(text_to_cstring(run_when), "success") != 0, "run_when");
}

/* Check a spec whole, and fill in what was left NULL. Changes nothing else. */
static void
check_spec(RatchetJobSpec *spec, TimestampTz now)
{
	TimestampTz id_time;

	ratchet_check_name(spec->kind, "kind", RATCHET_KIND_MAX);
	if (spec->queue == NULL)
		spec->queue = cstring_to_text("default");
	ratchet_check_queue(spec->queue);
	ratchet_access_require(RATCHET_ENQUEUE, spec->queue);
	if (spec->payload == NULL)
		spec->payload = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("{}")));
	ratchet_check_size(spec->payload, "payload", ratchet_max_payload_size);
	if (spec->has_priority)
		ratchet_check_priority(spec->priority);
	if (spec->has_run_at)
		ratchet_check_run_at(spec->run_at);
	if (spec->has_max_attempts)
		ratchet_check_range(spec->max_attempts, "max_attempts", 1, PG_INT32_MAX);
	if (spec->backoff != NULL)
		(void) ratchet_check_backoff(spec->backoff);
	check_intervals(spec);
	if (spec->idempotency_key != NULL)
		ratchet_check_name(spec->idempotency_key, "idempotency_key", RATCHET_NAME_MAX);
	if (spec->business_key != NULL)
		ratchet_check_name(spec->business_key, "business_key", RATCHET_NAME_MAX);
	if (spec->tags != NULL)
		check_tags(spec->tags);
	if (spec->meta != NULL)
	{
		if (!JB_ROOT_IS_OBJECT(spec->meta))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("meta must be a JSON object")));
		ratchet_check_size(spec->meta, "meta", RATCHET_META_MAX);
	}
	if (spec->id != NULL &&
		(!ratchet_uuid7_time(spec->id, &id_time) ||
		 id_time < now - OWN_ID_WINDOW_US || id_time > now + OWN_ID_WINDOW_US))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("id must be a UUIDv7 whose time is within one day of now"),
				 errhint("Leave it out, or make a fresh one for each job.")));
}

static void
check_intervals(const RatchetJobSpec *spec)
{
	const struct
	{
		const Interval *value;
		const char *name;
	}			intervals[] =
	{
		{spec->backoff_base, "backoff_base"},
		{spec->backoff_max, "backoff_max"},
		{spec->timeout, "timeout"},
		{spec->lease, "lease"},
		{spec->expires_in, "expires_in"},
		{spec->keep_for, "keep_for"},
	};

	for (int i = 0; i < lengthof(intervals); i++)
		if (intervals[i].value != NULL)
			(void) ratchet_check_interval(intervals[i].value, intervals[i].name, false);
}

static void
check_tags(ArrayType *tags)
{
	Datum	   *values;
	bool	   *nulls;
	int			count;

	deconstruct_array(tags, TEXTOID, -1, false, TYPALIGN_INT, &values, &nulls, &count);
	if (count > RATCHET_TAGS_MAX_COUNT)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a job can have at most %d tags", RATCHET_TAGS_MAX_COUNT)));
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			ratchet_null_element("tags");
		ratchet_check_name(DatumGetTextPP(values[i]), "tag", RATCHET_NAME_MAX);
	}
}

static void
take_idempotency_keys(RatchetJobSpec *specs, int nspecs)
{
	RatchetJobSpec **keyed = MemoryContextAllocHuge(CurrentMemoryContext,
													Max(nspecs, 1) * sizeof(RatchetJobSpec *));
	int			nkeyed = 0;

	for (int i = 0; i < nspecs; i++)
		if (specs[i].idempotency_key != NULL)
			keyed[nkeyed++] = &specs[i];
	if (nkeyed > 1)
		qsort(keyed, nkeyed, sizeof(RatchetJobSpec *), compare_idempotency_keys);
	for (int i = 0; i < nkeyed; i++)
		keyed[i]->exists = !ratchet_idempotency_key_take(keyed[i]);
	pfree(keyed);
}

static void
insert_job(RatchetStore *store, RatchetJobSpec *spec, TimestampTz now)
{
	RatchetRow	row;

	fill_row(&row, spec, now);
	ratchet_job_insert(store, &row, now);
}

static void
fill_row(RatchetRow *row, const RatchetJobSpec *spec, TimestampTz now)
{
	RatchetQueue queue = ratchet_queue_settings(spec->queue);

	memset(row->value, 0, sizeof(row->value));
	memset(row->isnull, true, sizeof(row->isnull));

	ratchet_row_set(row, RC_ID, UUIDPGetDatum(&spec->job_id));
	ratchet_row_set(row, RC_CREATED_AT, TimestampTzGetDatum(now));
	ratchet_row_set(row, RC_QUEUE, PointerGetDatum(spec->queue));
	ratchet_row_set(row, RC_KIND, PointerGetDatum(spec->kind));
	ratchet_row_set(row, RC_PAYLOAD, JsonbPGetDatum(spec->payload));
	set_optional(row, RC_IDEMPOTENCY_KEY, spec->idempotency_key);
	ratchet_row_set(row, RC_ENQUEUED_BY,
					CStringGetTextDatum(GetUserNameFromId(GetUserId(), false)));
	ratchet_row_set(row, RC_MAX_ATTEMPTS,
					Int32GetDatum(spec->has_max_attempts ? spec->max_attempts : queue.max_attempts));
	if (spec->has_jitter)
		ratchet_row_set(row, RC_JITTER, BoolGetDatum(spec->jitter));
	set_optional(row, RC_BACKOFF, spec->backoff);
	set_interval(row, RC_BACKOFF_BASE, spec->backoff_base);
	set_interval(row, RC_BACKOFF_MAX, spec->backoff_max);
	set_interval(row, RC_TIMEOUT, spec->timeout);
	set_interval(row, RC_LEASE, spec->lease);
	set_optional(row, RC_BUSINESS_KEY, spec->business_key);
	set_optional(row, RC_TAGS, spec->tags);
	set_optional(row, RC_META, spec->meta);
	ratchet_row_set(row, RC_PRIORITY,
					Int32GetDatum(spec->has_priority ? spec->priority : queue.priority));
	ratchet_row_set(row, RC_WAITING_ON, Int32GetDatum(0));
	ratchet_row_set(row, RC_ATTEMPT, Int32GetDatum(0));
	ratchet_row_set(row, RC_CRASHES, Int32GetDatum(0));
	ratchet_row_set(row, RC_VERSION, Int32GetDatum(1));
	ratchet_row_set_state(row, spec->hold ? RATCHET_PAUSED : RATCHET_PENDING);
	if (spec->hold)
		ratchet_row_set(row, RC_PAUSED_FROM, ratchet_state_datum(RATCHET_PENDING));
	fill_times(row, spec, &queue, now);
}

static void
fill_times(RatchetRow *row, const RatchetJobSpec *spec, const RatchetQueue *queue, TimestampTz now)
{
	TimestampTz scheduled_at = spec->has_run_at ? spec->run_at : now;
	int64		expires_in = spec->expires_in != NULL ?
		ratchet_interval_us(spec->expires_in) : queue->expires_in_us;
	int64		keep_for = spec->keep_for != NULL ?
		ratchet_interval_us(spec->keep_for) : queue->keep_for_us;

	ratchet_row_set(row, RC_SCHEDULED_AT, TimestampTzGetDatum(scheduled_at));
	if (expires_in >= 0)
	{
		ratchet_row_set_interval(row, RC_EXPIRES_IN, expires_in);
		ratchet_row_set(row, RC_EXPIRES_AT, TimestampTzGetDatum(scheduled_at + expires_in));
	}
	if (keep_for >= 0)
		ratchet_row_set(row, RC_KEEP_UNTIL, TimestampTzGetDatum(now + keep_for));
}

static void
set_optional(RatchetRow *row, RatchetColumn column, const void *value)
{
	if (value != NULL)
		ratchet_row_set(row, column, PointerGetDatum(value));
}

static void
set_interval(RatchetRow *row, RatchetColumn column, const Interval *value)
{
	if (value != NULL)
		ratchet_row_set_interval(row, column, ratchet_interval_us(value));
}

/*
 * The primary key has seen to duplicates among the live jobs. Asked after the
 * insert: a job that was moved to the archive meanwhile is found there.
 */
static void
refuse_archived_id(const pg_uuid_t *id)
{
	RatchetIdentity before;
	Datum		args[1] = {UUIDPGetDatum(id)};

	ratchet_spi_begin(&before);
	if (ratchet_query(RQ_ARCHIVE_FIND, args, NULL) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg("a job with id %s exists already",
						DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(id)))),
				 errdetail("It has finished and is in the archive.")));
	ratchet_spi_end(&before);
}

static int
compare_idempotency_keys(const void *a, const void *b)
{
	const RatchetJobSpec *x = *(RatchetJobSpec *const *) a;
	const RatchetJobSpec *y = *(RatchetJobSpec *const *) b;
	int			c = compare_texts(x->queue, y->queue);

	if (c == 0)
		c = compare_texts(x->idempotency_key, y->idempotency_key);
	return c != 0 ? c : (x > y) - (x < y);
}

static int
compare_business_keys(const void *a, const void *b)
{
	const RatchetJobSpec *x = *(RatchetJobSpec *const *) a;
	const RatchetJobSpec *y = *(RatchetJobSpec *const *) b;
	int			c = (x->business_key != NULL) - (y->business_key != NULL);

	if (c == 0 && x->business_key != NULL)
	{
		c = compare_texts(x->queue, y->queue);
		if (c == 0)
			c = compare_texts(x->business_key, y->business_key);
	}
	return c != 0 ? c : (x > y) - (x < y);
}

static int
compare_texts(const text *a, const text *b)
{
	int			len_a = VARSIZE_ANY_EXHDR(a);
	int			len_b = VARSIZE_ANY_EXHDR(b);
	int			c = memcmp(VARDATA_ANY(a), VARDATA_ANY(b), Min(len_a, len_b));

	return c != 0 ? c : (len_a > len_b) - (len_a < len_b);
}
