/*-------------------------------------------------------------------------
 *
 * backoff.c
 *	  How long a job waits before it is tried again. Pure arithmetic, in floating
 *	  point and clamped, so that no input overflows.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "common/pg_prng.h"
#include "utils/builtins.h"

#include "ratchet.h"

static const char *const backoff_names[] = {"none", "fixed", "linear", "exponential"};

bool
ratchet_backoff_parse(const char *name, RatchetBackoff *backoff)
{
	for (int i = 0; i < lengthof(backoff_names); i++)
		if (strcmp(name, backoff_names[i]) == 0)
		{
			*backoff = (RatchetBackoff) i;
			return true;
		}
	return false;
}

/* Delay after failure number n (from 1): base, base*n or base*2^(n-1). */
int64
ratchet_backoff_delay_us(RatchetBackoff backoff, int64 base_us, int64 max_us, bool jitter, int failures)
{
	double		delay = (double) base_us;
	double		cap = (double) Min(Max(max_us, 0), RATCHET_INTERVAL_MAX_US);
	int			n = Max(failures, 1);

	switch (backoff)
	{
		case RATCHET_BACKOFF_NONE:
			return 0;
		case RATCHET_BACKOFF_FIXED:
			break;
		case RATCHET_BACKOFF_LINEAR:
			delay *= n;
			break;
		case RATCHET_BACKOFF_EXPONENTIAL:
			delay = ldexp(delay, Min(n - 1, 1000));
			break;
	}
	delay = Min(delay, cap);
	if (jitter)
		delay *= 0.5 + pg_prng_double(&pg_global_prng_state);
	return (int64) Min(delay, cap);
}

/* The delay for this job: its own settings, then its queue's. */
int64
ratchet_row_backoff_us(const RatchetRow *row, const RatchetQueue *queue, int failures)
{
	RatchetBackoff backoff = queue->backoff;

	if (!row->isnull[RC_BACKOFF])
		(void) ratchet_backoff_parse(text_to_cstring(RC_TEXT(row, RC_BACKOFF)), &backoff);
	return ratchet_backoff_delay_us(backoff,
									ratchet_row_interval_us(row, RC_BACKOFF_BASE, queue->backoff_base_us),
									ratchet_row_interval_us(row, RC_BACKOFF_MAX, queue->backoff_max_us),
									row->isnull[RC_JITTER] ? queue->jitter : DatumGetBool(row->value[RC_JITTER]),
									failures);
}
