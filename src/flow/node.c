/*-------------------------------------------------------------------------
 *
 * node.c
 *	  Nodes: their heartbeat, what happens when it stops, and draining.
 *
 * A node is a name that claims give. One that heartbeats is judged by that: when
 * it stops, its running jobs and its locks are freed although their leases run.
 * One that never does is judged by its leases alone, and so is one that has been
 * given up: its row is removed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "utils/builtins.h"

#include "bgw/bgw.h"

#define NODES_AT_A_TIME 10

PG_FUNCTION_INFO_V1(ratchet_node_heartbeat);
PG_FUNCTION_INFO_V1(ratchet_drain);
PG_FUNCTION_INFO_V1(ratchet_undrain);

static bool write_draining(FunctionCallInfo fcinfo, RatchetQuery query);

Datum
ratchet_node_heartbeat(PG_FUNCTION_ARGS)
{
	RatchetIdentity before;
	Datum		args[3];
	bool		nulls[3] = {false, false, PG_ARGISNULL(1)};

	ratchet_enter(RATCHET_WORK);
	args[0] = PointerGetDatum(ratchet_arg_name(fcinfo, 0, "node", RATCHET_NAME_MAX, true));
	args[1] = TimestampTzGetDatum(ratchet_now());
	args[2] = (Datum) 0;
	if (!nulls[2])
	{
		ratchet_check_size(PG_GETARG_JSONB_P(1), "info", RATCHET_META_MAX);
		args[2] = PG_GETARG_DATUM(1);
	}
	ratchet_spi_begin(&before);
	(void) ratchet_query(RQ_NODE_HEARTBEAT, args, nulls);
	ratchet_notice_due(RATCHET_DUTY_NODES,
					   DatumGetTimestampTz(args[1]) + (int64) ratchet_node_timeout * 1000 + 1);
	ratchet_spi_end(&before);
	PG_RETURN_VOID();
}

Datum
ratchet_drain(PG_FUNCTION_ARGS)
{
	(void) write_draining(fcinfo, RQ_DRAIN);
	PG_RETURN_BOOL(true);
}

Datum
ratchet_undrain(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(write_draining(fcinfo, RQ_UNDRAIN));
}

/* Give up nodes that have stopped: their jobs, then their locks and themselves. */
int64
ratchet_duty_nodes(TimestampTz now, TimestampTz *next)
{
	RatchetIdentity before;
	Datum		args[3] = {TimestampTzGetDatum(now - (int64) ratchet_node_timeout * 1000),
	TimestampTzGetDatum(now), Int32GetDatum(NODES_AT_A_TIME)};
	SPITupleTable *stale;
	uint64		count;
	int64		recovered = 0;

	ratchet_spi_begin(&before);
	count = ratchet_query(RQ_NODE_STALE, args, NULL);
	stale = SPI_tuptable;
	for (uint64 i = 0; i < count; i++)
	{
		text	   *node = cstring_to_text(SPI_getvalue(stale->vals[i], stale->tupdesc, 1));
		Datum		node_arg[1] = {PointerGetDatum(node)};
		int64		of_node = ratchet_recover_node(node, now, next);

		recovered += of_node;
		/* With a full batch there may be more; the next pass removes it. */
		if (of_node < RATCHET_DUTY_BATCH)
			(void) ratchet_query(RQ_NODE_REMOVE, node_arg, NULL);
	}
	if (ratchet_query(RQ_NODE_OLDEST, NULL, NULL) > 0)
		ratchet_due(next, Max(now + USECS_PER_SEC, ratchet_first_time() + (int64) ratchet_node_timeout * 1000));
	ratchet_spi_end(&before);
	return recovered;
}

/* The argument is a node, or NULL for all. */
static bool
write_draining(FunctionCallInfo fcinfo, RatchetQuery query)
{
	RatchetIdentity before;
	Datum		args[1];
	bool		nulls[1] = {PG_ARGISNULL(0)};
	bool		written;

	ratchet_enter(RATCHET_OPERATE);
	args[0] = PointerGetDatum(ratchet_arg_name(fcinfo, 0, "node", RATCHET_NAME_MAX, false));
	ratchet_spi_begin(&before);
	written = ratchet_query(query, args, nulls) > 0;
	ratchet_spi_end(&before);
	return written;
}
