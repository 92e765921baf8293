/*-------------------------------------------------------------------------
 *
 * bgw.h
 *	  Background processes: the duties, the registry in shared memory, the loop
 *	  that launcher and workers run. Never installed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RATCHET_BGW_H
#define RATCHET_BGW_H

#include "postgres.h"

#include "port/atomics.h"

#include "ratchet.h"

/* The order in which a pass performs them. */
typedef enum RatchetDutyId
{
	RATCHET_DUTY_GUARD,
	RATCHET_DUTY_NODES,
	RATCHET_DUTY_RECOVER,
	RATCHET_DUTY_TIMEOUT,
	RATCHET_DUTY_EXPIRE,
	RATCHET_DUTY_LOCKS,
	RATCHET_DUTY_ARCHIVE,
	RATCHET_DUTY_PARTITIONS,
	RATCHET_DUTY_PURGE,
	RATCHET_DUTY_KEYS,
} RatchetDutyId;

#define RATCHET_DUTY_COUNT (RATCHET_DUTY_KEYS + 1)

/* in bgw/maintenance.c */
typedef struct RatchetDutyInfo
{
	const char *name;
	RatchetDuty perform;
	int			period_ms;		/* the worker's polls perform it no more often */
} RatchetDutyInfo;

extern const RatchetDutyInfo ratchet_duties[RATCHET_DUTY_COUNT];

/* in bgw/polling.c (pure) */
typedef enum RatchetPollMode
{
	RATCHET_POLL_BURST,
	RATCHET_POLL_NORMAL,
	RATCHET_POLL_DEEP_IDLE,
} RatchetPollMode;

#define RATCHET_POLL_WINDOW 10

typedef struct RatchetPolling
{
	RatchetPollMode mode;
	double		window[RATCHET_POLL_WINDOW];	/* share of a batch that a poll found */
	int			polls;			/* in all; the newest are in the window */
	int			burst_polls;	/* that are still to follow a wake-up */
	int			empty_polls;	/* in a row */
	int64		delay_ms;
	TimestampTz idle_since;
} RatchetPolling;

extern void ratchet_polling_init(RatchetPolling *polling, TimestampTz now);
extern void ratchet_polling_wake(RatchetPolling *polling, TimestampTz now);
extern int64 ratchet_polling_next_ms(RatchetPolling *polling, double share, TimestampTz now);
extern const char *ratchet_poll_mode_name(RatchetPollMode mode);

/* in bgw/registry.c */
typedef enum RatchetSlotState
{
	RATCHET_SLOT_FREE,
	RATCHET_SLOT_WANTED,		/* the launcher starts a worker at next_start */
	RATCHET_SLOT_STARTING,		/* registered with the postmaster */
	RATCHET_SLOT_RUNNING,		/* a worker has attached itself */
} RatchetSlotState;

/* Why a worker ends. */
typedef enum RatchetEnd
{
	RATCHET_END_FAILED,			/* error, signal: start again, with backoff */
	RATCHET_END_ABSENT,			/* the database has no extension */
	RATCHET_END_UNWANTED,		/* the database is not to be served */
	RATCHET_END_TURN,			/* another database's turn */
	RATCHET_END_GAVE_WAY,		/* somebody wants the database for himself */
} RatchetEnd;

#define RATCHET_LAST_ERROR_MAX 256

typedef struct RatchetSlot
{
	Oid			database;		/* InvalidOid: free */
	RatchetSlotState state;
	uint32		generation;		/* of the registration: an outdated worker leaves */
	int			pid;
	bool		confirmed;		/* the worker has seen the extension */
	bool		requested;		/* CREATE EXTENSION since the worker last looked */
	bool		leave;			/* the launcher asks the worker to end */
	RatchetEnd	leave_reason;
	TimestampTz look_until;		/* test until then whether we are in somebody's way */
	int			failures;		/* in a row */
	TimestampTz next_start;
	TimestampTz since;			/* of the present state */

	/* Figures. */
	RatchetPollMode mode;
	bool		idle;
	TimestampTz last_pass;
	TimestampTz next_pass;
	int64		passes;
	int64		rows[RATCHET_DUTY_COUNT];
	TimestampTz last_error_at;	/* 0: none */
	char		last_error[RATCHET_LAST_ERROR_MAX];

	/* Without the lock. */
	pg_atomic_uint32 procno;	/* of the worker; PG_UINT32_MAX: none */
	pg_atomic_uint32 poked;		/* something has changed: poll at once */
	pg_atomic_uint64 due[RATCHET_DUTY_COUNT];	/* a TimestampTz each */
} RatchetSlot;

typedef struct RatchetRegistry
{
	int			launcher_pid;	/* 0: none */
	TimestampTz launcher_since;
	TimestampTz last_scan;		/* of pg_database */
	TimestampTz next_start;
	int64		starts;			/* of workers */
	int			databases;		/* to be served that have no slot here */
	bool		out_of_workers; /* the postmaster has no slot left */
	TimestampTz last_error_at;
	char		last_error[RATCHET_LAST_ERROR_MAX];
	int			nslots;
	pg_atomic_uint32 launcher_procno;
	pg_atomic_uint32 rescan;	/* pg_database has changed */
	pg_atomic_uint32 probe_all; /* ask every database again */
	RatchetSlot slots[FLEXIBLE_ARRAY_MEMBER];
} RatchetRegistry;

extern RatchetRegistry *ratchet_registry;	/* NULL: not preloaded */
extern Size ratchet_registry_size(void);
extern void ratchet_registry_attach(void *area, bool found);
extern void ratchet_registry_want(Oid database);
extern void ratchet_registry_look(Oid database);
extern bool ratchet_registry_poke(Oid database);
extern void ratchet_registry_rescan(void);
extern void ratchet_registry_due(Oid database, RatchetDutyId duty, TimestampTz at);
extern void ratchet_slot_due(RatchetSlot *slot, RatchetDutyId duty, TimestampTz at);
extern RatchetSlot *ratchet_slot_find(Oid database);
extern RatchetSlot *ratchet_slot_want(Oid database);
extern void ratchet_slot_free(RatchetSlot *slot);
extern void ratchet_slot_end(RatchetSlot *slot, RatchetEnd reason, TimestampTz now);
extern void ratchet_latch_set(pg_atomic_uint32 *procno);
extern void ratchet_error_note(char *last_error, TimestampTz *at, const char *message);

/* in bgw/loop.c */
typedef int64 (*RatchetStep) (MemoryContext context);	/* ms until the next one */
extern void ratchet_loop(const char *name, RatchetStep step, void (*failed) (const ErrorData *error));
extern bool ratchet_loop_reloaded(void);
extern int64 ratchet_loop_backoff_ms(int failures);
extern void ratchet_loop_begin(const char *activity);
extern void ratchet_loop_commit(void);

/* in bgw/session.c */
extern void ratchet_session_pin(void);

/* in bgw/launcher.c */
extern void ratchet_launcher_register(void);

/* in bgw/notice.c */
extern void ratchet_notice_init(void);
extern void ratchet_notice_due(RatchetDutyId duty, TimestampTz at);

/* The lock tag of a database as an object, which whoever wants it for himself locks. */
#define RATCHET_DATABASE_LOCKTAG(tag, oid) \
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, oid, 0)

#endif							/* RATCHET_BGW_H */
