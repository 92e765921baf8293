/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  CALL wait, CALL await, and the waiting part of claim.
 *
 * One loop serves all three: take a slot in shared memory, look, sleep until
 * woken, look again. Who wakes whom is in shared/wakeup.c; without a slot the
 * loop polls. The two procedures end their transaction after each look, so that
 * nothing is pinned while they sleep; that needs a CALL outside of any
 * transaction block. claim cannot do that, and therefore waits only briefly.
 *
 * The client's socket is watched while we sleep: a client that went away must
 * not keep a slot, and above all not its wake-up.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "portability/instr_time.h"
#include "storage/latch.h"
#include "tcop/dest.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/* We want the wait set only; the headers of GSSAPI are not always there. */
#undef ENABLE_GSS
#include "libpq/libpq.h"

#include "ratchet.h"

/* Without a slot: at first often, then once a second. */
#define POLL_FIRST_MS	20
#define POLL_MS			1000

/* With a slot: the net below, for what no commit callback tells. */
#define NET_MS			30000

/* At most this many others are woken when a timer finds several jobs due. */
#define SHARE_AT_MOST	1000

typedef struct Wait Wait;
struct Wait
{
	RatchetWanted wanted;
	bool		(*look) (Wait *wait);	/* whether what we wait for is there */
	bool		claims;			/* a successful look has claimed */
	bool		timer_fired;	/* before this look */
	TimestampTz due_at;			/* set by look: when to look again at the latest */
	RatchetClaimRequest *request;	/* wait and claim */
	struct ReturnSetInfo *rsinfo;	/* claim */
	pg_uuid_t	id;				/* await, as all below */
	Oid			caller;
	MemoryContext context;		/* for the result */
	bool		known;
	RatchetState state;
	Datum		result;
	bool		has_result;
};

PG_FUNCTION_INFO_V1(ratchet_wait);
PG_FUNCTION_INFO_V1(ratchet_await);
PG_FUNCTION_INFO_V1(ratchet_waiter_figures);

static void require_autocommit(FunctionCallInfo fcinfo, const char *name);
static int64 arg_timeout(FunctionCallInfo fcinfo, int arg);
static bool wait_until(Wait *wait, int64 timeout_us);
static void wait_registered(Wait *wait, int64 timeout_us, bool *found);
static int64 elapsed_us(instr_time since);
static void sleep_at_most(int64 us);
static bool look_for_work(Wait *wait);
static bool look_by_claiming(Wait *wait);
static bool look_at_job(Wait *wait);
static bool may_await(Oid role, text *queue, const char *producer);
static Datum answer(FunctionCallInfo fcinfo, Datum *values, bool *nulls);

/* wait(queues, timeout, kinds, INOUT ready) */
Datum
ratchet_wait(PG_FUNCTION_ARGS)
{
	RatchetClaimRequest request = {0};
	Wait		wait = {.look = look_for_work, .request = &request};
	Datum		values[1];
	bool		nulls[1] = {false};
	int64		timeout_us;
	bool	   *null_queues;

	ratchet_enter(RATCHET_WORK);
	require_autocommit(fcinfo, "wait");
	if (PG_ARGISNULL(0))
		ratchet_null_argument("queues");
	deconstruct_array(PG_GETARG_ARRAYTYPE_P_COPY(0), TEXTOID, -1, false, TYPALIGN_INT,
					  &request.queues, &null_queues, &request.nqueues);
	if (request.nqueues == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("queues must name at least one queue")));
	for (int i = 0; i < request.nqueues; i++)
	{
		if (null_queues[i])
			ratchet_null_element("queues");
		ratchet_check_queue(DatumGetTextPP(request.queues[i]));
	}
	timeout_us = arg_timeout(fcinfo, 1);
	request.batch = 1;
	request.kinds = PG_ARGISNULL(2) ? NULL : PG_GETARG_ARRAYTYPE_P_COPY(2);
	ratchet_claim_check(&request);

	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	values[0] = BoolGetDatum(wait_until(&wait, timeout_us));
	SPI_finish();
	return answer(fcinfo, values, nulls);
}

/* await(id, timeout, INOUT state, INOUT result) */
Datum
ratchet_await(PG_FUNCTION_ARGS)
{
	Wait		wait = {.look = look_at_job, .caller = GetUserId(), .context = CurrentMemoryContext};
	Datum		values[2] = {0};
	bool		nulls[2];
	int64		timeout_us;
	bool		any = false;

	for (int access = 0; access < RATCHET_ACCESS_COUNT; access++)
		any = any || ratchet_access_any(GetUserId(), (RatchetAccess) access);
	if (!any)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied: role \"%s\" has no access to any queue",
						GetUserNameFromId(GetUserId(), false)),
				 errhint("A superuser can grant it with ratchet.grant_access().")));
	require_autocommit(fcinfo, "await");
	if (PG_ARGISNULL(0))
		ratchet_null_argument("id");
	wait.id = *PG_GETARG_UUID_P(0);
	wait.wanted.job = &wait.id;
	timeout_us = arg_timeout(fcinfo, 1);

	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	(void) wait_until(&wait, timeout_us);
	SPI_finish();

	nulls[0] = !wait.known;
	nulls[1] = !wait.known || !wait.has_result;
	if (wait.known)
		values[0] = ratchet_state_datum(wait.state);
	values[1] = wait.result;
	return answer(fcinfo, values, nulls);
}

