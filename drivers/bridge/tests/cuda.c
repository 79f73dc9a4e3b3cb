/* What the bridge calls of NVIDIA's driver, on ordinary memory. FAKE_CUDA says what goes wrong; the end tells on standard
 * error whether everything was given back. Without -DWHOLE it lacks a function. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int context, allocated, freed, retained, released, depth;

static int fails(const char *how) {
    const char *fake = getenv("FAKE_CUDA");
    return fake && strcmp(fake, how) == 0;
}

int cuInit(unsigned flags) { return fails("no device") ? 100 : flags; }
int cuCtxGetCurrent(void **current) { return *current = depth || fails("current") ? &context : NULL, 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDevicePrimaryCtxRetain(void **out, int device) { return retained++, *out = &context, device; }
int cuDevicePrimaryCtxRelease_v2(int device) { return released++, device; }
int cuCtxPushCurrent_v2(void *pushed) { return depth++, pushed == &context ? 0 : 201; }
int cuCtxPopCurrent_v2(void **popped) { return *popped = &context, depth-- > 0 ? 0 : 201; }
int cuMemHostAlloc(void **out, size_t size, unsigned flags) {
    if (fails("out of memory") || depth != 1 || flags != 3) return 2;
    *out = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    memset(*out, 0xEE, size);
    return allocated++, 0;
}
int cuMemHostGetDevicePointer_v2(uint64_t *device, void *host, unsigned flags) {
    return *device = (uint64_t)host + (fails("elsewhere") ? 4096 : 0), flags;
}
#ifdef WHOLE
int cuMemFreeHost(void *host) { return free(host), freed++, depth == 1 ? 0 : 201; }
#endif

__attribute__((destructor)) static void end(void) {
    fprintf(stderr, "allocated %d freed %d retained %d released %d\n", allocated, freed, retained, released);
}
