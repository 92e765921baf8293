/*-------------------------------------------------------------------------
 *
 * maintenance.c
 *	  The list of duties, and the two ways to perform them by hand:
 *	  maintenance_step(duty) for one, run_maintenance() for all.
 *
 * Each duty is one C function that does a bounded amount of work and answers how
 * many rows it changed. The procedure calls a duty again while it comes back
 * with a full batch. Called outside a transaction block it commits in between,
 * so that no long transaction holds back vacuum.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "ratchet.h"

static const struct
{
	const char *name;
	RatchetDuty perform;
}			duties[] =
{
	{"guard", ratchet_duty_guard},
	{"nodes", ratchet_duty_nodes},
	{"recover", ratchet_duty_recover},
	{"timeout", ratchet_duty_timeout},
	{"expire", ratchet_duty_expire},
	{"locks", ratchet_duty_locks},
	{"archive", ratchet_duty_archive},
	{"partitions", ratchet_duty_partitions},
	{"purge", ratchet_duty_purge},
	{"keys", ratchet_duty_keys},
};

PG_FUNCTION_INFO_V1(ratchet_maintenance_step);
PG_FUNCTION_INFO_V1(ratchet_run_maintenance);

static void next_transaction(void);

Datum
ratchet_maintenance_step(PG_FUNCTION_ARGS)
{
	StringInfoData known;
	char	   *name;

	ratchet_enter(RATCHET_OPERATE);
	if (PG_ARGISNULL(0))
		ratchet_null_argument("duty");
	name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	initStringInfo(&known);
	for (int i = 0; i < lengthof(duties); i++)
	{
		if (strcmp(duties[i].name, name) == 0)
			PG_RETURN_INT64(duties[i].perform(ratchet_now()));
		appendStringInfo(&known, "%s%s", i > 0 ? ", " : "", duties[i].name);
	}
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("unknown duty \"%s\"", ratchet_shorten(name)),
			 errhint("The duties are %s.", known.data)));
	PG_RETURN_NULL();			/* keep compiler quiet */
}

Datum
ratchet_run_maintenance(PG_FUNCTION_ARGS)
{
	bool		atomic = !IsA(fcinfo->context, CallContext) ||
		((CallContext *) fcinfo->context)->atomic;

	ratchet_enter(RATCHET_OPERATE);
	if (SPI_connect_ext(atomic ? 0 : SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	for (int i = 0; i < lengthof(duties); i++)
	{
		int64		done;

		do
		{
			CHECK_FOR_INTERRUPTS();
			PushActiveSnapshot(GetTransactionSnapshot());
			done = duties[i].perform(ratchet_now());
			PopActiveSnapshot();
			if (!atomic)
				next_transaction();
		} while (done >= RATCHET_DUTY_BATCH);
	}
	SPI_finish();
	PG_RETURN_VOID();
}

/* Duties judge by what is committed now, whatever the session's default is. */
static void
next_transaction(void)
{
	SPI_commit();
	if (XactIsoLevel > XACT_READ_COMMITTED)
		XactIsoLevel = XACT_READ_COMMITTED;
}