/*
 * Claim, and if there is nothing wait for a while: not where a later look could
 * not see more, and not while the transaction holds what others may wait for.
 */
void
ratchet_claim_or_wait(RatchetClaimRequest *request, struct ReturnSetInfo *rsinfo)
{
	Wait		wait = {.look = look_by_claiming, .claims = true, .request = request, .rsinfo = rsinfo};
	int64		wait_us = Min(request->wait_us, (int64) ratchet_max_claim_wait * 1000);

	if (wait_us == 0 || IsolationUsesXactSnapshot() ||
		TransactionIdIsValid(GetTopTransactionIdIfAny()))
		(void) ratchet_claim_jobs(request, rsinfo);
	else
		(void) wait_until(&wait, wait_us);
}

Datum
ratchet_waiter_figures(PG_FUNCTION_ARGS)
{
	RatchetWakeupStat stat;
	Datum		values[5];
	bool		nulls[5] = {false};

	ratchet_wakeup_stat(&stat);
	values[0] = Int64GetDatum(stat.slots);
	values[1] = Int64GetDatum(stat.waiting);
	values[2] = Int64GetDatum(stat.wakeups);
	values[3] = Int64GetDatum(stat.passed_on);
	values[4] = Int64GetDatum(stat.overflows);
	return answer(fcinfo, values, nulls);
}

static void
require_autocommit(FunctionCallInfo fcinfo, const char *name)
{
	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		((CallContext *) fcinfo->context)->atomic || IsSubTransaction())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("ratchet.%s cannot run inside a transaction block or a function", name),
				 errdetail("It would hold back vacuum for as long as it waits."),
				 errhint("Turn on autocommit in the client, and send CALL ratchet.%s as a statement of its own.",
						 name)));
}

static int64
arg_timeout(FunctionCallInfo fcinfo, int arg)
{
	if (PG_ARGISNULL(arg))
		ratchet_null_argument("timeout");
	return ratchet_check_interval(PG_GETARG_INTERVAL_P(arg), "timeout", false);
}

/*
 * Look, and wait until a look succeeds or the time is up. The first look is made
 * without a slot: often enough it is the only one.
 */
static bool
wait_until(Wait *wait, int64 timeout_us)
{
	bool		found = wait->look(wait);

	if (found)
		return true;
	if (wait->request != NULL)
	{
		wait->wanted.queues = wait->request->queues;
		wait->wanted.nqueues = wait->request->nqueues;
		wait->wanted.any_kind = wait->request->kinds == NULL;
		wait->wanted.kinds = wait->request->kind_values;
		wait->wanted.nkinds = wait->request->nkinds;
		wait->wanted.jobs = wait->request->batch;
	}
	PG_TRY();
	{
		wait_registered(wait, timeout_us, &found);
	}
	PG_CATCH();
	{
		ratchet_waiter_leave(false, false, DT_NOEND);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return found;
}

static void
wait_registered(Wait *wait, int64 timeout_us, bool *found)
{
	bool		registered = ratchet_waiter_enter(&wait->wanted);
	bool		told = registered && !RecoveryInProgress(); /* a standby has no commits of its own */
	int64		poll_us = (told ? NET_MS : POLL_FIRST_MS) * INT64CONST(1000);
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	for (;;)
	{
		int64		left_us;
		TimestampTz until;

		ResetLatch(MyLatch);	/* before the look: what comes during it sets it again */
		CHECK_FOR_INTERRUPTS();
		wait->timer_fired = ratchet_waiter_look(ratchet_now());
		*found = wait->look(wait);
		left_us = timeout_us - elapsed_us(start);
		if (*found || left_us <= 0)
			break;
		/* A claim that met overdue jobs has written. */
		if (wait->claims && TransactionIdIsValid(GetTopTransactionIdIfAny()))
			break;

		until = ratchet_waiter_sleep(wait->due_at);
		if (until == DT_NOBEGIN)
			continue;
		left_us = Min(left_us, poll_us);
		if (until != DT_NOEND)
			left_us = Min(left_us, until - ratchet_now());
		sleep_at_most(left_us);
		if (!told)
			poll_us = Min(poll_us * 2, POLL_MS * INT64CONST(1000));
	}
	ratchet_waiter_leave(*found, wait->claims, wait->due_at);
}

static int64
elapsed_us(instr_time since)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, since);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/* Sleep until the latch is set; ends the session if the client is gone. */
static void
sleep_at_most(int64 us)
{
	static uint32 event = 0;
	long		ms = (long) ((us + 999) / 1000);
	WaitEvent	events[FeBeWaitSetNEvents];
	int			count;

	if (us <= 0)
		return;
	if (event == 0)
		event = RATCHET_WAIT_EVENT("RatchetWait");
	if (whereToSendOutput != DestRemote || FeBeWaitSet == NULL || !WaitEventSetCanReportClosed())
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, event);
		return;
	}

	/* Whoever reads from the client or writes to it sets the events it wants. */
	ModifyWaitEvent(FeBeWaitSet, FeBeWaitSetSocketPos, WL_SOCKET_CLOSED, NULL);
	count = WaitEventSetWait(FeBeWaitSet, ms, events, lengthof(events), event);
	for (int i = 0; i < count; i++)
	{
		if (events[i].events & WL_POSTMASTER_DEATH)
			ereport(FATAL,
					(errcode(ERRCODE_ADMIN_SHUTDOWN),
					 errmsg("terminating connection due to unexpected postmaster exit")));
		if (events[i].events & WL_SOCKET_CLOSED)
		{
			whereToSendOutput = DestNone;
			ereport(FATAL,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("connection to client lost")));
		}
	}
}

