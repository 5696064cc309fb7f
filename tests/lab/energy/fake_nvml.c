/* An NVML without a GPU: a board that rests at 100 W, takes 300 W more for each core that this process keeps busy, and whose
 * counter moves every 100 ms, as an H200's does. Called from one thread. */
#include <time.h>

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) { return *device = (void *)bus, 0; }

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    static long shown = -1;
    static unsigned long long value;
    long at = now(CLOCK_MONOTONIC) / 0.1;
    if (at != shown) {
        shown = at;
        value = 1e3 * (100 * now(CLOCK_MONOTONIC) + 300 * now(CLOCK_PROCESS_CPUTIME_ID));
    }
    *millijoules = value;
    return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) { return *reasons = 0x5, 0; }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) { return *mhz = kind == 1 ? 1980 : 3201, 0; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) { return *degrees = 41, 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { return *milliwatts = 100000, 0; }
