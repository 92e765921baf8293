/*-------------------------------------------------------------------------
 *
 * loop.c
 *	  The loop that the launcher and the workers run: wait, do a step, recover
 *	  from an error.
 *
 * The wait is inside the PG_TRY, so that pg_cancel_backend on a waiting process
 * is an error like any other and does not end it. The latch is reset before the
 * step looks for work. FATAL is never caught: it ends the process, and whoever
 * started it starts it again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "bgw/bgw.h"

#define MAX_BACKOFF_MS 60000
#define MAX_WAIT_MS (60 * 60 * 1000)

static bool reloaded = false;	/* since the last ratchet_loop_reloaded */

static void wait_for_work(int64 ms, uint32 wait_event);
static void recover(MemoryContext context, void (*failed) (const ErrorData *error));

/* Never returns. */
void
ratchet_loop(const char *name, RatchetStep step, void (*failed) (const ErrorData *error))
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "ratchet loop", ALLOCSET_DEFAULT_SIZES);
	uint32		wait_event = RATCHET_WAIT_EVENT(name);
	volatile int64 delay = 0;
	volatile int failures = 0;

	pgstat_report_activity(STATE_IDLE, NULL);
	for (;;)
	{
		MemoryContextSwitchTo(context);
		MemoryContextReset(context);
		PG_TRY();
		{
			wait_for_work(delay, wait_event);
			delay = step(context);
			failures = 0;
		}
		PG_CATCH();
		{
			recover(context, failed);
			delay = ratchet_loop_backoff_ms(++failures);
		}
		PG_END_TRY();
	}
}

/* Whether the configuration has been read again since the last call. */
bool
ratchet_loop_reloaded(void)
{
	bool		answer = reloaded;

	reloaded = false;
	return answer;
}

/* 1, 2, 4 ... 60 s */
int64
ratchet_loop_backoff_ms(int failures)
{
	return Min(INT64CONST(1000) << Min(Max(failures, 1) - 1, 10), MAX_BACKOFF_MS);
}

void
ratchet_loop_begin(const char *activity)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	pgstat_report_activity(STATE_RUNNING, activity);
}

void
ratchet_loop_commit(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
}

static void
wait_for_work(int64 ms, uint32 wait_event)
{
	if (ms > 0)
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) Min(ms, MAX_WAIT_MS), wait_event);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		reloaded = true;
	}
}

static void
recover(MemoryContext context, void (*failed) (const ErrorData *error))
{
	ErrorData  *error;

	HOLD_INTERRUPTS();
	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	EmitErrorReport();
	AbortOutOfAnyTransaction();
	FlushErrorState();
	QueryCancelPending = false;
	failed(error);
	pgstat_report_activity(STATE_IDLE, NULL);
	RESUME_INTERRUPTS();
}
