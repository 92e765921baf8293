/*-------------------------------------------------------------------------
 *
 * ratchet.h
 *	  The internal header: types, then prototypes grouped by the file that
 *	  defines them. Never installed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RATCHET_H
#define RATCHET_H

#include "postgres.h"

#include "access/htup.h"
#include "access/skey.h"
#include "datatype/timestamp.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/jsonb.h"
#include "utils/relcache.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"

#define RATCHET_VERSION "0.1.0"

/* The private error class. A client may branch on these: they never change. */
#define RATCHET_ERRCODE_TRANSITION	MAKE_SQLSTATE('R', 'T', '0', '0', '1')
#define RATCHET_ERRCODE_KEY_TAKEN	MAKE_SQLSTATE('R', 'T', '0', '0', '2')
#define RATCHET_ERRCODE_LEASE_LOST	MAKE_SQLSTATE('R', 'T', '0', '0', '5')

/* Limits of the contract, in bytes unless the name says otherwise. */
#define RATCHET_QUEUE_MAX			128
#define RATCHET_KIND_MAX			255
#define RATCHET_NAME_MAX			255 /* keys, worker, node, tag */
#define RATCHET_TAGS_MAX_COUNT		64
#define RATCHET_META_MAX			(64 * 1024)
#define RATCHET_ERROR_MAX			8192
#define RATCHET_BATCH_MAX_JOBS		10000
#define RATCHET_PRIORITY_MAX		100
#define RATCHET_INTERVAL_MAX_US		(INT64CONST(3660) * USECS_PER_DAY)

/* In the order of the SQL enum ratchet.job_state. */
typedef enum RatchetState
{
	RATCHET_PENDING,
	RATCHET_RUNNING,
	RATCHET_SUCCEEDED,
	RATCHET_FAILED,
	RATCHET_PAUSED,
	RATCHET_CANCELED,
	RATCHET_SKIPPED,
	RATCHET_EXPIRED,
} RatchetState;

#define RATCHET_STATE_COUNT (RATCHET_EXPIRED + 1)

typedef enum RatchetBackoff
{
	RATCHET_BACKOFF_NONE,
	RATCHET_BACKOFF_FIXED,
	RATCHET_BACKOFF_LINEAR,
	RATCHET_BACKOFF_EXPONENTIAL,
} RatchetBackoff;

typedef enum RatchetAccess
{
	RATCHET_ENQUEUE,
	RATCHET_WORK,
	RATCHET_OPERATE,
	RATCHET_OBSERVE,
} RatchetAccess;

#define RATCHET_ACCESS_COUNT (RATCHET_OBSERVE + 1)

/*
 * The columns of ratchet.job that C knows. They are found by name: the order
 * here is ours and need not be the table's.
 */
#define RATCHET_JOB_COLUMNS(X) \
	X(ID, id) X(CREATED_AT, created_at) X(QUEUE, queue) X(KIND, kind) X(PAYLOAD, payload) \
	X(IDEMPOTENCY_KEY, idempotency_key) X(ENQUEUED_BY, enqueued_by) X(MAX_ATTEMPTS, max_attempts) \
	X(JITTER, jitter) X(BACKOFF, backoff) X(BACKOFF_BASE, backoff_base) X(BACKOFF_MAX, backoff_max) \
	X(TIMEOUT, timeout) X(LEASE, lease) X(EXPIRES_IN, expires_in) X(KEEP_UNTIL, keep_until) \
	X(BATCH_ID, batch_id) X(BUSINESS_KEY, business_key) X(CONCURRENCY_KEY, concurrency_key) \
	X(RESOURCE, resource) X(CIRCUIT, circuit) X(TAGS, tags) X(META, meta) \
	X(SCHEDULED_AT, scheduled_at) X(EXPIRES_AT, expires_at) X(PRIORITY, priority) \
	X(WAITING_ON, waiting_on) X(READY_AT, ready_at) X(LEFT_AT, left_at) X(PICKED_AT, picked_at) \
	X(STARTED_AT, started_at) X(FINISHED_AT, finished_at) X(LEASE_EXPIRES_AT, lease_expires_at) \
	X(LEASE_US, lease_us) X(STATE, state) X(PAUSED_FROM, paused_from) X(ATTEMPT, attempt) \
	X(CRASHES, crashes) X(VERSION, version) X(TOKEN, token) X(PICKED_BY, picked_by) X(NODE, node) \
	X(PROGRESS, progress) X(PROGRESS_MESSAGE, progress_message) X(LAST_ERROR, last_error) \
	X(RESULT, result)

