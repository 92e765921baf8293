/*-------------------------------------------------------------------------
 *
 * wakeup.c
 *	  Who waits for work or for the end of a job, and how a commit wakes them:
 *	  through shared memory and latches.
 *
 * The order that loses no wake-up: a waiter takes a slot, then looks into the
 * tables, then sleeps. A writer notes what it makes ready (changes.c), commits,
 * and then looks for waiters: its rows are visible by then. Whoever comes second
 * sees the other.
 *
 * A commit wakes as many waiters as its jobs need, first come first served. Each
 * such event has a ticket number. A woken waiter that goes without a look
 * (error, cancel, lost client), or whose client ends without a claim after
 * wait() said that there is work, passes the ticket on to the next waiter that
 * has not seen it. One that looked and found nothing for itself passes it to a
 * waiter with other queues or kinds only: those with the same would find the
 * same. So each waiter sees a ticket at most once and the chain ends.
 *
 * Jobs that are due later: waiters with the same queues and kinds are of one
 * class, and in each class somebody's timer_at is no later than the nearest job
 * due for it. A commit with a job due sooner sets the timer of the first waiter
 * in the class; a waiter that leaves hands its timer on. When it goes off the
 * waiter looks, and wakes as many of its class as there are more jobs.
 *
 * Queues and kinds are compared by hash, and a waiter that names more of them
 * than a slot holds is taken to want all: both only wake needlessly.
 *
 * Locking: RATCHET_LOCK_WAITERS, always exclusive, protects the header and all
 * slots but the atomics. A slot is changed by its owner and by wakers, and is
 * freed only by its owner, at the latest in before_shmem_exit. Latches are set
 * by proc number after the lock is released: at worst a stranger wakes once.
 * The counts of waiters are read without the lock, between full barriers: a
 * waiter raises them before it looks, a committer reads them after its rows
 * became visible. Nothing here allocates, waits for anything but the lock, or
 * raises an error.
 *
 * All of it may be lost (crash restart) or missing (not preloaded, no slot
 * free): waiters then poll.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "ratchet.h"

#define SLOT_NAMES_MAX	16		/* queues, and kinds, that a slot can hold */
#define BUCKETS			256		/* queues that somebody waits for, by hash */
#define LATCHES_MAX		64		/* latches set after the lock is released */
#define NOBODY			(-1)

/* A wake-up: what it is about, and when it came. */
typedef struct Ticket
{
	uint64		number;			/* 0: none */
	uint32		queue;			/* hashes */
	uint32		kind;
	bool		of_class;		/* for a class as a whole: no queue, no kind */
	uint64		class;			/* that one */
} Ticket;

/* All fields: lock. */
typedef struct Waiter
{
	int			next;			/* list of the waiting, or of the free slots */
	int			previous;		/* list of the waiting */
	int			procno;
	int			pid;			/* for people who look at a dump */
	Oid			database;
	bool		awaits_job;		/* else it wants work */
	uint32		job;			/* hash of the awaited job's id */
	int			wanted;			/* jobs it takes */
	int			nqueues;		/* above SLOT_NAMES_MAX: any */
	int			nkinds;			/* above SLOT_NAMES_MAX: any */
	uint32		queues[SLOT_NAMES_MAX];
	uint32		kinds[SLOT_NAMES_MAX];
	uint64		class;			/* hash of what it wants */
	bool		woken;			/* since it last began to look */
	Ticket		ticket;			/* the one that woke it; number 0: no particular one */
	uint64		seen;			/* newest ticket that it has seen or need not see */
	TimestampTz timer_at;		/* DT_NOEND: none */
} Waiter;

typedef struct Waiters
{
	/* Counts of waiters, written under lock, read without: */
	pg_atomic_uint32 for_work;
	pg_atomic_uint32 for_jobs;	/* await a job */
	pg_atomic_uint32 for_any;	/* want work, from more queues than a slot holds */
	pg_atomic_uint32 for_queue[BUCKETS];	/* want work, from a queue in this bucket */
	pg_atomic_uint32 settings;	/* generation of ratchet.queue; atomic */
	int			size;			/* set once at startup */
	int			first;			/* lock, as all below: the waiting, oldest first */
	int			last;
	int			free;
	uint64		tickets;
	uint64		overflows;
	uint64		wakeups;
	uint64		passed_on;
	Waiter		slot[FLEXIBLE_ARRAY_MEMBER];
} Waiters;

