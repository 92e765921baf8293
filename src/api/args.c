/*-------------------------------------------------------------------------
 *
 * args.c
 *	  Checks of arguments, each with its SQLSTATE. Everything a caller passes is
 *	  checked before anything is written: bad input changes nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "ratchet.h"

/* Bytes of an unknown word that a message repeats. */
#define WORD_MAX			64

/* run_at and the like: not before 2000-01-01, the epoch of TimestampTz. */
#define EARLIEST_RUN_AT		0

void
ratchet_null_argument(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("argument \"%s\" must not be null", name)));
}

void
ratchet_null_element(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("argument \"%s\" must not contain nulls", name)));
}

/* A word that is not known, for a message: not the whole of it if it is long. */
char *
ratchet_shorten(const char *word)
{
	int			len = strlen(word);

	return pnstrdup(word, pg_mbcliplen(word, len, Min(len, WORD_MAX)));
}

/* An argument whose part of ratchet is not built yet. */
void
ratchet_not_available(bool given, const char *name)
{
	if (given)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("argument \"%s\" is not available in this version of ratchet", name),
				 errhint("Leave it out; version %s does not have this part yet.", RATCHET_VERSION)));
}

/* 1..max bytes, no control characters. */
void
ratchet_check_name(const text *value, const char *name, int max)
{
	int			len = VARSIZE_ANY_EXHDR(value);
	const unsigned char *data = (const unsigned char *) VARDATA_ANY(value);

	if (len < 1 || len > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must have 1 to %d bytes", name, max),
				 errdetail("It has %d.", len)));
	for (int i = 0; i < len; i++)
		if (data[i] < 0x20 || data[i] == 0x7F)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s must not contain control characters", name),
					 errdetail("There is one at byte %d.", i + 1)));
}

void
ratchet_check_queue(const text *queue)
{
	ratchet_check_name(queue, "queue", RATCHET_QUEUE_MAX);
	if (VARDATA_ANY(queue)[0] == '{')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a queue name must not begin with \"{\""),
				 errhint("To name several queues cast the argument: %s::text[].",
						 quote_literal_cstr(text_to_cstring(queue)))));
}

/* A text argument that is a name; NULL only where it is optional. */
text *
ratchet_arg_name(FunctionCallInfo fcinfo, int arg, const char *name, int max, bool required)
{
	text	   *value;

	if (PG_ARGISNULL(arg))
	{
		if (required)
			ratchet_null_argument(name);
		return NULL;
	}
	value = PG_GETARG_TEXT_PP(arg);
	ratchet_check_name(value, name, max);
	return value;
}

text *
ratchet_arg_queue(FunctionCallInfo fcinfo, int arg)
{
	text	   *queue = ratchet_arg_name(fcinfo, arg, "queue", RATCHET_QUEUE_MAX, true);

	ratchet_check_queue(queue);
	return queue;
}

pg_uuid_t *
ratchet_arg_id(FunctionCallInfo fcinfo, int arg, const char *name)
{
	if (PG_ARGISNULL(arg))
		ratchet_null_argument(name);
	return PG_GETARG_UUID_P(arg);
}

/* A day is 24 hours; a month has no fixed length and is not accepted by callers. */
int64
ratchet_interval_us(const Interval *value)
{
	double		us = (double) value->time + (double) value->day * USECS_PER_DAY +
		(double) value->month * DAYS_PER_MONTH * USECS_PER_DAY;

	return (int64) Max(0.0, Min(us, (double) RATCHET_INTERVAL_MAX_US));
}

/* An interval argument in microseconds, or an error. */
int64
ratchet_check_interval(const Interval *value, const char *name, bool allow_zero)
{
	double		us;

	if (RATCHET_INTERVAL_NOT_FINITE(value))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be finite", name)));
	if (value->month != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be given in months or years", name),
				 errdetail("A month has no fixed length."),
				 errhint("Give it in days, hours or seconds.")));
	us = (double) value->time + (double) value->day * USECS_PER_DAY;
	if (us < 0 || (us == 0 && !allow_zero))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg(allow_zero ? "%s must not be negative" : "%s must be positive", name)));
	if (us > (double) RATCHET_INTERVAL_MAX_US)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be longer than 3660 days", name)));
	return value->time + (int64) value->day * USECS_PER_DAY;
}

/* A point in time that a job can be scheduled at. */
void
ratchet_check_run_at(TimestampTz run_at)
{
	if (TIMESTAMP_NOT_FINITE(run_at))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("run_at must be finite"),
				 errhint("Use hold => true for a job that waits until it is resumed.")));
	if (run_at < EARLIEST_RUN_AT)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("run_at must not be before the year 2000")));
	/* Leaves room for every interval that may be added to it. */
	if (run_at > END_TIMESTAMP - 2 * RATCHET_INTERVAL_MAX_US)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("run_at is too far in the future")));
}

void
ratchet_check_range(int value, const char *name, int min, int max)
{
	if (value < min || value > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be between %d and %d", name, min, max),
				 errdetail("It is %d.", value)));
}

void
ratchet_check_priority(int priority)
{
	ratchet_check_range(priority, "priority", -RATCHET_PRIORITY_MAX, RATCHET_PRIORITY_MAX);
}

/* The size of the value itself, before compression. */
void
ratchet_check_size(const Jsonb *value, const char *name, int max)
{
	if (VARSIZE(value) > (Size) max)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%s is too large", name),
				 errdetail("It has %u bytes, the limit is %d.", (unsigned) VARSIZE(value), max),
				 errhint("Store large data elsewhere and pass a reference to it.")));
}

RatchetBackoff
ratchet_check_backoff(const text *value)
{
	char	   *name = text_to_cstring(value);
	RatchetBackoff backoff;

	if (!ratchet_backoff_parse(name, &backoff))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unknown backoff \"%s\"", ratchet_shorten(name)),
				 errhint("It is one of none, fixed, linear, exponential.")));
	return backoff;
}