typedef enum RatchetColumn
{
#define X(upper, lower) RC_##upper,
	RATCHET_JOB_COLUMNS(X)
#undef X
	RC_COUNT
} RatchetColumn;

/* A job row. Pass-by-reference values point into the tuple it was read from. */
typedef struct RatchetRow
{
	Datum		value[RC_COUNT];
	bool		isnull[RC_COUNT];
} RatchetRow;

/* What the catalogs say about our objects; see job/catalog.c. */
typedef struct RatchetCatalog
{
	Oid			owner;			/* role that owns the extension's tables */
	Oid			schema;
	Oid			job;
	Oid			job_pkey;
	Oid			job_ready;
	Oid			job_left;
	Oid			job_expires;
	Oid			business_key;
	Oid			business_key_pkey;
	Oid			idempotency_key;
	Oid			idempotency_key_pkey;
	Oid			queue;
	Oid			access;
	Oid			draining;
	Oid			job_archive;
	Oid			job_archive_default;
	Oid			guard;			/* functions of the guard's triggers */
	Oid			guard_keys;
	Oid			state_type;
	Oid			state_label[RATCHET_STATE_COUNT];
	AttrNumber	column[RC_COUNT];	/* attribute number in ratchet.job */
	int16		column_len[RC_COUNT];	/* its type's length */
	bool		column_byval[RC_COUNT];
} RatchetCatalog;

/*
 * One of our tables, open for reading and writing rows; see job/storage.c.
 * "found" is the version that a lookup or a scan returned, "fresh" the virtual
 * slot in which the next version is built.
 */
typedef struct RatchetStore
{
	Relation	rel;
	struct EState *estate;
	struct ResultRelInfo *rri;
	TupleTableSlot *found;
	TupleTableSlot *fresh;
	bool		through_executor;	/* somebody else's triggers or constraints apply */
} RatchetStore;

typedef struct RatchetScan RatchetScan;

/*
 * Settings of a queue, with the built-in defaults filled in where the queue has
 * none. Intervals are microseconds; -1 stands for "none".
 */
typedef struct RatchetQueue
{
	bool		paused;
	int			priority;
	int			max_attempts;
	RatchetBackoff backoff;
	int64		backoff_base_us;
	int64		backoff_max_us;
	bool		jitter;
	int64		timeout_us;
	int64		lease_us;		/* -1: ratchet.default_lease */
	int64		expires_in_us;
	int64		keep_for_us;
	int64		archive_after_us;	/* -1: ratchet.archive_after */
} RatchetQueue;

/* What enqueue is asked for, whichever way it is called. */
typedef struct RatchetJobSpec
{
	text	   *kind;
	Jsonb	   *payload;
	text	   *queue;
	bool		has_priority;
	int			priority;
	bool		has_run_at;
	TimestampTz run_at;
	bool		has_max_attempts;
	int			max_attempts;
	text	   *backoff;
	Interval   *backoff_base;
	Interval   *backoff_max;
	bool		has_jitter;
	bool		jitter;
	Interval   *timeout;
	Interval   *lease;
	Interval   *expires_in;
	Interval   *keep_for;
	text	   *idempotency_key;
	text	   *business_key;
	ArrayType  *tags;
	Jsonb	   *meta;
	bool		hold;
	pg_uuid_t  *id;				/* the client's own, or NULL */
	pg_uuid_t	job_id;			/* out: the job's id, new or found */
	bool		exists;			/* out: an earlier job has the idempotency key */
} RatchetJobSpec;

