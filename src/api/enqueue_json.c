/*-------------------------------------------------------------------------
 *
 * enqueue_json.c
 *	  enqueue_many(jobs jsonb): an array of objects keyed by enqueue's argument
 *	  names, turned into specs.
 *
 * Values keep their JSON types: numbers for ints, true and false for booleans,
 * strings for text and for what SQL writes as a string (intervals, timestamps,
 * uuids). JSON null means the default. An unknown key is an error: a typo must
 * not become a job with the wrong settings.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/numeric.h"

#include "ratchet.h"

typedef void (*Reader) (RatchetJobSpec *spec, const char *key, JsonbValue *value);

PG_FUNCTION_INFO_V1(ratchet_enqueue_many_jobs);

static void read_job(RatchetJobSpec *spec, JsonbContainer *object);
static void read_text(RatchetJobSpec *spec, const char *key, JsonbValue *value);
static void read_json(RatchetJobSpec *spec, const char *key, JsonbValue *value);
static void read_int(RatchetJobSpec *spec, const char *key, JsonbValue *value);
static void read_bool(RatchetJobSpec *spec, const char *key, JsonbValue *value);
static void read_interval(RatchetJobSpec *spec, const char *key, JsonbValue *value);
static void read_run_at(RatchetJobSpec *spec, const char *key, JsonbValue *value);
static void read_tags(RatchetJobSpec *spec, const char *key, JsonbValue *value);
static void read_id(RatchetJobSpec *spec, const char *key, JsonbValue *value);
static void read_run_when(RatchetJobSpec *spec, const char *key, JsonbValue *value);
static void read_later(RatchetJobSpec *spec, const char *key, JsonbValue *value);
static text *string_of(const char *key, JsonbValue *value);
static void wrong_type(const char *key, const char *wanted);

/* Where text, json and interval readers put the value: an offset in the spec. */
static const struct
{
	const char *key;
	Reader		read;
	size_t		offset;
}			keys[] =
{
	{"kind", read_text, offsetof(RatchetJobSpec, kind)},
	{"payload", read_json, offsetof(RatchetJobSpec, payload)},
	{"queue", read_text, offsetof(RatchetJobSpec, queue)},
	{"priority", read_int, 0},
	{"run_at", read_run_at, 0},
	{"max_attempts", read_int, 0},
	{"backoff", read_text, offsetof(RatchetJobSpec, backoff)},
	{"backoff_base", read_interval, offsetof(RatchetJobSpec, backoff_base)},
	{"backoff_max", read_interval, offsetof(RatchetJobSpec, backoff_max)},
	{"jitter", read_bool, 0},
	{"timeout", read_interval, offsetof(RatchetJobSpec, timeout)},
	{"lease", read_interval, offsetof(RatchetJobSpec, lease)},
	{"expires_in", read_interval, offsetof(RatchetJobSpec, expires_in)},
	{"keep_for", read_interval, offsetof(RatchetJobSpec, keep_for)},
	{"idempotency_key", read_text, offsetof(RatchetJobSpec, idempotency_key)},
	{"business_key", read_text, offsetof(RatchetJobSpec, business_key)},
	{"concurrency_key", read_later, 0},
	{"resource", read_later, 0},
	{"circuit", read_later, 0},
	{"depends_on", read_later, 0},
	{"run_when", read_run_when, 0},
	{"tags", read_tags, 0},
	{"meta", read_json, offsetof(RatchetJobSpec, meta)},
	{"hold", read_bool, 0},
	{"id", read_id, 0},
};

static void *
place_of(RatchetJobSpec *spec, const char *key)
{
	for (int i = 0; i < lengthof(keys); i++)
		if (strcmp(keys[i].key, key) == 0)
			return (char *) spec + keys[i].offset;
	return NULL;				/* not reached: the reader came from the table */
}

Datum
ratchet_enqueue_many_jobs(PG_FUNCTION_ARGS)
{
	Jsonb	   *jobs;
	RatchetJobSpec *specs;
	int			count;

	ratchet_enter(RATCHET_ENQUEUE);
	if (PG_ARGISNULL(0))
		ratchet_null_argument("jobs");
	jobs = PG_GETARG_JSONB_P(0);
	if (!JB_ROOT_IS_ARRAY(jobs) || JB_ROOT_IS_SCALAR(jobs))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("jobs must be a JSON array of objects"),
				 errhint("For one job use ratchet.enqueue().")));
	count = JB_ROOT_COUNT(jobs);
	specs = MemoryContextAllocHuge(CurrentMemoryContext, Max(count, 1) * sizeof(RatchetJobSpec));
	memset(specs, 0, count * sizeof(RatchetJobSpec));
	for (int i = 0; i < count; i++)
	{
		JsonbValue *element = getIthJsonbValueFromContainer(&jobs->root, i);

		if (element->type != jbvBinary || !JsonContainerIsObject(element->val.binary.data))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("jobs must be a JSON array of objects"),
					 errdetail("Element %d is not an object.", i + 1)));
		read_job(&specs[i], element->val.binary.data);
	}
	ratchet_enqueue_specs(specs, count);
	return ratchet_return_ids(fcinfo, specs, count);
}

