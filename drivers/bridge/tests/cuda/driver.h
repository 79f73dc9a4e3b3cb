/* NVIDIA's driver as programs here have it: looked up at run time, with no header of anybody. */
#pragma once
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Name, field and arguments of each function; all return 0 or an error. */
#define FUNCTIONS(has) \
    has("cuInit", init, (unsigned flags)) \
    has("cuDeviceGet", device, (int *device, int ordinal)) \
    has("cuDeviceGetName", name, (char *name, int len, int device)) \
    has("cuDeviceGetPCIBusId", address, (char *address, int len, int device)) \
    has("cuDevicePrimaryCtxRetain", retain, (void **context, int device)) \
    has("cuDevicePrimaryCtxRelease_v2", release, (int device)) \
    has("cuCtxSetCurrent", set_current, (void *context)) \
    has("cuMemHostAlloc", host_alloc, (void **host, size_t size, unsigned flags)) \
    has("cuMemFreeHost", host_free, (void *host)) \
    has("cuMemHostGetDevicePointer_v2", device_pointer, (uint64_t *device, void *host, unsigned flags)) \
    has("cuMemAlloc_v2", alloc, (uint64_t *device, size_t size)) \
    has("cuMemcpyHtoDAsync_v2", copy_in, (uint64_t device, const void *host, size_t size, void *stream)) \
    has("cuMemcpyDtoHAsync_v2", copy_out, (void *host, uint64_t device, size_t size, void *stream)) \
    has("cuLinkCreate_v2", link, (unsigned count, int *options, void **values, void **linker)) \
    has("cuLinkAddData_v2", add, \
        (void *linker, int kind, void *data, size_t size, const char *name, unsigned count, int *options, void **values)) \
    has("cuLinkComplete", complete, (void *linker, void **cubin, size_t *size)) \
    has("cuLinkDestroy", unlink, (void *linker)) \
    has("cuModuleLoadData", load, (void **module, const void *image)) \
    has("cuModuleUnload", unload, (void *module)) \
    has("cuModuleGetFunction", function, (void **function, void *module, const char *name)) \
    has("cuStreamCreate", stream, (void **stream, unsigned flags)) \
    has("cuStreamQuery", query, (void *stream)) \
    has("cuStreamSynchronize", synchronize, (void *stream)) \
    has("cuStreamBeginCapture_v2", capture, (void *stream, int mode)) \
    has("cuStreamEndCapture", captured, (void *stream, void **graph)) \
    has("cuGraphInstantiateWithFlags", instantiate, (void **ready, void *graph, unsigned long long flags)) \
    has("cuGraphLaunch", launch_graph, (void *ready, void *stream)) \
    has("cuLaunchKernel", launch, \
        (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
         void *stream, void **params, void **extra))

#define FIELD(name, field, arguments) int(*field) arguments;
static struct { FUNCTIONS(FIELD) } cuda;

enum { CUDA_NOT_READY = 600, CUDA_PTX = 1, CUDA_PORTABLE_MAPPED = 3, CUDA_NON_BLOCKING = 1 };

#define CU(call) \
    do { \
        int is = (call); \
        if (is) fprintf(stderr, "line %d: %s is %d\n", __LINE__, #call, is), exit(1); \
    } while (0)

/* Loads the driver, and makes the primary context of the first device the thread's. */
static void cuda_open(void) {
    /* A driver that loads lazily would wait for the kernel that never ends. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    if (!library) fprintf(stderr, "%s\n", dlerror()), exit(1);
#define FIND(name, field, arguments) \
    if (!(cuda.field = (int(*) arguments)dlsym(library, name))) fprintf(stderr, "no %s\n", name), exit(1);
    FUNCTIONS(FIND)
    int device;
    CU(cuda.init(0));
    CU(cuda.device(&device, 0));
    CU(cuda.retain(&context, device));
    CU(cuda.set_current(context));
}

/* So many zeroed bytes of the host, which the device has at the same address. */
static void *cuda_pinned(size_t size) {
    void *host;
    uint64_t device;
    CU(cuda.host_alloc(&host, size, CUDA_PORTABLE_MAPPED));
    CU(cuda.device_pointer(&device, host, 0));
    if (device != (uint64_t)host) fprintf(stderr, "no unified addressing\n"), exit(1);
    for (size_t at = 0; at < size; at++) ((char *)host)[at] = 0;
    return host;
}

/* What a file has, with a zero behind it. */
static char *text_of(const char *path) {
    FILE *file = fopen(path, "r");
    char *text = malloc(4 << 20);
    if (!file || !text) perror(path), exit(1);
    text[fread(text, 1, (4 << 20) - 1, file)] = 0;
    fclose(file);
    return text;
}