static Waiters *shared = NULL;	/* NULL: not preloaded */

/* Of this backend. */
static int	my_slot = NOBODY;
static Ticket in_hand;			/* woke us for the look that we are at */
static bool timer_in_hand;		/* or this did */
static Ticket debt;				/* wait() has told its client, who has not claimed yet */

static int	latches[LATCHES_MAX];
static int	nlatches = 0;

static void at_exit(int code, Datum arg);
static bool wants(const Waiter *waiter, uint32 queue, uint32 kind);
static bool has_name(const uint32 *names, int count, uint32 name);
static void wake(Waiter *waiter, const Ticket *ticket);
static void pass_on(const Ticket *ticket, uint64 class, bool same_class);
static void hand_timer_on(const Waiter *from, TimestampTz at);
static void lock(void);
static void unlock(void);
static void poke(const Waiter *waiter);
static void count(const Waiter *waiter, int change);
static pg_atomic_uint32 *bucket_of(uint32 queue);
static void describe(Waiter *waiter, const RatchetWanted *wanted);

#define MINE (&shared->slot[my_slot])
#define each_waiter(w) \
	for (Waiter *w = shared->first == NOBODY ? NULL : &shared->slot[shared->first]; w != NULL; \
		 w = w->next == NOBODY ? NULL : &shared->slot[w->next])

Size
ratchet_wakeup_size(void)
{
	return add_size(offsetof(Waiters, slot), mul_size(ratchet_max_waiters, sizeof(Waiter)));
}

void
ratchet_wakeup_attach(void *area, bool found)
{
	shared = area;
	if (found)
		return;
	memset(shared, 0, ratchet_wakeup_size());
	pg_atomic_init_u32(&shared->for_work, 0);
	pg_atomic_init_u32(&shared->for_jobs, 0);
	pg_atomic_init_u32(&shared->for_any, 0);
	for (int i = 0; i < BUCKETS; i++)
		pg_atomic_init_u32(&shared->for_queue[i], 0);
	pg_atomic_init_u32(&shared->settings, 0);
	shared->size = ratchet_max_waiters;
	shared->first = shared->last = NOBODY;
	shared->free = NOBODY;
	for (int i = shared->size - 1; i >= 0; i--)
	{
		shared->slot[i].next = shared->free;
		shared->free = i;
	}
}

/* Whether somebody may be waiting for work from this queue, of this database. */
bool
ratchet_wakeup_wanted(uint32 queue)
{
	pg_memory_barrier();
	return pg_atomic_read_u32(bucket_of(queue)) > 0 || pg_atomic_read_u32(&shared->for_any) > 0;
}

/*
 * What a transaction that is over calls, between begin and end, which hold the
 * lock: begin says false, and takes no lock, if nobody waits for what it has.
 */
bool
ratchet_wakeup_begin(bool has_work, bool has_finished_jobs)
{
	pg_memory_barrier();
	if ((!has_work || pg_atomic_read_u32(&shared->for_work) == 0) &&
		(!has_finished_jobs || pg_atomic_read_u32(&shared->for_jobs) == 0))
		return false;
	lock();
	return true;
}

void
ratchet_wakeup_end(void)
{
	unlock();
}

/* So many jobs are ready: as many waiters as they need, oldest first. */
void
ratchet_wakeup_ready(uint32 queue, uint32 kind, int jobs)
{
	Ticket		ticket = {.queue = queue, .kind = kind};

	ticket.number = ++shared->tickets;
	each_waiter(w)
	{
		if (jobs <= 0)
			break;
		if (w->woken || !wants(w, queue, kind))
			continue;
		wake(w, &ticket);
		jobs -= w->wanted;
	}
}

/* A job is due later: see that each class which wants it has a timer in time. */
void
ratchet_wakeup_later(uint32 queue, uint32 kind, TimestampTz due_at)
{
	each_waiter(w)
	{
		bool		covered = false;

		if (!wants(w, queue, kind) || w->timer_at <= due_at)
			continue;
		each_waiter(other)
		{
			if (other->class == w->class && wants(other, queue, kind) && other->timer_at <= due_at)
			{
				covered = true;
				break;
			}
		}
		if (covered)
			continue;
		w->timer_at = due_at;
		poke(w);
	}
}

