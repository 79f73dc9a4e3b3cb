/* What the tests use of HIP, written down for them: there are no headers of HIP where they are built. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct stream *hipStream_t;
typedef struct event *hipEvent_t;
typedef struct module *hipModule_t;
typedef struct function *hipFunction_t;
typedef struct graph *hipGraph_t;
typedef struct exec *hipGraphExec_t;
typedef struct { unsigned x, y, z; } dim3;

enum { hostToHost, hostToDevice, deviceToHost, deviceToDevice, byAddress };

int hipInit(unsigned);
int hipGetDeviceCount(int *);
int hipSetDevice(int);
int hipGetDevice(int *);
int hipGetDevicePropertiesR0600(void *, int);
int hipDeviceGetName(char *, int, int);
int hipDeviceGetAttribute(int *, int, int);
int hipDeviceSynchronize(void);
int hipDeviceReset(void);
int hipGetLastError(void);
int hipPeekAtLastError(void);
const char *hipGetErrorName(int);
const char *hipGetErrorString(int);
int hipMalloc(void **, size_t);
int hipMallocPitch(void **, size_t *, size_t, size_t);
int hipFree(void *);
int hipHostMalloc(void **, size_t, unsigned);
int hipHostFree(void *);
int hipMemcpy(void *, const void *, size_t, int);
int hipMemcpyAsync(void *, const void *, size_t, int, hipStream_t);
int hipMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int hipMemset(void *, int, size_t);
int hipMemsetAsync(void *, int, size_t, hipStream_t);
int hipMemset2D(void *, size_t, int, size_t, size_t);
int hipMemGetInfo(size_t *, size_t *);
int hipPointerGetAttributes(void *, const void *);
int hipStreamCreate(hipStream_t *);
int hipStreamDestroy(hipStream_t);
int hipStreamSynchronize(hipStream_t);
int hipStreamQuery(hipStream_t);
int hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned);
int hipStreamBeginCapture(hipStream_t, int);
int hipStreamEndCapture(hipStream_t, hipGraph_t *);
int hipStreamIsCapturing(hipStream_t, int *);
int hipEventCreate(hipEvent_t *);
int hipEventDestroy(hipEvent_t);
int hipEventRecord(hipEvent_t, hipStream_t);
int hipEventSynchronize(hipEvent_t);
int hipEventQuery(hipEvent_t);
int hipEventElapsedTime(float *, hipEvent_t, hipEvent_t);
int hipModuleLoad(hipModule_t *, const char *);
int hipModuleLoadData(hipModule_t *, const void *);
int hipModuleUnload(hipModule_t);
int hipModuleGetFunction(hipFunction_t *, hipModule_t, const char *);
int hipModuleLaunchKernel(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          hipStream_t, void **, void **);
int hipGraphInstantiate(hipGraphExec_t *, hipGraph_t, void *, char *, size_t);
int hipGraphLaunch(hipGraphExec_t, hipStream_t);
int hipGraphDestroy(hipGraph_t);
int hipGraphExecDestroy(hipGraphExec_t);
void **__hipRegisterFatBinary(const void *);
void __hipRegisterFunction(void **, const void *, char *, const char *, unsigned, void *, void *, void *, void *, int *);
void __hipUnregisterFatBinary(void **);
int __hipPushCallConfiguration(dim3, dim3, size_t, hipStream_t);
int __hipPopCallConfiguration(dim3 *, dim3 *, size_t *, hipStream_t *);
int hipLaunchKernel(const void *, dim3, dim3, void **, size_t, hipStream_t);

/* Ends the program unless a call returns what it has to. */
#define IS(call, expected) do { \
    int got_ = (call); \
    if (got_ != (expected)) { \
        fprintf(stderr, "%s:%d: %s is %d (%s), not %d\n", __FILE__, __LINE__, #call, got_, hipGetErrorName(got_), (expected)); \
        exit(1); \
    } \
} while (0)
#define OK(call) IS(call, 0)
#define CHECK(condition) do { \
    if (!(condition)) { \
        fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
        exit(1); \
    } \
} while (0)
