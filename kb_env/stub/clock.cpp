// The process's clocks and ids, shifted by an amount that differs between the two recordings, so
// that a plan that depends on them differs as well and is refused.
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

extern "C" {
extern uint64_t kb_shift;

int clock_gettime(clockid_t clock, timespec* out) {
    long result = syscall(SYS_clock_gettime, clock, out);
    if (result == 0) {
        out->tv_sec += time_t(kb_shift * 100000007);
        out->tv_nsec = long((uint64_t(out->tv_nsec) + kb_shift * 123456789) % 1000000000);
    }
    return int(result);
}
time_t time(time_t* out) {
    timespec now = {};
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(timeval* out, void*) __THROW {
    timespec now = {};
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
clock_t clock() __THROW {
    timespec now = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return clock_t(now.tv_sec) * CLOCKS_PER_SEC + now.tv_nsec / 1000;
}
pid_t getpid() __THROW { return pid_t(syscall(SYS_getpid)) + pid_t(kb_shift * 1000003); }
}