/* Jobs are finished, by the hashes of their ids: a set of RATCHET_FINISHED_BITS bits. */
void
ratchet_wakeup_finished(const uint32 *bits)
{
	Ticket		none = {0};

	each_waiter(w)
	{
		uint32		bit = w->job % RATCHET_FINISHED_BITS;

		if (w->awaits_job && w->database == MyDatabaseId && !w->woken &&
			(bits[bit / 32] & ((uint32) 1 << (bit % 32))) != 0)
			wake(w, &none);
	}
}

/* Everybody in this database. None of them has anything to pass on afterwards. */
void
ratchet_wakeup_everybody(void)
{
	Ticket		none = {0};

	each_waiter(w)
		if (w->database == MyDatabaseId && !w->woken)
			wake(w, &none);
}

/* The settings of queues have changed; before anybody is woken for it. */
void
ratchet_wakeup_settings_changed(void)
{
	pg_atomic_fetch_add_u32(&shared->settings, 1);
}

/*
 * Changes with every committed change of ratchet.queue, before anybody is woken
 * for it: the cache invalidation comes later than that.
 */
uint32
ratchet_wakeup_settings(void)
{
	return shared == NULL ? 0 : pg_atomic_read_u32(&shared->settings);
}

/* Take a slot. false: there is none; poll. Then look, then sleep, then leave. */
bool
ratchet_waiter_enter(const RatchetWanted *wanted)
{
	static bool registered = false;
	Waiter		fresh;
	Waiter	   *waiter;

	if (shared == NULL)
		return false;
	Assert(my_slot == NOBODY);
	describe(&fresh, wanted);
	if (!registered)
	{
		before_shmem_exit(at_exit, (Datum) 0);
		registered = true;
	}
	lock();
	timer_in_hand = false;
	debt.number = in_hand.number = 0;	/* the look that follows sees what it was about */
	if (shared->free == NOBODY)
	{
		shared->overflows++;
		unlock();
		return false;
	}
	my_slot = shared->free;
	waiter = MINE;
	shared->free = waiter->next;
	*waiter = fresh;
	waiter->seen = shared->tickets;
	waiter->next = NOBODY;
	waiter->previous = shared->last;
	if (shared->last == NOBODY)
		shared->first = my_slot;
	else
		shared->slot[shared->last].next = my_slot;
	shared->last = my_slot;
	count(waiter, 1);
	unlock();
	pg_memory_barrier();
	return true;
}

/*
 * The owner begins to look: what woke it is dealt with by that, or by
 * ratchet_waiter_sleep and ratchet_waiter_leave. Whether its timer went off.
 */
bool
ratchet_waiter_look(TimestampTz now)
{
	bool		due;

	if (my_slot == NOBODY)
		return false;
	lock();
	MINE->woken = false;
	in_hand = MINE->ticket;
	MINE->ticket.number = 0;
	MINE->seen = shared->tickets;
	due = timer_in_hand = MINE->timer_at <= now;
	if (due)
		MINE->timer_at = DT_NOEND;
	unlock();
	pg_memory_barrier();
	return due;
}

/*
 * The look found nothing, the nearest job is due at due_at (DT_NOEND: none). How
 * long to sleep at most: until the answer, or until the latch is set.
 */
TimestampTz
ratchet_waiter_sleep(TimestampTz due_at)
{
	TimestampTz until;
	bool		covered = false;

	if (my_slot == NOBODY)
		return due_at;
	lock();
	pass_on(&in_hand, MINE->class, false);
	in_hand.number = 0;
	timer_in_hand = false;
	each_waiter(w)
		covered |= w != MINE && w->database == MyDatabaseId && !w->awaits_job &&
			w->class == MINE->class && w->timer_at <= due_at;
	if (!covered)
		MINE->timer_at = Min(MINE->timer_at, due_at);
	/* Woken since the look began: the latch is set, or about to be. */
	until = MINE->woken ? DT_NOBEGIN : MINE->timer_at;
	unlock();
	return until;
}

