/*-------------------------------------------------------------------------
 *
 * polling.c
 *	  How long the worker waits before it looks for what nobody told it about.
 *	  Pure: the answer depends on what is passed in.
 *
 * Times that are known are kept by a timer and need no poll. The poll is the net
 * below, for what reaches the tables without a word: COMMIT PREPARED,
 * replication apply, lost shared memory. Its pace follows what it finds.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "bgw/bgw.h"

#define BURST_MS			500
#define MIN_MS				2000
#define MAX_MS				30000
#define DEEP_IDLE_MS		60000
#define DEEP_IDLE_AFTER_MS	(5 * 60 * 1000)
#define LONG_IDLE_MS		30000	/* after this the delay grows faster */
#define IDLE_THRESHOLD		3		/* empty polls until the delay grows */

static int64 busy_delay(const RatchetPolling *polling);
static int64 idle_delay(const RatchetPolling *polling, int64 idle_ms);

void
ratchet_polling_init(RatchetPolling *polling, TimestampTz now)
{
	memset(polling, 0, sizeof(*polling));
	polling->mode = RATCHET_POLL_NORMAL;
	polling->delay_ms = MIN_MS;
	polling->idle_since = now;
}

/* Something has happened: leave whatever idleness there is, and look twice. */
void
ratchet_polling_wake(RatchetPolling *polling, TimestampTz now)
{
	polling->mode = RATCHET_POLL_BURST;
	polling->delay_ms = BURST_MS;
	polling->burst_polls = 1;
	polling->empty_polls = 0;
	polling->idle_since = now;
}

/* After a poll that found this share of a full batch: the delay to the next. */
int64
ratchet_polling_next_ms(RatchetPolling *polling, double share, TimestampTz now)
{
	int64		idle_ms;

	polling->window[polling->polls++ % RATCHET_POLL_WINDOW] = share;
	if (share > 0 || now < polling->idle_since)
		polling->idle_since = now;
	polling->empty_polls = share > 0 ? 0 : polling->empty_polls + 1;
	idle_ms = (now - polling->idle_since) / 1000;

	if (polling->burst_polls > 0)
	{
		polling->burst_polls--;
		polling->mode = RATCHET_POLL_BURST;
		polling->delay_ms = BURST_MS;
	}
	else if (idle_ms >= DEEP_IDLE_AFTER_MS)
	{
		polling->mode = RATCHET_POLL_DEEP_IDLE;
		polling->delay_ms = DEEP_IDLE_MS;
	}
	else
	{
		polling->mode = RATCHET_POLL_NORMAL;
		polling->delay_ms = share > 0 ? busy_delay(polling) : idle_delay(polling, idle_ms);
	}
	return polling->delay_ms;
}

const char *
ratchet_poll_mode_name(RatchetPollMode mode)
{
	switch (mode)
	{
		case RATCHET_POLL_BURST:
			return "burst";
		case RATCHET_POLL_NORMAL:
			return "normal";
		case RATCHET_POLL_DEEP_IDLE:
			return "deep idle";
	}
	return "";					/* keep compiler quiet */
}

static int64
busy_delay(const RatchetPolling *polling)
{
	int			polls = Min(polling->polls, RATCHET_POLL_WINDOW);
	int			full = 0;
	double		sum = 0;

	for (int i = 0; i < polls; i++)
	{
		sum += Min(polling->window[i], 1.0);
		if (polling->window[i] >= 1.0)
			full++;
	}
	if (full >= 3)
		return Max(MIN_MS / 4, 50);
	if (full > 0)
		return Max(MIN_MS / 2, 100);
	if (sum / polls > 0.8)
		return MIN_MS / 2;
	if (sum / polls < 0.2)
		return MIN_MS * 2;
	return MIN_MS;
}

static int64
idle_delay(const RatchetPolling *polling, int64 idle_ms)
{
	int64		delay = Max(polling->delay_ms, MIN_MS);

	if (idle_ms > LONG_IDLE_MS && polling->empty_polls >= IDLE_THRESHOLD / 2)
		delay *= 3;
	else if (polling->empty_polls >= IDLE_THRESHOLD)
		delay *= 2;
	return Min(delay, MAX_MS);
}
