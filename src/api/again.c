/*-------------------------------------------------------------------------
 *
 * again.c
 *	  rerun and forget: what can be done with a finished job, wherever it is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "ratchet.h"

PG_FUNCTION_INFO_V1(ratchet_rerun);
PG_FUNCTION_INFO_V1(ratchet_forget);

static bool find_finished(const pg_uuid_t *id, RatchetJobSpec *spec);
static void *copy(HeapTuple tuple, TupleDesc desc, int column);

/* A new job like the old one, in the caller's name, due now. */
Datum
ratchet_rerun(PG_FUNCTION_ARGS)
{
	RatchetJobSpec spec = {0};

	ratchet_enter(RATCHET_OPERATE);
	if (!find_finished(ratchet_arg_id(fcinfo, 0, "id"), &spec) ||
		!ratchet_access_to(GetUserId(), RATCHET_OPERATE, spec.queue))
		PG_RETURN_NULL();
	ratchet_enqueue_checked(&spec, 1);
	PG_RETURN_UUID_P(memcpy(palloc(UUID_LEN), &spec.job_id, UUID_LEN));
}

Datum
ratchet_forget(PG_FUNCTION_ARGS)
{
	RatchetJobSpec spec = {0};
	RatchetIdentity before;
	Datum		args[1];
	bool		forgotten = false;

	ratchet_enter(RATCHET_OPERATE);
	args[0] = UUIDPGetDatum(ratchet_arg_id(fcinfo, 0, "id"));

	/* The archiver may move it just before we get hold of it: look again. */
	while (!forgotten && find_finished(DatumGetUUIDP(args[0]), &spec) &&
		   ratchet_access_to(GetUserId(), RATCHET_OPERATE, spec.queue))
	{
		CHECK_FOR_INTERRUPTS();
		ratchet_spi_begin(&before);
		forgotten = ratchet_query(RQ_FINISHED_FORGET, args, NULL) > 0;
		ratchet_spi_end(&before);
	}
	PG_RETURN_BOOL(forgotten);
}

/* What a finished job was asked for, live or archived. */
static bool
find_finished(const pg_uuid_t *id, RatchetJobSpec *spec)
{
	RatchetIdentity before;
	Datum		args[1] = {UUIDPGetDatum(id)};
	bool		found;

	ratchet_spi_begin(&before);
	found = ratchet_query(RQ_FINISHED_FIND, args, NULL) > 0;
	if (found)
	{
		HeapTuple	tuple = SPI_tuptable->vals[0];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		isnull;
		bool	   *jitter;

		spec->queue = copy(tuple, desc, 1);
		spec->kind = copy(tuple, desc, 2);
		spec->payload = copy(tuple, desc, 3);
		spec->has_priority = spec->has_max_attempts = true;
		spec->priority = DatumGetInt32(SPI_getbinval(tuple, desc, 4, &isnull));
		spec->max_attempts = DatumGetInt32(SPI_getbinval(tuple, desc, 5, &isnull));
		spec->backoff = copy(tuple, desc, 6);
		spec->backoff_base = copy(tuple, desc, 7);
		spec->backoff_max = copy(tuple, desc, 8);
		jitter = copy(tuple, desc, 9);
		if ((spec->has_jitter = jitter != NULL))
			spec->jitter = *jitter;
		spec->timeout = copy(tuple, desc, 10);
		spec->lease = copy(tuple, desc, 11);
		spec->expires_in = copy(tuple, desc, 12);
		spec->keep_for = copy(tuple, desc, 13);
		spec->business_key = copy(tuple, desc, 14);
		spec->tags = copy(tuple, desc, 15);
		spec->meta = copy(tuple, desc, 16);
	}
	ratchet_spi_end(&before);
	return found;
}

/* A value in the caller's context, detoasted; NULL for NULL. */
static void *
copy(HeapTuple tuple, TupleDesc desc, int column)
{
	Form_pg_attribute att = TupleDescAttr(desc, column - 1);
	bool		isnull;
	Datum		value = SPI_getbinval(tuple, desc, column, &isnull);
	void	   *result;

	if (isnull)
		return NULL;
	if (att->attbyval)
	{
		Assert(att->atttypid == BOOLOID);
		result = SPI_palloc(sizeof(bool));
		*(bool *) result = DatumGetBool(value);
		return result;
	}
	if (att->attlen == -1)
		value = PointerGetDatum(PG_DETOAST_DATUM(value));
	return DatumGetPointer(SPI_datumTransfer(value, false, att->attlen));
}