/* in guc.c */
extern int	ratchet_archive_after;	/* s */
extern int	ratchet_archive_keep;	/* s */
extern char *ratchet_databases;
extern int	ratchet_default_lease;	/* ms */
extern int	ratchet_failed_keep;	/* s */
extern int	ratchet_max_claim_wait; /* ms */
extern int	ratchet_max_crashes;
extern int	ratchet_max_databases;
extern int	ratchet_max_payload_size;	/* bytes */
extern int	ratchet_max_result_size;	/* bytes */
extern int	ratchet_node_timeout;	/* ms */
extern int	ratchet_max_waiters;
extern int	ratchet_priority_boost_interval;	/* ms */
extern bool ratchet_redact_emails;
extern void ratchet_guc_define(void);

/* in entry.c: what every SQL function does first, and the owner's shoes */
typedef struct RatchetIdentity
{
	Oid			user;
	int			sec_context;
	int			guc_level;
} RatchetIdentity;

extern TimestampTz ratchet_now(void);
extern void ratchet_enter(RatchetAccess access);
extern void ratchet_require_writable(void);
extern void ratchet_become_owner(RatchetIdentity *before);
extern void ratchet_become_caller(const RatchetIdentity *before);

/* in queries.c: every SQL text */
typedef enum RatchetQuery
{
	RQ_ARCHIVE_MOVE,
	RQ_ARCHIVE_FIND,
	RQ_AWAIT_FIND,
	RQ_FINISHED_FIND,
	RQ_FINISHED_FORGET,
	RQ_JOB_SELECT,
	RQ_ERROR_ADD,
	RQ_ERROR_PURGE,
	RQ_BUSINESS_KEY_REBUILD,
	RQ_BUSINESS_KEY_SWEEP,
	RQ_QUEUE_CONFIGURE,
	RQ_QUEUE_PAUSE,
	RQ_QUEUE_RESUME,
	RQ_ACCESS_ADD,
	RQ_ACCESS_REMOVE,
	RQ_ACCESS_OF_ROLE,
	RQ_NODE_HEARTBEAT,
	RQ_NODE_STALE,
	RQ_NODE_REMOVE,
	RQ_NODE_OLDEST,
	RQ_DRAIN,
	RQ_UNDRAIN,
	RQ_LOCK_TRY,
	RQ_LOCK_RENEW,
	RQ_LOCK_RELEASE,
	RQ_LOCK_EXPIRE,
	RQ_LOCK_NEXT,
	RQ_ACCESS_FUNCTIONS,
	RQ_GUARD_STATE,
	RQ_PARTITION_WANTED,
	RQ_PARTITION_EXISTS,
	RQ_PARTITION_LIST,
	RQ_PARTITION_DEFAULT_PURGE,
	RQ_COUNT
} RatchetQuery;

extern void ratchet_spi_begin(RatchetIdentity *before);
extern void ratchet_spi_end(const RatchetIdentity *before);
extern uint64 ratchet_query(RatchetQuery query, const Datum *args, const bool *isnull);
extern TimestampTz ratchet_first_time(void);
extern uint64 ratchet_command(const char *sql);

/* in shared/shmem.c */
typedef enum RatchetLock
{
	RATCHET_LOCK_WORKERS,		/* bgw/registry.c */
	RATCHET_LOCK_WAITERS,		/* shared/wakeup.c */
	RATCHET_LOCK_COUNT
} RatchetLock;

struct LWLock;
extern void ratchet_shmem_init(void);
extern bool ratchet_shmem_available(void);
extern struct LWLock *ratchet_lock(RatchetLock lock);

/* in shared/wakeup.c */
#define RATCHET_FINISHED_BITS 2048

typedef struct RatchetWanted
{
	const Datum *queues;		/* of text */
	int			nqueues;
	bool		any_kind;
	const Datum *kinds;			/* of text */
	int			nkinds;
	int			jobs;			/* how many it takes */
	const pg_uuid_t *job;		/* not NULL: waits for the end of this job, no work */
} RatchetWanted;

typedef struct RatchetWakeupStat
{
	int64		slots;
	int64		waiting;
	int64		wakeups;
	int64		passed_on;
	int64		overflows;
} RatchetWakeupStat;