/* In a transaction of its own; none is left open, but for an empty one. */
static bool
look_for_work(Wait *wait)
{
	RatchetClaimRequest *request = wait->request;
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext, "ratchet look",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext before = MemoryContextSwitchTo(scratch);
	TimestampTz now = ratchet_now();
	int			count;

	PushActiveSnapshot(GetTransactionSnapshot());
	count = ratchet_claim_count(request, now, wait->timer_fired ? SHARE_AT_MOST : 1);
	wait->due_at = DT_NOEND;
	if (count == 0 || wait->timer_fired)
		wait->due_at = ratchet_claim_next_due(request, now);
	PopActiveSnapshot();
	MemoryContextSwitchTo(before);
	MemoryContextDelete(scratch);
	SPI_commit();
	if (wait->timer_fired)
		ratchet_waiter_share(count - 1);
	return count > 0;
}

static bool
look_by_claiming(Wait *wait)
{
	RatchetClaimRequest *request = wait->request;
	TimestampTz now = ratchet_now();
	int			count = 0;
	int			claimed;

	PushActiveSnapshot(GetLatestSnapshot());
	if (wait->timer_fired)
		count = ratchet_claim_count(request, now, SHARE_AT_MOST + request->batch);
	claimed = ratchet_claim_jobs(request, wait->rsinfo);
	wait->due_at = DT_NOEND;
	if (claimed == 0 || wait->timer_fired)
		wait->due_at = ratchet_claim_next_due(request, now);
	PopActiveSnapshot();
	if (wait->timer_fired)
		ratchet_waiter_share(count - claimed);
	return claimed > 0;
}

/* Finished, or unknown to the caller: there is nothing to wait for. */
static bool
look_at_job(Wait *wait)
{
	RatchetIdentity before;
	Datum		args[1] = {UUIDPGetDatum(&wait->id)};
	bool		done;

	ratchet_spi_begin(&before);
	wait->due_at = DT_NOEND;
	wait->known = false;
	wait->has_result = false;
	if (ratchet_query(RQ_AWAIT_FIND, args, NULL) > 0)
	{
		HeapTuple	tuple = SPI_tuptable->vals[0];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		isnull;
		Datum		queue = SPI_getbinval(tuple, desc, 1, &isnull);

		wait->known = may_await(wait->caller, DatumGetTextPP(queue), SPI_getvalue(tuple, desc, 2));
		wait->state = ratchet_state_from_oid(DatumGetObjectId(SPI_getbinval(tuple, desc, 3, &isnull)));
		if (wait->known && ratchet_state_finished(wait->state))
		{
			Datum		result = SPI_getbinval(tuple, desc, 4, &isnull);
			MemoryContext inner = MemoryContextSwitchTo(wait->context);

			wait->has_result = !isnull;
			if (!isnull)
				wait->result = PointerGetDatum(PG_DETOAST_DATUM_COPY(result));
			MemoryContextSwitchTo(inner);
		}
	}
	SPI_freetuptable(SPI_tuptable);
	ratchet_spi_end(&before);
	SPI_commit();
	done = !wait->known || ratchet_state_finished(wait->state);
	return done;
}

/* One's own job, or one in a queue that one has to do with. */
static bool
may_await(Oid role, text *queue, const char *producer)
{
	return ratchet_access_to(role, RATCHET_OBSERVE, queue) ||
		ratchet_access_to(role, RATCHET_WORK, queue) ||
		ratchet_access_to(role, RATCHET_OPERATE, queue) ||
		ratchet_access_as_producer(role, queue, producer);
}

static Datum
answer(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}
