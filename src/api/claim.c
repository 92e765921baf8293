/*-------------------------------------------------------------------------
 *
 * claim.c
 *	  claim: hand out jobs, in exact order, without sorting the backlog and
 *	  without waiting for anybody.
 *
 * A queue's ready jobs lie in the index job_ready by (priority, ready_at, id).
 * One priority of one queue is a lane. Waiting raises a job's effective
 * priority, but within a lane the order stays the order of ready_at, since the
 * one that has waited longest is raised most. So the exact order over the queue
 * is a merge of its lanes, and the merge only ever looks at their heads. Which
 * lanes there are is found by skipping through the index, one descent each.
 *
 * The scans are dirty: they return every entry that is not dead for good. What
 * another transaction is working on is stepped over, and the update is made
 * without waiting and without a row lock first: whoever loses the race gets
 * "being modified" or "updated" and takes the next job.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "ratchet.h"

/* A claim turns at most this many overdue jobs into expired ones itself. */
#define EXPIRE_AT_MOST 100

/* Jobs of other kinds that a search for the next due time passes in a lane. */
#define LOOK_AHEAD_AT_MOST 100

/* Columns of the index job_ready. */
#define READY_QUEUE		1
#define READY_PRIORITY	2
#define READY_AT		3

typedef struct Lane
{
	RatchetScan *scan;
	int			priority;
	RatchetRow	head;			/* the lane's first job not yet dealt with */
	int64		effective;		/* its effective priority */
} Lane;

typedef struct Claim
{
	RatchetClaimRequest *request;
	RatchetStore *store;
	ReturnSetInfo *rsinfo;
	TimestampTz now;
	int64		boost_us;		/* ratchet.priority_boost_interval */
	pg_uuid_t	token;			/* one per call */
	int			left;			/* jobs still wanted */
	bool		later;			/* look at the jobs that are not due yet, instead */
	int			expirable;		/* overdue jobs it may still turn */
} Claim;

PG_FUNCTION_INFO_V1(ratchet_claim);
PG_FUNCTION_INFO_V1(ratchet_claim_queues);

static void read_request(FunctionCallInfo fcinfo, RatchetClaimRequest *request);
static void claim_from_queue(Claim *claim, text *queue);
static List *open_all_lanes(Claim *claim);
static List *open_lanes(Claim *claim, text *queue);
static Lane *open_lane(Claim *claim, text *queue, int priority);
static bool advance(Claim *claim, Lane *lane);
static Lane *best_lane(List *lanes);
static int	compare_heads(const Lane *a, const Lane *b);
static int64 effective_priority(const Claim *claim, int priority, TimestampTz scheduled_at);
static bool is_overdue(const Claim *claim, const RatchetRow *row);
static bool wants_kind(const Claim *claim, const text *kind);
static void take(Claim *claim, Lane *lane, const RatchetQueue *queue);
static void expire(Claim *claim, Lane *lane);
static void answer(Claim *claim, const RatchetRow *row, const RatchetQueue *queue);

