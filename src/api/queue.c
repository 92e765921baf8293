/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  configure_queue, pause_queue, resume_queue.
 *
 * They write ratchet.queue through SQL; the trigger there tells every session.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "ratchet.h"

/* Arguments of configure_queue that are intervals: number, name, 0 allowed. */
static const struct
{
	int			arg;
	const char *name;
	bool		allow_zero;
}			interval_args[] =
{
	{4, "backoff_base", false},
	{5, "backoff_max", false},
	{7, "timeout", false},
	{8, "lease", false},
	{9, "expires_in", false},
	{10, "keep_for", false},
	{11, "archive_after", true},
};

PG_FUNCTION_INFO_V1(ratchet_configure_queue);
PG_FUNCTION_INFO_V1(ratchet_pause_queue);
PG_FUNCTION_INFO_V1(ratchet_resume_queue);

static uint64 write_queue(RatchetQuery query, text *queue);
static text *arg_operable_queue(FunctionCallInfo fcinfo);

Datum
ratchet_configure_queue(PG_FUNCTION_ARGS)
{
	RatchetIdentity before;
	Datum		args[12] = {0};
	bool		nulls[12];

	ratchet_enter(RATCHET_OPERATE);
	args[0] = PointerGetDatum(arg_operable_queue(fcinfo));
	for (int i = 0; i < lengthof(args); i++)
	{
		nulls[i] = PG_ARGISNULL(i);
		if (i > 0 && !nulls[i])
			args[i] = PG_GETARG_DATUM(i);
	}
	if (!nulls[1])
		ratchet_check_priority(PG_GETARG_INT32(1));
	if (!nulls[2])
		ratchet_check_range(PG_GETARG_INT32(2), "max_attempts", 1, PG_INT32_MAX);
	if (!nulls[3])
		(void) ratchet_check_backoff(PG_GETARG_TEXT_PP(3));
	for (int i = 0; i < lengthof(interval_args); i++)
	{
		int			arg = interval_args[i].arg;
		Interval   *us;

		if (nulls[arg])
			continue;
		us = palloc0(sizeof(Interval));
		us->time = ratchet_check_interval(PG_GETARG_INTERVAL_P(arg), interval_args[i].name,
										  interval_args[i].allow_zero);
		args[arg] = IntervalPGetDatum(us);
	}
	ratchet_not_available(!PG_ARGISNULL(12), "max_running");
	ratchet_not_available(!PG_ARGISNULL(13), "max_per_key");
	ratchet_not_available(!PG_ARGISNULL(14), "rate_limit");
	ratchet_not_available(!PG_ARGISNULL(15), "rate_period");
	ratchet_not_available(!PG_ARGISNULL(16) && PG_GETARG_BOOL(16), "fair");
	ratchet_not_available(!PG_ARGISNULL(17) &&
						  strcmp(text_to_cstring(PG_GETARG_TEXT_PP(17)), "off") != 0, "events");

	ratchet_spi_begin(&before);
	(void) ratchet_query(RQ_QUEUE_CONFIGURE, args, nulls);
	ratchet_spi_end(&before);
	PG_RETURN_VOID();
}

Datum
ratchet_pause_queue(PG_FUNCTION_ARGS)
{
	ratchet_enter(RATCHET_OPERATE);
	(void) write_queue(RQ_QUEUE_PAUSE, arg_operable_queue(fcinfo));
	PG_RETURN_BOOL(true);
}

Datum
ratchet_resume_queue(PG_FUNCTION_ARGS)
{
	ratchet_enter(RATCHET_OPERATE);
	PG_RETURN_BOOL(write_queue(RQ_QUEUE_RESUME, arg_operable_queue(fcinfo)) > 0);
}

static uint64
write_queue(RatchetQuery query, text *queue)
{
	RatchetIdentity before;
	Datum		args[1] = {PointerGetDatum(queue)};
	uint64		rows;

	ratchet_spi_begin(&before);
	rows = ratchet_query(query, args, NULL);
	ratchet_spi_end(&before);
	return rows;
}

static text *
arg_operable_queue(FunctionCallInfo fcinfo)
{
	text	   *queue = ratchet_arg_queue(fcinfo, 0);

	ratchet_access_require(RATCHET_OPERATE, queue);
	return queue;
}
