/* Loaded into a server by LD_PRELOAD: each fdatasync takes SLOWER_US microseconds longer, and only the thread that called it
   waits. The compiler's command line defines SLOWER_US. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int fdatasync(int file) {
  struct timespec longer = {SLOWER_US / 1000000, SLOWER_US % 1000000 * 1000L};
  int result = (int)syscall(SYS_fdatasync, file);
  int error = errno;
  nanosleep(&longer, NULL);
  errno = error;
  return result;
}