extern Size ratchet_wakeup_size(void);
extern void ratchet_wakeup_attach(void *area, bool found);
extern bool ratchet_wakeup_wanted(uint32 queue);
extern bool ratchet_wakeup_begin(bool has_work, bool has_finished_jobs);
extern void ratchet_wakeup_end(void);
extern void ratchet_wakeup_ready(uint32 queue, uint32 kind, int jobs);
extern void ratchet_wakeup_later(uint32 queue, uint32 kind, TimestampTz due_at);
extern void ratchet_wakeup_finished(const uint32 *bits);
extern void ratchet_wakeup_everybody(void);
extern void ratchet_wakeup_settings_changed(void);
extern uint32 ratchet_wakeup_hash(Datum name);
extern uint32 ratchet_wakeup_settings(void);
extern void ratchet_wakeup_claimed(int jobs);
extern void ratchet_wakeup_stat(RatchetWakeupStat *stat);
extern bool ratchet_waiter_enter(const RatchetWanted *wanted);
extern bool ratchet_waiter_look(TimestampTz now);
extern TimestampTz ratchet_waiter_sleep(TimestampTz due_at);
extern void ratchet_waiter_share(int jobs);
extern void ratchet_waiter_leave(bool found, bool claimed, TimestampTz due_at);

/* in shared/changes.c */
extern void ratchet_wakeup_init(void);
extern void ratchet_wakeup_note_row(const RatchetRow *old, const RatchetRow *fresh, TimestampTz now);
extern void ratchet_wakeup_note_settings(void);

/* in job/transition.c */
extern bool ratchet_transition_allowed(RatchetState from, RatchetState to);
extern const char *ratchet_state_name(RatchetState state);
extern bool ratchet_state_finished(RatchetState state);

/* in job/catalog.c */
extern const RatchetCatalog *ratchet_catalog(void);
extern RatchetState ratchet_state_from_oid(Oid label);
extern Datum ratchet_state_datum(RatchetState state);
extern const char *ratchet_column_name(RatchetColumn column);

/* in job/storage.c */
extern RatchetStore *ratchet_store_open(Oid relid, bool for_conflicts);
extern void ratchet_store_close(RatchetStore *store);
extern bool ratchet_store_find(RatchetStore *store, Oid index, ScanKey keys, int nkeys);
extern void ratchet_store_insert(RatchetStore *store);
extern bool ratchet_store_insert_or_find(RatchetStore *store, Oid index, ScanKey keys, int nkeys);
extern TM_Result ratchet_store_update(RatchetStore *store, TupleTableSlot *found, bool wait);
extern TM_Result ratchet_store_lock(RatchetStore *store, TupleTableSlot *found, bool wait);
extern RatchetScan *ratchet_scan_begin(RatchetStore *store, Oid index, int nkeys, bool want_entries);
extern void ratchet_scan_restart(RatchetScan *scan, ScanKey keys);
extern bool ratchet_scan_next(RatchetScan *scan);
extern bool ratchet_scan_next_entry(RatchetScan *scan, int column, Datum *value);
extern bool ratchet_scan_entry_free(RatchetScan *scan);
extern TupleTableSlot *ratchet_scan_slot(RatchetScan *scan);
extern void ratchet_scan_end(RatchetScan *scan);
extern void ratchet_table_read(Oid relid, void (*each) (TupleTableSlot *slot, void *arg), void *arg);

/* in job/row.c: the job on top of storage */
extern void ratchet_row_read(RatchetRow *row, TupleTableSlot *slot);
extern void ratchet_row_set(RatchetRow *row, RatchetColumn column, Datum value);
extern void ratchet_row_set_null(RatchetRow *row, RatchetColumn column);
extern void ratchet_row_set_interval(RatchetRow *row, RatchetColumn column, int64 us);
extern RatchetState ratchet_row_state(const RatchetRow *row);
extern void ratchet_row_set_state(RatchetRow *row, RatchetState state);
extern bool ratchet_row_holds_key(const RatchetRow *row);
extern void ratchet_row_leave_running(RatchetRow *row, RatchetState to);
extern void ratchet_row_finish(RatchetRow *row, RatchetState to, TimestampTz now);
extern void ratchet_row_detach(RatchetRow *row);
extern int *ratchet_uuid_order(Datum *ids, int count);
extern RatchetStore *ratchet_job_open(void);
extern bool ratchet_job_find(RatchetStore *store, const pg_uuid_t *id, RatchetRow *row);
extern TM_Result ratchet_job_update(RatchetStore *store, TupleTableSlot *found, const RatchetRow *old,
									RatchetRow *fresh, TimestampTz now, bool wait);
