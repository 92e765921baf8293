/*-------------------------------------------------------------------------
 *
 * maintenance.c
 *	  The list of duties, and the two ways to perform them by hand:
 *	  maintenance_step(duty) for one, run_maintenance() for all. The background
 *	  worker (bgw/worker.c) performs the same list.
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

#include "bgw/bgw.h"

const RatchetDutyInfo ratchet_duties[RATCHET_DUTY_COUNT] = {
	[RATCHET_DUTY_GUARD] = {"guard", ratchet_duty_guard, 5 * 1000},
	[RATCHET_DUTY_NODES] = {"nodes", ratchet_duty_nodes, 1000},
	[RATCHET_DUTY_RECOVER] = {"recover", ratchet_duty_recover, 0},
	[RATCHET_DUTY_TIMEOUT] = {"timeout", ratchet_duty_timeout, 0},
	[RATCHET_DUTY_EXPIRE] = {"expire", ratchet_duty_expire, 0},
	[RATCHET_DUTY_LOCKS] = {"locks", ratchet_duty_locks, 1000},
	[RATCHET_DUTY_ARCHIVE] = {"archive", ratchet_duty_archive, 1000},
	[RATCHET_DUTY_PARTITIONS] = {"partitions", ratchet_duty_partitions, 10 * 1000},
	[RATCHET_DUTY_PURGE] = {"purge", ratchet_duty_purge, 60 * 1000},
	[RATCHET_DUTY_KEYS] = {"keys", ratchet_duty_keys, 60 * 1000},
};

PG_FUNCTION_INFO_V1(ratchet_maintenance_step);
PG_FUNCTION_INFO_V1(ratchet_run_maintenance);

static void next_transaction(void);

void
ratchet_due(TimestampTz *next, TimestampTz at)
{
	*next = Min(*next, at);
}

Datum
ratchet_maintenance_step(PG_FUNCTION_ARGS)
{
	StringInfoData known;
	TimestampTz next = DT_NOEND;
	char	   *name;

	ratchet_enter(RATCHET_OPERATE);
	if (PG_ARGISNULL(0))
		ratchet_null_argument("duty");
	name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	initStringInfo(&known);
	for (int i = 0; i < RATCHET_DUTY_COUNT; i++)
	{
		if (strcmp(ratchet_duties[i].name, name) == 0)
			PG_RETURN_INT64(ratchet_duties[i].perform(ratchet_now(), &next));
		appendStringInfo(&known, "%s%s", i > 0 ? ", " : "", ratchet_duties[i].name);
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
	for (int i = 0; i < RATCHET_DUTY_COUNT; i++)
	{
		TimestampTz next = DT_NOEND;
		int64		done;

		do
		{
			CHECK_FOR_INTERRUPTS();
			PushActiveSnapshot(GetTransactionSnapshot());
			done = ratchet_duties[i].perform(ratchet_now(), &next);
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