/* The timer went off and there is more work than for one: wake some of the same class. */
void
ratchet_waiter_share(int jobs)
{
	Ticket		ticket = {.of_class = true};

	if (my_slot == NOBODY || jobs <= 0)
		return;
	lock();
	ticket.class = MINE->class;
	ticket.number = ++shared->tickets;
	each_waiter(w)
	{
		if (jobs <= 0)
			break;
		if (w == MINE || w->database != MyDatabaseId || w->awaits_job ||
			w->class != MINE->class || w->woken)
			continue;
		wake(w, &ticket);
		jobs -= w->wanted;
	}
	unlock();
}

/*
 * Give the slot back; nothing happens if there is none. found: the caller has
 * work, and its client will claim it unless it has done so already (claimed).
 * due_at: the nearest job due later, as far as the caller knows.
 */
void
ratchet_waiter_leave(bool found, bool claimed, TimestampTz due_at)
{
	Waiter	   *waiter;

	if (my_slot == NOBODY)
		return;
	lock();
	waiter = MINE;
	if (waiter->previous == NOBODY)
		shared->first = waiter->next;
	else
		shared->slot[waiter->previous].next = waiter->next;
	if (waiter->next == NOBODY)
		shared->last = waiter->previous;
	else
		shared->slot[waiter->next].previous = waiter->previous;
	hand_timer_on(waiter, !found && timer_in_hand ? DT_NOBEGIN : Min(waiter->timer_at, due_at));

	/* A wake-up that came after the last look began has not been used, even if that found work. */
	pass_on(&waiter->ticket, waiter->class, true);
	if (!found)
		pass_on(&in_hand, waiter->class, true);
	else if (!claimed)
	{
		debt = in_hand;
		if (timer_in_hand && debt.number == 0)
		{
			debt.number = ++shared->tickets;
			debt.of_class = true;
			debt.class = waiter->class;
		}
	}
	in_hand.number = 0;
	timer_in_hand = false;
	waiter->next = shared->free;
	shared->free = my_slot;
	my_slot = NOBODY;
	count(waiter, -1);
	unlock();
}

/* This session has claimed, or tried to: the wake-up it got is used, or passed on. */
void
ratchet_wakeup_claimed(int jobs)
{
	if (debt.number == 0)
		return;
	if (jobs == 0)
	{
		lock();
		pass_on(&debt, 0, true);
		unlock();
	}
	debt.number = 0;
}

void
ratchet_wakeup_stat(RatchetWakeupStat *stat)
{
	memset(stat, 0, sizeof(*stat));
	if (shared == NULL)
		return;
	lock();
	stat->slots = shared->size;
	stat->waiting = pg_atomic_read_u32(&shared->for_work) + pg_atomic_read_u32(&shared->for_jobs);
	stat->wakeups = shared->wakeups;
	stat->passed_on = shared->passed_on;
	stat->overflows = shared->overflows;
	unlock();
}

/* The session ends, perhaps in the middle of a wait: nothing that it owes is lost. */
static void
at_exit(int code, Datum arg)
{
	ratchet_waiter_leave(false, false, DT_NOEND);
	if (debt.number != 0)
	{
		lock();
		pass_on(&debt, 0, true);
		unlock();
		debt.number = 0;
	}
}

static bool
wants(const Waiter *waiter, uint32 queue, uint32 kind)
{
	return waiter->database == MyDatabaseId && !waiter->awaits_job &&
		has_name(waiter->queues, waiter->nqueues, queue) &&
		has_name(waiter->kinds, waiter->nkinds, kind);
}

static bool
has_name(const uint32 *names, int count, uint32 name)
{
	if (count > SLOT_NAMES_MAX)
		return true;
	for (int i = 0; i < count; i++)
		if (names[i] == name)
			return true;
	return false;
}

static void
wake(Waiter *waiter, const Ticket *ticket)
{
	waiter->woken = true;
	waiter->ticket = *ticket;
	waiter->seen = Max(waiter->seen, ticket->number);
	shared->wakeups++;
	poke(waiter);
}

/*
 * To the next waiter who has not seen it, in the same class or not. A ticket of a
 * class stays in it.
 */
