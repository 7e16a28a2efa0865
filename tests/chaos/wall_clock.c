// Preloaded into a program: its wall clock is off by the seconds in the file that WALL_CLOCK_OFFSET
// names, 8 bytes that may change at any moment. Monotonic clocks are the machine's, and waits until
// a moment of the wall clock end when it would be there by the offset at their beginning.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t none = 0;
static volatile int64_t* offset = &none;

typedef int (*TimedWait)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*);
static TimedWait timed_wait;

__attribute__((constructor)) static void begin(void) {
  const char* path = getenv("WALL_CLOCK_OFFSET");
  const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) abort();
  void* mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped == MAP_FAILED) abort();
  offset = mapped;
  timed_wait = (TimedWait)dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (timed_wait == NULL) abort();
}

int clock_gettime(clockid_t clock, struct timespec* at) {
  const long result = syscall(SYS_clock_gettime, clock, at);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    at->tv_sec += *offset;
  return (int)result;
}

int gettimeofday(struct timeval* restrict at, void* restrict zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at != NULL) *at = now.tv_sec;
  return now.tv_sec;
}

// The moment is one of the wall clock, or of the monotonic one, which counts from the last boot.
int pthread_cond_timedwait(pthread_cond_t* restrict condition, pthread_mutex_t* restrict mutex,
                           const struct timespec* restrict until) {
  struct timespec monotonic;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &monotonic);
  struct timespec moment = *until;
  const int64_t decade = 10L * 365 * 86400;
  if (moment.tv_sec > monotonic.tv_sec + decade) moment.tv_sec -= *offset;
  return timed_wait(condition, mutex, &moment);
}