extern void ratchet_job_insert(RatchetStore *store, RatchetRow *row, TimestampTz now);

#define RC_TIMESTAMP(row, col)	DatumGetTimestampTz((row)->value[col])
#define RC_INT(row, col)		DatumGetInt32((row)->value[col])
#define RC_TEXT(row, col)		((row)->isnull[col] ? NULL : DatumGetTextPP((row)->value[col]))
#define RC_UUID(row, col)		DatumGetUUIDP((row)->value[col])
extern int64 ratchet_row_interval_us(const RatchetRow *row, RatchetColumn column, int64 otherwise);

/* in job/failure.c */
extern void ratchet_row_fail(RatchetRow *row, text *error, bool retryable, int64 delay_us, TimestampTz now);
extern void ratchet_error_record(const RatchetRow *row, text *error, Jsonb *detail, TimestampTz now);

/* in job/guard.c */
extern void ratchet_guard_insert(RatchetRow *fresh, TimestampTz now);
extern void ratchet_guard_update(const RatchetRow *old, RatchetRow *fresh, TimestampTz now);
extern void ratchet_guard_after(const RatchetRow *old, const RatchetRow *fresh);
extern bool ratchet_guard_is_trigger_function(Oid function);

/* in job/keys.c */
extern bool ratchet_business_key_take(text *queue, text *key, const pg_uuid_t *owner, bool raise);
extern void ratchet_business_key_release(text *queue, text *key, const pg_uuid_t *owner);
extern bool ratchet_idempotency_key_take(RatchetJobSpec *spec);

/* in job/xact.c: what this transaction has done, for PREPARE TRANSACTION */
extern void ratchet_xact_init(void);
extern void ratchet_xact_note_running(const pg_uuid_t *id);

/* in job/uuid.c (pure but for the clock and the random source) */
extern void ratchet_uuid7_next(pg_uuid_t *uuid);
extern bool ratchet_uuid7_time(const pg_uuid_t *uuid, TimestampTz *at);
extern void ratchet_token_make(pg_uuid_t *token);

/* in job/backoff.c (pure but for the random source) */
extern bool ratchet_backoff_parse(const char *name, RatchetBackoff *backoff);
extern int64 ratchet_backoff_delay_us(RatchetBackoff backoff, int64 base_us, int64 max_us,
									  bool jitter, int failures);
extern int64 ratchet_row_backoff_us(const RatchetRow *row, const RatchetQueue *queue, int failures);

/* in job/sanitize.c (pure) */
extern text *ratchet_sanitize(text *message);

/* in job/settings.c */
extern RatchetQueue ratchet_queue_settings(text *queue);
extern int64 ratchet_queue_archive_after_us(const RatchetQueue *queue);
extern bool ratchet_access_any(Oid role, RatchetAccess access);
extern bool ratchet_access_to(Oid role, RatchetAccess access, text *queue);
extern bool ratchet_access_everything(Oid role);
extern ArrayType *ratchet_access_queues(Oid role, RatchetAccess access);
extern bool ratchet_node_draining(text *node);

/* in api/args.c */
extern text *ratchet_arg_name(FunctionCallInfo fcinfo, int arg, const char *name, int max, bool required);
extern text *ratchet_arg_queue(FunctionCallInfo fcinfo, int arg);
extern int64 ratchet_interval_us(const Interval *value);
extern void ratchet_check_name(const text *value, const char *name, int max);
extern void ratchet_check_queue(const text *queue);
extern int64 ratchet_check_interval(const Interval *value, const char *name, bool allow_zero);
extern void ratchet_check_run_at(TimestampTz run_at);
extern void ratchet_check_priority(int priority);
extern void ratchet_check_size(const Jsonb *value, const char *name, int max);
extern RatchetBackoff ratchet_check_backoff(const text *value);
extern void ratchet_check_range(int value, const char *name, int min, int max);
extern void ratchet_not_available(bool given, const char *name);
extern void ratchet_null_argument(const char *name);
extern void ratchet_null_element(const char *name);
extern char *ratchet_shorten(const char *word);
extern pg_uuid_t *ratchet_arg_id(FunctionCallInfo fcinfo, int arg, const char *name);