static void
read_job(RatchetJobSpec *spec, JsonbContainer *object)
{
	JsonbIterator *it = JsonbIteratorInit(object);
	JsonbValue	v;
	JsonbIteratorToken token;

	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		char	   *key;
		int			i;

		if (token != WJB_KEY)
			continue;
		key = pnstrdup(v.val.string.val, v.val.string.len);
		(void) JsonbIteratorNext(&it, &v, true);
		for (i = 0; i < lengthof(keys); i++)
			if (strcmp(keys[i].key, key) == 0)
				break;
		if (i == lengthof(keys))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("unknown key \"%s\" in a job", ratchet_shorten(key)),
					 errhint("The keys are the argument names of ratchet.enqueue().")));
		/* A payload may be JSON null; for any other argument that is its default. */
		if (v.type != jbvNull || strcmp(key, "payload") == 0)
			keys[i].read(spec, key, &v);
	}
	if (spec->kind == NULL)
		ratchet_null_argument("kind");
}

static void
read_text(RatchetJobSpec *spec, const char *key, JsonbValue *value)
{
	*(text **) place_of(spec, key) = string_of(key, value);
}

static void
read_json(RatchetJobSpec *spec, const char *key, JsonbValue *value)
{
	*(Jsonb **) place_of(spec, key) = JsonbValueToJsonb(value);
}

static void
read_int(RatchetJobSpec *spec, const char *key, JsonbValue *value)
{
	Datum		number;
	int			integer;
	bool		too_large = false;

	if (value->type != jbvNumeric)
		wrong_type(key, "a number");
	number = NumericGetDatum(value->val.numeric);
	if (!DatumGetBool(DirectFunctionCall2(numeric_eq, number,
										  DirectFunctionCall2(numeric_trunc, number, Int32GetDatum(0)))))
		wrong_type(key, "a whole number");
	integer = numeric_int4_opt_error(value->val.numeric, &too_large);
	if (too_large)
		wrong_type(key, "a number of at most 32 bits");
	if (strcmp(key, "priority") == 0)
	{
		spec->has_priority = true;
		spec->priority = integer;
	}
	else
	{
		spec->has_max_attempts = true;
		spec->max_attempts = integer;
	}
}

static void
read_bool(RatchetJobSpec *spec, const char *key, JsonbValue *value)
{
	if (value->type != jbvBool)
		wrong_type(key, "true or false");
	if (strcmp(key, "hold") == 0)
		spec->hold = value->val.boolean;
	else
	{
		spec->has_jitter = true;
		spec->jitter = value->val.boolean;
	}
}

static void
read_interval(RatchetJobSpec *spec, const char *key, JsonbValue *value)
{
	*(Interval **) place_of(spec, key) =
		DatumGetIntervalP(DirectFunctionCall3(interval_in,
											  CStringGetDatum(text_to_cstring(string_of(key, value))),
											  ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
}

static void
read_run_at(RatchetJobSpec *spec, const char *key, JsonbValue *value)
{
	spec->has_run_at = true;
	spec->run_at =
		DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in,
												CStringGetDatum(text_to_cstring(string_of(key, value))),
												ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
}

static void
read_tags(RatchetJobSpec *spec, const char *key, JsonbValue *value)
{
	JsonbContainer *array;
	Datum	   *tags;
	int			count;

	if (value->type != jbvBinary || !JsonContainerIsArray(value->val.binary.data))
		wrong_type(key, "an array of strings");
	array = value->val.binary.data;
	count = JsonContainerSize(array);
	tags = palloc(Max(count, 1) * sizeof(Datum));
	for (int i = 0; i < count; i++)
	{
		JsonbValue *tag = getIthJsonbValueFromContainer(array, i);

		if (tag->type != jbvString)
			wrong_type(key, "an array of strings");
		tags[i] = PointerGetDatum(string_of(key, tag));
	}
	spec->tags = construct_array(tags, count, TEXTOID, -1, false, TYPALIGN_INT);
}

static void
read_id(RatchetJobSpec *spec, const char *key, JsonbValue *value)
{
	spec->id = DatumGetUUIDP(DirectFunctionCall1(uuid_in,
												 CStringGetDatum(text_to_cstring(string_of(key, value)))));
}

static void
read_run_when(RatchetJobSpec *spec, const char *key, JsonbValue *value)
{
	ratchet_check_run_when(string_of(key, value));
}

static void
read_later(RatchetJobSpec *spec, const char *key, JsonbValue *value)
{
	ratchet_not_available(true, key);
}

static text *
string_of(const char *key, JsonbValue *value)
{
	if (value->type != jbvString)
		wrong_type(key, "a string");
	return cstring_to_text_with_len(value->val.string.val, value->val.string.len);
}

static void
wrong_type(const char *key, const char *wanted)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("key \"%s\" of a job must be %s", key, wanted)));
}