Datum
ratchet_claim(PG_FUNCTION_ARGS)
{
	RatchetClaimRequest request = {0};
	Datum		queue;

	ratchet_enter(RATCHET_WORK);
	queue = PointerGetDatum(ratchet_arg_queue(fcinfo, 0));
	request.queues = &queue;
	request.nqueues = 1;
	read_request(fcinfo, &request);
	InitMaterializedSRF(fcinfo, 0);
	ratchet_claim_or_wait(&request, (ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}

Datum
ratchet_claim_queues(PG_FUNCTION_ARGS)
{
	RatchetClaimRequest request = {0};
	bool	   *nulls;

	ratchet_enter(RATCHET_WORK);
	if (PG_ARGISNULL(0))
		ratchet_null_argument("queues");
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT,
					  &request.queues, &nulls, &request.nqueues);
	for (int i = 0; i < request.nqueues; i++)
	{
		if (nulls[i])
			ratchet_null_element("queues");
		ratchet_check_queue(DatumGetTextPP(request.queues[i]));
	}
	read_request(fcinfo, &request);
	InitMaterializedSRF(fcinfo, 0);
	ratchet_claim_or_wait(&request, (ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}

static void
read_request(FunctionCallInfo fcinfo, RatchetClaimRequest *request)
{
	request->worker = ratchet_arg_name(fcinfo, 1, "worker", RATCHET_NAME_MAX, true);
	request->batch = PG_ARGISNULL(2) ? 1 : PG_GETARG_INT32(2);
	request->lease = PG_ARGISNULL(3) ? NULL : PG_GETARG_INTERVAL_P(3);
	request->kinds = PG_ARGISNULL(4) ? NULL : PG_GETARG_ARRAYTYPE_P(4);
	request->wait_us = PG_ARGISNULL(5) ? 0 :
		ratchet_check_interval(PG_GETARG_INTERVAL_P(5), "wait", false);
	request->node = ratchet_arg_name(fcinfo, 6, "node", RATCHET_NAME_MAX, false);
	ratchet_not_available(!PG_ARGISNULL(7) && PG_GETARG_BOOL(7), "session");
	ratchet_claim_check(request);
}

/* Check what is common to all ways to claim, before anything is written. */
void
ratchet_claim_check(RatchetClaimRequest *request)
{
	ratchet_check_range(request->batch, "batch", 1, RATCHET_BATCH_MAX_JOBS);
	request->lease_us = request->lease == NULL ? -1 :
		ratchet_check_interval(request->lease, "lease", false);
	if (request->kinds != NULL)
	{
		bool	   *nulls;

		deconstruct_array(request->kinds, TEXTOID, -1, false, TYPALIGN_INT,
						  &request->kind_values, &nulls, &request->nkinds);
		for (int i = 0; i < request->nkinds; i++)
		{
			if (nulls[i])
				ratchet_null_element("kinds");
			ratchet_check_name(DatumGetTextPP(request->kind_values[i]), "kind", RATCHET_KIND_MAX);
		}
	}
	for (int i = 0; i < request->nqueues; i++)
		ratchet_access_require(RATCHET_WORK, DatumGetTextPP(request->queues[i]));
}

/*
 * Claim up to request->batch jobs into the result set, queues left to right.
 * Returns their number.
 */
int
ratchet_claim_jobs(RatchetClaimRequest *request, ReturnSetInfo *rsinfo)
{
	Claim		claim = {0};

	if (ratchet_node_draining(request->node != NULL ? request->node : request->worker))
		return 0;
	claim.request = request;
	claim.rsinfo = rsinfo;
	claim.now = ratchet_now();
	claim.boost_us = (int64) ratchet_priority_boost_interval * 1000;
	claim.left = request->batch;
	claim.expirable = EXPIRE_AT_MOST;
	ratchet_token_make(&claim.token);
	claim.store = ratchet_job_open();
	for (int i = 0; i < request->nqueues && claim.left > 0; i++)
		claim_from_queue(&claim, DatumGetTextPP(request->queues[i]));
	ratchet_store_close(claim.store);
	ratchet_wakeup_claimed(request->batch - claim.left);
	return request->batch - claim.left;
}

/*
 * How many jobs there are to claim, counted up to the limit. Nobody is to rely on
 * the number but for deciding how many to wake.
 */
int
ratchet_claim_count(RatchetClaimRequest *request, TimestampTz now, int limit)
{
	Claim		claim = {.request = request, .now = now, .store = ratchet_job_open()};
	int			count = 0;
	ListCell   *lc;

	foreach(lc, open_all_lanes(&claim))
	{
		Lane	   *lane = lfirst(lc);
		bool		more = true;

		for (; more && count < limit; more = advance(&claim, lane))
			count += !is_overdue(&claim, &lane->head) && wants_kind(&claim, RC_TEXT(&lane->head, RC_KIND));
		if (more)
			ratchet_scan_end(lane->scan);
	}
	ratchet_store_close(claim.store);
	return count;
}

/*
 * When the next job that is not due yet will be: DT_NOEND for never. It may name
 * an earlier time, if jobs of other kinds are in the way.
 */
TimestampTz
ratchet_claim_next_due(RatchetClaimRequest *request, TimestampTz now)
{
	Claim		claim = {.request = request, .now = now, .later = true, .store = ratchet_job_open()};
	TimestampTz next = DT_NOEND;
	ListCell   *lc;

	foreach(lc, open_all_lanes(&claim))
	{
		Lane	   *lane = lfirst(lc);
		bool		more = true;

		for (int looked = 0; more && looked < LOOK_AHEAD_AT_MOST; looked++)
		{
			if (wants_kind(&claim, RC_TEXT(&lane->head, RC_KIND)))
				break;
			more = advance(&claim, lane);
		}
		if (!more)
			continue;
		next = Min(next, RC_TIMESTAMP(&lane->head, RC_READY_AT));
		ratchet_scan_end(lane->scan);
	}
	ratchet_store_close(claim.store);
	return next;
}

/* The lanes of all queues of the request that are not paused. */
static List *
open_all_lanes(Claim *claim)
{
	List	   *lanes = NIL;

	for (int i = 0; i < claim->request->nqueues; i++)
	{
		text	   *queue = DatumGetTextPP(claim->request->queues[i]);

		if (!ratchet_queue_settings(queue).paused)
			lanes = list_concat(lanes, open_lanes(claim, queue));
	}
	return lanes;
}

static void
claim_from_queue(Claim *claim, text *queue)
{
	RatchetQueue settings = ratchet_queue_settings(queue);
	List	   *lanes;
	ListCell   *lc;
	Lane	   *lane;

	if (settings.paused)
		return;
	lanes = open_lanes(claim, queue);
	while (claim->left > 0 && (lane = best_lane(lanes)) != NULL)
	{
		RatchetRow *head = &lane->head;

		if (is_overdue(claim, head))
			expire(claim, lane);
		else if (wants_kind(claim, RC_TEXT(head, RC_KIND)))
			take(claim, lane, &settings);
		if (!advance(claim, lane))
			lanes = list_delete_ptr(lanes, lane);
	}
	foreach(lc, lanes)
		ratchet_scan_end(((Lane *) lfirst(lc))->scan);
	list_free(lanes);
}

/*
 * Find the queue's lanes that have a job due, with their heads. The index is
 * asked for its first entry below the priority last seen, dead entries included,
 * until there is none: a lane can be missed only if nothing is in it.
 */
static List *
open_lanes(Claim *claim, text *queue)
{
	RatchetScan *finder = ratchet_scan_begin(claim->store, ratchet_catalog()->job_ready, 2, true);
	int			below = RATCHET_PRIORITY_MAX + 1;
	List	   *lanes = NIL;
	ScanKeyData keys[2];
	Datum		priority;

	ScanKeyEntryInitialize(&keys[0], 0, READY_QUEUE, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(queue));
	for (;;)
	{
		Lane	   *lane;

		/* The column is stored descending: "greater" of the index is "less". */
		ScanKeyInit(&keys[1], READY_PRIORITY, BTLessStrategyNumber, F_INT4LT, Int32GetDatum(below));
		ratchet_scan_restart(finder, keys);
		if (!ratchet_scan_next_entry(finder, READY_PRIORITY, &priority))
			break;
		below = DatumGetInt32(priority);
		lane = open_lane(claim, queue, below);
		if (lane != NULL)
			lanes = lappend(lanes, lane);
	}
	ratchet_scan_end(finder);
	return lanes;
}

/* A lane positioned at its first job that is due; NULL if it has none. */
static Lane *
open_lane(Claim *claim, text *queue, int priority)
{
	Lane	   *lane = palloc0(sizeof(Lane));
	ScanKeyData keys[3];

	ScanKeyEntryInitialize(&keys[0], 0, READY_QUEUE, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(queue));
	ScanKeyInit(&keys[1], READY_PRIORITY, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(priority));
	ScanKeyInit(&keys[2], READY_AT, claim->later ? BTGreaterStrategyNumber : BTLessEqualStrategyNumber,
				claim->later ? F_TIMESTAMPTZ_GT : F_TIMESTAMPTZ_LE, TimestampTzGetDatum(claim->now));
	lane->priority = priority;
	lane->scan = ratchet_scan_begin(claim->store, ratchet_catalog()->job_ready, 3, false);
	ratchet_scan_restart(lane->scan, keys);
	return advance(claim, lane) ? lane : NULL;
}

/* Step to the lane's next job that nobody else is working on; ends its scan if there is none. */
static bool
advance(Claim *claim, Lane *lane)
{
	while (ratchet_scan_next(lane->scan))
	{
		if (!ratchet_scan_entry_free(lane->scan))
			continue;
		ratchet_row_read(&lane->head, ratchet_scan_slot(lane->scan));
		lane->effective = effective_priority(claim, lane->priority,
											 RC_TIMESTAMP(&lane->head, RC_SCHEDULED_AT));
		return true;
	}
	ratchet_scan_end(lane->scan);
	return false;
}

static Lane *
best_lane(List *lanes)
{
	Lane	   *best = NULL;
	ListCell   *lc;

	foreach(lc, lanes)
		if (best == NULL || compare_heads(lfirst(lc), best) < 0)
			best = lfirst(lc);
	return best;
}

/* Effective priority descending, then scheduled_at, then id. */
static int
compare_heads(const Lane *a, const Lane *b)
{
	TimestampTz at_a = RC_TIMESTAMP(&a->head, RC_SCHEDULED_AT);
	TimestampTz at_b = RC_TIMESTAMP(&b->head, RC_SCHEDULED_AT);

	if (a->effective != b->effective)
		return a->effective > b->effective ? -1 : 1;
	if (at_a != at_b)
		return at_a < at_b ? -1 : 1;
	return memcmp(RC_UUID(&a->head, RC_ID), RC_UUID(&b->head, RC_ID), UUID_LEN);
}

/* priority + floor(waited / boost interval); a job that is due has waited 0 or more. */
static int64
effective_priority(const Claim *claim, int priority, TimestampTz scheduled_at)
{
	if (claim->boost_us == 0)
		return priority;
	return priority + (claim->now - scheduled_at) / claim->boost_us;
}

static bool
is_overdue(const Claim *claim, const RatchetRow *row)
{
	return !row->isnull[RC_EXPIRES_AT] && RC_TIMESTAMP(row, RC_EXPIRES_AT) <= claim->now;
}

static bool
wants_kind(const Claim *claim, const text *kind)
{
	int			len = VARSIZE_ANY_EXHDR(kind);

	if (claim->request->kinds == NULL)
		return true;
	for (int i = 0; i < claim->request->nkinds; i++)
	{
		text	   *wanted = DatumGetTextPP(claim->request->kind_values[i]);

		if (VARSIZE_ANY_EXHDR(wanted) == len &&
			memcmp(VARDATA_ANY(wanted), VARDATA_ANY(kind), len) == 0)
			return true;
	}
	return false;
}

/* Try to make the lane's head ours. If somebody was faster it is simply not. */
static void
take(Claim *claim, Lane *lane, const RatchetQueue *queue)
{
	RatchetClaimRequest *request = claim->request;
	const RatchetRow *old = &lane->head;
	RatchetRow	row = *old;
	int64		lease_us = request->lease_us;

	if (lease_us < 0)
		lease_us = ratchet_row_interval_us(old, RC_LEASE, queue->lease_us);
	if (lease_us < 0)
		lease_us = (int64) ratchet_default_lease * 1000;

	ratchet_row_set_state(&row, RATCHET_RUNNING);
	ratchet_row_set(&row, RC_TOKEN, UUIDPGetDatum(&claim->token));
	ratchet_row_set(&row, RC_PICKED_BY, PointerGetDatum(request->worker));
	ratchet_row_set(&row, RC_NODE,
					PointerGetDatum(request->node != NULL ? request->node : request->worker));
	ratchet_row_set(&row, RC_PICKED_AT, TimestampTzGetDatum(claim->now));
	if (row.isnull[RC_STARTED_AT])
		ratchet_row_set(&row, RC_STARTED_AT, TimestampTzGetDatum(claim->now));
	ratchet_row_set(&row, RC_LEASE_EXPIRES_AT, TimestampTzGetDatum(claim->now + lease_us));
	ratchet_row_set(&row, RC_ATTEMPT, Int32GetDatum(RC_INT(old, RC_ATTEMPT) + 1));
	ratchet_row_set_null(&row, RC_PROGRESS);
	ratchet_row_set_null(&row, RC_PROGRESS_MESSAGE);

	if (ratchet_job_update(claim->store, ratchet_scan_slot(lane->scan), old, &row,
						   claim->now, false) != TM_Ok)
		return;
	answer(claim, &row, queue);
	claim->left--;
}

/* An overdue job is never handed out; the first few are dealt with here. */
static void
expire(Claim *claim, Lane *lane)
{
	RatchetRow	row = lane->head;

	if (claim->expirable == 0)
		return;
	ratchet_row_finish(&row, RATCHET_EXPIRED, claim->now);
	if (ratchet_job_update(claim->store, ratchet_scan_slot(lane->scan), &lane->head, &row,
						   claim->now, false) == TM_Ok)
		claim->expirable--;
}

static void
answer(Claim *claim, const RatchetRow *row, const RatchetQueue *queue)
{
	static const RatchetColumn columns[] = {
		RC_ID, RC_KIND, RC_PAYLOAD, RC_ATTEMPT, RC_MAX_ATTEMPTS, RC_TOKEN, RC_QUEUE, RC_PRIORITY,
		RC_LEASE_EXPIRES_AT, RC_TIMEOUT, RC_META, RC_SCHEDULED_AT, RC_CREATED_AT, RC_TAGS
	};
	Datum		values[lengthof(columns)];
	bool		nulls[lengthof(columns)];
	Interval	queue_timeout = {0};

	for (int i = 0; i < lengthof(columns); i++)
	{
		values[i] = row->value[columns[i]];
		nulls[i] = row->isnull[columns[i]];
		if (columns[i] == RC_TIMEOUT && nulls[i] && queue->timeout_us >= 0)
		{
			queue_timeout.time = queue->timeout_us;
			values[i] = IntervalPGetDatum(&queue_timeout);
			nulls[i] = false;
		}
	}
	tuplestore_putvalues(claim->rsinfo->setResult, claim->rsinfo->setDesc, values, nulls);
}