/* in api/access.c */
extern const char *ratchet_access_name(RatchetAccess access);
extern bool ratchet_access_parse(const char *name, RatchetAccess *access);
extern void ratchet_access_require(RatchetAccess access, text *queue);
extern bool ratchet_access_as_producer(Oid role, text *queue, const char *producer);

/* in api/enqueue.c */
extern void ratchet_enqueue_specs(RatchetJobSpec *specs, int nspecs);
extern void ratchet_enqueue_checked(RatchetJobSpec *specs, int nspecs);
extern Datum ratchet_return_ids(FunctionCallInfo fcinfo, const RatchetJobSpec *specs, int nspecs);
extern void ratchet_check_run_when(const text *run_when);

/* in api/claim.c */
typedef struct RatchetClaimRequest
{
	Datum	   *queues;			/* of text */
	int			nqueues;
	text	   *worker;
	text	   *node;			/* NULL: the worker */
	int			batch;
	Interval   *lease;			/* NULL: the job's, the queue's, the default */
	int64		lease_us;		/* set by ratchet_claim_check; -1: as above */
	ArrayType  *kinds;			/* NULL: all */
	Datum	   *kind_values;	/* set by ratchet_claim_check */
	int			nkinds;
	int64		wait_us;		/* 0: do not wait */
} RatchetClaimRequest;

struct ReturnSetInfo;
extern void ratchet_claim_check(RatchetClaimRequest *request);
extern int	ratchet_claim_jobs(RatchetClaimRequest *request, struct ReturnSetInfo *rsinfo);
extern int	ratchet_claim_count(RatchetClaimRequest *request, TimestampTz now, int limit);
extern TimestampTz ratchet_claim_next_due(RatchetClaimRequest *request, TimestampTz now);

/* in api/wait.c */
extern void ratchet_claim_or_wait(RatchetClaimRequest *request, struct ReturnSetInfo *rsinfo);

/* in flow/lock.c */
extern int64 ratchet_duty_locks(TimestampTz now, TimestampTz *next);

/* in flow/node.c */
extern int64 ratchet_duty_nodes(TimestampTz now, TimestampTz *next);

/* in bgw/maintenance.c */
/*
 * A duty does what is due now, a bounded amount of it, and answers how many rows
 * it changed. It lowers *next to the nearest time at which it has more to do.
 */
typedef int64 (*RatchetDuty) (TimestampTz now, TimestampTz *next);

/* One transaction's worth of a duty; a duty that did this many is called again. */
#define RATCHET_DUTY_BATCH 1000

/* When a duty looks again at a row that another transaction holds. */
#define RATCHET_HELD_ROW_US (5 * USECS_PER_SEC)


extern void ratchet_due(TimestampTz *next, TimestampTz at);

/* in bgw/notice.c: what a commit has to tell the workers */
extern void ratchet_notice_row(const RatchetRow *row, TimestampTz now);
extern void ratchet_notice_settings(void);

/* in bgw/archive.c */
extern bool ratchet_archive_wants_at_once(const RatchetRow *row);
extern int64 ratchet_archive_move(const pg_uuid_t *ids, int count, TimestampTz now);
extern int64 ratchet_duty_archive(TimestampTz now, TimestampTz *next);

/* in bgw/expire.c */
extern int64 ratchet_duty_expire(TimestampTz now, TimestampTz *next);

/* in bgw/partition.c */
extern int64 ratchet_duty_partitions(TimestampTz now, TimestampTz *next);
extern int64 ratchet_duty_purge(TimestampTz now, TimestampTz *next);

/* in bgw/recover.c */
extern int64 ratchet_duty_recover(TimestampTz now, TimestampTz *next);
extern int64 ratchet_duty_timeout(TimestampTz now, TimestampTz *next);
extern int64 ratchet_recover_node(const text *node, TimestampTz now, TimestampTz *next);

/* in bgw/upkeep.c */
extern int64 ratchet_duty_guard(TimestampTz now, TimestampTz *next);
extern int64 ratchet_duty_keys(TimestampTz now, TimestampTz *next);

#endif							/* RATCHET_H */
