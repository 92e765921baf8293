/*
 * clockshim.c: a wall clock that a test can move.
 *
 * Preloaded into a server it adds an offset to what the C library says about the
 * time of day. The offset is a number of microseconds (int64, native order) in
 * the file that RATCHET_CLOCK_FILE names. The file stays mapped, so a change
 * counts at once and in every process. The monotonic clocks stay as they are.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define US_PER_S	INT64_C(1000000)

typedef int (*clock_function) (clockid_t, struct timespec *);

static int64_t
offset_us(void)
{
	static const volatile int64_t *mapped = NULL;

	if (mapped == NULL)
	{
		const char *path = getenv("RATCHET_CLOCK_FILE");
		int			file = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
		void	   *memory = MAP_FAILED;

		if (file >= 0)
		{
			memory = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
			close(file);
		}
		if (memory == MAP_FAILED)
			return 0;
		mapped = memory;
	}
	return *mapped;
}

int
clock_gettime(clockid_t clock, struct timespec *now)
{
	static clock_function real = NULL;
	int64_t		us;
	int			result;

	if (real == NULL)
		real = (clock_function) dlsym(RTLD_NEXT, "clock_gettime");
	result = real(clock, now);
	if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
	{
		us = (int64_t) now->tv_sec * US_PER_S + now->tv_nsec / 1000 + offset_us();
		now->tv_sec = us / US_PER_S;
		now->tv_nsec = us % US_PER_S * 1000 + now->tv_nsec % 1000;
	}
	return result;
}

int
gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec at;

	(void) zone;
	if (clock_gettime(CLOCK_REALTIME, &at) != 0)
		return -1;
	now->tv_sec = at.tv_sec;
	now->tv_usec = at.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *now)
{
	struct timespec at = {0};

	clock_gettime(CLOCK_REALTIME, &at);
	if (now != NULL)
		*now = at.tv_sec;
	return at.tv_sec;
}