static void
pass_on(const Ticket *ticket, uint64 class, bool same_class)
{
	if (ticket->number == 0 || (ticket->of_class && !same_class))
		return;
	each_waiter(w)
	{
		if (w->woken || w->seen >= ticket->number ||
			(!same_class && w->class == class))
			continue;
		if (ticket->of_class ? w->database != MyDatabaseId || w->awaits_job || w->class != ticket->class :
			!wants(w, ticket->queue, ticket->kind))
			continue;
		wake(w, ticket);
		shared->passed_on++;
		return;
	}
}

/* "from" is no longer in the list. */
static void
hand_timer_on(const Waiter *from, TimestampTz at)
{
	Waiter	   *heir = NULL;

	if (at == DT_NOEND || from->awaits_job)
		return;
	each_waiter(w)
	{
		if (w->database != MyDatabaseId || w->awaits_job || w->class != from->class)
			continue;
		if (w->timer_at <= at)
			return;
		if (heir == NULL)
			heir = w;
	}
	if (heir == NULL)
		return;
	heir->timer_at = at;
	poke(heir);
}

static void
lock(void)
{
	LWLockAcquire(ratchet_lock(RATCHET_LOCK_WAITERS), LW_EXCLUSIVE);
	nlatches = 0;
}

/* Set the latches now, so that nobody wakes up only to wait for the lock. */
static void
unlock(void)
{
	LWLockRelease(ratchet_lock(RATCHET_LOCK_WAITERS));
	for (int i = 0; i < nlatches; i++)
		SetLatch(&GetPGProcByNumber(latches[i])->procLatch);
	nlatches = 0;
}

static void
poke(const Waiter *waiter)
{
	if (nlatches < LATCHES_MAX)
		latches[nlatches++] = waiter->procno;
	else
		SetLatch(&GetPGProcByNumber(waiter->procno)->procLatch);
}

static void
count(const Waiter *waiter, int change)
{
	pg_atomic_fetch_add_u32(waiter->awaits_job ? &shared->for_jobs : &shared->for_work, change);
	if (waiter->nqueues > SLOT_NAMES_MAX)
		pg_atomic_fetch_add_u32(&shared->for_any, change);
	else
		for (int i = 0; i < waiter->nqueues; i++)
			pg_atomic_fetch_add_u32(bucket_of(waiter->queues[i]), change);
}

static pg_atomic_uint32 *
bucket_of(uint32 queue)
{
	return &shared->for_queue[hash_combine(queue, MyDatabaseId) % BUCKETS];
}

static void
describe(Waiter *waiter, const RatchetWanted *wanted)
{
	memset(waiter, 0, sizeof(*waiter));
	waiter->procno = RATCHET_MY_PROC_NUMBER;
	waiter->pid = MyProcPid;
	waiter->database = MyDatabaseId;
	waiter->timer_at = DT_NOEND;
	waiter->wanted = wanted->jobs;
	if (wanted->job != NULL)
	{
		waiter->awaits_job = true;
		waiter->job = hash_bytes(wanted->job->data, UUID_LEN);
		return;
	}
	waiter->nqueues = wanted->nqueues;
	for (int i = 0; i < wanted->nqueues; i++)
	{
		uint32		hash = ratchet_wakeup_hash(wanted->queues[i]);

		if (i < SLOT_NAMES_MAX)
			waiter->queues[i] = hash;
		waiter->class = hash_combine64(waiter->class, hash);
	}
	/* An empty list of kinds and no list are not the same. */
	waiter->nkinds = wanted->any_kind ? SLOT_NAMES_MAX + 1 : wanted->nkinds;
	waiter->class = hash_combine64(waiter->class, waiter->nkinds);
	for (int i = 0; !wanted->any_kind && i < wanted->nkinds; i++)
	{
		uint32		hash = ratchet_wakeup_hash(wanted->kinds[i]);

		if (i < SLOT_NAMES_MAX)
			waiter->kinds[i] = hash;
		waiter->class = hash_combine64(waiter->class, hash);
	}
}

/* Of a queue or a kind. */
uint32
ratchet_wakeup_hash(Datum name)
{
	const text *value = DatumGetTextPP(name);

	return hash_bytes((const unsigned char *) VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));
}
