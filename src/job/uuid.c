/*-------------------------------------------------------------------------
 *
 * uuid.c
 *	  Job ids (UUIDv7, RFC 9562) and claim tokens (random).
 *
 * An id is 48 bits of Unix milliseconds, 12 bits of their fraction in steps of
 * 1/4096 ms, and 62 random bits. Time and fraction together make a counter of
 * 60 bits that this backend only ever raises: when the clock stands still, goes
 * back, or is too coarse, the next id takes the next step. So ids of one backend
 * are strictly monotonic, and ids of different backends differ by their random
 * bits.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bswap.h"

#include "ratchet.h"

#define STEPS_PER_MS	4096
#define EPOCH_DIFF_US	((POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY)
#define TIME_OF_TICK(tick)	((tick) >> 12)	/* Unix ms */

static uint64 last_tick = 0;	/* of this backend */

static void random_bytes(void *buf, size_t len);

void
ratchet_uuid7_next(pg_uuid_t *uuid)
{
	int64		unix_us = ratchet_now() + EPOCH_DIFF_US;
	uint64		tick = (uint64) (unix_us / 1000) * STEPS_PER_MS +
		(uint64) (unix_us % 1000) * STEPS_PER_MS / 1000;
	uint64		high;

	if (tick <= last_tick)
		tick = last_tick + 1;
	last_tick = tick;

	random_bytes(&uuid->data[8], 8);
	high = pg_hton64((TIME_OF_TICK(tick) << 16) | (UINT64CONST(7) << 12) | (tick & 0xFFF));
	memcpy(&uuid->data[0], &high, 8);
	uuid->data[8] = (uuid->data[8] & 0x3F) | 0x80;
}

/* The time in a UUIDv7; false if it is not one. */
bool
ratchet_uuid7_time(const pg_uuid_t *uuid, TimestampTz *at)
{
	uint64		high;

	if ((uuid->data[6] >> 4) != 7 || (uuid->data[8] & 0xC0) != 0x80)
		return false;
	memcpy(&high, &uuid->data[0], 8);
	*at = (int64) (pg_ntoh64(high) >> 16) * 1000 - EPOCH_DIFF_US;
	return true;
}

/* A random (version 4) uuid: the fence of one claim call. */
void
ratchet_token_make(pg_uuid_t *token)
{
	random_bytes(token->data, UUID_LEN);
	token->data[6] = (token->data[6] & 0x0F) | 0x40;
	token->data[8] = (token->data[8] & 0x3F) | 0x80;
}

static void
random_bytes(void *buf, size_t len)
{
	if (!pg_strong_random(buf, len))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
}
